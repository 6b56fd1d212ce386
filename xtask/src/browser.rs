//! The report and the site in a real browser: `tools/browser`, tests with Playwright on the Chromium of the machine.

use std::process::Command;

use anyhow::{Context, Result};

use crate::process::{built, on_path, run_ok};
use crate::python::pytest;
use crate::setup::{self, python_in};
use crate::steps::Report;
use crate::{site, tree};

const PACKAGES: [&str; 3] = ["coloraide==8.*", "pytest-playwright==0.10.*", "playwright==1.65.*"];
pub const CHROMIUM: [&str; 4] =
    ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];

/// Opens the report of the committed GPU records and the site, and tests both.
pub fn test() -> Result<Report> {
    setup::programs(&[(&CHROMIUM, "chromium")])?;
    let browser = on_path(&CHROMIUM).context("no browser")?;
    let environment = setup::python_environment("browser", &PACKAGES)?;
    let report = tree::cache().join("report.html");
    let mut write = built("--bin", "msdeform")?;
    run_ok(write.args(["report", "--output"]).arg(&report).current_dir(tree::root()))?;
    let mut tests = Command::new(python_in(&environment));
    tests.env("MSDEFORM_BROWSER", &browser).env("MSDEFORM_REPORT", &report);
    tests.env("MSDEFORM_SITE", site::build_if_missing()?);
    let count = pytest(&mut tests, &tree::root().join("tools/browser"))?;
    Ok(Report { count, note: "Chromium by Playwright".to_owned() })
}
