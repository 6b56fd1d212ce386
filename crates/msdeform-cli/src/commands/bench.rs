//! `msdeform bench`

use anyhow::ensure;
use clap::Args;
use msdeform::VariantSpec;
use msdeform_lab::counters::CounterFile;
use msdeform_lab::device::named::names_of_sweep;
use msdeform_lab::device::{DeviceOptions, Timing};
use msdeform_lab::digits::{three_digits, time};
use msdeform_lab::verify::{Limits, Report};
use msdeform_lab::work::{BYTES_FORMULA, OPERATIONS_FORMULA};
use msdeform_lab::{
    Breadth, Budget, Device, Measurement, Planned, Record, WorkloadCase, bench_cases, bench_step,
    record,
};
use msdeform_report::{RecordFolder, ladder};

use crate::args::{
    DeviceArgs, GridArgs, ModeArgs, ProbeArgs, RecordArgs, ensure_duration, heading,
    standard_workloads, threads_of,
};
use crate::commands::verify::{failures, skip_reasons};
use crate::exit::{CheckFailed, Usage};
use crate::output::{Table, aligned, cells, error_figure, or_dash, print, print_json, progress};

/// Time variants on workloads
///
/// Each is checked against the f64 reference first. Times are medians with the median absolute deviation (MAD). Without --workload the
/// standard ones are timed, in their usual layout and with their most telling locations.
#[derive(Debug, Args)]
#[command(after_help = after_help())]
pub struct BenchArgs {
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    mode: ModeArgs,
    #[command(flatten)]
    grid: GridArgs,
    /// Seconds of samples for each variant, after the warm-up
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    seconds: f64,
    /// At most this many samples for each variant
    #[arg(long, value_name = "COUNT", default_value_t = 2000)]
    samples: usize,
    /// Clock of a GPU: events (one launch) or graph (many, divided) [default: events; tiny calls by both]
    #[arg(long, value_name = "CLOCK", value_parser = gpu_clock)]
    timing: Option<Timing>,
    /// Flush the GPU's L2 before every timed launch; records then have `cold_l2`
    #[arg(long, conflicts_with = "timing")]
    cold_l2: bool,
    /// Time training steps instead: one forward and one backward together, those the device would choose
    /// or the ones named by --variant
    #[arg(long, conflicts_with = "direction")]
    training: bool,
    /// Time every value of this knob of the variants named by --variant
    #[arg(long, value_name = "KNOB", requires = "variant", conflicts_with = "training")]
    sweep: Option<String>,
    /// Do not compare with the reference; the error stays unknown
    #[arg(long)]
    no_verify: bool,
    #[command(flatten)]
    probe: ProbeArgs,
    #[command(flatten)]
    record: RecordArgs,
    /// Print the record, with every raw sample, as JSON
    #[arg(long)]
    json: bool,
}

/// A clock of a GPU; a CPU has only one.
fn gpu_clock(name: &str) -> Result<Timing, String> {
    match name.parse()? {
        Timing::Cpu => Err("a GPU is timed by events or graph".to_owned()),
        timing => Ok(timing),
    }
}

fn after_help() -> String {
    format!(
        "{OPERATIONS_FORMULA}\n\n{BYTES_FORMULA}\n\nThe speed-up is against the baseline of the \
         device: the scalar variant on a CPU, one thread per output element on a GPU.\n\nA record is written after every case. It names \
         the commit that this program was built from (`msdeform --version`)."
    )
}

pub fn run(args: &BenchArgs) -> anyhow::Result<()> {
    ensure_duration(args.seconds, f64::MAX)?;
    let options =
        DeviceOptions { timing: args.timing, cold_l2: args.cold_l2, ..args.mode.options() };
    let device = args.device.open_with(options)?;
    let device = device.as_ref();
    args.grid.check_device(device)?;
    let mut selection = args.grid.selection(standard_workloads(), Breadth::First)?;
    if let Some(knob) = &args.sweep {
        let sweep = |name: &String| {
            names_of_sweep(msdeform_cuda_lab::REGISTRY, name, knob)
                .ok_or_else(|| Usage(format!("--sweep {knob}: `{name}` has no such knob")))
        };
        let swept = selection.variants.iter().map(sweep).collect::<Result<Vec<_>, _>>()?;
        selection.variants = swept.concat();
    }
    let variants = selection.variants_of(device)?;
    let bandwidth = args.probe.probe(device)?;
    if !args.json {
        print(&heading(device, bandwidth.as_ref()))?;
    }
    let mut record = Record::new(device, bandwidth, Vec::new(), Report::default());
    let mut folder = args.record.folder().map(RecordFolder::new);
    let cases = selection.cases();
    let timed = time_all(args, device, (&cases, &variants), &mut record, &mut folder);
    if timed.is_ok() {
        match args.json {
            true => print_json(&record)?,
            false => conclusion(args, &record)?.iter().try_for_each(|line| print(line))?,
        }
    }
    if let Some(path) = folder.as_ref().and_then(RecordFolder::path) {
        eprintln!("record: {}", path.display());
    }
    timed?;
    let why = "nothing to time: no variant fits the chosen cases";
    ensure!(!record.measurements.is_empty(), Usage(why.into()));
    let failed = record.verification.failures().count();
    ensure!(failed == 0, CheckFailed(format!("{failed} checks failed")));
    Ok(())
}

