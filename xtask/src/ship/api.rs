//! `cargo xtask api`: the public interfaces of the libraries, as lists in the tree. A change of one is a change of the
//! other, for whoever reviews it.

use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::process::{cargo, run_ok};
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
    let interface = public_api::Builder::from_rustdoc_json(rustdoc_json(package)?)
        .omit_blanket_impls(true)
        .omit_auto_trait_impls(true)
        .omit_auto_derived_impls(true)
        .build()
        .with_context(|| format!("the interface of {package}"))?;
    Ok(interface.items().map(|item| format!("{item}\n")).collect())
}

/// Says that this program is called in place of rustdoc.
const AS_RUSTDOC: &str = "XTASK_AS_RUSTDOC";

/// The rustdoc of a library, as data. That is an option of nightly compilers, and the pinned one has it where
/// `RUSTC_BOOTSTRAP` is set: for rustdoc alone, because with it in cargo's environment everything would be compiled again.
fn rustdoc_json(package: &str) -> Result<PathBuf> {
    let mut rustdoc = cargo(["rustdoc", "--locked", "--lib", "--package", package]);
    rustdoc.args(["--", "-Zunstable-options", "--output-format", "json"]);
    run_ok(rustdoc.env("RUSTDOC", std::env::current_exe()?).env(AS_RUSTDOC, "1"))?;
    Ok(tree::target().join("doc").join(format!("{}.json", package.replace('-', "_"))))
}

/// What cargo wanted of rustdoc, where this program is called in its place.
pub fn as_rustdoc() -> Option<ExitCode> {
    std::env::var_os(AS_RUSTDOC)?;
    let mut rustdoc = Command::new("rustdoc");
    rustdoc.args(std::env::args_os().skip(1)).env("RUSTC_BOOTSTRAP", "1");
    let succeeded = rustdoc.status().is_ok_and(|status| status.success());
    Some(if succeeded { ExitCode::SUCCESS } else { ExitCode::FAILURE })
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
