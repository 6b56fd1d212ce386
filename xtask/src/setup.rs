//! What the tests need besides cargo, installed where that is possible.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};

use crate::process::{capture, on_path, run_ok};
use crate::uv::Uv;

/// Programs by any of their names, with the Debian packages that bring them.
pub type Programs<'a> = &'a [(&'a [&'a str], &'a str)];

/// Installs the programs that are missing, all of them at once.
pub fn programs(wanted: Programs<'_>) -> Result<()> {
    let missing: Vec<&str> = wanted
        .iter()
        .filter(|(names, _)| on_path(names).is_none())
        .flat_map(|(_, packages)| packages.split(' '))
        .collect();
    if missing.is_empty() { Ok(()) } else { apt_install(&missing) }
}

/// A Python environment with these packages, kept under the target folder. Returns its folder.
pub fn python_environment(name: &str, packages: &[&str]) -> Result<PathBuf> {
    Uv::new()?.kept_environment(&format!("python-{name}"), packages)
}

/// The interpreter of an environment.
pub fn python_in(environment: &Path) -> PathBuf {
    environment.join(if cfg!(windows) { "Scripts/python.exe" } else { "bin/python" })
}

/// The NVRTC of an environment that its wheel is installed in.
pub fn nvrtc_in(environment: &Path) -> Option<PathBuf> {
    library_in(environment, "libnvrtc.so.")
}

/// A library of the packages in an environment, by how its name begins; it ends with a version.
pub fn library_in(environment: &Path, begin: &str) -> Option<PathBuf> {
    let files_in = |folder: PathBuf| std::fs::read_dir(folder).into_iter().flatten().flatten();
    let folders = ["nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib", "onnxruntime/capi"];
    let sites = files_in(environment.join("lib")).map(|python| python.path().join("site-packages"));
    let mut files =
        sites.flat_map(|site| folders.map(|folder| site.join(folder))).flat_map(files_in);
    let found = files.find(|file| file.file_name().to_string_lossy().starts_with(begin));
    found.map(|file| file.path())
}

/// Installs Debian packages if this process may.
pub fn apt_install(packages: &[&str]) -> Result<()> {
    let is_root = capture(Command::new("id").arg("-u")).is_ok_and(|id| id.trim() == "0");
    ensure!(
        is_root && on_path(&["apt-get"]).is_some(),
        "a program is missing; on Debian: `apt-get install {}`",
        packages.join(" ")
    );
    let apt = |arguments: &[&str]| {
        let mut command = Command::new("apt-get");
        command.args(arguments).args(["-y", "-qq"]).env("DEBIAN_FRONTEND", "noninteractive");
        command
    };
    run_ok(&mut apt(&["update"]))?;
    run_ok(apt(&["install", "--no-install-recommends"]).args(packages))?;
    Ok(())
}
