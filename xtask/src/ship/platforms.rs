//! The platforms that wheels are built for, and how a Linux machine builds for them.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::trial::Trial;
use crate::process::{run_ok, sh};
use crate::setup::{self, Programs};
use crate::tree;

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
    pub emulator: Programs<'static>,
}

const NOTHING: Programs<'_> = &[];

/// All of them. Releases are made on the first.
pub static PLATFORMS: [Platform; 5] = [
    Platform {
        triple: "x86_64-unknown-linux-gnu",
        wheel_tag: "manylinux2014_x86_64.manylinux_2_17_x86_64",
        trials: &[("x86_64 wheel", Trial::Here)],
        not_run: "",
        linker: NOTHING,
        emulator: NOTHING,
    },
    Platform {
        triple: "aarch64-unknown-linux-gnu",
        wheel_tag: "manylinux2014_aarch64.manylinux_2_17_aarch64",
        trials: &[
            ("aarch64 library", Trial::Script("tools/try_arm.sh library")),
            ("aarch64 wheel", Trial::ScriptOnArm("tools/try_arm.sh wheel")),
        ],
        not_run: "CUDA, PyTorch",
        linker: NOTHING,
        emulator: &[(&["qemu-aarch64"], "qemu-user"), (&["mmdebstrap"], "mmdebstrap")],
    },
    Platform {
        triple: "x86_64-pc-windows-gnu",
        wheel_tag: "win_amd64",
        trials: &[
            ("windows library", Trial::Script("tools/try_windows.sh library")),
            ("windows command", Trial::Script("tools/try_windows.sh commands")),
            ("windows wheel", Trial::Checked),
        ],
        not_run: "the Python package, CUDA, PyTorch",
        linker: &[(&["x86_64-w64-mingw32-gcc"], "gcc-mingw-w64-x86-64")],
        emulator: &[(&["wine"], "wine wine64")],
    },
    macos("aarch64-apple-darwin", "macosx_11_0_arm64", &[("macos aarch64", Trial::Checked)]),
    macos("x86_64-apple-darwin", "macosx_10_12_x86_64", &[("macos x86_64", Trial::Checked)]),
];

const fn macos(
    triple: &'static str,
    wheel_tag: &'static str,
    trials: &'static [(&'static str, Trial)],
) -> Platform {
    let not_run = "anything: it is linked, and its library is checked";
    Platform { triple, wheel_tag, trials, not_run, linker: NOTHING, emulator: NOTHING }
}

impl Platform {
    /// Its wheel in a folder.
    pub fn wheel_in(&self, folder: &Path) -> Option<PathBuf> {
        tree::file_ending(folder, &format!("{}.whl", self.wheel_tag))
    }

    /// Installs the standard library and the linker, if they are missing.
    pub fn set_up(&self) -> Result<()> {
        ensure!(cfg!(target_os = "linux"), "only Linux machines build for other platforms");
        run_ok(&mut sh(&format!("rustup target add {}", self.triple)))
            .context("rustup installs the standard library of other platforms")?;
        setup::programs(self.linker)
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
