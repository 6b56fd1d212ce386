//! What the tests need besides cargo, installed where that is possible.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::process::{capture, on_path, run_ok};
use crate::uv::Uv;

/// A C++ compiler: the kernels are also compiled for the host, to run without a GPU.
pub fn cxx_compiler() -> Result<String> {
    if let Ok(chosen) = std::env::var("CXX") {
        return Ok(chosen);
    }
    let names = ["c++", "g++", "clang++"];
    if on_path(&names).is_none() {
        apt_install(&["g++"]).context("no C++ compiler (c++, g++ or clang++)")?;
    }
    let found = on_path(&names).context("no C++ compiler, even after installing g++")?;
    let version = capture(Command::new(&found).arg("--version"))?;
    Ok(version.lines().next().unwrap_or_default().to_owned())
}

/// A Python environment with these packages, kept under the target folder and made again when the
/// list changes. Returns its folder.
pub fn python_environment(name: &str, packages: &[&str]) -> Result<PathBuf> {
    Uv::new()?.kept_environment(&format!("python-{name}"), packages)
}

/// The interpreter of an environment.
pub fn python_in(environment: &Path) -> PathBuf {
    environment.join(if cfg!(windows) { "Scripts/python.exe" } else { "bin/python" })
}

/// The NVRTC of an environment that its wheel is installed in.
pub fn nvrtc_in(environment: &Path) -> Option<PathBuf> {
    let folders = ["nvidia/cu13/lib/libnvrtc.so.13", "nvidia/cuda_nvrtc/lib/libnvrtc.so.12"];
    let mut files = packages_in(environment).flat_map(|site| folders.map(|file| site.join(file)));
    files.find(|file| file.is_file())
}

/// The library of ONNX Runtime in an environment that its wheel is installed in; its name ends with its version.
pub fn onnxruntime_in(environment: &Path) -> Option<PathBuf> {
    let folders = packages_in(environment).map(|site| site.join("onnxruntime/capi"));
    let mut files = folders.filter_map(|folder| std::fs::read_dir(folder).ok()).flatten();
    files.find_map(|file| {
        let file = file.ok()?;
        let name = file.file_name();
        let name = name.to_str()?;
        let is_library = name.starts_with("libonnxruntime.") || name == "onnxruntime.dll";
        is_library.then(|| file.path())
    })
}

/// Where an environment has its packages.
fn packages_in(environment: &Path) -> impl Iterator<Item = PathBuf> {
    let pythons = std::fs::read_dir(environment.join("lib")).into_iter().flatten();
    pythons.filter_map(|python| Some(python.ok()?.path().join("site-packages")))
}

/// Installs Debian packages if that is ours to do.
pub fn apt_install(packages: &[&str]) -> Result<()> {
    let names = packages.join(" ");
    let is_root = capture(Command::new("id").arg("-u")).is_ok_and(|id| id.trim() == "0");
    if !is_root || on_path(&["apt-get"]).is_none() {
        bail!("install it first (on Debian: `apt-get install {names}`)");
    }
    let apt = || {
        let mut command = Command::new("apt-get");
        command.env("DEBIAN_FRONTEND", "noninteractive");
        command
    };
    run_ok(apt().args(["update", "-qq"]))?;
    run_ok(apt().args(["install", "-y", "-qq", "--no-install-recommends"]).args(packages))?;
    Ok(())
}
