//! Checks of the tree that no compiler makes.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::process::{capture, run, sh};
use crate::steps::{Report, tests};
use crate::uv::Environment;
use crate::{setup, ship, site, tree};

/// What the scripts of `tools/` need, mypy for the Python package, and ruff for both.
pub static SCRIPTS: Environment<'_> = Environment::new(
    "scripts",
    &["lizard==1.24.*", "mypy==2.4.*", "numpy", "pytest", "ruff==0.17.*"],
);

/// Sources that clang-format formats.
pub const C_SOURCES: [&str; 6] = ["*.c", "*.cu", "*.cuh", "*.cpp", "*.hpp", "*.inc"];

/// Runs a script of `tools/` on files. The note is what it prints.
fn script(environment: &Environment<'_>, name: &str, files: Vec<PathBuf>) -> Result<Report> {
    let mut command = environment.sh(&format!("python tools/{name}"))?;
    Ok(Report::check(capture(command.args(files))?.trim()))
}

/// Lines and functions of kernels are short.
pub fn kernel_text() -> Result<Report> {
    setup::programs(&[(&["unifdef"], "unifdef")])?;
    script(&SCRIPTS, "check_kernel_text.py", tree::files(&C_SOURCES)?)
}

/// Every local link of every Markdown file leads somewhere. The parser is the one of the site.
pub fn links() -> Result<Report> {
    script(&site::SPHINX, "check_links.py", tree::files(&["*.md"])?)
}

/// Pages, headers of files and errors are in plain English.
pub fn words() -> Result<Report> {
    let mut files = tree::files(&["*.md", "*.py", "*.rs"])?;
    files.retain(|file| !file.starts_with("records"));
    script(&SCRIPTS, "find_words.py", files)
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

/// Records have a budget, and the manifest or a page names each of them.
pub fn records() -> Result<Report> {
    const MOST_BYTES: u64 = 3_000_000;
    let read = |file: &Path| std::fs::read_to_string(tree::root().join(file));
    let manifest = read(Path::new("records/manifest.json")).context("the manifest")?;
    let pages = tree::files(&["*.md", ":!records"])?;
    let pages = pages.iter().map(|page| read(page)).collect::<Result<String, _>>()?;
    let mut bytes = 0;
    for file in tree::tracked_files(&["records"])? {
        bytes += std::fs::metadata(tree::root().join(&file))?.len();
        // Files of a run are `records/<device>/<run>/<file>`; those of the device itself belong to no run.
        let Some(run) = file.parent().filter(|run| run.components().count() == 3) else { continue };
        let name = run.file_name().unwrap_or_default().to_string_lossy();
        let quoted = manifest.contains(&format!("\"{name}\"")) || is_cited(run, &pages);
        ensure!(quoted, "neither the manifest nor a page names {run:?}; quote or remove it");
    }
    ensure!(bytes <= MOST_BYTES, "records take {bytes} bytes, at most {MOST_BYTES} are allowed");
    Ok(Report::check(format!("{bytes} of {MOST_BYTES} bytes")))
}

/// Whether a page names this folder, and not only one whose name starts like it.
fn is_cited(run: &Path, pages: &str) -> bool {
    let name = run.display().to_string();
    let mut parts = pages.split(&name).skip(1).map(|after| after.chars().next());
    parts.any(|next| next.is_none_or(|next| !next.is_alphanumeric() && next != '-'))
}

/// The crates of this project that the wheel links. Each of them is in every user's download.
const WHEEL_PARTS: &str = "msdeform msdeform-bench msdeform-cli msdeform-cuda msdeform-cuda-lab msdeform-devices msdeform-files \
                           msdeform-onnx msdeform-onnxruntime msdeform-python msdeform-report msdeform-torch msdeform-tuning";

/// The wheel links these crates and no others of this project.
pub fn wheel_parts() -> Result<Report> {
    let listed = crates("--package msdeform-python --edges normal", "{p}")?;
    let names = listed.iter().filter_map(|line| line.split(' ').next());
    let linked: BTreeSet<&str> = names.filter(|name| name.starts_with("msdeform")).collect();
    let expected = WHEEL_PARTS.split(' ').collect();
    ensure!(linked == expected, "the wheel links {linked:?}, expected {expected:?}");
    Ok(Report::check(format!("{} crates of ours", linked.len())))
}

/// The tested wheel shares all crates with the tests. Cargo compiles a crate again for every set of features, so the package
/// has a feature that asks for what only the tests need. A new dependency may make the list of that feature too short.
pub fn shared_builds() -> Result<Report> {
    let wheel = format!("--package msdeform-python --features {}", ship::wheel::AS_TESTS_ARE);
    let built = crates(&format!("{wheel} --edges normal,build"), "{p} [{f}]")?;
    let tested = crates("--workspace --edges normal,build,dev", "{p} [{f}]")?;
    // The package itself has the feature that asks.
    let is_own = |line: &str| line.starts_with("msdeform-python ");
    let others: Vec<&String> = built.difference(&tested).filter(|line| !is_own(line)).collect();
    ensure!(
        others.is_empty(),
        "bindings/python/Cargo.toml asks for other features than the tests, which compiles everything above twice: \
         {others:?}; `cargo tree --workspace --edges normal,build,dev,features --invert CRATE` lists the features"
    );
    Ok(Report::check(format!("{} crates", built.len())))
}

/// Every crate that cargo would build on the platform of CI.
fn crates(selection: &str, format: &str) -> Result<BTreeSet<String>> {
    let tree = "cargo tree --locked --target x86_64-unknown-linux-gnu --prefix none";
    let listed = capture(sh(&format!("{tree} {selection} --format")).arg(format))?;
    Ok(listed.lines().map(|line| line.trim_end_matches(" (*)").to_owned()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_citation_names_the_whole_folder() {
        let run = Path::new("records/h200/2026-01-01-abc");
        assert!(is_cited(run, "from `records/h200/2026-01-01-abc`."));
        assert!(!is_cited(run, "from `records/h200/2026-01-01-abc-2`."));
    }
}
