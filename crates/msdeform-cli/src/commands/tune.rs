//! `msdeform tune`

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context;
use clap::Args;
use msdeform::Direction;
use msdeform_bench::device::DeviceOptions;
use msdeform_bench::overview::time;
use msdeform_bench::tune::{Finalist, Share, TuneRecord, TunedCase, tune_case};
use msdeform_bench::{Breadth, Case, Device, DeviceError};
use msdeform_tuning::{Source, TuningFile};
use serde::Serialize;

use crate::args::{DeviceArgs, GridArgs, ModeArgs, RecordDirArgs, heading, standard_workloads};
use crate::exit::Usage;
use crate::output::{Align, Columns, print, print_json, progress};

/// Find the fastest variant and knobs for workloads on this machine
///
/// Searches the variants and their knobs, each compared with the f64 reference before it is timed, and writes what wins to a tuning file. Plans, the
/// command line and the Python package use it for calls like the measured ones; see `MSDEFORM_TUNING`. What the file already knows about other calls stays,
/// as long as device and kernels are the same. The table says how far the built-in choice was from the best.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct TuneArgs {
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    mode: ModeArgs,
    #[command(flatten)]
    grid: GridArgs,
    /// Seconds for everything, shared evenly among the calls; each gets at least one look at every variant
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0)]
    seconds: f64,
    /// The tuning file [default: what `MSDEFORM_TUNING` names, or else the user's for the device]
    #[arg(long, short, value_name = "FILE", conflicts_with = "dry_run")]
    output: Option<PathBuf>,
    /// Write no tuning file
    #[arg(long)]
    dry_run: bool,
    /// Write the comparison with the built-in choices into the records of the device
    #[arg(long)]
    record: bool,
    #[command(flatten)]
    record_dir: RecordDirArgs,
    /// Print everything that was found out as JSON
    #[arg(long)]
    json: bool,
}

const AFTER_HELP: &str = "MSDEFORM_TUNING names the tuning file that calls use; `off` uses none. A call uses an entry of \
the same direction, mode, formats, layout, heads, channels and points whose images, queries and pixels are each within a \
factor of 1.5, the nearest first. A file of another device, version or set of kernels is ignored, with a word on why.";

/// The built-in choice should be this near.
const WANTED_GAP: f64 = 0.05;

/// What scripts get.
#[derive(Serialize)]
struct Document<'a> {
    tuning_file: Option<String>,
    #[serde(flatten)]
    record: &'a TuneRecord,
}

