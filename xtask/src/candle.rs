//! `cargo xtask candle`: lints, tests and documentation of `bindings/candle`, a workspace of its own.
//!
//! Not part of `cargo xtask test`, because candle takes minutes to compile.

use std::process::ExitCode;

use crate::process::{run_ok, sh};
use crate::steps::{Report, Steps, tests};

/// The manifest, from the root.
pub const MANIFEST: &str = "bindings/candle/Cargo.toml";

/// What the crate is made of.
pub const LOCK: &str = "bindings/candle/Cargo.lock";

/// Runs all of it, in a build folder of its own.
pub fn test() -> ExitCode {
    let cargo = |command: &str, options: &str| {
        let flags = "CARGO_TARGET_DIR=target/candle RUSTDOCFLAGS=-Dwarnings";
        let selection = format!("--locked --manifest-path {MANIFEST}");
        sh(&format!("{flags} cargo {command} {selection} {options}"))
    };
    let checked = |command: &str, options: &str| {
        run_ok(&mut cargo(command, options)).map(|_| Report::check(""))
    };
    let tested = |options: &str| tests(&mut cargo("test --no-fail-fast", options));
    let mut steps = Steps::default();
    steps.run("format", || {
        let format = format!("cargo fmt --check --manifest-path {MANIFEST}");
        run_ok(&mut sh(&format)).map(|_| Report::check(""))
    });
    steps.run("clippy", || checked("clippy --all-targets", "-- -D warnings"));
    steps.run("tests", || tested("--all-targets"));
    steps.run("doctests", || tested("--doc"));
    steps.run("documentation", || checked("doc", "--no-deps"));
    steps.finish()
}
