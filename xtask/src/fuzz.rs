//! `cargo xtask fuzz`: random bytes for everything that reads files.
//!
//! The readers are in `fuzz/src`. The fuzzer prints the file of each finding: fix the reader, and add the file to `fuzz/seeds`,
//! which every test run reads.

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

/// No reader needs more memory or time for a few kilobytes.
const LIMITS: [&str; 2] = ["-rss_limit_mb=2048", "-timeout=20"];

/// Fuzzes one target after the other.
pub fn run_targets(args: &FuzzArgs) -> Result<ExitCode> {
    let known = capture(&mut nightly_cargo("fuzz list --fuzz-dir fuzz/libfuzzer")).context(
        "fuzzing needs a nightly compiler (`rustup toolchain install nightly`) and cargo-fuzz \
         (`cargo install cargo-fuzz`)",
    )?;
    let mut steps = Steps::only(&args.targets);
    for name in known.lines() {
        steps.run(name, || {
            let corpus = tree::target().join("fuzz-corpus").join(name);
            std::fs::create_dir_all(&corpus)?;
            let mut command = nightly_cargo("fuzz run --fuzz-dir fuzz/libfuzzer --target-dir");
            command.arg(tree::target().join("fuzz")).arg(name).arg(corpus);
            // A reader may ask for too much memory if it handles the refusal.
            command.env("ASAN_OPTIONS", "allocator_may_return_null=1");
            // The fuzzer reads the seeds after the corpus and writes to the corpus only.
            command.arg(tree::root().join("fuzz/seeds").join(name)).arg("--").args(LIMITS);
            let finished = run(command.arg(format!("-max_total_time={}", args.seconds)))?;
            ensure!(finished.success, "the fuzzer found something");
            let done = finished.output.lines().rev().find(|line| line.starts_with("Done "));
            Ok(Report::check(done.unwrap_or_default()))
        });
    }
    Ok(steps.finish())
}
