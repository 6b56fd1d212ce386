//! Commands that need crates of this project: the program in `xtask/records`, and `msdeform ledger`.

use std::process::{Command, ExitCode};

use anyhow::Result;
use clap::Args;

use crate::process::{built, capture, sh};
use crate::steps::Report;

/// Arguments that are passed on.
#[derive(Args)]
pub struct Passed {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENT")]
    arguments: Vec<String>,
}

/// Builds the program of records and runs one of its commands.
pub fn run(name: &str, passed: &Passed) -> Result<ExitCode> {
    pass_on(built("--bin xtask-records")?.arg(name), passed)
}

/// Runs `msdeform ledger`, built as releases are.
pub fn ledger(passed: &Passed) -> Result<ExitCode> {
    pass_on(&mut sh("cargo run --release --quiet --package msdeform-cli -- ledger"), passed)
}

fn pass_on(command: &mut Command, passed: &Passed) -> Result<ExitCode> {
    let status = command.args(&passed.arguments).status()?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Compares the tables of documents with the records.
pub fn check_tables() -> Result<Report> {
    let printed = capture(built("--bin xtask-records")?.args(["readme", "--check"]))?;
    Ok(Report::check(printed.trim()))
}
