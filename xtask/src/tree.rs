//! The files of the repository.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::process::{capture, sh};

/// The root of the repository.
pub fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = manifest.ancestors().find(|folder| folder.join("Cargo.lock").is_file());
    root.unwrap_or(manifest).to_path_buf()
}

/// The folder that cargo builds in.
pub fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or(root().join("target"), PathBuf::from)
}

/// The folder of everything that developer commands can make again.
pub fn cache() -> PathBuf {
    target().join("xtask")
}

/// Makes a folder, or removes what was in it.
pub fn empty_folder(folder: PathBuf) -> Result<PathBuf> {
    if folder.exists() {
        std::fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
    }
    std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    Ok(folder)
}

/// Every file that is or would be under version control, from the root. `patterns` are those of git, such as `*.md`.
pub fn files(patterns: &[&str]) -> Result<Vec<PathBuf>> {
    let list = "git ls-files -z --cached --others --exclude-standard --";
    let listed = capture(sh(list).args(patterns))?;
    let files = listed.split('\0').filter(|name| !name.is_empty()).map(PathBuf::from);
    // Git lists a deleted file until the deletion is committed.
    Ok(files.filter(|file| root().join(file).is_file()).collect())
}
