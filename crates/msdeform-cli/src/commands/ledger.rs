//! `msdeform ledger`

use std::path::PathBuf;

use anyhow::{Context, ensure};
use clap::{Args, Subcommand};
use msdeform::Operator;
use msdeform_cuda::nvrtc::Nvrtc;
use msdeform_lab::record;
use msdeform_report::ledger::{Ledger, Renewal, renew};
use serde::Serialize;

use crate::args::RecordsFolderArgs;
use crate::exit::CheckFailed;
use crate::output::{Table, aligned, cells, show};

/// Show, renew or merge what a GPU has verified
///
/// Lists every kernel that the ledger does not show as verified, and fails if there is one. `msdeform verify --ledger` and
/// `msdeform soak --ledger` verify kernels on a GPU.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct LedgerCommandArgs {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    show: ShowArgs,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Renew entries of kernels whose text changed and whose machine code did not
    ///
    /// For every kernel that changed since a GPU verified it, compiles the verified commit's text and today's text with the
    /// same NVRTC and compares the machine code. Needs a checkout with its history and NVRTC, but no GPU. Kernels whose
    /// machine code differs stay open and need `msdeform verify --ledger` on a GPU.
    Renew(ShowArgs),
    Merge(MergeArgs),
}

/// Take the entries of other ledgers
///
/// For ledgers that `verify --ledger` and `soak --ledger` wrote on another machine, or side by side. Entries replace
/// those of the same kernel, but a run of random problems does not replace a longer one. Kernels that dispatch cannot
/// choose any more are forgotten.
#[derive(Debug, Args)]
struct MergeArgs {
    /// The other ledgers
    #[arg(value_name = "FILE", required = true)]
    others: Vec<PathBuf>,
    #[command(flatten)]
    show: ShowArgs,
}

#[derive(Debug, Args)]
struct ShowArgs {
    /// The GPU, by its folder under records/
    #[arg(long, value_name = "NAME", default_value = "h200")]
    gpu: String,
    #[command(flatten)]
    folder: RecordsFolderArgs,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Document {
    ledger: String,
    renewals: Vec<Renewal>,
    unverified: Vec<String>,
}

pub fn run(args: &LedgerCommandArgs) -> anyhow::Result<()> {
    let ShowArgs { gpu, folder, json } = match &args.action {
        Some(Action::Renew(show)) => show,
        Some(Action::Merge(args)) => &args.show,
        None => &args.show,
    };
    let path = folder.folder().join(gpu).join("ledger.json");
    ensure!(path.is_file(), "there is no ledger {}; --gpu names another", path.display());
    let mut ledger = Ledger::read(&path)?;
    let mut renewals = Vec::new();
    match &args.action {
        None => {}
        Some(Action::Merge(MergeArgs { others, .. })) => {
            for other in others {
                ensure!(other.is_file(), "there is no file {}", other.display());
                ledger.merge(Ledger::read(other)?);
            }
            ledger.forget_unreachable();
            ledger.write(&path)?;
        }
        Some(Action::Renew(_)) => {
            renewals = renewed(&mut ledger)?;
            if renewals.iter().any(|renewal| renewal.renewed > 0) {
                ledger.write(&path)?;
            }
        }
    }
    let operators = Operator::ALL.into_iter();
    let unverified: Vec<String> = operators
        .flat_map(|operator| {
            let open = ledger.unverified(operator).into_iter();
            open.map(move |line| format!("{} operator: {line}", operator.name))
        })
        .collect();
    let open = unverified.len();
    let document = Document { ledger: path.display().to_string(), renewals, unverified };
    show(*json, &document, || {
        let mut lines = document.unverified.clone();
        if matches!(args.action, Some(Action::Renew(_))) {
            lines.insert(0, table(&document.renewals));
        }
        lines.push(format!("{}: {open} open", document.ledger));
        lines.join("\n")
    })?;
    ensure!(open == 0, CheckFailed(format!("{open} lines of the ledger need a run on a GPU")));
    Ok(())
}

fn renewed(ledger: &mut Ledger) -> anyhow::Result<Vec<Renewal>> {
    let current = std::env::current_dir()?;
    let checkout: PathBuf = record::find_checkout(&current)
        .context("`ledger renew` reads earlier commits; run it inside of a checkout")?;
    let nvrtc = Nvrtc::find(None)?;
    let progress = |what: &str, kernels: usize| eprintln!("comparing {kernels} kernels of {what}");
    renew(ledger, &checkout, &nvrtc, &progress)
}

fn table(renewals: &[Renewal]) -> String {
    if renewals.is_empty() {
        return "Every entry is of today's sources.".to_owned();
    }
    let headings = "operator | variant | verified at | >compared | >different | >renewed | >open";
    let rows = renewals.iter().map(|renewal| {
        let Renewal { operator, variant, compared, different, renewed, open, .. } = renewal;
        let commit = renewal.commit.as_deref().map_or("no commit found", |commit| &commit[..9]);
        cells![operator, variant, commit, compared, different, renewed, open]
    });
    aligned(&Table::new(headings).with(rows))
}
