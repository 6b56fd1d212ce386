//! `cargo xtask try`: runs what was built for a platform, on this machine or under an emulator.
//!
//! No registry has a Python for Wine, so the Python package for Windows is not run. The libraries of the wheels for Windows and
//! macOS are checked without running them; the release workflow runs both.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, ensure};
use clap::Args;

use super::platforms::{self, PLATFORMS, Platform};
use super::wheel::{self, Effort, with_zig};
use crate::process::{run, run_ok, sh};
use crate::setup;
use crate::steps::{Report, Steps};
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

/// What is tried of a platform.
pub enum Trial {
    /// The Python package's tests with NumPy alone, on this machine.
    Here,
    /// Without running it: the wheel's library is what the platform asks for.
    Checked,
    /// A script that runs tests.
    Script(&'static str),
    /// The same, with the folder that the wheel is unpacked into.
    ScriptOnArm(&'static str),
}

/// What `cargo xtask try` does.
pub fn run_command(args: &TryArgs) -> Result<ExitCode> {
    let mut chosen = platforms::named(&args.target)?;
    if chosen.is_empty() {
        chosen.push(&PLATFORMS[0]);
    }
    let folder = args.wheels.clone().unwrap_or_else(|| tree::target().join("tried"));
    let mut steps = Steps::only(&args.only);
    for platform in chosen {
        steps_of(&mut steps, platform, || match platform.wheel_in(&folder) {
            Some(found) => Ok(found),
            None => wheel::build(Some(platform), Effort::Tried, &folder),
        });
        if !platform.not_run.is_empty() {
            println!("{}: not run: {}", platform.triple, platform.not_run);
        }
    }
    Ok(steps.finish())
}

/// Tries a platform. `wheel` is called by the steps that need one.
pub fn steps_of(steps: &mut Steps, platform: &Platform, wheel: impl Fn() -> Result<PathBuf>) {
    for (name, trial) in platform.trials {
        steps.run(*name, || match trial {
            Trial::Here => python::test_alone(&wheel()?),
            Trial::Checked => wheel::check(&wheel()?, platform.wheel_tag, "").map(Report::check),
            Trial::Script(line) => script(platform, line, None),
            Trial::ScriptOnArm(line) => script(platform, line, Some(unpacked(wheel()?)?)),
        });
    }
}

fn script(platform: &Platform, line: &str, folder: Option<PathBuf>) -> Result<Report> {
    platform.set_up()?;
    setup::programs(platform.emulator)?;
    let finished = run(with_zig(sh(line).args(folder))?)?;
    let report = Report::of_tests(&finished)?;
    ensure!(finished.success || report.failed > 0, "`{line}` failed");
    let facts = finished.output.lines().find(|line| line.starts_with("aarch64 "));
    Ok(report.noted(facts.unwrap_or_default()))
}

/// A folder with a wheel for ARM, NumPy and pytest.
fn unpacked(wheel: PathBuf) -> Result<PathBuf> {
    let site = tree::empty_folder(tree::cache().join("arm64-site"))?;
    let platform = "--python-platform aarch64-manylinux_2_28 --python-version 3.11";
    let mut install = uv(&["pip", "install", "--only-binary", ":all:", "--target"])?;
    install.arg(&site).args(platform.split(' ')).args(["numpy", "pytest"]).arg(wheel);
    run_ok(&mut install)?;
    Ok(site)
}
