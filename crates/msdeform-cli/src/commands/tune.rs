//! `msdeform tune`

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::ensure;
use clap::Args;
use msdeform::{Direction, Problem, VariantSpec};
use msdeform_cuda::tuning::{Contender, Source, TuningFile};
use msdeform_files::Place;
use msdeform_lab::device::DeviceOptions;
use msdeform_lab::digits::time;
use msdeform_lab::tune::{
    Finalist, Inputs, Share, TuneRecord, TunedCase, Unfinished, compile_ahead, tune_case,
};
use msdeform_lab::workload::Label;
use msdeform_lab::{BenchError, Breadth, Device, DeviceError};
use serde::Serialize;

use crate::args::{
    DeviceArgs, GridArgs, ModeArgs, RecordArgs, ensure_duration, heading, standard_workloads,
};
use crate::exit::{Usage, message};
use crate::output::{Table, aligned, cells, print, progress, show};

/// Find the fastest variant and knobs for workloads on this machine
///
/// Searches the variants and their knobs, each compared with the f64 reference before it is timed, and writes what wins to a tuning file. Plans, the
/// command line and the Python package use it for calls like the measured ones; see `MSDEFORM_TUNING`. What the file already knows about other calls stays,
/// as long as device and kernels are the same. The table shows how far the built-in choice was from the best.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct TuneArgs {
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    mode: ModeArgs,
    #[command(flatten)]
    grid: GridArgs,
    /// Seconds for everything, at most half of it for compiling ahead, the rest shared evenly among the calls; each gets at least one look at every variant
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0)]
    seconds: f64,
    /// The tuning file [default: what `MSDEFORM_TUNING` names, or else the user's for the device]
    #[arg(long, short, value_name = "FILE", conflicts_with = "dry_run")]
    output: Option<PathBuf>,
    /// Write no tuning file
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    record: RecordArgs,
    /// Print everything that was found out as JSON
    #[arg(long)]
    json: bool,
}

const AFTER_HELP: &str = "MSDEFORM_TUNING names the tuning file that calls use; `off` uses none. A call uses an entry of \
the same direction, mode, formats, layout, heads, channels and points whose images, queries and pixels are each within a \
factor of 1.5, the nearest first. A file of another device, version or set of kernels is ignored, with a word on why.";

/// Compiling before the first call takes at most this part of the time.
const AHEAD_PART: f64 = 0.5;

/// The built-in choice should be this near.
const WANTED_GAP: f64 = 0.05;

#[derive(Serialize)]
struct Document<'a> {
    tuning_file: Option<String>,
    #[serde(flatten)]
    record: &'a TuneRecord,
}

pub fn run(args: &TuneArgs) -> anyhow::Result<()> {
    // Half a year is as good as no end, and clocks can add it.
    ensure_duration(args.seconds, 1.5e7)?;
    ensure!(
        args.grid.locations.len() <= 1,
        Usage("--locations takes one kind here, because dispatch does not know the locations of a call; give one".into())
    );
    // What is compared with is what a call gets without any file.
    let options = DeviceOptions { ignore_tuning: true, ..args.mode.options() };
    let device = args.device.open_with(options)?;
    let device = device.as_ref();
    let selection = args.grid.selection(standard_workloads(), Breadth::First)?;
    let variants = selection.variants_of(device)?;
    let cases = selection.cases();
    if !args.json {
        print(&heading(device, None))?;
    }
    let (mut calls, mut names) = (Vec::new(), Vec::new());
    for case in &cases {
        for &direction in &selection.directions {
            calls.push((case.problem()?, direction));
            names.push(format!("{} {} {direction}", case.workload.name, case.dtype));
        }
    }

    // What cannot be written is refused before the search, not after.
    let mut found = Found::new(args, device, &names)?;
    let start = Instant::now();
    let ahead = Duration::from_secs_f64(AHEAD_PART * args.seconds);
    compile(device, &calls, &variants, start + ahead);

    let bar = progress(calls.len(), "tuning");
    for (case, names) in cases.iter().zip(names.chunks(selection.directions.len())) {
        bar.set_message(format!("{}: drawing inputs", names[0]));
        let inputs = Inputs::of(case)?;
        for (name, direction) in names.iter().zip(&selection.directions) {
            let left = (args.seconds - start.elapsed().as_secs_f64()).max(0.0);
            let share = Share::of_seconds(left / found.ahead.len() as f64);
            let mut say = |what: &str| bar.set_message(format!("{name}: {what}"));
            let call = (case, &inputs);
            let outcome = tune_case(device, call, *direction, &variants, share, &mut say);
            let said = found.take(name.clone(), outcome)?;
            bar.inc(1);
            let (done, all) = (calls.len() - found.ahead.len(), calls.len());
            bar.suspend(|| eprintln!("[{done}/{all}] {said}"));
        }
    }
    drop(bar);
    found.finish()
}

