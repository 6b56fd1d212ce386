//! `cargo xtask quote`: runs on one device become the record that documents quote.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use msdeform_report::python_runs;
use msdeform_report::release::{self, Manifest};

use crate::{readme, tree};

/// Merges the runs, names them in the manifest, removes what they replace and writes the tables.
pub fn run(runs: &[PathBuf]) -> Result<ExitCode> {
    let root = tree::root().join("records");
    let (python, timed): (Vec<PathBuf>, Vec<PathBuf>) =
        runs.iter().cloned().partition(|folder| folder.join(python_runs::FILE).is_file());
    let (merged, written) =
        release::write_merged(&timed, &root)?.context("name runs of bench, all on one device")?;
    let device = root.join(&merged.device.slug);
    let mut manifest = Manifest::load(&root)?.unwrap_or_default();
    let release = manifest.releases.entry(merged.device.slug.clone()).or_default();
    let before = std::mem::replace(&mut release.record, name_of(&written)?);
    for folder in &python {
        let target = device.join(name_of(folder)?);
        if folder.canonicalize()? != target {
            std::fs::create_dir_all(&target)?;
            std::fs::copy(folder.join(python_runs::FILE), target.join(python_runs::FILE))?;
        }
    }
    if !python.is_empty() {
        release.python = python.iter().map(|folder| name_of(folder)).collect::<Result<_>>()?;
    }
    manifest.write(&root)?;
    if !before.is_empty() && before != name_of(&written)? {
        std::fs::remove_dir_all(device.join(&before)).context(before)?;
    }
    let commits = merged.commits();
    println!("{}: {} measurements", written.display(), merged.measurements.len());
    if commits.len() > 1 {
        println!("of several commits ({}): one run of each would say more", commits.join(", "));
    }
    readme::write()
}

fn name_of(folder: &Path) -> Result<String> {
    let name = folder.file_name().and_then(|name| name.to_str());
    name.map(str::to_owned).with_context(|| format!("{} has no name", folder.display()))
}
