//! `msdeform` without a command: what can this machine do, and is it right?

use std::sync::{Mutex, PoisonError};

use clap::Args;
use msdeform::{ATTENTION, DType, Direction, VariantSpec};
use msdeform_lab::device::Bandwidth;
use msdeform_lab::digits::{three_digits, time};
use msdeform_lab::verify::{Limits, Report, Verification, compile_later};
use msdeform_lab::workload::{Sizes, Tag, by_tag};
use msdeform_lab::{
    Breadth, Budget, Device, DeviceId, Measurement, Planned, Progress, Record, STANDARD_SEED,
    Selection, Stage, Workload, WorkloadCase, bench_cases, record,
};
use msdeform_report::overview::{Row, overview};
use serde::Serialize;

use crate::args::{DeviceArgs, ProbeArgs, RecordArgs, heading, named};
use crate::commands::verify::{fail_unless_passed, failures, skip_reasons, verify_selection};
use crate::output::{Table, aligned, cells, error_figure, grouped, or_dash, print, progress, show};

#[derive(Debug, Args)]
pub struct MainArgs {
    #[command(flatten)]
    device: DeviceArgs,
    /// Only these workloads [default: times the standard ones, verifies the edge ones]
    #[arg(long, value_name = "NAME|FILE", value_delimiter = ',')]
    workload: Vec<String>,
    /// Seconds of samples for each time in the table
    #[arg(long, value_name = "SECONDS", default_value_t = 0.25)]
    seconds: f64,
    #[command(flatten)]
    probe: ProbeArgs,
    #[command(flatten)]
    record: RecordArgs,
    /// Print the record, with every raw sample, as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Document<'a> {
    record_folder: Option<String>,
    #[serde(flatten)]
    record: &'a Record,
}

/// Times and prints the table, verifies everything else, writes the record if one is wanted.
pub fn run(args: &MainArgs) -> anyhow::Result<()> {
    let mut job =
        Job { timed: named(&args.workload)?, verified: Vec::new(), seconds: args.seconds };
    if job.timed.is_empty() {
        job.timed = by_tag(Tag::Standard).cloned().collect();
        job.verified = by_tag(Tag::Edge).cloned().collect();
    }
    let device = args.device.open()?;
    let bandwidth = args.probe.probe(device.as_ref())?;
    let say = |text: &str| if args.json { Ok(()) } else { print(text) };
    say(&heading(device.as_ref(), bandwidth.as_ref()))?;
    let record = job.run(device.as_ref(), bandwidth, &say)?;
    let root = args.record.folder();
    let folder = root.map(|root| msdeform_report::write(&record, &root)).transpose()?;
    let document = Document { record_folder: folder.map(|path| shown(&path)), record: &record };
    show(args.json, &document, || match &document.record_folder {
        Some(folder) => format!("Record: {folder}"),
        None => "Not recorded; --record keeps the results.".to_owned(),
    })?;
    fail_unless_passed(&record.verification)
}

fn shown(path: &std::path::Path) -> String {
    let current = std::env::current_dir().unwrap_or_default();
    path.strip_prefix(&current).unwrap_or(path).display().to_string()
}

/// What is done on a device.
struct Job {
    /// What is in the table.
    timed: Vec<Workload>,
    /// Workloads that are only verified.
    verified: Vec<Workload>,
    /// For each time.
    seconds: f64,
}

impl Job {
    /// The table comes first, as soon as it can: on a GPU whose cache is empty compiling takes longest, and what the table needs is
    /// a small part of what is verified after it.
    fn run(
        &self,
        device: &dyn Device,
        bandwidth: Option<Bandwidth>,
        say: &dyn Fn(&str) -> anyhow::Result<()>,
    ) -> anyhow::Result<Record> {
        let (measurements, mut report) = self.time_chosen(device)?;
        let times = Record::new(device, bandwidth, measurements, Report::default());
        say(&table(&times))?;
        let everything_else = selection(&self.verified, Breadth::All);
        report.extend(verify_selection(device, &everything_else, Limits::default())?);
        let record = Record { verification: report, ..times };
        failures(&record.verification).iter().try_for_each(|line| say(line))?;
        say(&verdict(&record.verification))?;
        Ok(record)
    }

    /// The CPU has little to do while calls are timed.
    fn compile_everything_else(&self, device: &dyn Device) {
        let selection = selection(&self.verified, Breadth::All);
        if let Ok(variants) = selection.variants_of(device) {
            // An invalid workload is reported when it is verified.
            drop(compile_later(device, &selection.cases(), &variants, Limits::default()));
        }
    }

    /// The variants a user gets, in every format, and in `f32` the baseline too.
    fn time_chosen(&self, device: &dyn Device) -> anyhow::Result<(Vec<Measurement>, Report)> {
        let budget = Budget { seconds: self.seconds, min_samples: 3, max_samples: 500 };
        let timed = selection(&self.timed, Breadth::First);
        let mut planned = Vec::new();
        for mut case in timed.cases() {
            case.sizes.batch = (device.id() == DeviceId::Cpu).then(|| case.workload.cpu_batch());
            let variants = chosen_variants(device, &case)?;
            planned.push(Planned { case, variants });
        }
        let bar = Mutex::new(progress(0, ""));
        bench_cases(device, &planned, budget, Some(Limits::default()), &|step| {
            let mut bar = bar.lock().unwrap_or_else(PoisonError::into_inner);
            match step {
                Progress::Begin(stage, steps) => {
                    if stage == Stage::Timing {
                        self.compile_everything_else(device);
                    }
                    *bar = progress(steps, word(stage));
                }
                Progress::Done(case) => {
                    bar.set_message(format!("{} {}", case.workload.name, case.dtype));
                    bar.inc(1);
                }
            }
        })
        .map_err(anyhow::Error::from)
    }
}

