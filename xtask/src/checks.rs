//! Checks of the tree and of its documents that need more than a command.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, ensure};

use crate::environments::{PLAYWRIGHT, SCRIPTS, SPHINX};
use crate::process::{built, on_path, run, run_ok, sh};
use crate::steps::{Do, Report, tests};
use crate::{setup, tree};

/// Sources that clang-format formats.
pub const C_SOURCES: &[&str] = &["*.c", "*.cu", "*.cuh", "*.cpp", "*.hpp", "*.inc"];

/// The browser, by its names in distributions.
pub const CHROMIUM: [&str; 4] =
    ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];

/// Lines and functions of kernels are short.
pub fn kernel_text() -> Result<Report> {
    setup::programs(&[(&["unifdef"], "unifdef")])?;
    Do::Script(&SCRIPTS, "python tools/check_kernel_text.py", C_SOURCES).run()
}

/// No file names a folder of a person's or a build machine.
pub fn paths() -> Result<Report> {
    const PRIVATE: &str =
        r#"(^|[^[:alnum:]._~:/}>)-])/(home|root|work|Users|workspace)/[^] "'`),]"#;
    let found = run(sh("git grep --untracked -nIE").arg(PRIVATE))?;
    ensure!(!found.success, "paths of a machine:\n{}", found.output.trim_end());
    ensure!(found.output.is_empty(), "git cannot search: {}", found.output.trim_end());
    Ok(Report::check(""))
}

/// Builds the site under `target/site` and returns its folder; a second call waits for the first. Sphinx reads the pages in their
/// folders; `docs/site` has its configuration and the order of the pages. A warning is an error, and a dead link is a warning.
/// ADR 0022 gives the reasons.
pub fn site() -> Result<PathBuf> {
    static BUILT: Mutex<Option<PathBuf>> = Mutex::new(None);
    let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(site) = &*built {
        return Ok(site.clone());
    }
    // Both folders are emptied: a page that was renamed must not stay under its old name.
    let site = tree::empty_folder(tree::target().join("site"))?;
    let pages_read = tree::empty_folder(tree::cache().join("site-doctrees"))?;
    let mut sphinx = SPHINX.sh("sphinx-build --quiet --builder html --jobs 2 --fail-on-warning")?;
    sphinx.args(["--keep-going", "--conf-dir", "docs/site", "--doctree-dir"]);
    run_ok(sphinx.arg(pages_read).arg(".").arg(&site))?;
    Ok(built.insert(site).clone())
}

/// The folder of the scripts of ONNX Runtime Web, from the package of npm.
fn onnx_web() -> Result<PathBuf> {
    const PACKAGE: &str = "onnxruntime-web@1.30.0";
    let folder = tree::cache().join("onnx-web");
    let scripts = folder.join("node_modules/onnxruntime-web/dist");
    if !scripts.is_dir() {
        let mut install =
            sh("npm install --silent --no-save --ignore-scripts --no-audit --no-fund");
        run_ok(install.arg("--prefix").arg(&folder).arg(PACKAGE))?;
    }
    Ok(scripts)
}

/// The report of the committed GPU records, a model and the site in a real browser: `tools/browser`, tests with Playwright on the
/// Chromium of the machine.
pub fn browser() -> Result<Report> {
    setup::programs(&[(&CHROMIUM, "chromium"), (&["npm"], "npm")])?;
    let browser = on_path(&CHROMIUM).context("no browser")?;
    let report = tree::cache().join("report.html");
    let mut write = built("--bin msdeform")?;
    run_ok(write.args(["report", "--output"]).arg(&report).current_dir(tree::root()))?;
    let command =
        tree::target().join("debug/msdeform").with_extension(std::env::consts::EXE_EXTENSION);
    let mut python = PLAYWRIGHT.sh("python -m pytest --quiet -p no:cacheprovider")?;
    python.current_dir(tree::root().join("tools/browser"));
    python.env("MSDEFORM_BROWSER", browser).env("MSDEFORM_REPORT", report);
    python.env("MSDEFORM_COMMAND", command).env("MSDEFORM_ONNX_WEB", onnx_web()?);
    Ok(tests(python.env("MSDEFORM_SITE", site()?))?.noted("Chromium by Playwright"))
}
