//! The files of a release beside wheels and crates: libraries of other languages, bills of materials, checksums.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::platforms::build_tool;
use crate::process::{capture, cargo, run_ok};
use crate::steps::Report;
use crate::tree;

/// Something that is built into a folder of its own and published as an archive of it.
pub struct Library {
    pub name: &'static str,
    /// The crate that it is made of; without it there is no such library.
    source: &'static str,
    /// The developer command that builds and installs it, in front of the folder.
    command: &'static [&'static str],
}

/// Libraries for other languages than Rust and Python.
pub const LIBRARIES: [Library; 1] = [Library {
    name: "msdeform-c",
    source: "crates/msdeform-c",
    command: &["xtask", "c", "--prefix"],
}];

impl Library {
    /// Whether the tree has it.
    pub fn exists(&self) -> bool {
        tree::root().join(self.source).is_dir()
    }

    /// Builds it into an archive in a folder, with the licences.
    pub fn build(&self, version: &str, folder: &Path) -> Result<Report> {
        let name = format!("{}-{version}-x86_64-linux", self.name);
        let prefix = tree::cache().join("libraries").join(&name);
        if prefix.exists() {
            std::fs::remove_dir_all(&prefix)?;
        }
        run_ok(cargo(self.command).arg(&prefix))?;
        ensure!(prefix.is_dir(), "nothing was built");
        for licence in ["LICENSE-APACHE", "LICENSE-MIT"] {
            std::fs::copy(tree::root().join(licence), prefix.join(licence))?;
        }
        let archive = folder.join(format!("{name}.tar.gz"));
        let mut pack = Command::new("tar");
        pack.arg("--create").arg("--gzip").arg("--file").arg(&archive);
        pack.args(["--owner=0", "--group=0", "--sort=name"]);
        run_ok(pack.arg("--directory").arg(prefix.parent().unwrap_or(&prefix)).arg(&name))?;
        Ok(Report::check(format!("{} KiB", std::fs::metadata(&archive)?.len() / 1024)))
    }
}

/// Puts the bill of materials of each wheel, which maturin writes into it, beside it.
pub fn write_bills(folder: &Path) -> Result<Report> {
    let wheels: Vec<PathBuf> = files_in(folder)?
        .into_iter()
        .filter(|file| file.extension() == Some("whl".as_ref()))
        .collect();
    for wheel in &wheels {
        let mut extract = Command::new(build_tool("python")?);
        let bill = capture(extract.args(["-c", EXTRACT_BILL]).arg(wheel))?;
        ensure!(bill.contains("CycloneDX"), "{} has no bill of materials", wheel.display());
        std::fs::write(wheel.with_extension("cyclonedx.json"), bill)?;
    }
    Ok(Report::check(format!("of {} wheels", wheels.len())))
}

const EXTRACT_BILL: &str = "import sys, zipfile; archive = zipfile.ZipFile(sys.argv[1]); \
    names = [name for name in archive.namelist() if '.dist-info/sboms/' in name and name.endswith('.json')]; \
    sys.stdout.write(archive.read(names[0]).decode())";

/// Writes `SHA256SUMS` of everything in a folder, as `sha256sum --check` reads it.
pub fn write_checksums(folder: &Path) -> Result<Report> {
    let files = files_in(folder)?;
    let names = files.iter().filter_map(|file| file.file_name());
    let sums = capture(Command::new("sha256sum").arg("--").args(names).current_dir(folder))
        .context("sha256sum")?;
    std::fs::write(folder.join("SHA256SUMS"), sums)?;
    Ok(Report::check(format!("{} files", files.len())))
}

fn files_in(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_file() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}
