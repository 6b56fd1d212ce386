//! `cargo xtask readme`: every document with tables or pictures, from the records that the manifest names.

use std::process::ExitCode;

use anyhow::{Result, ensure};
use msdeform_report::documents::{Document, documents};

use crate::tree;

/// People read it to the end.
const MOST_LINES_OF_README: usize = 150;

/// Writes the documents that have changed.
pub fn write() -> Result<ExitCode> {
    let (documents, records) = documents(&tree::root())?;
    let stale: Vec<&Document> = documents.iter().filter(|page| page.found != page.made).collect();
    for Document { path, made, .. } in &stale {
        std::fs::write(tree::root().join(path), made)?;
        println!("{path}: written");
    }
    println!("{} files, {} of them changed, from {records} records", documents.len(), stale.len());
    Ok(ExitCode::SUCCESS)
}

/// Fails if a document and the records disagree.
pub fn check() -> Result<ExitCode> {
    let (documents, records) = documents(&tree::root())?;
    for Document { path, found, made } in &documents {
        ensure!(found == made, "{path} is not what the records say; run `cargo xtask readme`");
    }
    let lines = std::fs::read_to_string(tree::root().join("README.md"))?.lines().count();
    ensure!(
        lines <= MOST_LINES_OF_README,
        "README.md has {lines} lines, the most is {MOST_LINES_OF_README}"
    );
    println!("all tables agree with {records} records, {} files", documents.len());
    Ok(ExitCode::SUCCESS)
}
