//! `cargo xtask candle`: everything that must hold for `bindings/candle`, which is a workspace of its own.
//!
//! Not part of `cargo xtask test`: candle takes minutes to compile.

use std::process::{Command, ExitCode};

use anyhow::Result;

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
    let checked = |command: &mut Command| run_ok(command).map(|_| Report::check(""));
    let tested = |command: &mut Command| harness_report(&run(command.arg("--no-fail-fast"))?);
    steps.run("clippy", || {
        checked(built(&["clippy", "--all-targets"]).args(["--", "-D", "warnings"]))
    });
    steps.run("tests", || tested(&mut built(&["test", "--all-targets"])));
    steps.run("doctests", || tested(&mut built(&["test", "--doc"])));
    steps.run("documentation", || {
        checked(built(&["doc", "--no-deps"]).env("RUSTDOCFLAGS", "-D warnings"))
    });
    Ok(steps.finish())
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

/// A command of cargo that builds it, in a folder of its own.
fn built(arguments: &[&str]) -> Command {
    let mut command = cargo(arguments);
    command.args(["--locked", "--manifest-path", MANIFEST, "--target-dir"]);
    command.arg(tree::target().join("candle"));
    command
}
