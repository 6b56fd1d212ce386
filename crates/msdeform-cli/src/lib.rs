//! The `msdeform` command line: glue between arguments, the laboratory and the terminal.
//!
//! A library so that its binary is not all that can reach it: the Python package has the same command, and what reads files
//! takes them as bytes too, which is what the fuzz targets give it. Nothing here is an interface for others.

mod args;
mod commands;
mod exit;
mod output;
mod run;

use std::ffi::OsString;
use std::io::Write;

use clap::Parser;
use msdeform_bench::record::Build;

use args::{Cli, Command};
use commands::{
    analyze, bench, completions, counters, ledger, main_job, man, onnx, probe, records, report,
    soak, tune, variants, verify, warm, workloads,
};

pub use run::from_bytes;

/// The sources that this program, or the Python package, was built from.
pub const BUILD: Build =
    Build { commit: env!("MSDEFORM_BUILD_COMMIT"), dirty: is_true(env!("MSDEFORM_BUILD_DIRTY")) };

const fn is_true(text: &str) -> bool {
    matches!(text.as_bytes(), b"true")
}

/// Runs a command line, whose first word is the program's name, and returns the exit code.
#[must_use]
pub fn command_line(words: impl IntoIterator<Item = OsString>) -> u8 {
    BUILD.announce();
    let cli = match Cli::try_parse_from(words) {
        Ok(cli) => cli,
        // clap reports help and versions as errors too. A closed pipe is not an error of its own.
        Err(error) => {
            drop(error.print());
            return u8::try_from(error.exit_code()).unwrap_or(u8::MAX);
        }
    };
    let code = match run(&cli) {
        Ok(()) => 0,
        Err(error) => exit::report(&error),
    };
    // A library's caller ends without Rust's end of `main`.
    drop(std::io::stdout().flush());
    code
}

fn run(cli: &Cli) -> anyhow::Result<()> {
    match &cli.command {
        None => main_job::run(&cli.main),
        Some(Command::Variants(args)) => variants::run(args),
        Some(Command::Verify(args)) => verify::run(args),
        Some(Command::Bench(args)) => bench::run(args),
        Some(Command::Ledger(args)) => ledger::run(args),
        Some(Command::Onnx(args)) => onnx::run(args),
        Some(Command::Probe(args)) => probe::run(args),
        Some(Command::Analyze(args)) => analyze::run(args),
        Some(Command::Counters(args)) => counters::run(args),
        Some(Command::Records(args)) => records::run(args),
        Some(Command::Report(args)) => report::run(args),
        Some(Command::Run(args)) => run::run(args),
        Some(Command::Soak(args)) => soak::run(args),
        Some(Command::Tune(args)) => tune::run(args),
        Some(Command::Warm(args)) => warm::run(args),
        Some(Command::Workloads(args)) => workloads::run(args),
        Some(Command::Completions(args)) => completions::run(args),
        Some(Command::Man(args)) => man::run(args),
    }
}
