//! The `msdeform` command line: glue between arguments, the laboratory and the terminal.
//!
//! A library so that its binary is not all that can reach it: what reads files takes them as bytes too, which is what the
//! fuzz targets give it. Nothing here is an interface for other crates.

mod args;
mod commands;
mod exit;
mod output;
mod run;

use std::process::ExitCode;

use clap::Parser;

use args::{Cli, Command};
use commands::{
    analyze, bench, completions, counters, main_job, man, onnx, probe, records, report, soak, tune,
    variants, verify, workloads,
};

pub use run::fuzzing;

/// Does what the command line says, and returns its exit code.
#[must_use]
pub fn command_line() -> ExitCode {
    let cli = Cli::parse();
    let result = match &cli.command {
        None => main_job::run(&cli.main),
        Some(Command::Variants(args)) => variants::run(args),
        Some(Command::Verify(args)) => verify::run(args),
        Some(Command::Bench(args)) => bench::run(args),
        Some(Command::Onnx(args)) => onnx::run(args),
        Some(Command::Probe(args)) => probe::run(args),
        Some(Command::Analyze(args)) => analyze::run(args),
        Some(Command::Counters(args)) => counters::run(args),
        Some(Command::Records(args)) => records::run(args),
        Some(Command::Report(args)) => report::run(args),
        Some(Command::Run(args)) => run::run(args),
        Some(Command::Soak(args)) => soak::run(args),
        Some(Command::Tune(args)) => tune::run(args),
        Some(Command::Workloads(args)) => workloads::run(args),
        Some(Command::Completions(args)) => completions::run(args),
        Some(Command::Man(args)) => man::run(args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => exit::report(&error),
    }
}
