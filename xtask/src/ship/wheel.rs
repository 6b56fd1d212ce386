//! `cargo xtask wheel`: the Python package for one platform or several.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};
use clap::Args;

use super::frameworks;
use super::platforms::{PLATFORMS, Platform, build_tool, use_build_tools};
use crate::process::{capture, run_ok};
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
const LIMIT_BYTES: u64 = 5_000_000;

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

/// The platforms that options name.
pub fn platforms(named: &[String]) -> Result<Vec<&'static Platform>> {
    if named.iter().any(|name| name == "all") {
        return Ok(PLATFORMS.iter().collect());
    }
    named.iter().map(|name| Platform::named(name)).collect()
}

/// What `cargo xtask wheel` does.
pub fn run(args: &WheelArgs) -> Result<ExitCode> {
    let folder = tree::target().join("wheels");
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    let mut steps = Steps::default();
    match platforms(&args.target)?.as_slice() {
        [] => steps.run("wheel", || build(None, Effort::Full, &folder).and_then(|it| report(&it))),
        chosen => chosen.iter().for_each(|platform| step(&mut steps, platform, &folder)),
    }
    Ok(if steps.finish() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Builds what is published for a platform, as a step: where one fails, the others are built all the same.
pub fn step(steps: &mut Steps, platform: &Platform, folder: &Path) {
    steps.run(format!("wheel {}", platform.triple), || {
        build(Some(platform), Effort::Full, folder).and_then(|wheel| report(&wheel))
    });
}

fn report(wheel: &Path) -> Result<Report> {
    let bytes = std::fs::metadata(wheel)?.len();
    let shown = wheel.strip_prefix(tree::root()).unwrap_or(wheel);
    Ok(Report::check(format!("{bytes} bytes, {}", shown.display())))
}

/// Builds a wheel into a folder, checks it and returns it. Without a platform: for this machine.
pub fn build(platform: Option<&Platform>, effort: Effort, folder: &Path) -> Result<PathBuf> {
    let mut maturin = Command::new(build_tool("maturin")?);
    maturin.args(["build", "--locked"]).current_dir(tree::root().join("bindings/python"));
    use_build_tools(&mut maturin)?;
    maturin.args(match effort {
        Effort::Full => &["--profile", "dist", "--compression-level", "9"][..],
        // Cargo's profile for tests and whatever else is developed.
        Effort::Tried => &["--profile", "dev"],
    });
    if let Some(platform) = platform {
        platform.set_up()?;
        maturin.args(platform.maturin_options());
    } else if cfg!(target_os = "linux") {
        maturin.args(["--compatibility", "manylinux2014"]);
    }
    // For rustc, when it links the wheel's own crate.
    let mut linker = Vec::new();
    match effort {
        _ if platform.is_some_and(Platform::is_macos) => {
            let frameworks = frameworks::write(&tree::cache())?;
            linker = vec!["--".to_owned(), "-C".to_owned()];
            linker.push(format!("link-arg=-F{}", frameworks.display()));
        }
        _ if platform.is_some() => {}
        Effort::Full if cfg!(target_os = "linux") => {
            maturin.arg("--zig");
        }
        Effort::Full => {}
        Effort::Tried => {
            maturin.args(["--features", AS_TESTS_ARE]);
            if cfg!(target_os = "linux") {
                let linked = format!("linker={}", zig_linker()?.display());
                linker = vec!["--".to_owned(), "-C".to_owned(), linked];
            }
        }
    }
    // A folder of its own: maturin says which file it wrote in words for people only.
    let own = folder.join("new");
    maturin.arg("--out").arg(&own).args(linker);
    run_ok(&mut maturin)?;
    let mut entries = std::fs::read_dir(&own)?;
    let built = entries.next().context("maturin built no wheel")??.path();
    let wheel = folder.join(built.file_name().context("a wheel without a name")?);
    std::fs::rename(&built, &wheel)?;
    std::fs::remove_dir(&own)?;
    make_python_optional(&wheel, platform, effort)?;
    if effort == Effort::Full {
        check(&wheel, platform)?;
    }
    Ok(wheel)
}

/// Links for old systems, as `maturin --zig` does. That is for a named target, for which cargo would compile everything
/// once more.
#[cfg(unix)]
fn zig_linker() -> Result<PathBuf> {
    use std::os::unix::fs::PermissionsExt;

    let (script, maturin) = (tree::cache().join("link-by-zig"), build_tool("maturin")?);
    let target = format!("{}-linux-gnu.2.17", std::env::consts::ARCH);
    let command = format!("exec '{}' zig cc -- -target {target} \"$@\"", maturin.display());
    std::fs::write(&script, format!("#!/bin/sh\n{command}\n"))?;
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755))?;
    Ok(script)
}

