//! The files of the repository.

use std::path::{Component, Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::process;

/// The root of the repository.
pub fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest).to_path_buf()
}

/// Where cargo builds.
pub fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or(root().join("target"), PathBuf::from)
}

/// Where developer commands keep what they can make again.
pub fn cache() -> PathBuf {
    target().join("xtask")
}

/// A path without `.` and `..`.
pub fn normalise(path: &Path) -> PathBuf {
    let mut result = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir if result.pop() => {}
            other => result.push(other),
        }
    }
    result
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
