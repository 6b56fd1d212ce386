//! `cargo xtask crates`: whether the published crates are complete and build from their tarballs.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::candle::MANIFEST as CANDLE;
use crate::process::{capture, run_ok, sh};
use crate::steps::{Report, Steps};
use crate::tree;

/// What `cargo xtask crates` does.
pub fn run() -> Result<ExitCode> {
    let mut steps = Steps::default();
    steps.run("crate contents", check_contents);
    steps_to(&mut steps, &tree::target().join("package"));
    Ok(steps.finish())
}

/// The steps that compile crates; tarballs are copied into a folder.
pub fn steps_to(steps: &mut Steps, folder: &Path) {
    steps.run("minimal versions", check_minimal_versions);
    steps.run("crates", || package(folder));
    steps.run("candle crate", || package_candle(folder));
}

/// A published crate.
struct Published {
    name: String,
    folder: PathBuf,
    metadata: Value,
}

/// The published crates of the workspace that has this manifest.
fn published(manifest: &str) -> Result<Vec<Published>> {
    let list = "cargo metadata --locked --no-deps --format-version 1 --manifest-path";
    let metadata: Value = serde_json::from_str(&capture(sh(list).arg(manifest))?)?;
    let packages = metadata["packages"].as_array().context("cargo lists no packages")?;
    // `publish = false` is an empty list of registries.
    let published = packages.iter().filter(|package| package["publish"].is_null());
    let known = published.map(|package| {
        let folder = Path::new(package["manifest_path"].as_str()?).parent()?.to_owned();
        let name = package["name"].as_str()?.to_owned();
        Some(Published { name, folder, metadata: package.clone() })
    });
    known.collect::<Option<_>>().context("cargo lists a package without a name or a folder")
}

/// Every crate has its metadata and contains all of its files: kernels, workloads, licences. Builds nothing.
pub fn check_contents() -> Result<Report> {
    let mut crates = published("Cargo.toml")?;
    crates.extend(published(CANDLE)?);
    let files = tree::files(&[])?;
    for Published { name, folder, metadata } in &crates {
        for field in ["description", "license", "repository", "rust_version", "readme"] {
            ensure!(metadata[field].is_string(), "{name} has no {field}");
        }
        ensure!(
            metadata["metadata"]["docs"]["rs"].is_object(),
            "{name} has no metadata for docs.rs"
        );
        let mut list = sh("cargo package --locked --list --allow-dirty --manifest-path");
        let listed = capture(list.arg(folder.join("Cargo.toml")))?;
        let packed: Vec<&Path> = listed.lines().map(Path::new).collect();
        let own = folder.strip_prefix(tree::root()).unwrap_or(folder);
        let own_files = files.iter().filter_map(|file| file.strip_prefix(own).ok());
        let mut needed = own_files.chain(["LICENSE-APACHE", "LICENSE-MIT"].map(Path::new));
        let missing = needed.find(|file| !packed.contains(file));
        ensure!(missing.is_none(), "the package of {name} lacks {missing:?}");
    }
    Ok(Report::check(format!("{} crates", crates.len())))
}

/// Makes the tarballs, and builds every crate from its own and from those that it depends on.
fn package(folder: &Path) -> Result<Report> {
    let crates = published("Cargo.toml")?;
    let mut package = sh("cargo package --locked --allow-dirty");
    package.args(crates.iter().flat_map(|published| ["--package", &published.name]));
    pack(&mut package, &crates, folder)
}

/// Packs the crate for candle and builds it from its tarball. It is in another workspace, so the crates of the tree take the
/// place of the registry's, which may not have them yet.
fn package_candle(folder: &Path) -> Result<Report> {
    let mut package = sh("cargo package --allow-dirty --exclude-lockfile --manifest-path");
    package.arg(CANDLE);
    for Published { name, folder, .. } in published("Cargo.toml")? {
        package.args(["--config", &format!("patch.crates-io.{name}.path={folder:?}")]);
    }
    pack(&mut package, &published(CANDLE)?, folder)
}

/// Runs `cargo package` and copies the tarballs. With a target folder, cargo compiles what the tarballs share once, not once
/// for each of them.
fn pack(
    package: &mut std::process::Command,
    crates: &[Published],
    folder: &Path,
) -> Result<Report> {
    run_ok(package.arg("--target-dir").arg(tree::target()))?;
    for Published { name, metadata, .. } in crates {
        let file = format!("{name}-{}.crate", metadata["version"].as_str().unwrap_or_default());
        let tarball = tree::target().join("package").join(&file);
        // To itself, the copy would be empty.
        if tarball.parent() != Some(folder) {
            std::fs::copy(tarball, folder.join(file))?;
        }
    }
    Ok(Report { passed: crates.len(), ..Report::default() }
        .noted(format!("{} crates", crates.len())))
}

/// The published crates compile with the oldest versions of their direct dependencies.
fn check_minimal_versions() -> Result<Report> {
    let mut check = sh("tools/minimal_versions.sh");
    check.arg(tree::cache().join("minimal-versions")).arg(tree::target().join("minimal-versions"));
    run_ok(check.args(published("Cargo.toml")?.iter().map(|published| &published.name)))?;
    Ok(Report::check("the oldest versions of direct dependencies"))
}
