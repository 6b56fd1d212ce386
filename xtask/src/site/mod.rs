//! `cargo xtask docs`: the site of the documents in the tree. Pages are gathered as they are, links rewritten, and Sphinx makes HTML of
//! them; why Sphinx is in docs/adr/0022.

mod gather;
mod summary;

use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Instant;

use anyhow::{Context, Result};

use crate::process::run_ok;
use crate::setup::{self, python_in};
use crate::steps::Report;
use crate::tree;

const PACKAGES: [&str; 3] = ["furo==2025.12.19", "myst-parser==5.2.*", "sphinx==9.0.*"];

/// Builds the site and says where it is.
pub fn run() -> Result<ExitCode> {
    let (folder, pages) = build()?;
    println!("{pages} pages: {}", folder.join("index.html").display());
    Ok(ExitCode::SUCCESS)
}

/// The site builds, without a warning: a dead link is one.
pub fn check() -> Result<Report> {
    let (_, pages) = build()?;
    Ok(Report::check(format!("{pages} pages")))
}

/// Builds the site under `target/site`; its folder and the number of its pages.
pub fn build() -> Result<(PathBuf, usize)> {
    let start = Instant::now();
    let environment = setup::python_environment("site", &PACKAGES)?;
    let source = fresh(tree::cache().join("site-source"))?;
    let site = fresh(tree::target().join("site"))?;
    let text = std::fs::read_to_string(tree::root().join(summary::FILE)).context(summary::FILE)?;
    let summary = summary::parse(&text)?.with_folders(&tree::files()?)?;
    let pages = gather::write(&summary, &source, &site)?;
    println!("{pages} pages gathered");
    let mut sphinx = Command::new(python_in(&environment));
    sphinx.args(["-m", "sphinx", "--quiet", "--builder", "html", "--jobs", "2"]);
    sphinx
        .args(["--fail-on-warning", "--keep-going", "--conf-dir"])
        .arg(tree::root().join("docs/site"));
    sphinx.arg("--doctree-dir").arg(tree::cache().join("site-doctrees")).args([&source, &site]);
    run_ok(&mut sphinx)?;
    println!("built in {:.1} s", start.elapsed().as_secs_f64());
    Ok((site, pages))
}

/// The folder of the site that the step before built, or of one that is built now.
pub fn build_if_missing() -> Result<PathBuf> {
    let site = tree::target().join("site");
    if site.join("index.html").is_file() { Ok(site) } else { Ok(build()?.0) }
}

/// An empty folder: what a page was called yesterday is no page today.
fn fresh(folder: PathBuf) -> Result<PathBuf> {
    if folder.exists() {
        std::fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
    }
    std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    Ok(folder)
}
