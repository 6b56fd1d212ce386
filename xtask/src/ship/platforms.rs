//! The platforms that wheels are built for, how a Linux machine builds for them, and `cargo xtask try`, which runs what was
//! built, on this machine or under an emulator.
//!
//! No registry has a Python for Wine, so the Python package for Windows is not run. The libraries of the wheels for Windows and
//! macOS are checked without running them; the release workflow runs both.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::Args;

use super::wheel;
use crate::process::{run, run_ok, sh};
use crate::setup::{self, Programs};
use crate::steps::{Report, Steps};
use crate::uv::uv;
use crate::{python, tree};

/// A platform with published wheels.
pub struct Platform {
    /// The name in Rust.
    pub triple: &'static str,
    /// The end of the name of its wheels, with the oldest system that loads them.
    pub wheel_tag: &'static str,
    /// What `cargo xtask try` runs: names of steps, and what they do.
    pub trials: &'static [(&'static str, Trial)],
    /// What no trial runs, for the release notes.
    pub not_run: &'static str,
    /// The linker of what Zig does not link. Zig links for old C libraries of Linux and for macOS, but has no `dlltool`, which
    /// rustc calls for Windows.
    linker: Programs<'static>,
    /// What runs its programs.
    emulator: Programs<'static>,
}

/// Tries a platform with its wheel, which it may build.
pub type Trial = fn(&Platform, &dyn Fn() -> Result<PathBuf>) -> Result<Report>;

/// All of them. Releases are made on the first.
pub static PLATFORMS: [Platform; 5] = [
    Platform {
        triple: "x86_64-unknown-linux-gnu",
        wheel_tag: "manylinux2014_x86_64.manylinux_2_17_x86_64",
        trials: &[("x86_64 wheel", |_, wheel| python::test_alone(&wheel()?))],
        not_run: "",
        linker: &[],
        emulator: &[],
    },
    Platform {
        triple: "aarch64-unknown-linux-gnu",
        wheel_tag: "manylinux2014_aarch64.manylinux_2_17_aarch64",
        trials: &[
            ("aarch64 library", |this, _| this.script("tools/try_arm.sh library", None)),
            ("aarch64 wheel", |this, wheel| {
                this.script("tools/try_arm.sh wheel", Some(unpacked_for_arm(wheel()?)?))
            }),
        ],
        not_run: "CUDA, PyTorch",
        linker: &[],
        emulator: &[(&["qemu-aarch64"], "qemu-user"), (&["mmdebstrap"], "mmdebstrap")],
    },
    Platform {
        triple: "x86_64-pc-windows-gnu",
        wheel_tag: "win_amd64",
        trials: &[
            ("windows library", |this, _| this.script("tools/try_windows.sh library", None)),
            ("windows command", |this, _| this.script("tools/try_windows.sh commands", None)),
            ("windows wheel", CHECKED),
        ],
        not_run: "the Python package, CUDA, PyTorch",
        linker: &[(&["x86_64-w64-mingw32-gcc"], "gcc-mingw-w64-x86-64")],
        emulator: &[(&["wine"], "wine wine64")],
    },
    macos("aarch64-apple-darwin", "macosx_11_0_arm64", &[("macos aarch64", CHECKED)]),
    macos("x86_64-apple-darwin", "macosx_10_12_x86_64", &[("macos x86_64", CHECKED)]),
];

const fn macos(
    triple: &'static str,
    wheel_tag: &'static str,
    trials: &'static [(&'static str, Trial)],
) -> Platform {
    let not_run = "anything: it is linked, and its library is checked";
    Platform { triple, wheel_tag, trials, not_run, linker: &[], emulator: &[] }
}

/// Without running it: the wheel's library is what the platform asks for.
const CHECKED: Trial = |this, wheel| wheel::check(&wheel()?, this.wheel_tag, "").map(Report::check);

impl Platform {
    /// Its wheel in a folder.
    pub fn wheel_in(&self, folder: &Path) -> Option<PathBuf> {
        let files = std::fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
        let end = format!("{}.whl", self.wheel_tag);
        files.into_iter().find(|file| file.to_string_lossy().ends_with(&end))
    }

