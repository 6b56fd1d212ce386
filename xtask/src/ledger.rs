//! `cargo xtask ledger`: what a GPU verified on the way, when there was no time for `msdeform verify --ledger`.

use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};
use clap::Args;
use msdeform_bench::record;
use msdeform_report::ledger;

use crate::tree;

/// Options of `ledger`.
#[derive(Args)]
pub struct LedgerArgs {
    /// A record of `msdeform bench`, whose comparisons enter the ledger of its device
    #[arg(long, value_name = "RECORD")]
    record: PathBuf,
    /// Take these variants from the GPU tests instead
    #[arg(long, value_name = "ID", value_delimiter = ',', requires = "tests")]
    variant: Vec<String>,
    /// What the GPU tests printed, on the same GPU and from the same commit
    #[arg(long, value_name = "FILE")]
    tests: Option<PathBuf>,
}

/// What a fingerprint is computed from.
const SOURCES: [&str; 4] = [
    "crates/msdeform-cuda/kernels",
    "crates/msdeform-cuda/src/variants",
    "crates/msdeform-cuda-lab/kernels",
    "crates/msdeform-cuda-lab/src/ladder",
];

/// Writes the entries.
pub fn run(args: &LedgerArgs) -> Result<ExitCode> {
    let found = record::load_one(&args.record)?;
    let commit = &found.provenance.commit;
    ensure!(found.commits().len() == 1, "the record is of several commits; name one of its runs");
    ensure!(!found.provenance.dirty, "the record's sources differed from its commit");
    let same = Command::new("git")
        .current_dir(tree::root())
        .args(["diff", "--quiet", commit, "--"])
        .args(SOURCES)
        .status()
        .context("git")?;
    ensure!(
        same.success(),
        "the kernels are no longer those of {commit}, which the record is about"
    );
    let path = tree::root().join("records").join(&found.device.slug).join("ledger.json");
    let mut written = 0;
    match &args.tests {
        None => written += ledger::update_from_record(&path, &found)?,
        Some(tests) => {
            let printed = std::fs::read_to_string(tests)
                .with_context(|| format!("cannot read {}", tests.display()))?;
            for variant in &args.variant {
                written += ledger::update_from_tests(&path, &found, variant, &printed)?;
            }
        }
    }
    println!("{}: {written} entries written", path.display());
    Ok(ExitCode::SUCCESS)
}
