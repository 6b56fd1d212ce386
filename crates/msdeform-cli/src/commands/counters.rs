//! `msdeform counters`

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::{Context, ensure};
use clap::Args;
use msdeform::VariantSpec;
use msdeform_lab::counters::{self, COUNTERS, Counted, CounterFile, KernelCounters};
use msdeform_lab::device::named::id_in;
use msdeform_lab::digits::three_digits;
use msdeform_lab::record::{Provenance, is_python_script};
use msdeform_lab::verify::fitting;
use msdeform_lab::{Breadth, DeviceId, WorkloadCase};

use crate::args::{DeviceArgs, GridArgs, ModeArgs};
use crate::exit::Usage;
use crate::output::{Table, aligned, cells, or_dash, print, print_json, progress, show};

/// Read hardware counters of variants with Nsight Compute
///
/// Runs `bench` of each chosen variant under `ncu` and prints a small named set of counters: wavefronts, bank conflicts, hit rates, sectors, issue slots, stalls.
/// With --join they become part of a record, and its report shows them.
#[derive(Debug, Args)]
pub struct CountersArgs {
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    mode: ModeArgs,
    #[command(flatten)]
    grid: GridArgs,
    /// Read this table instead of running the profiler: what `ncu --csv --page raw` printed
    #[arg(long, value_name = "FILE", conflicts_with = "join")]
    csv: Option<PathBuf>,
    /// Folder of the record that the counters explain
    #[arg(long, value_name = "RECORD")]
    join: Option<PathBuf>,
    /// Print a JSON list
    #[arg(long)]
    json: bool,
}

/// The most that is read of a table of counters.
const LIMIT_CSV_BYTES: u64 = 256 << 20;

/// Launches of a variant that are counted, at most: the four runs of a shortest `bench`, of ten kernels each.
const LAUNCHES: usize = 40;

pub fn run(args: &CountersArgs) -> anyhow::Result<()> {
    if let Some(path) = &args.csv {
        let text = msdeform_files::read_text(path, LIMIT_CSV_BYTES)?;
        let kernels = counters::parse(&text)
            .map_err(|reason| Usage(format!("{} holds no counters: {reason}", path.display())))?;
        return show(args.json, &kernels, || table(&kernels));
    }
    let ncu = counters::find_ncu()?;
    let device = args.device.open_with(args.mode.options())?;
    let device = device.as_ref();
    let is_gpu = matches!(device.id(), DeviceId::Cuda(_));
    ensure!(is_gpu, Usage("counters are read on a GPU; use --device cuda:0".into()));
    let selection = args.grid.selection(std::iter::empty(), Breadth::First)?;
    let has_workloads = !selection.workloads.is_empty();
    ensure!(has_workloads, Usage("name the workloads to count with --workload".into()));
    let variants = selection.variants_of(device)?;
    let (program, script) = this_program()?;
    let cases = selection.cases();
    let bar = progress(cases.len(), "counting");
    let commit = Provenance::now().revision();
    let mut counted = Vec::new();
    for case in &cases {
        bar.set_message(format!("{} {} {}", case.workload.name, case.dtype, case.layout));
        let problem = case.problem()?;
        let (fitting, _) = fitting(device, case, &variants, &problem);
        for turn in turns(fitting) {
            let ids: Vec<&str> = turn.iter().map(|variant| id_in(variant.id)).collect();
            let names: Vec<&str> = turn.iter().map(|variant| variant.id).collect();
            let mut bench: Vec<OsString> = script.iter().cloned().collect();
            bench.extend(bench_arguments(args, &device.id().to_string(), case, &names.join(",")));
            let (names, launches) = (format!("^({})(_|$)", ids.join("|")), LAUNCHES * ids.len());
            let command = counters::command(&ncu, &names, 0, launches, &program, &bench);
            let (_, kernels) = counters::run(command)?;
            for variant in turn {
                let label = case.label(&[variant], &problem);
                let kernels = counters::of_variant(&kernels, id_in(variant.id), &ids);
                if !args.json {
                    let title = format!("{}: {problem}, {}", label.workload, label.locations);
                    bar.suspend(|| print(&format!("{title}\n{}\n", table(&kernels))))?;
                }
                counted.push(Counted { label, commit: commit.clone(), kernels });
            }
        }
        bar.inc(1);
    }
    drop(bar);
    if args.json {
        print_json(&counted)?;
    }
    if let Some(folder) = &args.join {
        let path = CounterFile::join(folder, &counted)?;
        eprintln!("counters: {}", path.display());
    }
    Ok(())
}

