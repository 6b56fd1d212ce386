//! `cargo xtask fuzz`: bytes of all kinds for everything that reads files.
//!
//! The readers are in `fuzz/src`. A finding is printed with its file: fix it, and add the file to `fuzz/seeds`, which run in
//! every test run.

use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::process::{capture, run};
use crate::soundness::nightly_cargo;
use crate::steps::{Report, Steps};
use crate::tree;

/// Options of `fuzz`.
#[derive(Args)]
pub struct FuzzArgs {
    /// Targets by name [default: all]
    #[arg(value_name = "TARGET")]
    targets: Vec<String>,
    /// Seconds for each
    #[arg(long, value_name = "N", default_value_t = 60)]
    seconds: u32,
}

/// The targets, which only a nightly compiler builds.
const FOLDER: &str = "fuzz/libfuzzer";

/// No reader needs more memory for what a fuzzer gives it, and none needs longer for a few kilobytes.
const LIMITS: [&str; 2] = ["-rss_limit_mb=2048", "-timeout=20"];

/// Fuzzes one target after the other and counts.
pub fn run_targets(args: &FuzzArgs) -> Result<ExitCode> {
    let listed = capture(&mut nightly_cargo(&["fuzz", "list", "--fuzz-dir", FOLDER])).context(
        "fuzzing needs a nightly compiler (`rustup toolchain install nightly`) and cargo-fuzz \
         (`cargo install cargo-fuzz`)",
    )?;
    let known: Vec<String> = listed.lines().map(str::to_owned).collect();
    for name in &args.targets {
        ensure!(known.contains(name), "no target `{name}`; known: {}", known.join(", "));
    }
    let chosen = if args.targets.is_empty() { &known } else { &args.targets };
    let mut steps = Steps::default();
    for name in chosen {
        steps.run(name, || {
            let corpus = tree::target().join("fuzz-corpus").join(name);
            std::fs::create_dir_all(&corpus)?;
            let mut command = nightly_cargo(&["fuzz", "run", "--fuzz-dir", FOLDER, "--target-dir"]);
            command.arg(tree::target().join("fuzz")).arg(name).arg(corpus);
            // A reader that asks for too much memory and accepts the refusal is not at fault.
            command.env("ASAN_OPTIONS", "allocator_may_return_null=1");
            // Read after the corpus, and never written.
            command.arg(tree::root().join("fuzz/seeds").join(name)).arg("--").args(LIMITS);
            let finished = run(command.arg(format!("-max_total_time={}", args.seconds)))?;
            ensure!(finished.success, "found something");
            let done = finished.output.lines().rev().find(|line| line.starts_with("Done "));
            Ok(Report::check(done.unwrap_or_default()))
        });
    }
    Ok(steps.finish())
}
