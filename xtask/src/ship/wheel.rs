//! `cargo xtask wheel`: the Python package for one platform or several.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use clap::Args;

use super::platforms::{self, Platform};
use crate::process::{capture, run_ok};
use crate::steps::{Report, Steps};
use crate::tree;
use crate::uv::Environment;

/// Options of `wheel`.
#[derive(Args)]
pub struct WheelArgs {
    /// The platforms to build for, or `all` [default: this machine]
    #[arg(long, value_name = "TRIPLE")]
    target: Vec<String>,
}

/// What packs wheels, what changes their libraries, Zig, and what calls Zig as a linker.
pub static MATURIN: Environment<'_> = Environment::new(
    "wheel",
    &["auditwheel==6.8.*", "cargo-zigbuild==0.24.*", "maturin==1.16.*", "ziglang==0.17.*"],
);

/// What a user downloads; the kernels are text.
const LIMIT: &str = "--limit-bytes 5000000";

/// How much the compiler optimises. The code of the package is the same.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Effort {
    /// What is published.
    Full,
    /// What is tested: compiled as the tests of the workspace are, with which it shares all crates.
    Tried,
}

/// The feature of the package that makes it share crates with the tests.
pub const AS_TESTS_ARE: &str = "as-tests-are";

/// What `cargo xtask wheel` does.
pub fn run(args: &WheelArgs) -> Result<ExitCode> {
    let folder = tree::empty_folder(tree::target().join("wheels"))?;
    let mut steps = Steps::default();
    for platform in platforms::named(&args.target)? {
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
        let wheel = build(platform, Effort::Full, folder)?;
        let checked = check(&wheel, tag, LIMIT)?;
        Ok(Report::check(format!("{} bytes, {checked}", std::fs::metadata(&wheel)?.len())))
    });
}

/// Whether a wheel is what its name promises; returns a line about it.
pub fn check(wheel: &Path, tag: &str, options: &str) -> Result<String> {
    static READERS: Environment<'_> =
        Environment::new("wheel-check", &["abi3audit==0.0.26", "lief==1.0.*"]);
    let mut check = READERS.sh(&format!("python tools/check_wheel.py {options}"))?;
    Ok(capture(check.arg(wheel).arg(tag))?.trim().to_owned())
}

/// Builds a wheel into a folder and returns it. Without a platform: for this machine.
pub fn build(platform: Option<&Platform>, effort: Effort, folder: &Path) -> Result<PathBuf> {
    let is_linux = platform.map_or(cfg!(target_os = "linux"), Platform::is_linux);
    let mut maturin = MATURIN.sh(match effort {
        Effort::Full => "maturin build --locked --profile dist --compression-level 9",
        // Cargo's profile of tests.
        Effort::Tried => "maturin build --locked --profile dev",
    })?;
    with_zig(maturin.current_dir(tree::root().join("bindings/python")))?;
    if is_linux {
        maturin.args(["--compatibility", "manylinux2014"]);
    }
    // For rustc, when it links the wheel's own crate.
    let mut linker = None;
    match platform {
        Some(platform) => {
            platform.set_up()?;
            maturin.args(["--target", platform.triple]);
            maturin.args(platform.is_linked_by_zig().then_some("--zig"));
            let frameworks = tree::root().join("tools/macos-frameworks");
            linker = platform.is_macos().then(|| format!("link-arg=-F{}", frameworks.display()));
        }
        None if effort == Effort::Full => _ = maturin.args(is_linux.then_some("--zig")),
        None => {
            maturin.args(["--features", AS_TESTS_ARE]);
            // The option `--zig` names a target, for which cargo would compile everything once more.
            let script = tree::root().join("tools/link_by_zig.sh");
            linker = is_linux.then(|| format!("linker={}", script.display()));
        }
    }
    // An own folder, because maturin prints the name of the wheel for people only.
    let own = tree::empty_folder(folder.join("new"))?;
    maturin.arg("--out").arg(&own);
    if let Some(linker) = linker {
        maturin.args(["--", "-C", &linker]);
    }
    run_ok(&mut maturin)?;
    let built = tree::file_ending(&own, ".whl").context("maturin built no wheel")?;
    let wheel = folder.join(built.file_name().context("a wheel without a name")?);
    std::fs::rename(&built, &wheel)?;
    std::fs::remove_dir(&own)?;
    // Packages of AOTInductor for other systems have not been tried.
    if is_linux {
        let level = if effort == Effort::Full { "9" } else { "1" };
        run_ok(MATURIN.sh("python tools/python_optional.py")?.arg(&wheel).arg(level))?;
    }
    Ok(wheel)
}

/// Lets a command find Zig, and keeps what Zig caches in the target folder.
pub fn with_zig(command: &mut Command) -> Result<&mut Command> {
    let cache = tree::cache().join("zig");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let tools = MATURIN.program("")?;
    let path = std::env::join_paths(std::iter::once(tools).chain(std::env::split_paths(&path)))?;
    command.env("CARGO_ZIGBUILD_CACHE_DIR", &cache).env("ZIG_GLOBAL_CACHE_DIR", cache);
    Ok(command.env("PATH", path))
}
