//! `msdeform bench`

use clap::Args;
use msdeform_bench::counters::CounterFile;
use msdeform_bench::digits::{three_digits, time};
use msdeform_bench::verify::{Limits, Report};
use msdeform_bench::{
    Breadth, Budget, Measurement, Planned, Record, bench_cases, bench_step, record,
};
use msdeform_devices::WorkloadCase;
use msdeform_devices::device::named::names_of_sweep;
use msdeform_devices::device::{DeviceOptions, Timing};
use msdeform_devices::work::{BYTES_FORMULA, OPERATIONS_FORMULA};
use msdeform_report::{RecordFolder, ladder};

use crate::args::{
    DeviceArgs, GridArgs, ModeArgs, ProbeArgs, RecordArgs, heading, standard_workloads,
};
use crate::commands::verify::{print_failures, skip_reasons};
use crate::exit::{CheckFailed, Usage};
use crate::output::{Columns, error_figure, print, print_json, progress};

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

/// Times and prints.
pub fn run(args: &BenchArgs) -> anyhow::Result<()> {
    if !(args.seconds.is_finite() && args.seconds >= 0.0) {
        return Err(
            Usage(format!("--seconds {} is not a duration; give 0 or more", args.seconds)).into()
        );
    }
    let options =
        DeviceOptions { timing: args.timing, cold_l2: args.cold_l2, ..args.mode.options() };
    let device = args.device.open_with(options)?;
    args.grid.check_device(device.as_ref())?;
    let mut selection = args.grid.selection(standard_workloads(), Breadth::First)?;
    if let Some(knob) = &args.sweep {
        let sweep = |name: &String| {
            names_of_sweep(msdeform_cuda_lab::REGISTRY, name, knob)
                .ok_or_else(|| Usage(format!("--sweep {knob}: `{name}` has no such knob")))
        };
        let swept = selection.variants.iter().map(sweep).collect::<Result<Vec<_>, _>>()?;
        selection.variants = swept.concat();
    }
    let variants = selection.variants_of(device.as_ref())?;
    let max_samples = args.samples.max(1);
    let budget = Budget { seconds: args.seconds, min_samples: max_samples.min(5), max_samples };
    let limits = (!args.no_verify).then(Limits::default);
    let bandwidth = args.probe.probe(device.as_ref())?;
    if !args.json {
        print(&heading(device.as_ref(), bandwidth.as_ref()))?;
    }

    let cases = selection.cases();
    let bar = progress(cases.len(), "timing");
    let mut record = Record::new(device.as_ref(), bandwidth, Vec::new(), Report::default());
    let mut folder = args.record.folder().map(RecordFolder::new);
    for (index, case) in cases.iter().enumerate() {
        bar.set_message(format!("{} {}", case.workload.name, case.dtype));
        let result = if args.training {
            // Only named variants: the list of all is no choice of two.
            let named = if args.grid.variant.is_empty() { &[][..] } else { &variants };
            bench_step(device.as_ref(), case, named, budget, limits)
        } else {
            let planned = [Planned { case: case.clone(), variants: variants.clone() }];
            bench_cases(device.as_ref(), &planned, budget, limits, &|_| ())
        };
        let (timed, checked) = result.inspect_err(|_| {
            bar.finish_and_clear();
            say_where(folder.as_ref());
        })?;
        if !args.json && !args.grid.ladder {
            bar.suspend(|| print_case(case, &timed))?;
        }
        record.measurements.extend(timed);
        record.verification.extend(checked);
        record.unfinished_cases = cases.len() - index - 1;
        // If anything ends this run, the times so far are kept.
        if let Some(folder) = &mut folder {
            folder.save(&record)?;
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    if args.json {
        print_json(&record)?;
    } else {
        if args.grid.ladder {
            print(&ladder_table(&record)?)?;
        }
        for reason in skip_reasons(&record.verification) {
            print(&format!("skipped {reason}"))?;
        }
        print_failures(&record.verification)?;
    }
    say_where(folder.as_ref());
    if record.measurements.is_empty() {
        return Err(Usage("nothing to time: no variant fits the chosen cases".into()).into());
    }
    match record.verification.failures().count() {
        0 => Ok(()),
        failed => Err(CheckFailed(format!("{failed} checks failed")).into()),
    }
}

fn say_where(folder: Option<&RecordFolder>) {
    if let Some(path) = folder.and_then(RecordFolder::path) {
        eprintln!("record: {}", path.display());
    }
}

/// The ladder, with the counters that were read on such a device before.
fn ladder_table(record: &Record) -> anyhow::Result<String> {
    let counted = CounterFile::of_device(&record::default_folder(), &record.device.slug)?;
    let rows = ladder::rows(std::slice::from_ref(record), &counted);
    let mut columns = Columns::new(&ladder::HEADINGS.join(" | >").replace("| >source", "| source"));
    for row in &rows {
        columns.row(&ladder::cells_of(row));
    }
    Ok(columns.to_string())
}

fn print_case(case: &WorkloadCase<'_>, timed: &[Measurement]) -> anyhow::Result<()> {
    if timed.is_empty() {
        return Ok(());
    }
    let threads = timed[0].threads.map_or_else(String::new, |threads| match threads {
        1 => ", 1 thread".to_owned(),
        _ => format!(", {threads} threads"),
    });
    print(&format!("{}: {}, {}{threads}", case.workload.name, case.problem()?, case.locations))?;
    let mut columns = Columns::new(
        "variant | clock | >median | >MAD | >p10 | >p90 | >runs | >Msamp/s | >gather GB/s | >compul GB/s | >TFLOP/s | >speed-up | >rel L2",
    );
    for m in timed {
        let throughput = m.throughput();
        columns.row(&[
            m.label.variant.clone(),
            m.timing.name().to_owned(),
            time(m.statistics.median_us),
            time(m.statistics.mad_us),
            time(m.statistics.p10_us),
            time(m.statistics.p90_us),
            m.statistics.runs.to_string(),
            three_digits(throughput.samples_per_s * 1e-6),
            three_digits(throughput.gathered_gb_per_s),
            three_digits(throughput.compulsory_gb_per_s),
            format!("{:.4}", throughput.tflop_per_s),
            m.speedup_among(timed).map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}x")),
            if m.rel_l2.is_nan() { "-".to_owned() } else { error_figure(m.rel_l2) },
        ]);
    }
    print(&format!("{columns}\n"))
}
