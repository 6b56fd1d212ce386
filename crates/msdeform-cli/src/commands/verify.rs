//! `msdeform verify`

use std::collections::BTreeMap;

use anyhow::ensure;
use clap::Args;
use msdeform_lab::device::{broken_guards, guard_allocations};
use msdeform_lab::models::{Specialisation, specialisations_on};
use msdeform_lab::oracle::{self, TensorCheck};
use msdeform_lab::verify::{Limits, Report, Verification, verify_cases};
use msdeform_lab::verify_compiled::{CompiledCheck, by_call, verify_compiled};
use msdeform_lab::{Breadth, Device, Selection, workload};
use msdeform_report::{ledger, table};
use serde::Serialize;

use crate::args::{DeviceArgs, GridArgs, LedgerArgs, ModeArgs};
use crate::exit::{CheckFailed, Usage};
use crate::output::{Table, aligned, cells, error_figure, grouped, progress, show};

/// Compare variants with the f64 reference
///
/// Runs every variant that fits on every workload and compares output and gradients with the f64
/// reference on the same stored inputs.
///
/// Outputs are filled with NaN before a run, and NaN fails; so does a write outside of a tensor on a GPU. Queries of large workloads are thinned
/// out evenly so that the reference stays quick; the table shows how many elements were compared.
/// "max rel" relates a difference to its element or, where larger, to the root mean square of the
/// tensor. Gradients of locations jump at cell borders and are compared away from them by 0.01
/// pixel.
#[derive(Debug, Args)]
pub struct VerifyArgs {
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    mode: ModeArgs,
    #[command(flatten)]
    grid: GridArgs,
    /// Seed of the inputs: a number, or `random` for a fresh one, which is printed
    #[arg(long, value_name = "SEED", default_value = "standard", value_parser = parse_seed)]
    seed: u64,
    /// Do not thin out queries and images: the reference may take minutes
    #[arg(long)]
    full: bool,
    /// One line per case instead of the worst of each variant and format
    #[arg(long, short)]
    verbose: bool,
    /// Also run every kernel that dispatch can choose on the GPU for the models that `msdeform.patch()` knows, each on one
    /// problem: some minutes the first time
    #[arg(long)]
    models: bool,
    #[command(flatten)]
    ledger: LedgerArgs,
    /// Only a part of what --models and --ledger compile, such as 1/2 and then 2/2, for where a command may not take long; the
    /// workloads are in the first
    #[arg(long, value_name = "K/N", default_value = "1/1", value_parser = part)]
    part: (usize, usize),
    /// Print a JSON object: seed, passed, checked, skipped
    #[arg(long)]
    json: bool,
}

/// One of several commands that share the work, from `K/N`.
fn part(text: &str) -> Result<(usize, usize), String> {
    let numbers = text.split_once('/').and_then(|(k, n)| Some((k.parse().ok()?, n.parse().ok()?)));
    let exists = |&(k, n): &(usize, usize)| (1..=n).contains(&k);
    let why = || format!("`{text}` is not a part; give one such as `1/2`");
    numbers.filter(exists).ok_or_else(why)
}

/// Every N-th from the K-th on, so that each part has some of every variant.
fn share<T: Clone>((k, n): (usize, usize), all: &[T]) -> Vec<T> {
    all.iter().skip(k - 1).step_by(n).cloned().collect()
}

pub fn parse_seed(text: &str) -> Result<u64, String> {
    match text {
        "standard" => Ok(msdeform_lab::STANDARD_SEED),
        "random" => {
            use std::hash::{BuildHasher, RandomState};
            Ok(RandomState::new().hash_one(std::process::id()))
        }
        _ => text.parse().map_err(|_| {
            format!("`{text}` is not a seed; give a whole number, `random` or `standard`")
        }),
    }
}

#[derive(Serialize)]
struct Document<'a> {
    seed: u64,
    passed: bool,
    #[serde(flatten)]
    report: &'a Report,
}

