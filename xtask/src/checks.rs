//! Checks of the tree that no compiler makes.

use std::path::PathBuf;

use anyhow::{Result, ensure};

use crate::process::{capture, run, sh};
use crate::steps::{Report, tests};
use crate::uv::Environment;
use crate::{setup, site, tree};

/// What the scripts of `tools/` need, mypy for the Python package, and ruff for both.
pub static SCRIPTS: Environment<'_> = Environment::new(
    "scripts",
    &["lizard==1.24.*", "mypy==2.4.*", "numpy", "pytest", "ruff==0.17.*"],
);

/// Sources that clang-format formats.
pub const C_SOURCES: [&str; 6] = ["*.c", "*.cu", "*.cuh", "*.cpp", "*.hpp", "*.inc"];

/// Runs a script of `tools/` on files. The note is what it prints.
fn script_on(environment: &Environment<'_>, name: &str, files: Vec<PathBuf>) -> Result<Report> {
    let mut command = environment.sh(&format!("python tools/{name}"))?;
    Ok(Report::check(capture(command.args(files))?.trim()))
}

/// Runs a script of `tools/`. The note is what it prints.
pub fn script(line: &str) -> Result<Report> {
    script_on(&SCRIPTS, line, Vec::new())
}

/// Lines and functions of kernels are short.
pub fn kernel_text() -> Result<Report> {
    setup::programs(&[(&["unifdef"], "unifdef")])?;
    script_on(&SCRIPTS, "check_kernel_text.py", tree::files(&C_SOURCES)?)
}

/// Every local link of every Markdown file leads somewhere. The parser is the one of the site.
pub fn links() -> Result<Report> {
    script_on(&site::SPHINX, "check_links.py", tree::files(&["*.md"])?)
}

/// Pages, headers of files and errors are in plain English.
pub fn words() -> Result<Report> {
    let mut files = tree::files(&["*.md", "*.py", "*.rs"])?;
    files.retain(|file| !file.starts_with("records"));
    script_on(&SCRIPTS, "find_words.py", files)
}

/// The scripts of `tools/` find what they look for.
pub fn scripts() -> Result<Report> {
    tests(&mut SCRIPTS.sh("python -m pytest --quiet -p no:cacheprovider tools/tests")?)
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
