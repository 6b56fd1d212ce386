//! `cargo xtask compare-torch`: PyTorch's `grid_sample` path and ours, on the same machine in one run.
//!
//! Both are timed in turns, round after round, so that a machine that gets slower slows down both.
//! All of it goes into one record, PyTorch as the variant `torch_grid_sample`.

use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::Args;
use msdeform_lab::digits::{three_digits, time};
use msdeform_lab::{Measurement, Record, Statistics};
use serde::Deserialize;

use crate::process::{capture, run_ok, sh};
use crate::tree;
use crate::uv::Environment;

static TORCH: Environment<'_> = Environment::new("torch", &["torch", "numpy"]);

/// What PyTorch is called in records.
const VARIANT: &str = "torch_grid_sample";

/// Options of `compare-torch`.
#[derive(Args)]
pub struct CompareArgs {
    /// Thread counts to compare at
    #[arg(long, value_delimiter = ',', default_value = "1,2")]
    threads: Vec<usize>,
    /// Workloads; the script knows ddetr_enc and ddetr_dec
    #[arg(long, value_delimiter = ',', default_value = "ddetr_enc,ddetr_dec")]
    workload: Vec<String>,
    /// Turns that each side gets
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Keep the results as a record below records/
    #[arg(long)]
    record: bool,
}

/// One line of the script's output.
#[derive(Debug, Deserialize)]
struct TorchLine {
    workload: String,
    direction: String,
    threads: usize,
    torch: String,
    samples_us: Vec<f64>,
}

/// Times both and prints the ratios.
pub fn run(args: &CompareArgs) -> Result<ExitCode> {
    ensure!(args.rounds > 0 && !args.threads.is_empty(), "nothing to compare");
    run_ok(&mut sh("cargo build --release --locked --package msdeform-cli"))?;
    let mut ours: Option<Record> = None;
    let mut theirs: Vec<TorchLine> = Vec::new();
    for round in 1..=args.rounds {
        for &threads in &args.threads {
            for workload in &args.workload {
                println!("round {round} of {}: {workload}, {threads} threads", args.rounds);
                add_lines(&mut theirs, time_torch(workload, threads)?);
                add_record(&mut ours, time_ours(workload, threads)?);
            }
        }
    }
    let mut record = ours.context("nothing was timed")?;
    for measurement in &mut record.measurements {
        measurement.statistics = statistics(&measurement.samples_us)?;
    }
    let torch = theirs.first().map(|line| line.torch.clone()).unwrap_or_default();
    println!("\n{}", ratios(&record.measurements, &theirs)?);
    println!("PyTorch {torch}, {}", record.device.name);
    if args.record {
        let row = |line| torch_measurement(&record.measurements, line);
        let rows = theirs.iter().map(row).collect::<Result<Vec<_>>>()?;
        record.measurements.extend(rows);
        record.device.facts.insert("torch".into(), torch);
        record.provenance.command = "cargo xtask compare-torch".into();
        let folder = msdeform_report::write(&record, &tree::root().join("records"))?;
        println!("record: {}", folder.strip_prefix(tree::root()).unwrap_or(&folder).display());
    }
    Ok(ExitCode::SUCCESS)
}

fn time_torch(workload: &str, threads: usize) -> Result<Vec<TorchLine>> {
    let script = "python tools/grid_sample_baseline.py --json";
    let line = format!("{script} --threads {threads} --workload {workload}");
    parse_lines(&capture(&mut TORCH.sh(&line)?)?)
}

fn parse_lines(output: &str) -> Result<Vec<TorchLine>> {
    let lines = output.lines().filter(|line| !line.trim().is_empty());
    lines
        .map(|line| serde_json::from_str(line).with_context(|| format!("not ours: {line}")))
        .collect()
}

/// Our best variants in the same shapes: one image, `f32`, interleaved, local.
fn time_ours(workload: &str, threads: usize) -> Result<Record> {
    let bench = "cargo run --release --locked --quiet --package msdeform-cli -- bench --json";
    let case = "--batch 1 --dtype f32 --locations local --layout interleaved";
    let line = format!("{bench} --workload {workload} {case} --threads {threads}");
    serde_json::from_str(&capture(&mut sh(&line))?).context("`bench --json` printed no record")
}

