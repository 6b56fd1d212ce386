//! `cargo xtask format`, and the check that the tree is formatted.

use anyhow::Result;

use crate::candle::MANIFEST;
use crate::checks::{C_SOURCES, SCRIPTS};
use crate::process::{run_ok, sh};
use crate::steps::Report;
use crate::tree;
use crate::uv::Environment;

/// Pinned, because another version breaks lines elsewhere.
const CLANG_FORMAT: &str = "clang-format==23.1.3";

/// Formats Rust, CUDA, C, C++ and Python.
pub fn apply() -> Result<()> {
    rust("")?;
    clang_format("-i")?;
    python("")
}

/// Whether Rust is formatted. `cargo fmt --all` does not see the crate for candle, a workspace of its own.
pub fn rust(option: &str) -> Result<()> {
    run_ok(&mut sh(&format!("cargo fmt --all {option}")))?;
    run_ok(&mut sh(&format!("cargo fmt --manifest-path {MANIFEST} {option}"))).map(|_| ())
}

/// Whether CUDA, C and C++ are formatted, in the style of `.clang-format`.
pub fn check_c() -> Result<Report> {
    let files = clang_format("--dry-run --Werror")?;
    Ok(Report::check(format!("{files} files, {CLANG_FORMAT}")))
}

fn clang_format(options: &str) -> Result<usize> {
    let files = tree::files(&C_SOURCES)?;
    let environment = Environment::new("clang-format", &[CLANG_FORMAT]);
    run_ok(environment.sh(&format!("clang-format {options}"))?.args(&files))?;
    Ok(files.len())
}

/// Formats Python, or checks with `--check`.
pub fn python(option: &str) -> Result<()> {
    run_ok(&mut SCRIPTS.sh(&format!("ruff format {option} ."))?).map(|_| ())
}
