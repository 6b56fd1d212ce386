//! `cargo xtask format`, and the check of what no other step formats: CUDA and C++, in the style of `.clang-format`.

use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::Result;

use crate::process::{cargo, run_ok};
use crate::steps::Report;
use crate::{candle, python, setup, tree};

/// Pinned: another version breaks lines elsewhere.
const PACKAGES: [&str; 1] = ["clang-format==23.1.3"];

const EXTENSIONS: [&str; 6] = ["c", "cu", "cuh", "cpp", "hpp", "inc"];

/// Formats everything: Rust, Python, CUDA and C++.
pub fn apply() -> Result<ExitCode> {
    run_ok(&mut cargo(["fmt", "--all"]))?;
    candle::format()?;
    python::format()?;
    clang_format(&["-i"])?;
    Ok(ExitCode::SUCCESS)
}

/// Whether CUDA and C++ are formatted.
pub fn check() -> Result<Report> {
    let files = clang_format(&["--dry-run", "--Werror"])?;
    Ok(Report::check(format!("{files} files, {}", PACKAGES[0])))
}

/// The sources that clang-format is responsible for, relative to the root.
pub fn sources() -> Result<Vec<PathBuf>> {
    let mut files = tree::files()?;
    files.retain(|file| {
        file.extension().is_some_and(|extension| EXTENSIONS.iter().any(|known| extension == *known))
    });
    Ok(files)
}

fn clang_format(options: &[&str]) -> Result<usize> {
    let environment = setup::python_environment("clang-format", &PACKAGES)?;
    let files = sources()?;
    let mut command = Command::new(setup::python_in(&environment).with_file_name("clang-format"));
    run_ok(command.args(options).args(&files).current_dir(tree::root()))?;
    Ok(files.len())
}