/// Adds the samples of another round.
fn add_record(sum: &mut Option<Record>, round: Record) {
    let Some(sum) = sum else {
        *sum = Some(round);
        return;
    };
    let key = |m: &Measurement| (m.label.clone(), m.threads, m.mode.clone());
    for measurement in round.measurements {
        let same = |known: &&mut Measurement| key(known) == key(&measurement);
        match sum.measurements.iter_mut().find(same) {
            Some(known) => known.samples_us.extend(measurement.samples_us),
            None => sum.measurements.push(measurement),
        }
    }
    sum.verification.extend(round.verification);
}

fn add_lines(sum: &mut Vec<TorchLine>, round: Vec<TorchLine>) {
    for line in round {
        let same = |known: &&mut TorchLine| {
            (&known.workload, &known.direction, known.threads)
                == (&line.workload, &line.direction, line.threads)
        };
        match sum.iter_mut().find(same) {
            Some(known) => known.samples_us.extend(line.samples_us),
            None => sum.push(line),
        }
    }
}

fn statistics(samples_us: &[f64]) -> Result<Statistics> {
    Statistics::of(samples_us).context("a sample that is no time")
}

/// Our fastest measurement of what a line of the script measured.
fn fastest<'a>(ours: &'a [Measurement], line: &TorchLine) -> Result<&'a Measurement> {
    ours.iter()
        .filter(|row| row.label.workload == line.workload && row.label.direction == line.direction)
        .filter(|row| row.threads == Some(line.threads) && row.label.variant != VARIANT)
        .min_by(|a, b| a.statistics.median_us.total_cmp(&b.statistics.median_us))
        .with_context(|| format!("we did not time {} {}", line.workload, line.direction))
}

/// The script's samples as a row of our record: the same work, an error that was not measured.
fn torch_measurement(ours: &[Measurement], line: &TorchLine) -> Result<Measurement> {
    let mut row = fastest(ours, line)?.clone();
    row.label.variant = VARIANT.into();
    row.mode = "default".into();
    row.statistics = statistics(&line.samples_us)?;
    row.workspace_bytes = 0;
    row.rel_l2 = f64::NAN;
    (row.dispatched, row.is_baseline) = (false, false);
    row.samples_us.clone_from(&line.samples_us);
    Ok(row)
}

/// The table of medians and ratios.
fn ratios(ours: &[Measurement], theirs: &[TorchLine]) -> Result<String> {
    let line = |[workload, direction, threads, torch, ours, ratio, variant]: [&str; 7]| {
        format!(
            "{workload:<10} {direction:<9} {threads:>7}  {torch:>10}  {ours:>10}  {ratio:>7}  {variant}\n"
        )
    };
    let mut text =
        line(["workload", "direction", "threads", "PyTorch", "msdeform", "ratio", "variant"]);
    for timed in theirs {
        let TorchLine { workload, direction, threads, samples_us, .. } = timed;
        let torch_us = statistics(samples_us)?.median_us;
        let best = fastest(ours, timed)?;
        let our_us = best.statistics.median_us;
        let ratio = format!("{}x", three_digits(torch_us / our_us));
        let (threads, variant) = (threads.to_string(), &best.label.variant);
        text +=
            &line([workload, direction, &threads, &time(torch_us), &time(our_us), &ratio, variant]);
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_of_the_script_are_added_up() {
        let line = r#"{"workload":"ddetr_dec","direction":"forward","threads":1,"torch":"2.9","samples_us":[1.5,2.5]}"#;
        let mut sum = Vec::new();
        add_lines(&mut sum, parse_lines(&format!("{line}\n\n")).unwrap());
        add_lines(&mut sum, parse_lines(line).unwrap());
        assert_eq!(sum.len(), 1);
        assert_eq!(sum[0].samples_us, [1.5, 2.5, 1.5, 2.5]);
        assert!(parse_lines("Traceback").is_err());
    }
}
