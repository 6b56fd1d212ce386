//! `cargo xtask crates`: whether the published crates are complete and build from their tarballs.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;

use crate::checks::{self, SCRIPTS};
use crate::process::run_ok;
use crate::steps::{Report, Steps};
use crate::tree;

/// What `cargo xtask crates` does.
pub fn run() -> Result<ExitCode> {
    let mut steps = Steps::default();
    steps.run("crate contents", || checks::script("crates.py contents"));
    steps_to(&mut steps, &tree::empty_folder(tree::target().join("crates"))?);
    Ok(steps.finish())
}

/// The steps that compile crates. Tarballs are copied into a folder.
pub fn steps_to(steps: &mut Steps, folder: &Path) {
    for (name, command) in [
        ("minimal versions", "minimal-versions"),
        ("crates", "package"),
        ("candle crate", "package-candle"),
    ] {
        steps.run(name, || {
            let mut script = SCRIPTS.sh(&format!("python tools/crates.py {command}"))?;
            let output = run_ok(script.arg(folder))?;
            let note = output.lines().rfind(|line| line.ends_with(" crates"));
            Ok(Report::check(note.unwrap_or_default()))
        });
    }
}
