//! `msdeform verify`

use std::collections::BTreeMap;
use std::str::FromStr;

use clap::Args;
use msdeform::{DeviceKind, VariantSpec};
use msdeform_bench::Breadth;
use msdeform_bench::models::{Specialisation, specialisations_on};
use msdeform_bench::verify::{Limits, Report, Verification, verify_cases};
use msdeform_bench::verify_compiled::{CompiledCheck, by_call, verify_compiled};
use msdeform_devices::device::{broken_guards, guard_allocations};
use msdeform_devices::{Device, oracle, workload};
use msdeform_report::ledger;
use serde::Serialize;

use crate::args::{DeviceArgs, GridArgs, LedgerArgs, ModeArgs, operator};
use crate::exit::{CheckFailed, Usage};
use crate::output::{Columns, error_figure, grouped, print, print_json, progress};

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
    #[arg(long, value_name = "K/N", default_value = "1/1")]
    part: Part,
    /// Print a JSON object: seed, passed, checked, skipped
    #[arg(long)]
    json: bool,
}

/// One of several commands that share the work: `K/N`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    number: usize,
    of: usize,
}

impl Part {
    /// Every N-th from the K-th on, so that each part has some of every variant.
    fn share<T: Clone>(self, all: &[T]) -> Vec<T> {
        all.iter().skip(self.number - 1).step_by(self.of).cloned().collect()
    }
}

impl FromStr for Part {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers = text.split_once('/').and_then(|(number, of)| {
            Some(Self { number: number.parse().ok()?, of: of.parse().ok()? })
        });
        let exists = |part: &Self| (1..=part.of).contains(&part.number);
        let why = || format!("`{text}` is not a part; give one such as `1/2`");
        numbers.filter(exists).ok_or_else(why)
    }
}

