//! The platforms that wheels are built for, and what builds for them on a Linux machine.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::process::{capture, on_path, run_ok};
use crate::setup::{self, python_in};
use crate::tree;

/// A platform that is published for.
#[derive(Debug, PartialEq, Eq)]
pub struct Platform {
    /// What Rust calls it.
    pub triple: &'static str,
    /// How names of its wheels end. They say the oldest system that it loads on.
    pub wheel_tag: &'static str,
    linker: Linker,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Linker {
    /// It knows old C libraries of Linux and the one of macOS, and comes as a package of Python's index.
    Zig { compatibility: Option<&'static str> },
    /// GCC for Windows, a package of Debian. Zig has no `dlltool`, which rustc asks for.
    Mingw,
}

const MANYLINUX: Linker = Linker::Zig { compatibility: Some("manylinux2014") };
const MACOS: Linker = Linker::Zig { compatibility: None };

/// All of them. The first is the one that releases are made on.
pub const PLATFORMS: [Platform; 5] = [
    Platform {
        triple: "x86_64-unknown-linux-gnu",
        wheel_tag: "manylinux2014_x86_64.manylinux_2_17_x86_64",
        linker: MANYLINUX,
    },
    Platform {
        triple: "aarch64-unknown-linux-gnu",
        wheel_tag: "manylinux2014_aarch64.manylinux_2_17_aarch64",
        linker: MANYLINUX,
    },
    Platform { triple: "x86_64-pc-windows-gnu", wheel_tag: "win_amd64", linker: Linker::Mingw },
    Platform { triple: "aarch64-apple-darwin", wheel_tag: "macosx_11_0_arm64", linker: MACOS },
    Platform { triple: "x86_64-apple-darwin", wheel_tag: "macosx_10_12_x86_64", linker: MACOS },
];

/// Zig, what calls it as a linker, and what packs wheels.
pub const BUILD_PACKAGES: [&str; 3] =
    ["cargo-zigbuild==0.24.*", "maturin==1.16.*", "ziglang==0.17.*"];

impl Platform {
    /// The one of this triple.
    pub fn named(triple: &str) -> Result<&'static Self> {
        let names = || PLATFORMS.iter().map(|platform| platform.triple).collect::<Vec<_>>();
        let found = PLATFORMS.iter().find(|platform| platform.triple == triple);
        found.with_context(|| format!("{triple}: none of {}", names().join(", ")))
    }

    /// Whether this machine runs what is built for it.
    pub fn is_host(&self) -> bool {
        self.triple == PLATFORMS[0].triple
            && cfg!(all(target_os = "linux", target_arch = "x86_64", target_env = "gnu"))
    }

    /// Whether it is a macOS.
    pub fn is_macos(&self) -> bool {
        self.linker == MACOS
    }

    /// Options of maturin.
    pub fn maturin_options(&self) -> Vec<&'static str> {
        let mut options = vec!["--target", self.triple];
        match self.linker {
            Linker::Zig { compatibility } => {
                options.push("--zig");
                options
                    .extend(compatibility.into_iter().flat_map(|name| ["--compatibility", name]));
            }
            Linker::Mingw => {}
        }
        options
    }

    /// Cargo for this platform: `build` or `test`, with what links for it.
    pub fn cargo(&self, command: &str) -> Result<Command> {
        let mut cargo = match self.linker {
            Linker::Zig { .. } => {
                let mut cargo = Command::new(build_tool("cargo-zigbuild")?);
                cargo.current_dir(tree::root()).arg(match command {
                    "build" => "zigbuild",
                    other => other,
                });
                cargo
            }
            Linker::Mingw => crate::process::cargo([command]),
        };
        use_build_tools(&mut cargo)?;
        cargo.args(["--locked", "--target", self.triple]);
        Ok(cargo)
    }

    /// Installs what is missing: the standard library for it, and its linker.
    pub fn set_up(&self) -> Result<()> {
        ensure!(cfg!(target_os = "linux"), "other platforms are built for on Linux");
        let installed = capture(Command::new("rustup").args(["target", "list", "--installed"]))
            .context("rustup brings the standard library of other platforms")?;
        if !installed.lines().any(|line| line == self.triple) {
            let mut add = Command::new("rustup");
            run_ok(add.args(["target", "add", self.triple]).current_dir(tree::root()))?;
        }
        if self.linker == Linker::Mingw && on_path(&["x86_64-w64-mingw32-gcc"]).is_none() {
            setup::apt_install(&["gcc-mingw-w64-x86-64"]).context("no GCC for Windows")?;
        }
        Ok(())
    }
}

/// A program of the packages above.
pub fn build_tool(name: &str) -> Result<PathBuf> {
    Ok(tools_folder()?.join(name))
}

fn tools_folder() -> Result<PathBuf> {
    let environment = setup::python_environment("wheel", &BUILD_PACKAGES)?;
    Ok(python_in(&environment).parent().map(Path::to_path_buf).unwrap_or_default())
}

/// Lets a command find Zig, and keeps what that caches here.
pub fn use_build_tools(command: &mut Command) -> Result<()> {
    let cache = tree::cache().join("zig");
    command.env("CARGO_ZIGBUILD_CACHE_DIR", &cache).env("ZIG_GLOBAL_CACHE_DIR", &cache);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::iter::once(tools_folder()?).chain(std::env::split_paths(&path));
    command.env("PATH", std::env::join_paths(folders)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn platforms_are_known_by_their_triples_and_others_are_refused_with_the_list() {
        assert_eq!(Platform::named("x86_64-pc-windows-gnu").unwrap().wheel_tag, "win_amd64");
        let error = Platform::named("riscv64gc-unknown-linux-gnu").unwrap_err().to_string();
        assert!(error.contains("aarch64-unknown-linux-gnu"), "{error}");
    }

    #[test]
    fn wheels_for_linux_load_on_old_systems() {
        let options = Platform::named("aarch64-unknown-linux-gnu").unwrap().maturin_options();
        assert_eq!(options[3..], ["--compatibility", "manylinux2014"], "{options:?}");
    }
}