    /// Installs the standard library and the linker, if they are missing.
    pub fn set_up(&self) -> Result<()> {
        ensure!(cfg!(target_os = "linux"), "only Linux machines build for other platforms");
        run_ok(&mut sh(&format!("rustup target add {}", self.triple)))
            .context("rustup installs the standard library of other platforms")?;
        setup::programs(self.linker)
    }

    /// Tries it, as steps.
    pub fn try_in(&self, steps: &mut Steps, wheel: impl Fn() -> Result<PathBuf>) {
        for (name, trial) in self.trials {
            steps.run(*name, || trial(self, &wheel));
        }
    }

    fn script(&self, line: &str, folder: Option<PathBuf>) -> Result<Report> {
        self.set_up()?;
        setup::programs(self.emulator)?;
        let finished = run(wheel::with_zig(sh(line).args(folder))?)?;
        let report = Report::of_tests(&finished)?;
        ensure!(finished.success || report.failed > 0, "`{line}` failed");
        let facts = finished.output.lines().find(|line| line.starts_with("aarch64 "));
        Ok(report.noted(facts.unwrap_or_default()))
    }
}

/// A folder with a wheel for ARM, NumPy and pytest.
fn unpacked_for_arm(wheel: PathBuf) -> Result<PathBuf> {
    let site = tree::empty_folder(tree::cache().join("arm64-site"))?;
    let platform = "--python-platform aarch64-manylinux_2_28 --python-version 3.11";
    let mut install = uv(&["pip", "install", "--only-binary", ":all:", "--target"])?;
    install.arg(&site).args(platform.split(' ')).args(["numpy", "pytest"]).arg(wheel);
    run_ok(&mut install)?;
    Ok(site)
}

/// The platforms that options name.
pub fn named(names: &[String]) -> Result<Vec<&'static Platform>> {
    if names.iter().any(|name| name == "all") {
        return Ok(PLATFORMS.iter().collect());
    }
    let find = |name: &String| PLATFORMS.iter().find(|platform| platform.triple == *name);
    let known = PLATFORMS.each_ref().map(|platform| platform.triple).join(", ");
    let found =
        |name| find(name).with_context(|| format!("no platform {name}; known: all, {known}"));
    names.iter().map(found).collect()
}

#[derive(Args)]
pub struct TryArgs {
    /// The platforms to try, or `all` [default: this machine]
    #[arg(long, value_name = "TRIPLE", default_value = PLATFORMS[0].triple, hide_default_value = true)]
    target: Vec<String>,
    /// Folder with wheels of `cargo xtask wheel`; a missing wheel is built, not optimised [default: target/tried]
    #[arg(long, value_name = "FOLDER")]
    wheels: Option<PathBuf>,
    /// Only these steps, by the names in the summary
    #[arg(long, value_name = "STEP", value_delimiter = ',')]
    only: Vec<String>,
}

pub fn try_all(args: &TryArgs) -> Result<ExitCode> {
    let folder = args.wheels.clone().unwrap_or_else(|| tree::target().join("tried"));
    let mut steps = Steps::only(&args.only);
    for platform in named(&args.target)? {
        platform.try_in(&mut steps, || match platform.wheel_in(&folder) {
            Some(found) => Ok(found),
            None => wheel::build(Some(platform), "--tried", &folder),
        });
        if !platform.not_run.is_empty() {
            println!("{}: not run: {}", platform.triple, platform.not_run);
        }
    }
    Ok(steps.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn platforms_are_known_by_their_triples_and_others_are_refused_with_the_list() {
        assert_eq!(named(&["all".to_owned()]).unwrap().len(), PLATFORMS.len());
        let error = named(&["riscv64gc-unknown-linux-gnu".to_owned()]).err().unwrap().to_string();
        assert!(error.contains("aarch64-unknown-linux-gnu"), "{error}");
    }
}
