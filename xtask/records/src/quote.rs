//! `cargo xtask quote`: runs on one device become the record that documents quote.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use msdeform_bench::counters::CounterFile;
use msdeform_bench::record;
use msdeform_report::release::{self, Manifest};

use crate::{readme, tree};

/// Options of `quote`.
#[derive(Args)]
pub struct QuoteArgs {
    /// Folders that `msdeform bench --record`, the main job or `benches/record.py` wrote, of one device; of the latter the first is
    /// the one for the README
    #[arg(required = true, value_name = "RUN")]
    runs: Vec<PathBuf>,
}

const PYTHON: &str = "python.json";

/// Merges the runs, names them in the manifest, removes what they replace and writes the tables.
pub fn run(args: &QuoteArgs) -> Result<ExitCode> {
    let root = tree::root().join("records");
    let (python, timed): (Vec<&PathBuf>, Vec<&PathBuf>) =
        args.runs.iter().partition(|folder| folder.join(PYTHON).is_file());
    let records = timed
        .iter()
        .map(|folder| record::load_one(folder).with_context(|| folder.display().to_string()))
        .collect::<Result<Vec<_>>>()?;
    let merged = release::merge(records).context("name runs of bench, all on one device")?;
    let slug = merged.device.slug.clone();
    let written = msdeform_report::write(&merged, &root)?;
    let folders: Vec<PathBuf> = timed.into_iter().cloned().collect();
    let counted = CounterFile::of_runs(&folders)?;
    if !counted.is_empty() {
        CounterFile::join(&written, &counted)?;
    }

    let mut manifest = Manifest::load(&root)?.unwrap_or_default();
    let release = manifest.releases.entry(slug.clone()).or_default();
    let before = std::mem::replace(&mut release.record, name_of(&written)?);
    let device = root.join(&slug);
    let mut quoted = Vec::with_capacity(python.len());
    for folder in &python {
        let name = name_of(folder)?;
        let target = device.join(&name);
        if folder.canonicalize()? != target {
            std::fs::create_dir_all(&target)?;
            std::fs::copy(folder.join(PYTHON), target.join(PYTHON))?;
        }
        quoted.push(name);
    }
    if !quoted.is_empty() {
        release.python = quoted;
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
