//! Kernel texts of earlier commits, read from the repository.

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use msdeform_cuda::sources::SourceFile;
use msdeform_cuda::variants::Variant;

use super::Sources;

/// Where kernels lie. What follows the folder is a file's name in `#include`.
const FOLDERS: [&str; 2] = ["crates/msdeform-cuda/kernels", "crates/msdeform-cuda-lab/kernels"];

/// Why the history could not be read.
#[derive(Debug, thiserror::Error)]
#[error("`git {command}` failed in {}: {reason}", checkout.display())]
pub struct HistoryError {
    command: String,
    checkout: PathBuf,
    reason: String,
}

/// The commits of a checkout. Texts that it reads live as long as the process, as embedded ones do.
#[derive(Debug)]
pub struct History {
    checkout: PathBuf,
    blobs: RefCell<HashMap<String, &'static str>>,
    trees: RefCell<HashMap<String, Vec<SourceFile>>>,
}

impl History {
    /// That of the repository around a folder.
    #[must_use]
    pub fn of(checkout: &Path) -> Self {
        Self { checkout: checkout.to_owned(), blobs: RefCell::default(), trees: RefCell::default() }
    }

    /// Commits that changed a kernel, newest first.
    ///
    /// # Errors
    /// [`HistoryError`].
    pub fn commits(&self) -> Result<Vec<String>, HistoryError> {
        let listed = self.git(&[&["log", "--format=%H", "--"][..], &FOLDERS].concat())?;
        Ok(listed.lines().map(str::to_owned).collect())
    }

    /// What a variant was compiled from at a commit; nothing if it did not exist.
    ///
    /// # Errors
    /// [`HistoryError`].
    pub fn sources(
        &self,
        commit: &str,
        variant: &dyn Variant,
    ) -> Result<Option<Sources>, HistoryError> {
        if !self.trees.borrow().contains_key(commit) {
            let files = self.files(commit)?;
            self.trees.borrow_mut().insert(commit.to_owned(), files);
        }
        let trees = self.trees.borrow();
        let files = trees.get(commit).map_or(&[][..], Vec::as_slice);
        let source = files.iter().find(|file| file.name == variant.source().name);
        let headers: Vec<SourceFile> =
            files.iter().copied().filter(|file| file.name.ends_with(".cuh")).collect();
        Ok(source.map(|source| Sources::new(*source, &headers)))
    }

    /// Every kernel file of a commit, in the order of names.
    fn files(&self, commit: &str) -> Result<Vec<SourceFile>, HistoryError> {
        let listed = self.git(&[&["ls-tree", "-r", commit, "--"][..], &FOLDERS].concat())?;
        let mut files = Vec::new();
        // `100644 blob <id>\t<path>`
        for line in listed.lines() {
            let Some((head, path)) = line.split_once('\t') else { continue };
            let name =
                FOLDERS.iter().find_map(|folder| path.strip_prefix(folder)?.strip_prefix('/'));
            if let (Some(id), Some(name)) = (head.split(' ').nth(2), name) {
                files.push(SourceFile { name: name.to_owned().leak(), text: self.blob(id)? });
            }
        }
        files.sort_by_key(|file| file.name);
        Ok(files)
    }

    fn blob(&self, id: &str) -> Result<&'static str, HistoryError> {
        if let Some(known) = self.blobs.borrow().get(id) {
            return Ok(known);
        }
        let text: &'static str = self.git(&["cat-file", "blob", id])?.leak();
        self.blobs.borrow_mut().insert(id.to_owned(), text);
        Ok(text)
    }

    fn git(&self, arguments: &[&str]) -> Result<String, HistoryError> {
        let failed = |reason: String| HistoryError {
            command: arguments.join(" "),
            checkout: self.checkout.clone(),
            reason,
        };
        let output = Command::new("git")
            .arg("-C")
            .arg(&self.checkout)
            .args(arguments)
            .output()
            .map_err(|error| failed(error.to_string()))?;
        if !output.status.success() {
            return Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
        }
        String::from_utf8(output.stdout).map_err(|error| failed(error.to_string()))
    }
}