/// Many variants are counted in one process, because making the inputs takes longer than counting. Settings of one variant
/// have kernels of the same names and take turns.
fn turns(variants: Vec<&'static VariantSpec>) -> Vec<Vec<&'static VariantSpec>> {
    let mut turns: Vec<Vec<&VariantSpec>> = Vec::new();
    for variant in variants {
        let has_it =
            |turn: &Vec<&VariantSpec>| turn.iter().any(|v| id_in(v.id) == id_in(variant.id));
        match turns.iter_mut().find(|turn| !has_it(turn)) {
            Some(turn) => turn.push(variant),
            None => turns.push(vec![variant]),
        }
    }
    turns
}

/// How to call this program again: its file, or the interpreter and the script that the Python package is called by.
fn this_program() -> anyhow::Result<(PathBuf, Option<OsString>)> {
    let mut arguments: Vec<OsString> = std::env::args_os().take(2).collect();
    if is_python_script(&arguments) {
        let script = arguments.pop();
        // Not the file that runs: that of an environment is a link to one that knows nothing of its packages.
        return Ok((arguments.pop().unwrap_or_default().into(), script));
    }
    Ok((std::env::current_exe().context("cannot find this program")?, None))
}

/// The least that runs the variants on the case: what is counted is not what is timed.
fn bench_arguments(
    args: &CountersArgs,
    device: &str,
    case: &WorkloadCase<'_>,
    variants: &str,
) -> Vec<OsString> {
    // A workload from a file is named by its path, as it was given.
    let given = args.grid.workload.iter().find(|name| {
        msdeform_lab::Workload::named(name).is_ok_and(|found| found.name == case.workload.name)
    });
    let workload = given.unwrap_or(&case.workload.name);
    let options = format!(
        "--device {device} --variant {variants} --dtype {} --layout {} --locations {} --mode {} --timing events \
         --seconds 0 --samples 1 --no-verify --no-probe",
        case.dtype, case.layout, case.locations, args.mode.mode
    );
    let mut words: Vec<OsString> = vec!["bench".into(), "--workload".into(), workload.into()];
    words.extend(options.split(' ').map(OsString::from));
    for (name, size) in [("--batch", case.sizes.batch), ("--queries", case.sizes.queries)] {
        if let Some(size) = size {
            words.extend([name.into(), size.to_string().into()]);
        }
    }
    if *case.operator != msdeform::ATTENTION {
        words.push("--from-offsets".into());
    }
    words
}

fn table(kernels: &[KernelCounters]) -> String {
    let names: String = kernels.iter().map(|kernel| format!(" | >{}", kernel.kernel)).collect();
    let rows = COUNTERS.iter().map(|counter| {
        let read = kernels.iter().map(|kernel| or_dash(kernel.get(counter.name), figure));
        [cells![counter.name], read.collect(), cells![counter.what]].concat()
    });
    aligned(&Table::new(&format!("counter{names} | what")).with(rows))
}

/// Three digits with a letter for thousands, millions, billions.
fn figure(value: f64) -> String {
    match value.abs() {
        v if v < 1e4 => three_digits(value),
        v if v < 1e7 => format!("{} k", three_digits(value * 1e-3)),
        v if v < 1e10 => format!("{} M", three_digits(value * 1e-6)),
        _ => format!("{} G", three_digits(value * 1e-9)),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::Cli;
    use crate::commands::Command;

    /// What is counted is another process: it must run the case that the counters are named by.
    #[test]
    fn the_counted_process_runs_the_case() {
        let words = |more: &str| {
            let line = format!("msdeform counters --workload ddetr_dec --dtype bf16 {more}");
            let cli = Cli::parse_from(line.split_whitespace());
            let Some(Command::Counters(args)) = cli.command else { panic!("another command") };
            let selection = args.grid.selection(std::iter::empty(), Breadth::First).unwrap();
            let case = &selection.cases()[0];
            let words = bench_arguments(&args, "cuda:0", case, "fwd_general");
            words.iter().map(|word| word.to_str().unwrap()).collect::<Vec<_>>().join(" ")
        };
        let plain = words("");
        assert!(
            plain.contains("--workload ddetr_dec") && plain.contains("--dtype bf16"),
            "{plain}"
        );
        assert!(!plain.contains("--from-offsets"), "{plain}");
        let other = words("--from-offsets --batch 3 --queries 77");
        assert!(other.contains("--from-offsets"), "{other}");
        assert!(other.contains("--batch 3") && other.contains("--queries 77"), "{other}");
    }
}