#[cfg(not(unix))]
fn zig_linker() -> Result<PathBuf> {
    anyhow::bail!("wheels for Linux are linked on Linux")
}

/// Lets processes without Python load the wheel's library, on Linux: packages of AOTInductor for other systems have not been
/// tried.
fn make_python_optional(wheel: &Path, platform: Option<&Platform>, effort: Effort) -> Result<()> {
    const SCRIPT: &str = include_str!("python_optional.py");
    let is_linux =
        platform.map_or(cfg!(target_os = "linux"), |platform| platform.triple.contains("linux"));
    if !is_linux {
        return Ok(());
    }
    let level = match effort {
        Effort::Full => "9",
        Effort::Tried => "1",
    };
    let mut python = Command::new(build_tool("python")?);
    run_ok(python.args(["-c", SCRIPT]).arg(wheel).arg(level))?;
    Ok(())
}

/// Whether a wheel is for its platform, small, and holds what it should.
fn check(wheel: &Path, platform: Option<&Platform>) -> Result<()> {
    let name = wheel.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let tag = platform.map_or("", |platform| platform.wheel_tag);
    ensure!(
        name.contains("-cp310-abi3-") && name.ends_with(&format!("{tag}.whl")),
        "{name} is not for every Python from 3.10 on {tag}"
    );
    let bytes = std::fs::metadata(wheel)?.len();
    ensure!(bytes <= LIMIT_BYTES, "{name} has {bytes} bytes, more than {LIMIT_BYTES}");
    let mut list = Command::new(build_tool("python")?);
    let listed = capture(list.args(["-m", "zipfile", "--list"]).arg(wheel))?;
    let missing = missing_files(&listed);
    ensure!(missing.is_empty(), "{name} lacks {missing:?}");
    Ok(())
}

/// What must be in a wheel and is not, by the first word of each line.
fn missing_files(listed: &str) -> Vec<&'static str> {
    const NATIVE: &str = "msdeform/_native";
    let wanted = [
        NATIVE,
        "msdeform/py.typed",
        "msdeform/_native.pyi",
        ".dist-info/licenses/LICENSE-APACHE",
        ".dist-info/licenses/LICENSE-MIT",
        ".dist-info/entry_points.txt",
        ".dist-info/sboms/",
    ];
    let files: Vec<&str> = listed.lines().filter_map(|line| line.split(' ').next()).collect();
    let is_library = |file: &str| {
        file.strip_prefix(NATIVE).is_some_and(|end| end == ".abi3.so" || end == ".pyd")
    };
    let has = |part: &str| match part {
        NATIVE => files.iter().any(|file| is_library(file)),
        part => files.iter().any(|file| file.contains(part)),
    };
    wanted.into_iter().filter(|part| !has(part)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wheel_without_its_library_or_a_licence_is_noticed() {
        let complete = "File Name    Modified   Size\n\
                        msdeform/_native.pyd   2026-01-01 00:00:00  1\n\
                        msdeform/_native.pyi   2026-01-01 00:00:00  1\n\
                        msdeform/py.typed   2026-01-01 00:00:00  1\n\
                        msdeform-0.1.0.dist-info/entry_points.txt   x  1\n\
                        msdeform-0.1.0.dist-info/sboms/msdeform-python.cyclonedx.json   x  1\n\
                        msdeform-0.1.0.dist-info/licenses/LICENSE-MIT   x  1\n\
                        msdeform-0.1.0.dist-info/licenses/LICENSE-APACHE   x  1\n";
        assert_eq!(missing_files(complete), [""; 0]);
        assert_eq!(
            missing_files(&complete.replace("_native.pyd", "_native.pyc")),
            ["msdeform/_native"]
        );
        let without = complete.replace("LICENSE-MIT", "README");
        assert_eq!(missing_files(&without), [".dist-info/licenses/LICENSE-MIT"]);
    }

    #[test]
    fn all_names_every_platform() {
        assert_eq!(platforms(&["all".to_owned()]).unwrap().len(), PLATFORMS.len());
        assert!(platforms(&["everything".to_owned()]).is_err());
    }
}
