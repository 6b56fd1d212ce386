//! Records have a budget: what documents quote, and no more than a clone should carry. Each has the checksum that the command
//! wrote. Records that a user's own runs created are not looked at.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use msdeform_files::check_seal;
use msdeform_report::release::Manifest;

use crate::steps::Report;
use crate::tree;

/// All records together.
const MOST_BYTES: usize = 3_000_000;

/// Weighs the records, compares their checksums and looks for those that nothing quotes.
pub fn check() -> Result<Report> {
    let root = tree::root().join("records");
    let manifest = Manifest::load(&root)?.context("records/manifest.json is missing")?;
    for folder in manifest.folders(&root) {
        ensure!(folder.is_dir(), "the manifest names {}, which is not there", folder.display());
    }
    let files = tree::tracked_files()?;
    let mut pages = String::new();
    for page in files.iter().filter(|file| file.extension().is_some_and(|e| e == "md")) {
        if !page.starts_with("records") {
            pages += &std::fs::read_to_string(tree::root().join(page))?;
        }
    }
    let named: BTreeSet<PathBuf> = manifest.folders(Path::new("records")).into_iter().collect();
    let records = || files.iter().filter(|file| file.starts_with("records"));
    let unquoted: BTreeSet<&Path> = records()
        .filter_map(|file| run_of(file))
        .filter(|run| !named.contains(*run) && !is_cited(run, &pages))
        .collect();
    ensure!(
        unquoted.is_empty(),
        "neither the manifest nor a page names {unquoted:?}; `cargo xtask quote` or remove them"
    );
    let mut bytes = 0;
    for file in records() {
        let text = std::fs::read_to_string(tree::root().join(file))?;
        bytes += text.len();
        let is_evidence = file.extension().is_some_and(|kind| kind == "json" || kind == "csv");
        let is_sealed = check_seal(&text).with_context(|| file.display().to_string())?;
        ensure!(
            is_sealed || !is_evidence,
            "{} has no checksum: the command that writes it adds one",
            file.display()
        );
    }
    ensure!(bytes <= MOST_BYTES, "records take {bytes} bytes, more than {MOST_BYTES}");
    Ok(Report::check(format!("{:.2} of {:.0} MB", bytes as f64 * 1e-6, MOST_BYTES as f64 * 1e-6)))
}

/// `records/<device>/<run>` of a file in a run's folder; files of the device itself belong to none.
fn run_of(file: &Path) -> Option<&Path> {
    file.parent().filter(|folder| folder.components().count() == 3)
}

/// Whether a page names the folder, and not only one that starts like it.
fn is_cited(run: &Path, pages: &str) -> bool {
    let name = run.display().to_string();
    let mut ends =
        pages.match_indices(&name).map(|(at, _)| pages[at + name.len()..].chars().next());
    ends.any(|next| next.is_none_or(|next| !next.is_alphanumeric() && next != '-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_belongs_to_its_run_and_a_citation_names_it_whole() {
        let run = Path::new("records/h200/2026-01-01-abc");
        assert_eq!(run_of(&run.join("record.json")), Some(run));
        assert_eq!(run_of(Path::new("records/h200/ledger.json")), None);
        assert!(is_cited(run, "from `records/h200/2026-01-01-abc`."));
        assert!(!is_cited(run, "from `records/h200/2026-01-01-abc-2`."));
    }
}
