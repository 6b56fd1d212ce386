//! `cargo xtask ledger`: the laboratory's command, built as releases are.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use crate::process::{cargo, run_ok};

/// Options of `ledger`.
#[derive(Args)]
pub struct LedgerArgs {
    /// What to do, such as `renew`; see `msdeform ledger --help`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// Runs `msdeform ledger`.
pub fn run(args: &LedgerArgs) -> Result<ExitCode> {
    let run = ["run", "--release", "--quiet", "--package", "msdeform-cli", "--", "ledger"];
    run_ok(cargo(run).args(&args.arguments))?;
    Ok(ExitCode::SUCCESS)
}
