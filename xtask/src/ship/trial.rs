//! `cargo xtask try`: runs what was built for a platform, on this machine or under an emulator.
//!
//! Linux on ARM: the tests of the library and of the Python package, under qemu, with Debian's Python. Windows: the tests of the
//! library and the command line under Wine, because no registry has a Python for Wine. The libraries of the wheels for Windows
//! and macOS are checked without running them; the release workflow runs both.

use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Result, ensure};
use clap::Args;

use super::platforms::{self, PLATFORMS, Platform};
use super::wheel::{self, Effort};
use crate::process::{run, run_ok, sh};
use crate::setup;
use crate::steps::{Report, Steps, tests};
use crate::uv::uv;
use crate::{python, tree};

/// Options of `try`.
#[derive(Args)]
pub struct TryArgs {
    /// The platforms to try, or `all` [default: this machine]
    #[arg(long, value_name = "TRIPLE")]
    target: Vec<String>,
    /// Folder with wheels of `cargo xtask wheel`; a missing wheel is built, not optimised [default: target/tried]
    #[arg(long, value_name = "FOLDER")]
    wheels: Option<PathBuf>,
    /// Only these steps, by the names in the summary
    #[arg(long, value_name = "STEP", value_delimiter = ',')]
    only: Vec<String>,
}

/// Tries something of a platform. The function returns its wheel.
pub type Trial = fn(&Platform, &dyn Fn() -> Result<PathBuf>) -> Result<Report>;

/// What `cargo xtask try` does.
pub fn run_command(args: &TryArgs) -> Result<ExitCode> {
    let mut chosen = platforms::named(&args.target)?;
    if chosen.is_empty() {
        chosen.push(&PLATFORMS[0]);
    }
    let folder = args.wheels.clone().unwrap_or_else(|| tree::target().join("tried"));
    let mut steps = Steps::only(&args.only);
    for platform in chosen {
        let wheel = || match tree::file_ending(&folder, &format!("{}.whl", platform.wheel_tag)) {
            Some(found) => Ok(found),
            None => wheel::build(Some(platform), Effort::Tried, &folder),
        };
        for (name, trial) in platform.trials {
            steps.run(*name, || trial(platform, &wheel));
        }
        if !platform.not_run.is_empty() {
            println!("{}: not run: {}", platform.triple, platform.not_run);
        }
    }
    Ok(steps.finish())
}

/// The wheel's library is what the platform asks for.
pub fn checked(platform: &Platform, wheel: &dyn Fn() -> Result<PathBuf>) -> Result<Report> {
    wheel::check(&wheel()?, platform.wheel_tag, "").map(Report::check)
}

/// The Python package's tests with NumPy alone, on this machine.
pub fn wheel_here(_: &Platform, wheel: &dyn Fn() -> Result<PathBuf>) -> Result<Report> {
    python::test_alone(&wheel()?)
}

/// The tests of the CPU backend as on any machine: conformance, random problems, threads.
pub fn library_under_qemu(platform: &Platform, _: &dyn Fn() -> Result<PathBuf>) -> Result<Report> {
    let mut test = platform.cargo("test")?;
    test.args(["--no-fail-fast", "--package", "msdeform", "--lib", "--tests"]);
    let emulator = format!("qemu-aarch64 -L {}", arm_system()?.display());
    tests(test.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", emulator))
}

/// The Python package's tests with NumPy alone, without those of dozens of processes, and its command.
pub fn wheel_under_qemu(_: &Platform, wheel: &dyn Fn() -> Result<PathBuf>) -> Result<Report> {
    let system = arm_system()?;
    let site = tree::empty_folder(tree::cache().join("arm64-site"))?;
    let options =
        "--python-platform aarch64-manylinux_2_28 --python-version 3.11 --only-binary :all:";
    let mut install = uv(&["pip", "install"])?;
    install.args(options.split(' ')).arg("--target").arg(&site);
    run_ok(install.args(["numpy", "pytest"]).arg(wheel()?))?;
    let mut script = sh("tools/try_arm_wheel.sh");
    let finished = run(script.arg(system).arg(&site))?;
    let mut report = Report::of_tests(&finished)?;
    let facts = finished.output.lines().find(|line| line.starts_with("aarch64 neon"));
    ensure!(facts.is_some(), "expected the instructions of ARM");
    report.add(&Report::check(""));
    Ok(report.noted(facts.unwrap_or_default()))
}

/// Debian's C library and Python for ARM, unpacked; and qemu.
fn arm_system() -> Result<PathBuf> {
    setup::programs(&[(&["qemu-aarch64"], "qemu-user"), (&["mmdebstrap"], "mmdebstrap")])?;
    let folder = tree::cache().join("arm64-debian");
    if !folder.join("usr/bin/python3.11").exists() {
        tree::empty_folder(folder.clone())?;
        let unpack = "mmdebstrap --quiet --variant=extract --architectures=arm64 --skip=check/qemu \
                      --include=python3,libstdc++6 bookworm";
        run_ok(sh(unpack).arg(&folder))?;
    }
    Ok(folder)
}

/// The tests of the CPU backend, of files, of the tuning file, and of what the CUDA backend does without a GPU.
pub fn library_under_wine(platform: &Platform, _: &dyn Fn() -> Result<PathBuf>) -> Result<Report> {
    let mut report = Report::default();
    // The CUDA backend's other tests are for a GPU.
    let others = "--lib --package msdeform-files --package msdeform-tuning --package msdeform-cuda";
    for selection in ["--lib --tests --package msdeform", others] {
        let mut test = platform.cargo("test")?;
        test.arg("--no-fail-fast").args(selection.split(' '));
        report.add(&tests(in_wine(&mut test)?)?);
    }
    Ok(report)
}

/// The main commands, from the same sources as the wheel's.
pub fn command_under_wine(platform: &Platform, _: &dyn Fn() -> Result<PathBuf>) -> Result<Report> {
    run_ok(platform.cargo("build")?.args(["--package", "msdeform-cli"]))?;
    let mut commands = sh("tools/try_windows_command.sh");
    commands.arg(tree::target().join(platform.triple).join("debug/msdeform.exe"));
    run_ok(in_wine(commands.arg("docs/examples/tiny_decoder.safetensors"))?)?;
    Ok(Report::check(""))
}

/// A command whose Windows programs Wine runs, in a system of their own.
fn in_wine(command: &mut Command) -> Result<&mut Command> {
    setup::programs(&[(&["wine"], "wine wine64")])?;
    let runner = tree::root().join("tools/run_in_wine.sh");
    command.env("WINEPREFIX", tree::cache().join("wine"));
    Ok(command.env("CARGO_TARGET_X86_64_PC_WINDOWS_GNU_RUNNER", runner))
}