pub fn parse_seed(text: &str) -> Result<u64, String> {
    match text {
        "standard" => Ok(msdeform_devices::STANDARD_SEED),
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

/// Verifies and prints; an error if anything fails or nothing ran.
pub fn run(args: &VerifyArgs) -> anyhow::Result<()> {
    // A kernel that writes outside of its tensors may compute them right.
    guard_allocations();
    let device = args.device.open_with(args.mode.options().with_all_gradients())?;
    let writes_ledger = args.ledger.ledger.is_some();
    if writes_ledger && args.grid.is_narrowed() {
        let why = "the ledger needs every case of a variant: leave out --workload, --layout, --locations, --batch, --queries";
        return Err(Usage(why.into()).into());
    }
    if writes_ledger && device.id().kind() != DeviceKind::Cuda {
        return Err(Usage("--ledger needs a GPU; give --device cuda:N".into()).into());
    }
    if args.part.of > 1 && !(args.models || writes_ledger) {
        let why = "--part divides what --models and --ledger compile; give one of them";
        return Err(Usage(why.into()).into());
    }
    let mut selection = args.grid.selection(workload::all().iter(), Breadth::All)?;
    selection.seed = args.seed;
    let variants = selection.variants_of(device.as_ref())?;
    let limits = if args.full { Limits::NONE } else { Limits::default() };
    let mut cases = selection.cases();
    if args.part.number > 1 {
        cases.clear();
    }
    let bar = progress(cases.len(), "verifying");
    let mut report = verify_cases(device.as_ref(), &cases, &variants, limits, |case| {
        bar.set_message(format!("{} {} {}", case.workload.name, case.dtype, case.layout));
        bar.inc(1);
    })?;
    bar.finish_and_clear();
    let reachable = if args.models || writes_ledger {
        specialisations_on(device.as_ref(), operator(args.grid.fused))
    } else {
        Vec::new()
    };
    let share = args.part.share(&by_call(reachable.clone())).concat();
    let compiled = verify_models(device.as_ref(), share, &variants, args.seed);
    let broken = broken_guards();
    if !broken.is_empty() {
        let words = broken.join("\n");
        return Err(CheckFailed(format!("memory outside of tensors was written:\n{words}")).into());
    }
    report.checked.extend(compiled.iter().map(|check| check.verification.clone()));
    let passed = report.passed() && !report.checked.is_empty();
    if let Some(folder) = args.ledger.folder() {
        let path = ledger::path(&folder, device.as_ref());
        // Only the first part notes the results on workloads: another part has fewer of them, and might hide failures.
        let of_variants = match args.part.number {
            1 => ledger::update(&path, device.as_ref(), &report)?,
            _ => 0,
        };
        let entries = of_variants
            + ledger::update_specialisations(&path, device.as_ref(), &reachable, &compiled)?;
        eprintln!("ledger: {entries} entries in {}", path.display());
    }
    if args.json {
        print_json(&Document { seed: args.seed, passed, report: &report })?;
    } else {
        let table = if args.verbose {
            every_case(&report.checked)
        } else {
            worst_by_variant(&report.checked)
        };
        print(&table.to_string())?;
        print_failures(&report)?;
        print(&conclusion(&report, args.seed))?;
        if let Some(software) = device.software() {
            print(&format!("{} with {software}", device.name()))?;
        }
    }
    fail_unless_passed(&report)
}

fn verify_models(
    device: &dyn Device,
    wanted: Vec<Specialisation>,
    variants: &[&'static VariantSpec],
    seed: u64,
) -> Vec<CompiledCheck> {
    let ids: Vec<&str> = variants.iter().map(|spec| spec.id).collect();
    let bar = progress(0, "compiling");
    let begin = |count: usize| {
        bar.set_length(count as u64);
        if count > 0 {
            eprintln!("models: {count} specialisations to compile and run");
        }
    };
    let checks = verify_compiled(device, wanted, &ids, seed, begin, |done| {
        bar.set_message(format!("{} {}", done.variant.spec().id, done.problem));
        bar.inc(1);
    });
    bar.finish_and_clear();
    checks
}

/// The error that makes the exit code 1, if there is reason for it.
pub fn fail_unless_passed(report: &Report) -> anyhow::Result<()> {
    let failed = report.failures().count();
    if failed > 0 {
        return Err(CheckFailed(format!("{failed} checks failed")).into());
    }
    if report.checked.is_empty() {
        let reasons = skip_reasons(report).join("; ");
        return Err(CheckFailed(format!("nothing was checked: {reasons}")).into());
    }
    Ok(())
}

const HEADINGS: &str = ">elements | >max abs | >max rel | >rel L2 | >bound | verdict";

fn verdict(pass: bool) -> String {
    if pass { "pass" } else { "FAIL" }.to_owned()
}

/// The largest, where NaN is larger than everything.
fn worst(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() { f64::NAN } else { a.max(b) }
}

struct Worst {
    cases: usize,
    elements: usize,
    max_abs: f64,
    max_rel: f64,
    rel_l2: f64,
    bound: f64,
    pass: bool,
}

/// One line per variant, format and tensor, with the worst figures of all cases.
fn worst_by_variant(checked: &[Verification]) -> Columns {
    let mut order: Vec<(String, String, String)> = Vec::new();
    let mut lines: BTreeMap<(String, String, String), Worst> = BTreeMap::new();
    for check in checked {
        for tensor in &check.tensors {
            let key =
                (check.label.variant.clone(), check.label.dtype.clone(), tensor.tensor.clone());
            let line = lines.entry(key.clone()).or_insert_with(|| {
                order.push(key);
                Worst {
                    cases: 0,
                    elements: 0,
                    max_abs: 0.0,
                    max_rel: 0.0,
                    rel_l2: 0.0,
                    bound: tensor.bound,
                    pass: true,
                }
            });
            line.cases += 1;
            line.elements += tensor.comparison.elements;
            line.max_abs = worst(line.max_abs, tensor.comparison.max_abs);
            line.max_rel = worst(line.max_rel, tensor.comparison.max_rel);
            line.rel_l2 = worst(line.rel_l2, tensor.comparison.rel_l2);
            line.pass &= tensor.pass;
        }
    }
    order.sort_by_key(|(variant, ..)| {
        checked.iter().position(|check| check.label.variant == *variant)
    });
    let mut columns = Columns::new(&format!("variant | dtype | tensor | >cases | {HEADINGS}"));
    for key in &order {
        let Some(line) = lines.get(key) else { continue };
        columns.row(&[
            key.0.clone(),
            key.1.clone(),
            key.2.clone(),
            line.cases.to_string(),
            grouped(line.elements),
            error_figure(line.max_abs),
            error_figure(line.max_rel),
            error_figure(line.rel_l2),
            error_figure(line.bound),
            verdict(line.pass),
        ]);
    }
    columns
}

fn every_case(checked: &[Verification]) -> Columns {
    let mut columns = Columns::new(&format!("case | variant | tensor | {HEADINGS}"));
    for check in checked {
        for tensor in &check.tensors {
            columns.row(&[
                case_name(check),
                check.label.variant.clone(),
                tensor.tensor.clone(),
                grouped(tensor.comparison.elements),
                error_figure(tensor.comparison.max_abs),
                error_figure(tensor.comparison.max_rel),
                error_figure(tensor.comparison.rel_l2),
                error_figure(tensor.bound),
                verdict(tensor.pass),
            ]);
        }
    }
    columns
}

fn case_name(check: &Verification) -> String {
    let label = &check.label;
    format!("{} {} {} {}", label.workload, label.locations, label.layout, label.dtype)
}

/// Every failure by name, in addition to the table.
pub fn print_failures(report: &Report) -> anyhow::Result<()> {
    failures(report).iter().try_for_each(|line| print(line))
}

/// A line for each.
pub fn failures(report: &Report) -> Vec<String> {
    let line = |check: &Verification| {
        let what = match &check.error {
            Some(error) => error.clone(),
            None => check
                .tensors
                .iter()
                .filter(|tensor| !tensor.pass)
                .map(|tensor| {
                    let (rel_l2, bound) = (tensor.comparison.rel_l2, tensor.bound);
                    format!("{}: rel L2 {}, bound {bound:.0e}", tensor.tensor, error_figure(rel_l2))
                })
                .collect::<Vec<_>>()
                .join(", "),
        };
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
pub fn conclusion(report: &Report, seed: u64) -> String {
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
        let shares = ["1/3", "2/3", "3/3"].map(|part| part.parse::<Part>().unwrap().share(&all));
        assert_eq!(shares, [vec![0, 3, 6, 9], vec![1, 4, 7], vec![2, 5, 8]]);
        assert_eq!("1/1".parse::<Part>().unwrap().share(&all), all);
        for wrong in ["0/2", "3/2", "1", "1/0", "a/b", "1/2/3", "-1/2"] {
            assert!(wrong.parse::<Part>().is_err(), "{wrong}");
        }
    }
}