pub fn run(args: &VerifyArgs) -> anyhow::Result<()> {
    // A kernel that writes outside of its tensors may compute them right.
    guard_allocations();
    let device = args.device.open_with(args.mode.options().with_all_gradients())?;
    let device = device.as_ref();
    let writes_ledger = args.ledger.is_wanted();
    ensure!(
        !(writes_ledger && args.grid.is_narrowed()),
        Usage("the ledger needs every case of a variant: leave out --workload, --layout, --locations, --batch, --queries".into())
    );
    let ledger = args.ledger.path(device)?;
    ensure!(
        args.part.1 == 1 || args.models || writes_ledger,
        Usage("--part divides what --models and --ledger compile; give one of them".into())
    );
    let mut selection = args.grid.selection(workload::all().iter(), Breadth::All)?;
    selection.seed = args.seed;
    if args.part.0 > 1 {
        selection.workloads.clear();
    }
    let limits = if args.full { Limits::NONE } else { Limits::default() };
    let mut report = verify_selection(device, &selection, limits)?;
    let reachable = match args.models || writes_ledger {
        true => specialisations_on(device, selection.operator),
        false => Vec::new(),
    };
    let share = share(args.part, &by_call(reachable.clone())).concat();
    let compiled = verify_models(device, share, &selection)?;
    let broken = broken_guards();
    ensure!(
        broken.is_empty(),
        CheckFailed(format!("memory outside of tensors was written:\n{}", broken.join("\n")))
    );
    report.checked.extend(compiled.iter().map(|check| check.verification.clone()));
    if let Some(path) = ledger {
        // Only the first part notes the results on workloads: another part has fewer of them, and might hide failures.
        let of_variants = match args.part.0 {
            1 => ledger::update(&path, device, &report)?,
            _ => 0,
        };
        let entries =
            of_variants + ledger::update_specialisations(&path, device, &reachable, &compiled)?;
        eprintln!("ledger: {entries} entries in {}", path.display());
    }
    let passed = report.passed() && !report.checked.is_empty();
    let document = Document { seed: args.seed, passed, report: &report };
    show(args.json, &document, || text(args, device, &report))?;
    fail_unless_passed(&report)
}

fn text(args: &VerifyArgs, device: &dyn Device, report: &Report) -> String {
    let table = if args.verbose { every_case } else { worst_by_variant };
    let mut lines = vec![aligned(&table(&report.checked))];
    lines.extend(failures(report));
    lines.push(conclusion(report, args.seed));
    lines.extend(device.software().map(|software| format!("{} with {software}", device.name())));
    lines.join("\n")
}

/// Every case of a selection, with a bar.
pub fn verify_selection(
    device: &dyn Device,
    selection: &Selection,
    limits: Limits,
) -> anyhow::Result<Report> {
    let (variants, cases) = (selection.variants_of(device)?, selection.cases());
    let bar = progress(cases.len(), "verifying");
    let report = verify_cases(device, &cases, &variants, limits, |case| {
        bar.set_message(format!("{} {} {}", case.workload.name, case.dtype, case.layout));
        bar.inc(1);
    })?;
    Ok(report)
}

fn verify_models(
    device: &dyn Device,
    wanted: Vec<Specialisation>,
    selection: &Selection,
) -> anyhow::Result<Vec<CompiledCheck>> {
    let variants = selection.variants_of(device)?;
    let ids: Vec<&str> = variants.iter().map(|spec| spec.id).collect();
    let bar = progress(0, "compiling");
    let begin = |count: usize| {
        bar.set_length(count as u64);
        if count > 0 {
            eprintln!("models: {count} specialisations to compile and run");
        }
    };
    Ok(verify_compiled(device, wanted, &ids, selection.seed, begin, |done| {
        bar.set_message(format!("{} {}", done.variant.spec.id, done.problem));
        bar.inc(1);
    }))
}

/// The error that makes the exit code 1, if there is reason for it.
pub fn fail_unless_passed(report: &Report) -> anyhow::Result<()> {
    let failed = report.failures().count();
    ensure!(failed == 0, CheckFailed(format!("{failed} checks failed")));
    let nothing = || format!("nothing was checked: {}", skip_reasons(report).join("; "));
    ensure!(!report.checked.is_empty(), CheckFailed(nothing()));
    Ok(())
}

const HEADINGS: &str = ">elements | >max abs | >max rel | >rel L2 | >bound | verdict";

fn figures(TensorCheck { comparison, bound, pass, .. }: &TensorCheck) -> Vec<String> {
    let errors = [comparison.max_abs, comparison.max_rel, comparison.rel_l2, *bound];
    let errors = errors.map(error_figure).to_vec();
    let verdict = if *pass { "pass" } else { "FAIL" };
    [cells![grouped(comparison.elements)], errors, cells![verdict]].concat()
}

