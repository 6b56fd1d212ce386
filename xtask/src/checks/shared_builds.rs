//! What is compiled once for `cargo xtask`, the tests and the wheel that is tested: everything but themselves.
//!
//! Cargo compiles a crate again for every set of features that it is asked for with. What only the tests ask for, the
//! manifests of the other two ask for as well; a change of dependencies may make their lists too short.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};

use crate::process::{capture, cargo};
use crate::steps::Report;

/// What asks for features that it does not need, and how cargo is told of it.
const SHARING: [(&str, &[&str]); 2] = [
    ("xtask/Cargo.toml", &["--package", "xtask"]),
    (
        "bindings/python/Cargo.toml",
        &["--package", "msdeform-python", "--features", crate::ship::wheel::AS_TESTS_ARE],
    ),
];

/// Compares the features of each crate with those it has in the tests.
pub fn check() -> Result<Report> {
    let tested = crates(&["--workspace"], "normal,build,dev")?;
    let mut shared = 0;
    for (manifest, selection) in SHARING {
        let built = crates(selection, "normal,build")?;
        let others: Vec<&String> = built.difference(&tested).filter(|line| !is_own(line)).collect();
        ensure!(
            others.is_empty(),
            "{manifest} asks for other features than the tests, which compiles everything above twice: {others:?}; \
             `cargo tree --workspace --edges normal,build,dev,features --invert CRATE` says who asks for what"
        );
        shared += built.len();
    }
    Ok(Report::check(format!("{shared} crates")))
}

/// Every crate with its features, on the platform that CI has.
fn crates(selection: &[&str], edges: &str) -> Result<BTreeSet<String>> {
    let mut tree = cargo(["tree", "--locked", "--target", "x86_64-unknown-linux-gnu"]);
    tree.args(selection).args(["--edges", edges, "--prefix", "none", "--format", "{p} [{f}]"]);
    let listed = capture(&mut tree)?;
    Ok(listed.lines().map(|line| line.trim_end_matches(" (*)").to_owned()).collect())
}

/// The package itself has the feature that asks.
fn is_own(line: &str) -> bool {
    line.starts_with("msdeform-python ")
}
