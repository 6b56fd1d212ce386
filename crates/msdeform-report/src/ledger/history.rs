//! Kernel texts of earlier commits, read from the repository.

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use msdeform_cuda::sources::SourceFile;
use msdeform_cuda::variants::Variant;

use super::hashes::Sources;

/// The folders of kernels. The rest of a path is the file's name in `#include`.
const FOLDERS: [&str; 2] = ["crates/msdeform-cuda/kernels", "crates/msdeform-cuda-lab/kernels"];

/// The commits of a checkout. Texts that it reads live as long as the process, as embedded ones do.
#[derive(Debug)]
pub struct History {
    checkout: PathBuf,
    /// Answers of git: most commits share most files.
    known: RefCell<HashMap<String, &'static str>>,
}

impl History {
    /// That of the repository around a folder.
    #[must_use]
    pub fn of(checkout: &Path) -> Self {
        Self { checkout: checkout.to_owned(), known: RefCell::default() }
    }

    /// Commits that changed a kernel, newest first.
    pub(super) fn commits(&self) -> Result<Vec<&'static str>> {
        Ok(self.git(&[&["log", "--format=%H", "--"][..], &FOLDERS].concat())?.lines().collect())
    }

    /// What a variant was compiled from at a commit; nothing if it did not exist.
    pub(super) fn sources(&self, commit: &str, variant: &dyn Variant) -> Result<Option<Sources>> {
        let listed = self.git(&[&["ls-tree", "-r", commit, "--"][..], &FOLDERS].concat())?;
        let (mut source, mut headers) = (None, Vec::new());
        // `100644 blob <id>\t<path>`
        for line in listed.lines() {
            let Some((head, path)) = line.split_once('\t') else { continue };
            let below = |folder| path.strip_prefix(folder)?.strip_prefix('/');
            let name = FOLDERS.into_iter().find_map(below);
            let (Some(id), Some(name)) = (head.split(' ').nth(2), name) else { continue };
            let text = || self.git(&["cat-file", "blob", id]);
            if name == variant.source().name {
                source = Some(SourceFile { name, text: text()? });
            } else if name.ends_with(".cuh") {
                headers.push(SourceFile { name, text: text()? });
            }
        }
        headers.sort_by_key(|file| file.name);
        Ok(source.map(|source| Sources::new(source, headers)))
    }

    fn git(&self, arguments: &[&str]) -> Result<&'static str> {
        let command = arguments.join(" ");
        if let Some(known) = self.known.borrow().get(&command) {
            return Ok(known);
        }
        let what = || format!("`git {command}` failed in {}", self.checkout.display());
        let output = Command::new("git").arg("-C").arg(&self.checkout).args(arguments).output();
        let output = output.with_context(what)?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{}: {}", what(), errors.trim());
        let text: &'static str = String::from_utf8(output.stdout).with_context(what)?.leak();
        self.known.borrow_mut().insert(command, text);
        Ok(text)
    }
}
