//! `cargo xtask candle`: lints, tests and documentation of `bindings/candle`, a workspace of its own.
//!
//! Not part of `cargo xtask test`, because candle takes minutes to compile.

use std::process::{Command, ExitCode};

use anyhow::Result;

use crate::process::{run_ok, sh};
use crate::steps::{Report, Steps, tests};
use crate::{format, tree};

/// The manifest, from the root.
pub const MANIFEST: &str = "bindings/candle/Cargo.toml";

/// What the crate is made of.
pub const LOCK: &str = "bindings/candle/Cargo.lock";

/// Runs all of it.
pub fn test() -> Result<ExitCode> {
    let cargo = |line: &str| {
        let mut command = sh(&format!("cargo {line}"));
        command.current_dir(tree::root().join("bindings/candle"));
        command.env("CARGO_TARGET_DIR", tree::target().join("candle"));
        command
    };
    let check = |command: &mut Command| run_ok(command).map(|_| Report::check(""));
    let mut steps = Steps::default();
    steps.run("format", || format::rust("--check").map(|()| Report::check("")));
    steps.run("clippy", || check(&mut cargo("clippy --locked --all-targets -- -D warnings")));
    steps.run("tests", || tests(&mut cargo("test --locked --no-fail-fast --all-targets")));
    steps.run("doctests", || tests(&mut cargo("test --locked --no-fail-fast --doc")));
    steps.run("documentation", || {
        check(cargo("doc --locked --no-deps").env("RUSTDOCFLAGS", "-D warnings"))
    });
    Ok(steps.finish())
}
