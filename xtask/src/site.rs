//! The site of the documents: Sphinx reads the pages in their folders; `docs/site` has its configuration and the order of
//! the pages. ADR 0022 gives the reasons.

use std::path::PathBuf;

use anyhow::Result;

use crate::process::run_ok;
use crate::tree;
use crate::uv::Environment;

/// Sphinx, with its theme and the parser of Markdown.
pub static SPHINX: Environment<'_> = Environment::new(
    "site",
    &["furo==2025.12.19", "myst-parser==5.2.*", "sphinx==9.0.*", "sphinx-external-toc==1.1.*"],
);

/// Builds the site under `target/site` and returns its folder. A warning is an error, and a dead link is a warning.
pub fn build() -> Result<PathBuf> {
    // Both folders are emptied: a page that was renamed must not stay under its old name.
    let site = tree::empty_folder(tree::target().join("site"))?;
    let pages_read = tree::empty_folder(tree::cache().join("site-doctrees"))?;
    let mut sphinx = SPHINX.sh("sphinx-build --quiet --builder html --jobs 2 --fail-on-warning")?;
    sphinx.args(["--keep-going", "--conf-dir", "docs/site", "--doctree-dir"]);
    run_ok(sphinx.arg(pages_read).arg(".").arg(&site))?;
    Ok(site)
}

/// The folder of the site, which is built if no step did so before.
pub fn build_if_missing() -> Result<PathBuf> {
    let site = tree::target().join("site");
    if site.join("index.html").is_file() { Ok(site) } else { build() }
}