/// Times every case. If anything ends this run, the times so far are kept.
fn time_all(
    args: &BenchArgs,
    device: &dyn Device,
    (cases, variants): (&[WorkloadCase<'_>], &[&'static VariantSpec]),
    record: &mut Record,
    folder: &mut Option<RecordFolder>,
) -> anyhow::Result<()> {
    let max_samples = args.samples.max(1);
    let budget = Budget { seconds: args.seconds, min_samples: max_samples.min(5), max_samples };
    let limits = (!args.no_verify).then(Limits::default);
    let bar = progress(cases.len(), "timing");
    for (index, case) in cases.iter().enumerate() {
        bar.set_message(format!("{} {}", case.workload.name, case.dtype));
        let (timed, checked) = if args.training {
            // Only named variants: the list of all is no choice of two.
            let named = if args.grid.variant.is_empty() { &[] } else { variants };
            bench_step(device, case, named, budget, limits)?
        } else {
            let planned = [Planned { case: case.clone(), variants: variants.to_vec() }];
            bench_cases(device, &planned, budget, limits, &|_| ())?
        };
        if !args.json && !args.grid.ladder && !timed.is_empty() {
            let text = text(case, &timed)?;
            bar.suspend(|| print(&text))?;
        }
        record.measurements.extend(timed);
        record.verification.extend(checked);
        record.unfinished_cases = cases.len() - index - 1;
        folder.iter_mut().try_for_each(|folder| folder.save(record))?;
        bar.inc(1);
    }
    Ok(())
}

/// What is printed after the tables of all cases.
fn conclusion(args: &BenchArgs, record: &Record) -> anyhow::Result<Vec<String>> {
    let mut lines = Vec::new();
    if args.grid.ladder {
        lines.push(ladder_table(record)?);
    }
    let skipped = skip_reasons(&record.verification).into_iter();
    lines.extend(skipped.map(|reason| format!("skipped {reason}")));
    lines.extend(failures(&record.verification));
    Ok(lines)
}

/// The ladder, with the counters that were read on such a device before.
fn ladder_table(record: &Record) -> anyhow::Result<String> {
    let counted = CounterFile::of_device(&record::default_folder(), &record.device.slug)?;
    Ok(aligned(&ladder::table(&ladder::rows(record, &counted))?))
}

fn text(case: &WorkloadCase<'_>, timed: &[Measurement]) -> anyhow::Result<String> {
    let threads = threads_of(timed[0].threads);
    let headings = "variant | clock | >median | >MAD | >p10 | >p90 | >runs | >Msamp/s | >gather GB/s | >compul GB/s | >TFLOP/s | >speed-up | >rel L2";
    let table = Table::new(headings).with(timed.iter().map(|m| {
        let (throughput, statistics) = (m.throughput(), &m.statistics);
        let [median, mad, p10, p90] =
            [statistics.median_us, statistics.mad_us, statistics.p10_us, statistics.p90_us]
                .map(time);
        let millions = three_digits(throughput.samples_per_s * 1e-6);
        let [gathered, compulsory] =
            [throughput.gathered_gb_per_s, throughput.compulsory_gb_per_s].map(three_digits);
        let speedup = or_dash(m.speedup_among(timed), |ratio| format!("{ratio:.2}x"));
        let error = or_dash(Some(m.rel_l2).filter(|error| !error.is_nan()), error_figure);
        let times =
            cells![m.label.variant, m.timing.name(), median, mad, p10, p90, statistics.runs];
        let tflop = format!("{:.4}", throughput.tflop_per_s);
        [times, cells![millions, gathered, compulsory, tflop, speedup, error]].concat()
    }));
    let (name, problem, locations) = (&case.workload.name, case.problem()?, case.locations);
    Ok(format!("{name}: {problem}, {locations}{threads}\n{}\n", aligned(&table)))
}
