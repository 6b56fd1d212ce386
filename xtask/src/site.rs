//! `cargo xtask docs`: the site of the documents in the tree. Sphinx reads the pages where they lie; `docs/site` has its
//! configuration and the order of the pages. ADR 0022 says why Sphinx.

use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::Result;

use crate::process::run_ok;
use crate::setup::{self, python_in};
use crate::steps::Report;
use crate::tree;

pub const PACKAGES: [&str; 4] =
    ["furo==2025.12.19", "myst-parser==5.2.*", "sphinx==9.0.*", "sphinx-external-toc==1.1.*"];

/// Builds the site and prints where it is.
pub fn run() -> Result<ExitCode> {
    println!("{}", build()?.join("index.html").display());
    Ok(ExitCode::SUCCESS)
}

/// Builds the site. Every warning is an error, and a dead link is a warning.
pub fn check() -> Result<Report> {
    build()?;
    Ok(Report::check("without a warning"))
}

/// Builds the site under `target/site`; returns its folder.
fn build() -> Result<PathBuf> {
    let environment = setup::python_environment("site", &PACKAGES)?;
    // Empty: a page that was renamed must not stay under its old name.
    let site = tree::empty_folder(tree::target().join("site"))?;
    let mut sphinx = Command::new(python_in(&environment));
    sphinx.args(["-m", "sphinx", "--quiet", "--builder", "html", "--jobs", "2"]);
    sphinx.args(["--fail-on-warning", "--keep-going", "--conf-dir", "docs/site", "--doctree-dir"]);
    sphinx.arg(tree::empty_folder(tree::cache().join("site-doctrees"))?).arg(".").arg(&site);
    run_ok(sphinx.current_dir(tree::root()))?;
    Ok(site)
}

/// The folder of the site; builds it if no step did before.
pub fn build_if_missing() -> Result<PathBuf> {
    let site = tree::target().join("site");
    if site.join("index.html").is_file() { Ok(site) } else { build() }
}
