//! `msdeform soak`

use std::time::Duration;

use anyhow::ensure;
use clap::Args;
use msdeform::{ATTENTION, DType, Direction, Operator};
use msdeform_lab::device::{Device, DeviceError};
use msdeform_lab::runner::{Runner, check};
use msdeform_lab::soak::{Bounds, Limit, Progress, SoakOptions, SoakReport, soak};
use msdeform_lab::{Case, DeviceId};
use msdeform_report::ledger;
use msdeform_report::soak::SoakRecord;

use crate::args::{DeviceArgs, LedgerArgs, RecordArgs, fast_dtype, heading, operator};
use crate::commands::verify::parse_seed;
use crate::exit::{CheckFailed, Usage, message};
use crate::output::{Table, aligned, cells, grouped, print, progress, show};

/// Run random problems against the f64 reference
///
/// Sizes, layouts, strides, offsets, dtypes, points per level, subsets of gradients, modes and hostile
/// numbers are drawn at random, and so are variants and knobs: any that dispatch or a tuning file can choose.
/// Every tensor and workspace lies in poison that is checked after the call. The same seed draws the same
/// problems.
///
/// A problem that fails is made as small as possible and printed as a line, which --case runs again. A launch
/// that does not come back within 20 seconds is reported and ends the command.
#[derive(Debug, Args)]
pub struct SoakArgs {
    #[command(flatten)]
    device: DeviceArgs,
    /// Minutes
    #[arg(long, value_name = "N", default_value_t = 1.0, value_parser = positive, conflicts_with = "problems")]
    minutes: f64,
    /// Number of problems of every dtype and direction, instead of a time
    #[arg(long, value_name = "N")]
    problems: Option<u64>,
    /// Seed of the problems: a number, or `random` for a fresh one, which is printed
    #[arg(long, value_name = "SEED", default_value = "random", value_parser = parse_seed)]
    seed: u64,
    /// Dtypes: f32, f16, bf16
    #[arg(long, value_name = "DTYPE", value_delimiter = ',', default_value = "f32,f16,bf16", value_parser = fast_dtype)]
    dtype: Vec<DType>,
    /// Only forward or only backward
    #[arg(long, value_name = "DIRECTION")]
    direction: Option<Direction>,
    /// Half of the problems call the fused operator on a GPU too, as they always do on a CPU
    #[arg(long = "from-offsets")]
    fused: bool,
    /// Run this one problem: a line that an earlier run printed
    #[arg(long, value_name = "LINE", conflicts_with_all = ["minutes", "problems", "record", "ledger"])]
    case: Option<Case>,
    #[command(flatten)]
    record: RecordArgs,
    #[command(flatten)]
    ledger: LedgerArgs,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number > 0.0 && number.is_finite() => Ok(number),
        _ => Err(format!("`{text}` is not a number of minutes above 0")),
    }
}

/// Problems of one model: on a GPU its kernels have to be compiled.
const SIZES_OF_A_MODEL: usize = 12;
/// A launch of these problems takes milliseconds; noticed and reported well within half a minute.
const HUNG_AFTER: Duration = Duration::from_secs(20);

pub fn run(args: &SoakArgs) -> anyhow::Result<()> {
    let device = args.device.open()?;
    let on_cpu = device.id() == DeviceId::Cpu;
    args.ledger.path(device.as_ref())?;
    if let Some(case) = &args.case {
        return run_case(device.runner(), case);
    }
    let all_cores = std::thread::available_parallelism().map_or(1, usize::from);
    let options = SoakOptions {
        bounds: Bounds {
            dtypes: args.dtype.clone(),
            directions: msdeform_lab::workload::directions(args.direction),
            // Calls on the CPU take contiguous tensors.
            strided: !on_cpu,
            operators: if on_cpu || args.fused { Operator::ALL.to_vec() } else { vec![&ATTENTION] },
            ..Bounds::default()
        },
        seed: args.seed,
        limit: match args.problems {
            Some(problems) => Limit::Problems(problems),
            None => Limit::Time(Duration::from_secs_f64(60.0 * args.minutes)),
        },
        threads: args.device.threads.unwrap_or(all_cores),
        sizes: SIZES_OF_A_MODEL,
        hung_after: HUNG_AFTER,
    };
    ensure!(options.threads > 0, Usage("--threads: at least one is needed".into()));
    if !args.json {
        print(&heading(device.as_ref(), None))?;
    }
    let report = watched(&options, args, device.as_ref());
    finish(&report, args, device.as_ref())
}

