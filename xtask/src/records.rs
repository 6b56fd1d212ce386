//! Commands that read or write records, which need the crates of the laboratory: the program in `xtask/records`.

use std::process::{Command, ExitCode};

use anyhow::Result;
use clap::Args;

use crate::process::{built, capture};
use crate::steps::Report;

/// Arguments that are passed on.
#[derive(Args)]
pub struct Passed {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENT")]
    arguments: Vec<String>,
}

/// Builds the program and runs one of its commands.
pub fn run(name: &str, passed: &Passed) -> Result<ExitCode> {
    let status = program()?.arg(name).args(&passed.arguments).status()?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Compares the tables of documents with the records.
pub fn check_tables() -> Result<Report> {
    let printed = capture(program()?.args(["readme", "--check"]))?;
    Ok(Report::check(printed.trim()))
}

fn program() -> Result<Command> {
    built("--bin", "xtask-records")
}
