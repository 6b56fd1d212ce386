//! `msdeform` without a command: what can this machine do, and is it right?

use clap::Args;
use msdeform::{DType, Direction, VariantSpec};
use msdeform_bench::digits::{three_digits, time};
use msdeform_bench::verify::{Limits, Report, Verification, verify_case};
use msdeform_bench::{Breadth, Budget, Measurement, Record, Selection, bench_case, record};
use msdeform_devices::workload::{Sizes, Tag, by_tag};
use msdeform_devices::{Case, Device, DeviceId, STANDARD_SEED, Workload};
use msdeform_report::overview::{Row, overview};
use serde::Serialize;

use crate::args::{DeviceArgs, ProbeArgs, RecordDirArgs, heading};
use crate::commands::verify::{fail_unless_passed, print_failures, skip_reasons};
use crate::output::{Align, Columns, error_figure, grouped, print, print_json, progress};

/// Options of the main job.
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
    record_dir: RecordDirArgs,
    /// Write no record
    #[arg(long, conflicts_with = "record_dir")]
    no_record: bool,
    /// Print the record, with every raw sample, as JSON
    #[arg(long)]
    json: bool,
}

/// The record, and where it went.
#[derive(Serialize)]
struct Document<'a> {
    record_folder: Option<String>,
    #[serde(flatten)]
    record: &'a Record,
}

/// Verifies, times, prints the table, writes the record.
pub fn run(args: &MainArgs) -> anyhow::Result<()> {
    let named =
        args.workload.iter().map(|name| Workload::named(name)).collect::<Result<Vec<_>, _>>()?;
    let (timed, verified) = if named.is_empty() {
        (by_tag(Tag::Standard).cloned().collect(), by_tag(Tag::Edge).cloned().collect())
    } else {
        (named, Vec::new())
    };
    let device = args.device.open()?;
    let bandwidth = args.probe.probe(device.as_ref())?;
    if !args.json {
        print(&heading(device.as_ref(), bandwidth.as_ref()))?;
    }
    let mut report = verify_all(device.as_ref(), verified)?;
    let (measurements, checked) = time_chosen(device.as_ref(), &timed, args.seconds)?;
    report.extend(checked);
    let record = Record::new(device.as_ref(), bandwidth, measurements, report);
    let folder = if args.no_record {
        None
    } else {
        Some(msdeform_report::write(&record, &args.record_dir.folder())?)
    };
    let folder = folder.map(|path| shown(&path));
    if args.json {
        print_json(&Document { record_folder: folder, record: &record })?;
    } else {
        print(&table(&record))?;
        print_failures(&record.verification)?;
        print(&verdict(&record.verification))?;
        print(&match folder {
            Some(folder) => format!("Record: {folder}"),
            None => "No record was written (--no-record).".to_owned(),
        })?;
    }
    fail_unless_passed(&record.verification)
}

/// Relative to the current folder where it lies below.
fn shown(path: &std::path::Path) -> String {
    let current = std::env::current_dir().unwrap_or_default();
    path.strip_prefix(&current).unwrap_or(path).display().to_string()
}

/// Every variant on every given workload, in every layout and format.
fn verify_all(device: &dyn Device, workloads: Vec<Workload>) -> anyhow::Result<Report> {
    let selection = Selection {
        workloads,
        locations: Vec::new(),
        layouts: Vec::new(),
        breadth: Breadth::All,
        dtypes: DType::FAST.to_vec(),
        directions: Direction::ALL.to_vec(),
        variants: Vec::new(),
        rungs: false,
        from_offsets: false,
        sizes: Sizes::default(),
        seed: STANDARD_SEED,
    };
    let variants = selection.variants_of(device)?;
    let cases = selection.cases();
    let bar = progress(cases.len(), "verifying");
    let mut report = Report::default();
    for case in &cases {
        bar.set_message(format!("{} {} {}", case.workload.name, case.dtype, case.layout));
        report.extend(verify_case(device, case, &variants, Limits::default())?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(report)
}

/// The variants a user gets, in every format, and in `f32` the baseline beside them.
fn time_chosen(
    device: &dyn Device,
    workloads: &[Workload],
    seconds: f64,
) -> anyhow::Result<(Vec<Measurement>, Report)> {
    let budget = Budget { seconds, min_samples: 3, max_samples: 500 };
    let bar = progress(workloads.len() * DType::FAST.len(), "timing");
    let (mut measurements, mut report) = (Vec::new(), Report::default());
    for workload in workloads {
        for dtype in DType::FAST {
            bar.set_message(format!("{} {dtype}", workload.name));
            let case = Case {
                workload,
                locations: workload.locations[0],
                layout: workload.layouts[0],
                dtype,
                from_offsets: false,
                sizes: Sizes {
                    batch: (device.id() == DeviceId::Cpu).then(|| workload.processor_batch()),
                    queries: None,
                },
                seed: STANDARD_SEED,
            };
            let variants = chosen_variants(device, &case)?;
            let limits = Some(Limits::default());
            let (timed, checked) = bench_case(device, &case, &variants, budget, limits)?;
            measurements.extend(timed);
            report.extend(checked);
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    Ok((measurements, report))
}

fn chosen_variants(
    device: &dyn Device,
    case: &Case<'_>,
) -> anyhow::Result<Vec<&'static VariantSpec>> {
    let problem = case.problem()?;
    let mut variants: Vec<&'static VariantSpec> = Vec::new();
    let registered = device.variants();
    for direction in Direction::ALL {
        if !registered.iter().any(|variant| variant.direction == direction) {
            continue;
        }
        let best = device.dispatch(&problem, direction)?;
        variants.push(best);
        let baseline = device.baseline(direction).filter(|_| case.dtype == DType::F32);
        variants.extend(baseline.filter(|baseline| baseline.id != best.id));
    }
    Ok(variants)
}

fn table(record: &Record) -> String {
    let headings = [
        ("workload", Align::Left),
        ("N", Align::Right),
        ("Lq", Align::Right),
        ("direction", Align::Left),
        ("f32", Align::Right),
        ("f16", Align::Right),
        ("bf16", Align::Right),
        ("f32 vs baseline", Align::Right),
        ("Msamp/s", Align::Right),
        ("gather GB/s", Align::Right),
        ("f32 rel L2", Align::Right),
    ];
    let mut columns = Columns::new(&headings);
    for row in overview(&record::newest(std::slice::from_ref(record))) {
        columns.row(&line(record, &row));
    }
    columns.to_string()
}

fn line(record: &Record, row: &Row) -> Vec<String> {
    let missing = || "-".to_owned();
    let cell = |dtype: &str| row.best.get(dtype).map_or_else(missing, |best| time(best.median_us));
    let f32_best = row.best.get("f32");
    let throughput = f32_best.and_then(|best| {
        let same = |m: &&Measurement| {
            m.label.workload == best.workload
                && m.label.dtype == best.dtype
                && m.label.variant == best.variant
        };
        record.measurements.iter().find(same).map(Measurement::throughput)
    });
    vec![
        row.workload.clone(),
        row.batch.to_string(),
        row.queries.to_string(),
        row.direction.clone(),
        cell("f32"),
        cell("f16"),
        cell("bf16"),
        f32_best.and_then(|best| best.speedup).map_or_else(missing, |s| format!("{s:.1}x")),
        throughput.map_or_else(missing, |t| three_digits(t.samples_per_s * 1e-6)),
        throughput.map_or_else(missing, |t| three_digits(t.gathered_gb_per_s)),
        f32_best.map_or_else(missing, |best| error_figure(best.rel_l2)),
    ]
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