/// Compiles for all calls at once, on every core.
fn compile(
    device: &dyn Device,
    calls: &[(Problem, Direction)],
    variants: &[&'static VariantSpec],
    end: Instant,
) {
    let start = Instant::now();
    let bar = progress(0, "compiling");
    let done = AtomicUsize::new(0);
    compile_ahead(device, calls, variants, end, &|count, of| {
        done.fetch_max(count, Ordering::Relaxed);
        bar.set_length(of as u64);
        bar.set_position(count as u64);
    });
    drop(bar);
    let seconds = start.elapsed().as_secs_f64();
    // A CPU has nothing to compile.
    if seconds > 0.1 {
        eprintln!("compiled {} choices in {seconds:.1} s", done.into_inner());
    }
}

/// What was found out so far. Written after every call: what ends the run takes nothing back.
struct Found<'a> {
    args: &'a TuneArgs,
    device: &'a dyn Device,
    /// The tuning file, and where it is.
    file: Option<(PathBuf, TuningFile)>,
    record: TuneRecord,
    /// The calls that are still to come, the next one last.
    ahead: Vec<String>,
    failed: usize,
}

impl<'a> Found<'a> {
    fn new(args: &'a TuneArgs, device: &'a dyn Device, calls: &[String]) -> anyhow::Result<Self> {
        let mut file = None;
        if !args.dry_run {
            let path = target(args, device)?;
            let known = match Place::of(&path)? {
                Place::Stream(_) => TuningFile::new(device.origin()),
                Place::Free(_) | Place::File(_) => known(&path, device),
            };
            file = Some((path, known));
        }
        let record = TuneRecord::new(device, Vec::new(), Vec::new());
        let ahead = calls.iter().rev().cloned().collect();
        Ok(Self { args, device, file, record, ahead, failed: 0 })
    }

    /// Keeps what became of the next call; a line about it.
    fn take(
        &mut self,
        call: String,
        outcome: Result<TunedCase, BenchError>,
    ) -> anyhow::Result<String> {
        self.ahead.pop();
        let said = match outcome {
            Ok(tuned) => {
                let said = line(&tuned);
                self.record.cases.push(tuned);
                said
            }
            Err(error) => {
                let reason = match error {
                    BenchError::Device(DeviceError::Unsupported { reason, .. }) => {
                        format!("skipped, {reason}")
                    }
                    error => {
                        self.failed += 1;
                        format!("failed, {}", message(&error.into()))
                    }
                };
                let said = format!("{call}: {reason}");
                self.record.unfinished.push(Unfinished { call, reason });
                said
            }
        };
        self.write()?;
        Ok(said)
    }

    /// The record, with what is still to come as not reached: true if nothing follows.
    fn write(&mut self) -> anyhow::Result<()> {
        if let (Some((path, file)), Some(tuned)) = (&mut self.file, self.record.cases.last()) {
            file.insert(tuned.entry());
            // A reader of a stream wants one file, the last.
            if !matches!(Place::of(path)?, Place::Stream(_)) || self.ahead.is_empty() {
                file.write(path)?;
            }
        }
        if let Some(folder) = self.args.record.folder() {
            let mut record = self.record.clone();
            let not_reached = |call: &String| Unfinished {
                call: call.clone(),
                reason: "not reached, the run was ended".to_owned(),
            };
            record.unfinished.extend(self.ahead.iter().rev().map(not_reached));
            record.write(&folder)?;
        }
        Ok(())
    }

