//! The report and the site in a real browser: `tools/browser`, tests with Playwright on the Chromium of the machine.

use anyhow::{Context, Result};

use crate::process::{built, on_path, run_ok};
use crate::steps::{Report, tests};
use crate::uv::Environment;
use crate::{setup, site, tree};

static PLAYWRIGHT: Environment<'_> = Environment::new(
    "browser",
    &["coloraide==8.*", "pytest-playwright==0.10.*", "playwright==1.65.*"],
);

/// The browser, by its names in distributions.
pub const CHROMIUM: [&str; 4] =
    ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];

/// Tests the report of the committed GPU records, and the site.
pub fn test() -> Result<Report> {
    setup::programs(&[(&CHROMIUM, "chromium")])?;
    let browser = on_path(&CHROMIUM).context("no browser")?;
    let report = tree::cache().join("report.html");
    let mut write = built("--bin msdeform")?;
    run_ok(write.args(["report", "--output"]).arg(&report).current_dir(tree::root()))?;
    let mut python = PLAYWRIGHT.sh("python -m pytest --quiet -p no:cacheprovider")?;
    python.current_dir(tree::root().join("tools/browser"));
    python.env("MSDEFORM_BROWSER", browser).env("MSDEFORM_REPORT", report);
    python.env("MSDEFORM_SITE", site::build_if_missing()?);
    Ok(tests(&mut python)?.noted("Chromium by Playwright"))
}
