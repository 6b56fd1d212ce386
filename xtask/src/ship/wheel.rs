//! `cargo xtask wheel`: the Python package for one platform or several.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use clap::Args;

use super::platforms::{self, Platform};
use crate::environments::{MATURIN, READERS};
use crate::process::{capture, run_ok};
use crate::steps::{Report, Steps};
use crate::tree;

#[derive(Args)]
pub struct WheelArgs {
    /// The platforms to build for, or `all` [default: this machine]
    #[arg(long, value_name = "TRIPLE")]
    target: Vec<String>,
}

pub fn run(args: &WheelArgs) -> Result<ExitCode> {
    let platforms = platforms::named(&args.target)?;
    let folder = tree::empty_folder(tree::target().join("wheels"))?;
    let mut steps = Steps::only(&[]);
    for platform in platforms {
        step(&mut steps, Some(platform), &folder);
    }
    if args.target.is_empty() {
        step(&mut steps, None, &folder);
    }
    Ok(steps.finish())
}

/// Builds what is published, as a step: if it fails, wheels for other platforms are still built.
pub fn step(steps: &mut Steps, platform: Option<&Platform>, folder: &Path) {
    let (triple, tag) = platform.map_or(("", ""), |known| (known.triple, known.wheel_tag));
    steps.run(format!("wheel {triple}").trim_end(), || {
        let wheel = build(platform, "", folder)?;
        // What a user downloads; the kernels are text.
        let checked = check(&wheel, tag, "--limit-bytes 5000000")?;
        Ok(Report::check(format!("{} bytes, {checked}", std::fs::metadata(&wheel)?.len())))
    });
}

/// Whether a wheel is what its name promises; returns a line about it.
pub fn check(wheel: &Path, tag: &str, options: &str) -> Result<String> {
    let mut check = READERS.sh(&format!("python tools/check_wheel.py {options}"))?;
    Ok(capture(check.arg(wheel).arg(tag))?.trim().to_owned())
}

/// Builds a wheel into a folder and returns it. Without a platform: for this machine. With `--tried` it is compiled as the tests
/// are, else as it is published.
pub fn build(platform: Option<&Platform>, options: &str, folder: &Path) -> Result<PathBuf> {
    let mut build = MATURIN.sh(&format!("python tools/build_wheel.py {options}"))?;
    build.arg(folder);
    if let Some(platform) = platform {
        platform.set_up()?;
        build.args(["--target", platform.triple]);
    }
    let output = run_ok(with_zig(&mut build)?)?;
    let wheel = output.lines().find(|line| line.ends_with(".whl") && Path::new(line).is_file());
    Ok(wheel.context("build_wheel.py printed no wheel")?.into())
}

/// Lets a command find Zig, and keeps what Zig caches in the target folder.
pub fn with_zig(command: &mut Command) -> Result<&mut Command> {
    let cache = tree::cache().join("zig");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let tools = MATURIN.program("python")?.with_file_name("");
    let path = std::env::join_paths(std::iter::once(tools).chain(std::env::split_paths(&path)))?;
    command.env("CARGO_ZIGBUILD_CACHE_DIR", &cache).env("ZIG_GLOBAL_CACHE_DIR", cache);
    Ok(command.env("PATH", path))
}
