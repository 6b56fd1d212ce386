//! `cargo xtask wheel`: the Python package for one platform or several.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use clap::Args;

use super::platforms::{self, Platform, build_tool, use_build_tools};
use crate::process::run_ok;
use crate::steps::{Report, Steps};
use crate::tree;

/// Options of `wheel`.
#[derive(Args)]
pub struct WheelArgs {
    /// The platforms to build for, or `all` [default: this machine]
    #[arg(long, value_name = "TRIPLE")]
    target: Vec<String>,
}

/// What a user downloads; the kernels are text.
const LIMIT: [&str; 2] = ["--limit-bytes", "5000000"];

/// How much the compiler does for a wheel: the same code either way.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Effort {
    /// What is published.
    Full,
    /// What is tested, here or on another platform: compiled as the tests are, with which it shares all crates.
    Tried,
}

/// The feature of the package that makes it share them here, where the tests of the workspace are compiled too.
pub const AS_TESTS_ARE: &str = "as-tests-are";

/// What `cargo xtask wheel` does.
pub fn run(args: &WheelArgs) -> Result<ExitCode> {
    let folder = tree::empty_folder(tree::target().join("wheels"))?;
    let mut steps = Steps::default();
    match platforms::named(&args.target)?.as_slice() {
        [] => steps.run("wheel", || {
            let wheel = build(None, Effort::Full, &folder)?;
            Ok(Report::check(platforms::check_wheel(&wheel, "", &LIMIT)?))
        }),
        chosen => chosen.iter().for_each(|platform| step(&mut steps, platform, &folder)),
    }
    Ok(steps.finish())
}

/// Builds what is published for a platform, as a step: if one fails, the others are built all the same.
pub fn step(steps: &mut Steps, platform: &Platform, folder: &Path) {
    steps.run(format!("wheel {}", platform.triple), || {
        let wheel = build(Some(platform), Effort::Full, folder)?;
        let checked = platforms::check_wheel(&wheel, platform.wheel_tag, &LIMIT)?;
        Ok(Report::check(format!("{} bytes, {checked}", std::fs::metadata(&wheel)?.len())))
    });
}

/// Builds a wheel into a folder and returns it. Without a platform: for this machine.
pub fn build(platform: Option<&Platform>, effort: Effort, folder: &Path) -> Result<PathBuf> {
    let for_linux = platform.map_or(cfg!(target_os = "linux"), Platform::is_linux);
    let mut maturin = Command::new(build_tool("maturin")?);
    maturin.args(["build", "--locked"]).current_dir(tree::root().join("bindings/python"));
    use_build_tools(&mut maturin)?;
    maturin.args(match effort {
        Effort::Full => &["--profile", "dist", "--compression-level", "9"][..],
        // Cargo's profile for tests and everything else that is developed.
        Effort::Tried => &["--profile", "dev"],
    });
    if for_linux {
        maturin.args(["--compatibility", "manylinux2014"]);
    }
    // For rustc, when it links the wheel's own crate.
    let mut linker = None;
    match (platform, effort) {
        (Some(platform), _) => {
            platform.set_up()?;
            maturin.args(["--target", platform.triple]);
            maturin.args(platform.is_linked_by_zig().then_some("--zig"));
            let frameworks = tree::root().join("tools/macos-frameworks");
            linker = platform.is_macos().then(|| format!("link-arg=-F{}", frameworks.display()));
        }
        (None, Effort::Full) => _ = maturin.args(for_linux.then_some("--zig")),
        (None, Effort::Tried) => {
            maturin.args(["--features", AS_TESTS_ARE]);
            if for_linux {
                linker = Some(format!("linker={}", zig_linker()?.display()));
            }
        }
    }
    // A folder of its own: maturin prints the name of the wheel only in words for people.
    let own = tree::empty_folder(folder.join("new"))?;
    maturin.arg("--out").arg(&own);
    if let Some(linker) = linker {
        maturin.args(["--", "-C", &linker]);
    }
    run_ok(&mut maturin)?;
    let built = std::fs::read_dir(&own)?.next().context("maturin built no wheel")??.path();
    let wheel = folder.join(built.file_name().context("a wheel without a name")?);
    std::fs::rename(&built, &wheel)?;
    std::fs::remove_dir(&own)?;
    // Packages of AOTInductor for other systems have not been tried.
    if for_linux {
        let level = if effort == Effort::Full { "9" } else { "1" };
        let mut weaken = Command::new(build_tool("python")?);
        weaken.arg(tree::root().join("tools/python_optional.py")).arg(&wheel).arg(level);
        run_ok(&mut weaken)?;
    }
    Ok(wheel)
}

/// Links for old systems, as `maturin --zig` does. That option names a target, for which cargo would compile everything
/// once more.
fn zig_linker() -> Result<PathBuf> {
    let target = format!("{}-linux-gnu.2.17", std::env::consts::ARCH);
    let maturin = build_tool("maturin")?;
    let command = format!("exec '{}' zig cc -- -target {target} \"$@\"", maturin.display());
    tree::write_script(tree::cache().join("link-by-zig"), &command)
}
