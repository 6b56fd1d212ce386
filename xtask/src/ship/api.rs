//! `cargo xtask api`: the public interfaces of the libraries, as lists in the tree. A change of an interface is a change of
//! its list, which a reviewer sees.

use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::process::{cargo, run, run_ok};
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
pub fn run_command(args: &ApiArgs) -> Result<ExitCode> {
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
        let (now, text) = (tree::cache().join(format!("{package}-api.txt")), listed(package)?);
        std::fs::write(&now, &text)?;
        let mut diff = Command::new("diff");
        let same = run(diff.arg("--unified=0").arg(committed(package)).arg(&now))?.success;
        ensure!(same, "the interface of {package} changed; `cargo xtask api --bless` if it should");
        items += text.lines().count();
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

/// The rustdoc of a library as JSON. Only nightly compilers have that option, and the pinned one if `RUSTC_BOOTSTRAP` is
/// set. The script sets it for rustdoc alone, because in cargo's environment it would compile everything again.
fn rustdoc_json(package: &str) -> Result<PathBuf> {
    let mut rustdoc = cargo(["rustdoc", "--locked", "--lib", "--package", package]);
    rustdoc.args(["--", "-Zunstable-options", "--output-format", "json"]);
    run_ok(rustdoc.env("RUSTDOC", tree::root().join("tools/rustdoc_as_nightly.sh")))?;
    Ok(tree::target().join("doc").join(format!("{}.json", package.replace('-', "_"))))
}
