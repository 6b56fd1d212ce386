//! The platforms that wheels are built for, and what builds for them on a Linux machine.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::process::{capture, run_ok};
use crate::setup::{self, python_in};
use crate::tree;

/// A platform that is published for.
#[derive(Debug, PartialEq, Eq)]
pub struct Platform {
    /// What Rust calls it.
    pub triple: &'static str,
    /// How names of its wheels end: with the oldest system that loads them.
    pub wheel_tag: &'static str,
}

/// All of them. The first is the one that releases are made on.
pub const PLATFORMS: [Platform; 5] = [
    Platform {
        triple: "x86_64-unknown-linux-gnu",
        wheel_tag: "manylinux2014_x86_64.manylinux_2_17_x86_64",
    },
    Platform {
        triple: "aarch64-unknown-linux-gnu",
        wheel_tag: "manylinux2014_aarch64.manylinux_2_17_aarch64",
    },
    Platform { triple: "x86_64-pc-windows-gnu", wheel_tag: "win_amd64" },
    Platform { triple: "aarch64-apple-darwin", wheel_tag: "macosx_11_0_arm64" },
    Platform { triple: "x86_64-apple-darwin", wheel_tag: "macosx_10_12_x86_64" },
];

/// Zig, what calls it as a linker, what packs wheels and what changes their libraries.
pub const BUILD_PACKAGES: [&str; 4] =
    ["auditwheel==6.8.*", "cargo-zigbuild==0.24.*", "maturin==1.16.*", "ziglang==0.17.*"];

impl Platform {
    /// Whether this machine runs what is built for it.
    pub fn is_host(&self) -> bool {
        self.triple == PLATFORMS[0].triple
            && cfg!(all(target_os = "linux", target_arch = "x86_64", target_env = "gnu"))
    }

    pub fn is_linux(&self) -> bool {
        self.triple.contains("linux")
    }

    pub fn is_macos(&self) -> bool {
        self.triple.contains("apple")
    }

    /// Zig links for old C libraries of Linux and for macOS. For Windows it is Debian's GCC: Zig has no `dlltool`, which
    /// rustc calls.
    pub fn is_linked_by_zig(&self) -> bool {
        self.is_linux() || self.is_macos()
    }

    /// Cargo for this platform: `build` or `test`, with what links for it.
    pub fn cargo(&self, command: &str) -> Result<Command> {
        let mut cargo = crate::process::cargo([] as [&str; 0]);
        if self.is_linked_by_zig() {
            cargo = Command::new(build_tool("cargo-zigbuild")?);
            cargo.current_dir(tree::root());
        }
        let zigbuild = self.is_linked_by_zig() && command == "build";
        cargo.arg(if zigbuild { "zigbuild" } else { command });
        use_build_tools(&mut cargo)?;
        cargo.args(["--locked", "--target", self.triple]);
        Ok(cargo)
    }

    /// Installs what is missing: the standard library for it, and its linker.
    pub fn set_up(&self) -> Result<()> {
        ensure!(cfg!(target_os = "linux"), "other platforms are built for on Linux");
        let mut add = Command::new("rustup");
        run_ok(add.args(["target", "add", self.triple]).current_dir(tree::root()))
            .context("rustup brings the standard library of other platforms")?;
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
    let known = PLATFORMS.map(|platform| platform.triple).join(", ");
    let find = |name: &String| PLATFORMS.iter().find(|platform| platform.triple == *name);
    let found = |name| find(name).with_context(|| format!("{name}: none of {known}"));
    names.iter().map(found).collect()
}

/// A program of the packages above.
pub fn build_tool(name: &str) -> Result<PathBuf> {
    let environment = setup::python_environment("wheel", &BUILD_PACKAGES)?;
    Ok(python_in(&environment).with_file_name(name))
}

/// Whether a wheel is what its name promises; a line about it for the summary.
pub fn check_wheel(wheel: &Path, tag: &str, options: &[&str]) -> Result<String> {
    const PACKAGES: [&str; 2] = ["abi3audit==0.0.26", "lief==1.0.*"];
    let environment = setup::python_environment("wheel-check", &PACKAGES)?;
    let mut check = Command::new(python_in(&environment));
    check.arg(tree::root().join("tools/check_wheel.py")).arg(wheel).arg(tag);
    Ok(capture(check.args(options))?.trim().to_owned())
}

/// Lets a command find Zig, and keeps what that caches here.
pub fn use_build_tools(command: &mut Command) -> Result<()> {
    let cache = tree::cache().join("zig");
    command.env("CARGO_ZIGBUILD_CACHE_DIR", &cache).env("ZIG_GLOBAL_CACHE_DIR", &cache);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let tools = build_tool("")?;
    let folders = std::iter::once(tools).chain(std::env::split_paths(&path));
    command.env("PATH", std::env::join_paths(folders)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn platforms_are_known_by_their_triples_and_others_are_refused_with_the_list() {
        let all = named(&["all".to_owned()]).unwrap();
        assert_eq!(all.len(), PLATFORMS.len());
        let error = named(&["riscv64gc-unknown-linux-gnu".to_owned()]).unwrap_err().to_string();
        assert!(error.contains("aarch64-unknown-linux-gnu"), "{error}");
    }
}
