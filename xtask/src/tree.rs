//! The files of the repository.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::process;

/// The root of the repository.
pub fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = manifest.ancestors().find(|folder| folder.join("Cargo.lock").is_file());
    root.unwrap_or(manifest).to_path_buf()
}

/// Where cargo builds.
pub fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or(root().join("target"), PathBuf::from)
}

/// Where developer commands keep what they can make again.
pub fn cache() -> PathBuf {
    target().join("xtask")
}

/// A folder without what was in it.
pub fn empty_folder(folder: PathBuf) -> Result<PathBuf> {
    if folder.exists() {
        std::fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
    }
    std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    Ok(folder)
}

/// Writes a script of one command for `sh`, which can be started as a program.
pub fn write_script(path: PathBuf, command: &str) -> Result<PathBuf> {
    std::fs::write(&path, format!("#!/bin/sh\n{command}\n"))?;
    process::run_ok(Command::new("chmod").arg("+x").arg(&path))?;
    Ok(path)
}

/// Every file that is, or would be, under version control, relative to the root.
pub fn files() -> Result<Vec<PathBuf>> {
    listed(&["--cached", "--others", "--exclude-standard"])
}

/// Every file under version control. Files that a user's own runs created are not among them.
pub fn tracked_files() -> Result<Vec<PathBuf>> {
    listed(&["--cached"])
}

fn listed(options: &[&str]) -> Result<Vec<PathBuf>> {
    let mut command = Command::new("git");
    let listed =
        process::capture(command.args(["ls-files", "-z"]).args(options).current_dir(root()))?;
    let files = listed.split('\0').filter(|name| !name.is_empty()).map(PathBuf::from);
    // A file deleted but not yet committed is still listed.
    Ok(files.filter(|file| root().join(file).is_file()).collect())
}

/// Those with an extension.
pub fn files_ending(extension: &str) -> Result<Vec<PathBuf>> {
    let mut files = files()?;
    files.retain(|file| file.extension().is_some_and(|found| found == extension));
    Ok(files)
}