/// Searches, writes and prints.
pub fn run(args: &TuneArgs) -> anyhow::Result<()> {
    if !(args.seconds.is_finite() && args.seconds >= 0.0) {
        return Err(Usage(format!("--seconds {} is no duration", args.seconds)).into());
    }
    if args.grid.locations.len() > 1 {
        let why = "--locations takes one kind here: a call does not say where it will look";
        return Err(Usage(why.into()).into());
    }
    // What is compared with is what a call gets without any file.
    let options = DeviceOptions { ignore_tuning: true, ..args.mode.options() };
    let device = args.device.open_with(options)?;
    let selection = args.grid.selection(standard_workloads(), Breadth::First)?;
    let variants = selection.variants_of(device.as_ref())?;
    let cases = selection.cases();
    let jobs: Vec<(&Case<'_>, Direction)> = cases
        .iter()
        .flat_map(|case| selection.directions.iter().map(move |direction| (case, *direction)))
        .collect();
    if !args.json {
        print(&heading(device.as_ref(), None))?;
    }

    let start = Instant::now();
    let bar = progress(jobs.len(), "tuning");
    let mut tuned: Vec<TunedCase> = Vec::new();
    for (index, (case, direction)) in jobs.iter().enumerate() {
        let left = (args.seconds - start.elapsed().as_secs_f64()).max(0.0);
        let share = Share::of_seconds(left / (jobs.len() - index) as f64);
        let name = format!("{} {} {direction}", case.workload.name, case.dtype);
        let mut say = |what: &str| bar.set_message(format!("{name}: {what}"));
        match tune_case(device.as_ref(), case, *direction, &variants, share, &mut say) {
            Ok(found) => {
                bar.suspend(|| eprintln!("[{}/{}] {}", index + 1, jobs.len(), line(&found)));
                tuned.push(found);
            }
            Err(msdeform_bench::BenchError::Device(DeviceError::Unsupported {
                reason, ..
            })) => {
                bar.suspend(|| {
                    eprintln!("[{}/{}] {name}: skipped, {reason}", index + 1, jobs.len());
                });
            }
            Err(error) => return Err(error).context(name),
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    if tuned.is_empty() {
        return Err(Usage("nothing to tune: no variant fits the chosen cases".into()).into());
    }
    finish(args, device.as_ref(), tuned)
}

fn finish(args: &TuneArgs, device: &dyn Device, tuned: Vec<TunedCase>) -> anyhow::Result<()> {
    let path = if args.dry_run { None } else { Some(target(args, device)?) };
    if let Some(path) = &path {
        write(path, device, &tuned)?;
    }
    let record = TuneRecord::new(device, tuned);
    if args.json {
        let tuning_file = path.as_ref().map(|path| path.display().to_string());
        print_json(&Document { tuning_file, record: &record })?;
    } else {
        print(&text(&record))?;
    }
    if let Some(path) = &path {
        eprintln!("tuning file: {}", path.display());
    }
    if args.record || args.record_dir.record_dir.is_some() {
        let path = record.write(&args.record_dir.folder())?;
        eprintln!("record: {}", path.display());
    }
    Ok(())
}

/// Where the file goes.
fn target(args: &TuneArgs, device: &dyn Device) -> anyhow::Result<PathBuf> {
    if let Some(path) = &args.output {
        return Ok(path.clone());
    }
    let name = device.origin().device;
    let sources = [Source::of_environment(&name), Source::of_user(&name)];
    let path = sources.iter().find_map(Source::path).map(Path::to_owned);
    path.ok_or_else(|| {
        Usage("there is no folder for settings; name a file with --output".into()).into()
    })
}

/// Adds what was found out to what the file knows, if that still holds.
fn write(path: &Path, device: &dyn Device, tuned: &[TunedCase]) -> anyhow::Result<()> {
    let origin = device.origin();
    let mut file = match TuningFile::read(path, &origin) {
        Ok(known) => known,
        Err(reason) => {
            if path.exists() {
                eprintln!("{} is replaced: {reason}", path.display());
            }
            TuningFile::new(origin)
        }
    };
    tuned.iter().for_each(|found| file.insert(found.entry()));
    file.write(path).with_context(|| format!("cannot write {}", path.display()))
}

fn line(found: &TunedCase) -> String {
    let label = &found.label;
    format!(
        "{} {} {}: {} {}, built-in {} ({:+.1} %), {} of {} choices timed",
        label.workload,
        label.dtype,
        label.direction,
        choice(&found.best),
        time(found.best.contender.time_us),
        time(found.builtin.contender.time_us),
        100.0 * found.gap(),
        found.timed,
        found.choices
    )
}

fn choice(finalist: &Finalist) -> String {
    let knobs = finalist.contender.knobs.iter().map(|(name, value)| format!(" {name}={value}"));
    knobs.fold(finalist.contender.variant.clone(), |text, knob| text + &knob)
}

fn text(record: &TuneRecord) -> String {
    let headings = [
        ("workload", Align::Left),
        ("N", Align::Right),
        ("dtype", Align::Left),
        ("direction", Align::Left),
        ("built-in", Align::Left),
        ("time", Align::Right),
        ("best", Align::Left),
        ("time", Align::Right),
        ("gap", Align::Right),
        ("timed", Align::Right),
    ];
    let mut columns = Columns::new(&headings);
    for found in &record.cases {
        let is_builtin = found.best == found.builtin;
        columns.row(&[
            found.label.workload.clone(),
            found.label.batch.to_string(),
            found.label.dtype.clone(),
            found.label.direction.clone(),
            found.builtin.contender.variant.clone(),
            time(found.builtin.contender.time_us),
            if is_builtin { "the same".to_owned() } else { choice(&found.best) },
            time(found.best.contender.time_us),
            format!("{:.1} %", 100.0 * found.gap()),
            format!("{}/{}", found.timed, found.choices),
        ]);
    }
    let mut out = columns.to_string();
    let count = record.cases.len();
    let near = record.cases.iter().filter(|found| found.gap() <= WANTED_GAP).count();
    out += &format!(
        "\n\nthe built-in choice is within {:.0} % of the best in {near} of {count}",
        100.0 * WANTED_GAP
    );
    if record.cases.iter().all(|found| !found.has_choice()) {
        out += "; there was nothing to choose";
    }
    let dropped: Vec<String> = record
        .cases
        .iter()
        .flat_map(|found| found.dropped.iter().map(move |dropped| (found, dropped)))
        .map(|(found, dropped)| {
            let label = &found.label;
            let (workload, dtype) = (&label.workload, &label.dtype);
            format!("dropped on {workload} {dtype}: {}: {}", dropped.choice, dropped.reason)
        })
        .collect();
    if !dropped.is_empty() {
        out += &format!("\n{}", dropped.join("\n"));
    }
    out
}
