//! What the Python package is made of: the library, and the laboratory behind its command.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};

use crate::process::{capture, cargo};
use crate::steps::Report;

/// The crates of this project that the wheel links. Each of them is in every user's download.
const PARTS: [&str; 13] = [
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

/// Compares them with what cargo would link.
pub fn check() -> Result<Report> {
    let arguments = ["tree", "--locked", "--package", "msdeform-python", "--edges", "normal"];
    let mut tree = cargo(arguments);
    let listed = capture(tree.args(["--prefix", "none", "--format", "{p}"]))?;
    let linked = own_crates(&listed);
    ensure!(
        linked == BTreeSet::from(PARTS),
        "the wheel links {linked:?}; what users do not need belongs into another crate"
    );
    Ok(Report::check(format!("{} crates of ours", linked.len())))
}

fn own_crates(listed: &str) -> BTreeSet<&str> {
    let names = listed.lines().filter_map(|line| line.split(' ').next());
    names.filter(|name| name.starts_with("msdeform")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crates_of_ours_are_told_from_others_and_counted_once() {
        let listed = "msdeform-python v0.1.0 (/a)\nhalf v2.7.1\nmsdeform v0.1.0 (/b)\nmsdeform v0.1.0 (/b) (*)\n";
        assert_eq!(own_crates(listed), BTreeSet::from(["msdeform", "msdeform-python"]));
    }
}
