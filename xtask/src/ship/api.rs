//! `cargo xtask api`: the public interfaces of the libraries, as lists in the tree, so that a reviewer sees every change.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

use crate::process::{run, run_ok, sh};
use crate::steps::Report;
use crate::tree;

/// The crates whose interfaces are promised. The others are parts of the laboratory, published for its command.
const PROMISED: [&str; 2] = ["msdeform", "msdeform-cuda"];

/// Writes or compares the lists.
pub fn run_command(bless: bool) -> Result<()> {
    if bless {
        return PROMISED
            .iter()
            .try_for_each(|name| Ok(std::fs::write(listed(name), items(name)?)?));
    }
    println!("{}", check()?.note);
    Ok(())
}

/// Compares the interfaces with their lists.
pub fn check() -> Result<Report> {
    let mut count = 0;
    for package in PROMISED {
        let (now, text) = (tree::cache().join(format!("{package}-api.txt")), items(package)?);
        std::fs::write(&now, &text)?;
        let same = run(sh("diff --unified=0").arg(listed(package)).arg(&now))?.success;
        ensure!(
            same,
            "the interface of {package} changed; if it should, run `cargo xtask api --bless`"
        );
        count += text.lines().count();
    }
    Ok(Report::check(format!("{count} items of {} crates", PROMISED.len())))
}

fn listed(package: &str) -> PathBuf {
    tree::root().join("crates").join(package).join("public-api.txt")
}

/// One line for each item, without the traits that every type implements.
fn items(package: &str) -> Result<String> {
    let interface = public_api::Builder::from_rustdoc_json(rustdoc_json(package)?)
        .omit_blanket_impls(true)
        .omit_auto_trait_impls(true)
        .omit_auto_derived_impls(true)
        .build()
        .with_context(|| format!("the interface of {package}"))?;
    Ok(interface.items().map(|item| format!("{item}\n")).collect())
}

/// The rustdoc of a library as JSON. Only nightly compilers have that option, and the pinned one if `RUSTC_BOOTSTRAP` is
/// set. The script sets it for rustdoc alone, because in cargo's environment it would compile everything again.
fn rustdoc_json(package: &str) -> Result<PathBuf> {
    let options = "-Zunstable-options --output-format json";
    let mut rustdoc = sh(&format!("cargo rustdoc --locked --lib --package {package} -- {options}"));
    run_ok(rustdoc.env("RUSTDOC", tree::root().join("tools/rustdoc_as_nightly.sh")))?;
    Ok(tree::target().join("doc").join(format!("{}.json", package.replace('-', "_"))))
}
