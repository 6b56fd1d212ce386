//! Checks of the tree that no compiler makes.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::process::{capture, cargo, run};
use crate::setup::{self, python_in};
use crate::steps::Report;
use crate::{format, ship, site, tree};

/// Runs a script of `tools` on files; its last line is the note.
fn script(name: &str, environment: &str, packages: &[&str], files: &[PathBuf]) -> Result<Report> {
    let python = python_in(&setup::python_environment(environment, packages)?);
    let mut command = Command::new(python);
    command.arg(Path::new("tools").join(name)).args(files).current_dir(tree::root());
    Ok(Report::check(capture(&mut command)?.trim()))
}

/// Lines and functions of kernels are short.
pub fn kernel_text() -> Result<Report> {
    setup::programs(&[(&["unifdef"], "unifdef")])?;
    script("check_kernel_text.py", "kernel-text", &["lizard==1.24.*"], &format::sources()?)
}

/// Every local link of every Markdown file leads somewhere.
pub fn links() -> Result<Report> {
    // The parser is the one of the site.
    script("check_links.py", "site", &site::PACKAGES, &tree::files_ending("md")?)
}

/// No file names a folder of a person's or a build machine.
pub fn paths() -> Result<Report> {
    const PRIVATE: &str =
        r#"(^|[^[:alnum:]._~:/}>)-])/(home|root|work|Users|workspace)/[^] "'`),]"#;
    let mut search = Command::new("git");
    search.args(["grep", "--untracked", "-nIE", PRIVATE]).current_dir(tree::root());
    let found = run(&mut search)?;
    ensure!(!found.success, "paths of a machine:\n{}", found.output.trim_end());
    ensure!(found.output.is_empty(), "git cannot search: {}", found.output.trim_end());
    Ok(Report::check(""))
}

/// Records have a budget, and documents quote each of them. Records that a user's own runs created do not count.
pub fn records() -> Result<Report> {
    const MOST_BYTES: u64 = 3_000_000;
    let read = |file: &Path| std::fs::read_to_string(tree::root().join(file));
    let manifest = read(Path::new("records/manifest.json")).context("the manifest")?;
    let mut pages = String::new();
    for page in tree::files_ending("md")?.iter().filter(|file| !file.starts_with("records")) {
        pages += &read(page)?;
    }
    let mut bytes = 0;
    for file in tree::tracked_files()?.iter().filter(|file| file.starts_with("records")) {
        bytes += std::fs::metadata(tree::root().join(file))?.len();
        // Files of a run are `records/<device>/<run>/<file>`; those of the device itself belong to no run.
        let Some(run) = file.parent().filter(|run| run.components().count() == 3) else { continue };
        let name = run.file_name().unwrap_or_default().to_string_lossy();
        let quoted = manifest.contains(&format!("\"{name}\"")) || is_cited(run, &pages);
        ensure!(quoted, "neither the manifest nor a page names {run:?}; quote or remove it");
    }
    ensure!(bytes <= MOST_BYTES, "records take {bytes} bytes, more than {MOST_BYTES}");
    Ok(Report::check(format!("{bytes} of {MOST_BYTES} bytes")))
}

/// Whether a page names the folder, and not only one that starts like it.
fn is_cited(run: &Path, pages: &str) -> bool {
    let name = run.display().to_string();
    let mut parts = pages.split(&name).skip(1).map(|after| after.chars().next());
    parts.any(|next| next.is_none_or(|next| !next.is_alphanumeric() && next != '-'))
}

/// The crates of this project that the wheel links. Each of them is in every user's download.
const WHEEL_PARTS: [&str; 13] = [
    "msdeform",
    "msdeform-bench",
    "msdeform-cli",
    "msdeform-cuda",
    "msdeform-cuda-lab",
    "msdeform-devices",
    "msdeform-files",
    "msdeform-onnx",
    "msdeform-onnxruntime",
    "msdeform-python",
    "msdeform-report",
    "msdeform-torch",
    "msdeform-tuning",
];

/// The wheel links these crates of ours and no others.
pub fn wheel_parts() -> Result<Report> {
    let listed = crates(&["--package", "msdeform-python"], "normal", "{p}")?;
    let names = listed.iter().filter_map(|line| line.split(' ').next());
    let linked: BTreeSet<&str> = names.filter(|name| name.starts_with("msdeform")).collect();
    ensure!(
        linked == BTreeSet::from(WHEEL_PARTS),
        "the wheel links {linked:?}; what users do not need belongs into another crate"
    );
    Ok(Report::check(format!("{} crates of ours", linked.len())))
}

/// The wheel that is tested shares all crates with the tests. Cargo compiles a crate again for every set of features, so the
/// package has a feature that asks for what only the tests need; a new dependency may make its list too short.
pub fn shared_builds() -> Result<Report> {
    let selection = ["--package", "msdeform-python", "--features", ship::wheel::AS_TESTS_ARE];
    let built = crates(&selection, "normal,build", "{p} [{f}]")?;
    let tested = crates(&["--workspace"], "normal,build,dev", "{p} [{f}]")?;
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

/// Every crate that cargo would build, on the platform that CI has.
fn crates(selection: &[&str], edges: &str, format: &str) -> Result<BTreeSet<String>> {
    let mut tree = cargo(["tree", "--locked", "--target", "x86_64-unknown-linux-gnu"]);
    tree.args(selection).args(["--edges", edges, "--prefix", "none", "--format", format]);
    let listed = capture(&mut tree)?;
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