    fn finish(self) -> anyhow::Result<()> {
        let is_idle = self.record.cases.is_empty() && self.failed == 0;
        ensure!(!is_idle, Usage("nothing to tune: no variant fits the chosen cases".into()));
        let tuning_file = self.file.as_ref().map(|(path, _)| path.display().to_string());
        let document = Document { tuning_file, record: &self.record };
        show(self.args.json, &document, || text(&self.record))?;
        if let Some(path) = &document.tuning_file {
            eprintln!("tuning file: {path}");
        }
        if let Some(folder) = self.args.record.folder() {
            eprintln!("record: in {}", folder.join(self.device.slug()).display());
        }
        let (failed, done) = (self.failed, self.record.cases.len());
        ensure!(failed == 0, "{failed} of {} calls failed", failed + done);
        Ok(())
    }
}

/// Where the file goes.
fn target(args: &TuneArgs, device: &dyn Device) -> anyhow::Result<PathBuf> {
    if let Some(path) = &args.output {
        return Ok(path.clone());
    }
    let name = device.origin().device;
    let sources = [Source::of_environment(&name), Source::of_user(&name)];
    let path = sources.iter().find_map(Source::path).map(Path::to_owned);
    let why = "there is no folder for settings; name a file with --output";
    path.ok_or_else(|| Usage(why.into()).into())
}

/// What the file knows, if that still holds.
fn known(path: &Path, device: &dyn Device) -> TuningFile {
    let origin = device.origin();
    TuningFile::read(path, &origin).unwrap_or_else(|reason| {
        if path.exists() {
            eprintln!("{} is replaced: {reason}", path.display());
        }
        TuningFile::new(origin)
    })
}

fn line(found: &TunedCase) -> String {
    let TunedCase { best, builtin, timed, choices, .. } = found;
    format!(
        "{}: {} {}, built-in {} ({:+.1} %), {timed} of {choices} choices timed",
        call(found),
        choice(best),
        time(best.contender.time_us),
        time(builtin.contender.time_us),
        100.0 * found.gap()
    )
}

fn call(TunedCase { label: Label { workload, dtype, direction, .. }, .. }: &TunedCase) -> String {
    format!("{workload} {dtype} {direction}")
}

fn choice(finalist: &Finalist) -> String {
    let knobs = finalist.contender.knobs.iter().map(|(name, value)| format!(" {name}={value}"));
    knobs.fold(finalist.contender.variant.clone(), |text, knob| text + &knob)
}

fn text(record: &TuneRecord) -> String {
    let cases = &record.cases;
    let headings =
        "workload | >N | dtype | direction | built-in | >time | best | >time | >gap | >timed";
    let table = Table::new(headings).with(cases.iter().map(|found| {
        let Label { workload, batch, dtype, direction, .. } = &found.label;
        let Contender { variant, time_us, .. } = &found.builtin.contender;
        let is_builtin = found.best == found.builtin;
        let best = if is_builtin { "the same".to_owned() } else { choice(&found.best) };
        let best_time = time(found.best.contender.time_us);
        let gap = format!("{:.1} %", 100.0 * found.gap());
        let timed = format!("{}/{}", found.timed, found.choices);
        let call = cells![workload, batch, dtype, direction, variant, time(*time_us)];
        [call, cells![best, best_time, gap, timed]].concat()
    }));
    let near = cases.iter().filter(|found| found.gap() <= WANTED_GAP).count();
    let (percent, count) = (100.0 * WANTED_GAP, cases.len());
    let had_choice = cases.iter().any(TunedCase::has_choice);
    let note = if had_choice { "" } else { "; there was nothing to choose" };
    let mut lines = vec![aligned(&table), String::new()];
    lines.push(format!(
        "the built-in choice is within {percent:.0} % of the best in {near} of {count}{note}"
    ));
    for found in cases.iter().filter(|found| found.untried() > 0) {
        let (call, untried, choices) = (call(found), found.untried(), found.choices);
        lines.push(format!("out of time on {call}: {untried} of {choices} choices not tried"));
    }
    let unfinished = record.unfinished.iter();
    lines.extend(unfinished.map(|call| format!("no result for {}: {}", call.call, call.reason)));
    for found in cases {
        let Label { workload, dtype, .. } = &found.label;
        lines.extend(found.dropped.iter().map(|dropped| {
            format!("dropped on {workload} {dtype}: {}: {}", dropped.choice, dropped.reason)
        }));
    }
    lines.join("\n")
}