/// One line per variant, format and tensor, with the worst figures of all cases.
fn worst_by_variant(checked: &[Verification]) -> Table {
    let tensors = checked.iter().flat_map(|Verification { label, tensors, .. }| {
        let key = move |of: &TensorCheck| (&label.variant, &label.dtype, of.tensor.clone());
        tensors.iter().map(move |tensor| (key(tensor), tensor))
    });
    let mut lines = table::grouped(tensors);
    let first = |id: &str| checked.iter().position(|check| check.label.variant == id);
    lines.sort_by_key(|((variant, ..), _)| first(variant));
    let rows = lines.iter().map(|((variant, dtype, tensor), cases)| {
        [cells![variant, dtype, tensor, cases.len()], figures(&worst(cases))].concat()
    });
    Table::new(&format!("variant | dtype | tensor | >cases | {HEADINGS}")).with(rows)
}

/// The worst of each figure, and all elements.
fn worst(cases: &[&TensorCheck]) -> TensorCheck {
    let mut worst = cases[0].clone();
    for TensorCheck { comparison: found, pass, .. } in &cases[1..] {
        worst.pass &= pass;
        let worst = &mut worst.comparison;
        worst.elements += found.elements;
        for (worst, found) in [
            (&mut worst.max_abs, found.max_abs),
            (&mut worst.max_rel, found.max_rel),
            (&mut worst.rel_l2, found.rel_l2),
        ] {
            // NaN is worse than everything.
            *worst = if found.is_nan() || found > *worst { found } else { *worst };
        }
    }
    worst
}

fn every_case(checked: &[Verification]) -> Table {
    let lines = checked.iter().flat_map(|check| check.tensors.iter().map(move |of| (check, of)));
    let rows = lines.map(|(check, tensor)| {
        [cells![case_name(check), check.label.variant, tensor.tensor], figures(tensor)].concat()
    });
    Table::new(&format!("case | variant | tensor | {HEADINGS}")).with(rows)
}

fn case_name(check: &Verification) -> String {
    let label = &check.label;
    format!("{} {} {} {}", label.workload, label.locations, label.layout, label.dtype)
}

/// A line for each failure.
pub fn failures(report: &Report) -> Vec<String> {
    let of_tensor = |TensorCheck { tensor, comparison, bound, .. }: &TensorCheck| {
        format!("{tensor}: rel L2 {}, bound {bound:.0e}", error_figure(comparison.rel_l2))
    };
    let line = |check: &Verification| {
        let failed = check.tensors.iter().filter(|tensor| !tensor.pass).map(of_tensor);
        let what = check.error.clone().unwrap_or_else(|| failed.collect::<Vec<_>>().join(", "));
        let (batch, queries) = (check.label.batch, check.label.queries);
        let (case, variant) = (case_name(check), &check.label.variant);
        format!("FAIL {variant} on {case} (N={batch} Lq={queries}): {what}")
    };
    report.failures().map(line).collect()
}

/// What was skipped and why, once per variant and reason.
pub fn skip_reasons(report: &Report) -> Vec<String> {
    let mut counts: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for skip in &report.skipped {
        *counts.entry((&skip.label.variant, &skip.reason)).or_default() += 1;
    }
    counts
        .into_iter()
        .map(|((variant, reason), count)| format!("{variant}: {reason} ({count} cases)"))
        .collect()
}

/// What was checked, what was not and why, in a few lines.
fn conclusion(report: &Report, seed: u64) -> String {
    let elements: usize = report.checked.iter().map(Verification::elements).sum();
    let left_out: usize = report
        .checked
        .iter()
        .flat_map(|check| &check.tensors)
        .map(|tensor| tensor.comparison.left_out)
        .sum();
    let failed = report.failures().count();
    let mut text = format!(
        "\n{} checks, {failed} failed, {} elements compared (seed {seed})",
        report.checked.len(),
        grouped(elements)
    );
    if left_out > 0 {
        text.push_str(&format!(
            "\n{} location gradients within {} pixel of a cell border left out",
            grouped(left_out),
            oracle::BORDER_DISTANCE
        ));
    }
    if !report.skipped.is_empty() {
        text.push_str(&format!("\n{} skipped:", report.skipped.len()));
        for reason in skip_reasons(report) {
            text.push_str(&format!("\n  {reason}"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_share_everything_and_nothing_twice() {
        let all: Vec<usize> = (0..10).collect();
        let shares = ["1/3", "2/3", "3/3"].map(|text| share(part(text).unwrap(), &all));
        assert_eq!(shares, [vec![0, 3, 6, 9], vec![1, 4, 7], vec![2, 5, 8]]);
        assert_eq!(share(part("1/1").unwrap(), &all), all);
        for wrong in ["0/2", "3/2", "1", "1/0", "a/b", "1/2/3", "-1/2"] {
            assert!(part(wrong).is_err(), "{wrong}");
        }
    }
}
