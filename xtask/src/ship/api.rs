//! `cargo xtask api`: the public interfaces of the libraries, as lists in the tree. A change of one is a change of the
//! other, for whoever reviews it.

use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};
use clap::Args;

use super::crates::{cargo_tool, rustdoc_json};
use crate::process::capture;
use crate::steps::Report;
use crate::tree;

/// Options of `api`.
#[derive(Args)]
pub struct ApiArgs {
    /// Write the lists instead, after a change on purpose
    #[arg(long)]
    bless: bool,
}

/// The crates whose interfaces are promised. The others are parts of the laboratory, published for its command.
const PROMISED: [&str; 3] = ["msdeform", "msdeform-cuda", "msdeform-tuning"];

/// The version that reads the rustdoc of the pinned compiler.
const TOOL: (&str, &str) = ("cargo-public-api", "0.52.0");

/// What `cargo xtask api` does.
pub fn run(args: &ApiArgs) -> Result<ExitCode> {
    if args.bless {
        for package in PROMISED {
            std::fs::write(committed(package), listed(package)?)?;
        }
    } else {
        println!("{}", check()?.note);
    }
    Ok(ExitCode::SUCCESS)
}

/// Compares the interfaces with their lists.
pub fn check() -> Result<Report> {
    let mut items = 0;
    for package in PROMISED {
        let path = committed(package);
        let before = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let now = listed(package)?;
        let changes = differences(&before, &now);
        ensure!(
            changes.is_empty(),
            "the interface of {package} changed; `cargo xtask api --bless` if it should:\n{}",
            changes.join("\n")
        );
        items += now.lines().count();
    }
    Ok(Report::check(format!("{items} items of {} crates", PROMISED.len())))
}

fn committed(package: &str) -> PathBuf {
    tree::root().join("crates").join(package).join("public-api.txt")
}

/// One line for each item, without what every type implements.
fn listed(package: &str) -> Result<String> {
    let json = rustdoc_json(package)?;
    let mut tool = Command::new(cargo_tool(TOOL.0, TOOL.1)?);
    tool.args(["public-api", "--simplified", "--simplified", "--simplified", "--rustdoc-json"]);
    capture(tool.arg(json).current_dir(tree::root()))
}

/// Lines that are in one of them only.
fn differences(before: &str, now: &str) -> Vec<String> {
    let only = |sign: char, these: &str, others: &str| {
        let others: Vec<&str> = others.lines().collect();
        let lines = these.lines().filter(|line| !others.contains(line));
        lines.map(|line| format!("{sign} {line}")).collect::<Vec<_>>()
    };
    let mut changes = only('-', before, now);
    changes.extend(only('+', now, before));
    changes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_removed_and_what_is_new_is_named() {
        let changes = differences("pub fn a()\npub fn b()\n", "pub fn b()\npub fn c()\n");
        assert_eq!(changes, ["- pub fn a()", "+ pub fn c()"]);
        assert!(differences("pub fn a()\n", "pub fn a()\n").is_empty());
    }
}
