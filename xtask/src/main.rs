//! Developer commands: `cargo xtask <command>`.

mod checks;
mod process;
mod setup;
mod steps;
mod test;
mod tree;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", about = "Developer commands of msdeform")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Set up what is missing, then run every lint, test and check of the tree; CI runs exactly this
    Test(test::TestArgs),
}

fn main() -> ExitCode {
    let command = Cli::parse().command;
    match run(&command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: &Command) -> Result<ExitCode> {
    match command {
        Command::Test(args) => test::run_all(args),
    }
}
