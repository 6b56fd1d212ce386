//! `cargo xtask readme`: the tables of README.md from the committed records.

use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::Args;
use msdeform_bench::{Profile, readme, record};

use crate::steps::Report;
use crate::tree;

/// Options of `readme`.
#[derive(Args)]
pub struct ReadmeArgs {
    /// Change nothing; fail if the tables are not what the records say
    #[arg(long)]
    check: bool,
}

/// Writes or checks the tables.
pub fn run(args: &ReadmeArgs) -> Result<ExitCode> {
    if args.check {
        println!("README.md agrees with {}", check()?.note);
    } else {
        let (found, spliced, records) = tables()?;
        if found == spliced {
            println!("README.md already agrees with {records} records");
        } else {
            std::fs::write(tree::root().join("README.md"), spliced)?;
            println!("README.md: tables written from {records} records");
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Fails when README.md and the records disagree.
pub fn check() -> Result<Report> {
    let (found, spliced, records) = tables()?;
    ensure!(found == spliced, "README.md is not what the records say; run `cargo xtask readme`");
    Ok(Report::check(format!("{records} records")))
}

/// README.md as it is, as the records say it should be, and their number.
fn tables() -> Result<(String, String, usize)> {
    let found = std::fs::read_to_string(tree::root().join("README.md")).context("README.md")?;
    let records = record::load_committed(&tree::root().join("records"))?;
    let profiles = Profile::load_all(&tree::root().join("records"))?;
    let spliced = readme::splice(&found, &records, &profiles)?;
    Ok((found, spliced, records.len()))
}