/// Every variant on these workloads, in every format.
fn selection(workloads: &[Workload], breadth: Breadth) -> Selection {
    Selection {
        workloads: workloads.to_vec(),
        locations: Vec::new(),
        layouts: Vec::new(),
        breadth,
        dtypes: DType::FAST.to_vec(),
        directions: Direction::ALL.to_vec(),
        variants: Vec::new(),
        rungs: false,
        operator: &ATTENTION,
        sizes: Sizes::default(),
        seed: STANDARD_SEED,
    }
}

const fn word(stage: Stage) -> &'static str {
    match stage {
        Stage::Compiling => "compiling",
        Stage::Verifying => "verifying",
        Stage::Timing => "timing",
    }
}

fn chosen_variants(
    device: &dyn Device,
    case: &WorkloadCase<'_>,
) -> anyhow::Result<Vec<&'static VariantSpec>> {
    let problem = case.problem()?;
    let mut variants: Vec<&'static VariantSpec> = Vec::new();
    let registered = device.variants();
    let has = |direction: &Direction| registered.iter().any(|spec| spec.direction == *direction);
    for direction in Direction::ALL.into_iter().filter(has) {
        let best = device.dispatch(&problem, direction)?;
        variants.push(best);
        let baseline = device.baseline(direction).filter(|_| case.dtype == DType::F32);
        variants.extend(baseline.filter(|baseline| baseline.id != best.id));
    }
    Ok(variants)
}

fn table(record: &Record) -> String {
    let headings = "workload | >N | >Lq | direction | >f32 | >f16 | >bf16 | >f32 vs baseline | >Msamp/s | >gather GB/s | >f32 rel L2";
    let rows = overview(&record::newest(std::slice::from_ref(record)));
    aligned(&Table::new(headings).with(rows.iter().map(|row| line(record, row))))
}

fn line(record: &Record, row: &Row) -> Vec<String> {
    let [f32_time, f16_time, bf16_time] = ["f32", "f16", "bf16"]
        .map(|dtype| or_dash(row.best.get(dtype), |best| time(best.median_us)));
    let f32_best = row.best.get("f32");
    let throughput = f32_best.and_then(|best| {
        let same = |m: &&Measurement| {
            m.label.workload == best.workload
                && m.label.dtype == best.dtype
                && m.label.variant == best.variant
        };
        record.measurements.iter().find(same).map(Measurement::throughput)
    });
    let speedup = or_dash(f32_best.and_then(|best| best.speedup), |ratio| format!("{ratio:.1}x"));
    let millions = or_dash(throughput, |found| three_digits(found.samples_per_s * 1e-6));
    let gathered = or_dash(throughput, |found| three_digits(found.gathered_gb_per_s));
    let error = or_dash(f32_best, |best| error_figure(best.rel_l2));
    let times = cells![row.workload, row.batch, row.queries, row.direction, f32_time, f16_time];
    [times, cells![bf16_time, speedup, millions, gathered, error]].concat()
}

fn verdict(report: &Report) -> String {
    let elements: usize = report.checked.iter().map(Verification::elements).sum();
    let failed = report.failures().count();
    let mut text = format!(
        "\nMedian times; speed-up, throughput and error are those of f32.\n\
         Verified against the f64 reference: {} checks of {} elements, {failed} failed, {} skipped.",
        report.checked.len(),
        grouped(elements),
        report.skipped.len()
    );
    for reason in skip_reasons(report) {
        text.push_str(&format!("\n  skipped {reason}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use msdeform_lab::fixtures::TestDevice;

    use super::*;

    fn job(timed: &str, verified: &str) -> Job {
        let named = |name: &str| Workload::named(name).unwrap();
        Job { timed: vec![named(timed)], verified: vec![named(verified)], seconds: 0.0 }
    }

    #[test]
    fn the_table_comes_first_and_failures_of_other_workloads_follow() {
        let said = RefCell::new(Vec::new());
        let say = |text: &str| {
            said.borrow_mut().push(text.to_owned());
            Ok(())
        };
        let record =
            job("edge_one_point", "edge_point_lists").run(&TestDevice, None, &say).unwrap();
        let said = said.into_inner();
        assert!(said[0].starts_with("workload") && said[0].contains("edge_one_point"), "{said:?}");
        assert!(!said[0].contains("edge_point_lists"), "only verified: {}", said[0]);
        let failures = &said[1..said.len() - 1];
        assert!(failures.iter().all(|line| line.starts_with("FAIL ")), "{failures:?}");
        assert!(failures.iter().any(|line| line.contains("fwd_scaled on edge_point_lists")));
        let verdict = said.last().unwrap();
        assert!(verdict.contains(&format!("{} failed", failures.len())), "{verdict}");
        // Timed variants were verified too, and have their error.
        assert!(record.measurements.iter().all(|measured| measured.rel_l2 <= 1e-5));
        let of_timed = |workload: &str| {
            record
                .verification
                .checked
                .iter()
                .filter(|check| check.label.workload == workload)
                .count()
        };
        assert!(of_timed("edge_one_point") >= 6 && of_timed("edge_point_lists") > 8);
        assert!(fail_unless_passed(&record.verification).is_err());
    }

    #[test]
    fn a_table_that_cannot_be_printed_ends_the_run() {
        let calls = RefCell::new(0);
        let say = |_: &str| {
            *calls.borrow_mut() += 1;
            Err(anyhow::anyhow!("a closed pipe"))
        };
        let ended = job("edge_one_point", "edge_point_lists").run(&TestDevice, None, &say);
        assert_eq!(
            (ended.unwrap_err().to_string().as_str(), calls.into_inner()),
            ("a closed pipe", 1)
        );
    }
}