/// Runs with a bar. A hang leaves the process from here: the thread that waits for the device cannot be stopped.
fn watched(options: &SoakOptions, args: &SoakArgs, device: &dyn Device) -> SoakReport {
    let (steps, by_time) = match options.limit {
        Limit::Time(time) => (time.as_secs(), true),
        Limit::Problems(problems) => {
            let kinds = options.bounds.dtypes.len() * options.bounds.directions.len();
            (problems * kinds as u64, false)
        }
    };
    let bar = progress(steps as usize, "soaking");
    let look = &mut |at: Progress, hung: Option<&SoakReport>| {
        bar.set_position(if by_time { at.elapsed.as_secs() } else { at.problems }.min(steps));
        bar.set_message(format!("{} problems, {} wrong", at.problems, at.failures));
        if let Some(report) = hung {
            bar.finish_and_clear();
            let error = finish(report, args, device).err();
            eprintln!("error: {}", error.as_ref().map_or_else(String::new, message));
            std::process::exit(1);
        }
    };
    soak(device.runner(), options, look)
}

fn finish(report: &SoakReport, args: &SoakArgs, device: &dyn Device) -> anyhow::Result<()> {
    show(args.json, report, || text(report, device.id()))?;
    if let Some(folder) = args.record.folder() {
        let record = SoakRecord::new(device, report.clone());
        eprintln!("soak: {}", record.write(&folder)?.display());
    }
    if let Some(path) = args.ledger.path(device)? {
        let entries = ledger::update_random(&path, device, operator(args.fused), report)?;
        eprintln!("ledger: {entries} entries in {}", path.display());
    }
    ensure!(report.total() > 0, CheckFailed("nothing was checked".into()));
    let wrong = format!("{} problems failed, {} hung", report.failed, report.hangs.len());
    ensure!(report.is_clean(), CheckFailed(wrong));
    Ok(())
}

fn text(report: &SoakReport, device: DeviceId) -> String {
    // The largest error of each tensor, by dtype.
    let worst = report.worst_of_allowed.iter();
    let worst = worst.map(|(name, worst)| cells![name, format!("{worst:.3}")]);
    let table = Table::new("tensor | >worst, of what is allowed").with(worst);
    let kinds = report.problems.iter().map(|(kind, count)| format!("{kind} {count}"));
    let mut lines = vec![format!(
        "{}\n\n{} problems ({}) in {:.0} s, seed {}; {} refused by the variant named for them\n\
         {} launches, {:.2} GB of tensors; {} of {} features of dispatch, {} specialisations",
        aligned(&table),
        grouped(report.total() as usize),
        kinds.collect::<Vec<_>>().join(", "),
        report.seconds,
        report.seed,
        report.refused,
        grouped(report.launches as usize),
        report.bytes as f64 / 1e9,
        report.features_met,
        report.features,
        report.specialisations
    )];
    if report.total_fused() > 0 {
        let fused = grouped(report.total_fused() as usize);
        lines.push(format!("{fused} of the problems call the fused operator"));
    }
    if !report.features_missed.is_empty() {
        let shown: Vec<&str> = report.features_missed.iter().take(12).map(String::as_str).collect();
        let more = report.features_missed.len() - shown.len();
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        lines.push(format!("not met: {}{more}", shown.join(", ")));
    }
    let bytes =
        |bytes: Option<u64>| bytes.map_or("unknown".to_owned(), |bytes| grouped(bytes as usize));
    lines.push(format!(
        "{} wrong, {} hung; bytes held at the end and not before: host {} (compilers keep theirs), device {}",
        report.failed,
        report.hangs.len(),
        bytes(report.host_growth_bytes),
        if device == DeviceId::Cpu { "none".to_owned() } else { bytes(report.device_growth_bytes) },
    ));
    for hang in &report.hangs {
        lines.push(format!("hung for {} s: {}", hang.seconds, again(device, &hang.case)));
    }
    for failure in &report.failures {
        lines.push(format!("{}: {}", failure.fault, again(device, &failure.case)));
        if failure.drawn != failure.case {
            lines.push(format!("    drawn as {}", failure.drawn));
        }
    }
    lines.join("\n")
}

/// The command that runs a case again.
fn again(device: DeviceId, case: &str) -> String {
    format!("msdeform soak --device {device} --case \"{case}\"")
}

fn run_case(runner: &dyn Runner, case: &Case) -> anyhow::Result<()> {
    let checked = match check(runner, case) {
        Ok(checked) => checked,
        Err(DeviceError::Refused { reason }) => return Err(Usage(reason).into()),
        Err(error) => return Err(CheckFailed(error.to_string()).into()),
    };
    let variant = checked.resolved.variant;
    print(if variant.is_empty() { "nothing is launched" } else { variant })?;
    for (_, verdict) in &checked.verdicts {
        print(&format!(
            "relative L2 error {:.2e}, {:.3} of what is allowed",
            verdict.comparison.rel_l2, verdict.of_allowed
        ))?;
    }
    match checked.fault() {
        Some(fault) => Err(CheckFailed(fault.to_owned()).into()),
        None => Ok(()),
    }
}
