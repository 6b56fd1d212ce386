//! `cargo xtask candle`: everything that must hold for `bindings/candle`, which is a workspace of its own.
//!
//! Not part of `cargo xtask test`: candle takes minutes to compile.

use std::process::{Command, ExitCode};

use anyhow::{Result, ensure};

use crate::process::{cargo, run, run_ok};
use crate::steps::{Report, Steps};
use crate::test::harness_report;
use crate::tree;

/// Its manifest, from the root.
pub const MANIFEST: &str = "bindings/candle/Cargo.toml";

/// What it is made of.
pub const LOCK: &str = "bindings/candle/Cargo.lock";

/// Lints, tests and documents it.
pub fn test() -> Result<ExitCode> {
    let mut steps = Steps::default();
    steps.run("format", check_format);
    steps.run("clippy", || {
        let mut lint = built(&["clippy", "--all-targets"]);
        run_ok(lint.args(["--", "-D", "warnings"]))?;
        Ok(Report::check(""))
    });
    steps.run("tests", || tests(&["--all-targets"]));
    steps.run("doctests", || tests(&["--doc"]));
    steps.run("documentation", || {
        run_ok(built(&["doc", "--no-deps"]).env("RUSTDOCFLAGS", "-D warnings"))?;
        Ok(Report::check(""))
    });
    Ok(if steps.finish() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Formats it: `cargo fmt --all` stays within its workspace.
pub fn format() -> Result<()> {
    run_ok(&mut cargo(["fmt", "--manifest-path", MANIFEST])).map(|_| ())
}

/// Whether it is formatted, which compiles nothing.
pub fn check_format() -> Result<Report> {
    run_ok(&mut cargo(["fmt", "--manifest-path", MANIFEST, "--check"]))?;
    Ok(Report::check(""))
}

fn tests(which: &[&str]) -> Result<Report> {
    let mut command = built(&["test", "--no-fail-fast"]);
    let report = harness_report(&run(command.args(which))?)?;
    ensure!(report.count.passed + report.count.failed > 0, "no test ran");
    Ok(report)
}

/// A command of cargo that builds it, in a folder of its own.
fn built(arguments: &[&str]) -> Command {
    let mut command = cargo(arguments);
    command.args(["--locked", "--manifest-path", MANIFEST, "--target-dir"]);
    command.arg(tree::target().join("candle"));
    command
}
