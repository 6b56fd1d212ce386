//! The platforms that wheels are built for, and how a Linux machine builds for them.

use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::trial::{self, Trial};
use super::wheel::{MATURIN, with_zig};
use crate::process::{run_ok, sh};
use crate::setup;

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
}

/// All of them. Releases are made on the first.
pub static PLATFORMS: [Platform; 5] = [
    Platform {
        triple: "x86_64-unknown-linux-gnu",
        wheel_tag: "manylinux2014_x86_64.manylinux_2_17_x86_64",
        trials: &[("x86_64 wheel", trial::wheel_here)],
        not_run: "",
    },
    Platform {
        triple: "aarch64-unknown-linux-gnu",
        wheel_tag: "manylinux2014_aarch64.manylinux_2_17_aarch64",
        trials: &[
            ("aarch64 library", trial::library_under_qemu),
            ("aarch64 wheel", trial::wheel_under_qemu),
        ],
        not_run: "CUDA, PyTorch",
    },
    Platform {
        triple: "x86_64-pc-windows-gnu",
        wheel_tag: "win_amd64",
        trials: &[
            ("windows library", trial::library_under_wine),
            ("windows command", trial::command_under_wine),
            ("windows wheel", trial::checked),
        ],
        not_run: "the Python package, CUDA, PyTorch",
    },
    Platform {
        triple: "aarch64-apple-darwin",
        wheel_tag: "macosx_11_0_arm64",
        trials: &[("macos aarch64", trial::checked)],
        not_run: "anything: it is linked, and its library is checked",
    },
    Platform {
        triple: "x86_64-apple-darwin",
        wheel_tag: "macosx_10_12_x86_64",
        trials: &[("macos x86_64", trial::checked)],
        not_run: "anything: it is linked, and its library is checked",
    },
];

impl Platform {
    pub fn is_linux(&self) -> bool {
        self.triple.contains("linux")
    }

    pub fn is_macos(&self) -> bool {
        self.triple.contains("apple")
    }

    /// Zig links for old C libraries of Linux and for macOS. Debian's GCC links for Windows, because Zig has no `dlltool`,
    /// which rustc calls.
    pub fn is_linked_by_zig(&self) -> bool {
        self.is_linux() || self.is_macos()
    }

    /// `cargo build` or `cargo test` for this platform, with its linker.
    pub fn cargo(&self, command: &str) -> Result<Command> {
        self.set_up()?;
        let options = format!("--locked --target {}", self.triple);
        let mut cargo = match (self.is_linked_by_zig(), command) {
            (false, _) => sh(&format!("cargo {command} {options}")),
            (true, "build") => MATURIN.sh(&format!("cargo-zigbuild zigbuild {options}"))?,
            (true, _) => MATURIN.sh(&format!("cargo-zigbuild {command} {options}"))?,
        };
        with_zig(&mut cargo)?;
        Ok(cargo)
    }

    /// Installs the standard library and the linker, if they are missing.
    pub fn set_up(&self) -> Result<()> {
        ensure!(cfg!(target_os = "linux"), "only Linux machines build for other platforms");
        run_ok(&mut sh(&format!("rustup target add {}", self.triple)))
            .context("rustup installs the standard library of other platforms")?;
        if !self.is_linked_by_zig() {
            setup::programs(&[(&["x86_64-w64-mingw32-gcc"], "gcc-mingw-w64-x86-64")])?;
        }
        Ok(())
    }
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
