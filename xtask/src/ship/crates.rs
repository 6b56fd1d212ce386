//! `cargo xtask crates`: what goes to crates.io, and whether it builds from there.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::process::{capture, cargo, run_ok};
use crate::steps::{Count, Report, Steps};
use crate::{candle, tree};

/// A crate that is published.
struct Published {
    name: String,
    folder: PathBuf,
    metadata: Value,
}

impl Published {
    /// Where cargo packs it.
    fn tarball(&self) -> PathBuf {
        let version = self.metadata["version"].as_str().unwrap_or_default();
        tree::target().join("package").join(format!("{}-{version}.crate", self.name))
    }
}

/// What `cargo xtask crates` does.
pub fn run() -> Result<ExitCode> {
    let mut steps = Steps::default();
    steps.run("crate contents", check_contents);
    steps.run("crates", || package().map(|(report, _)| report));
    steps.run("candle crate", || package_candle().map(|(report, _)| report));
    steps.run("minimal versions", check_minimal_versions);
    Ok(steps.finish())
}

/// The published crates of the workspace that has this manifest.
fn published(manifest: &str) -> Result<Vec<Published>> {
    let mut list = cargo(["metadata", "--locked", "--no-deps", "--format-version", "1"]);
    let listed = capture(list.args(["--manifest-path", manifest]))?;
    let metadata: Value = serde_json::from_str(&listed).context("cargo's metadata")?;
    let packages = metadata["packages"].as_array().context("cargo lists no packages")?;
    // `publish = false` is an empty list of registries.
    let published = packages.iter().filter(|package| package["publish"].is_null());
    let known = published.filter_map(|package| {
        let folder = Path::new(package["manifest_path"].as_str()?).parent()?.to_owned();
        let name = package["name"].as_str()?.to_owned();
        Some(Published { name, folder, metadata: package.clone() })
    });
    Ok(known.collect())
}

/// Every crate has its metadata and contains all of its files: kernels, workloads, licences. Builds nothing.
pub fn check_contents() -> Result<Report> {
    let mut crates = published("Cargo.toml")?;
    crates.extend(published(candle::MANIFEST)?);
    let files = tree::files()?;
    for Published { name, folder, metadata } in &crates {
        for field in ["description", "license", "repository", "rust_version", "readme"] {
            ensure!(metadata[field].is_string(), "{name} has no {field}");
        }
        ensure!(metadata["metadata"]["docs"]["rs"].is_object(), "{name} says nothing to docs.rs");
        let mut list = cargo(["package", "--locked", "--list", "--allow-dirty", "--manifest-path"]);
        let listed = capture(list.arg(folder.join("Cargo.toml")))?;
        let packed: Vec<&Path> = listed.lines().map(Path::new).collect();
        let own = folder.strip_prefix(tree::root()).unwrap_or(folder);
        let own_files = files.iter().filter_map(|file| file.strip_prefix(own).ok());
        let licences = ["LICENSE-APACHE", "LICENSE-MIT"].map(Path::new);
        let missing: Vec<_> =
            own_files.chain(licences).filter(|file| !packed.contains(file)).collect();
        ensure!(missing.is_empty(), "{name} is published without {missing:?}");
    }
    Ok(Report::check(format!("{} crates", crates.len())))
}

/// Makes the tarballs, and builds every crate from its own and from those that it depends on. Returns the files.
pub fn package() -> Result<(Report, Vec<PathBuf>)> {
    let crates = published("Cargo.toml")?;
    let mut package = cargo(["package", "--locked", "--allow-dirty"]);
    // With a target folder, cargo compiles what the tarballs share once, not once for each of them.
    package.arg("--target-dir").arg(tree::target());
    run_ok(package.args(crates.iter().flat_map(|published| ["--package", &published.name])))?;
    let count = Count { passed: crates.len(), ..Count::default() };
    let files = crates.iter().map(Published::tarball).collect();
    Ok((Report { count, note: format!("{} crates", crates.len()) }, files))
}

/// Packs the crate for candle and builds it from its tarball. It is in another workspace, so the crates that it depends on
/// take the place of the registry's, which may not have them yet.
pub fn package_candle() -> Result<(Report, PathBuf)> {
    let candle = published(candle::MANIFEST)?.pop().context("no crate for candle")?;
    let mut package = cargo(["package", "--allow-dirty", "--exclude-lockfile"]);
    package.args(["--manifest-path", candle::MANIFEST, "--target-dir"]);
    package.arg(tree::target());
    for Published { name, folder, .. } in published("Cargo.toml")? {
        package.args(["--config", &format!("patch.crates-io.{name}.path={folder:?}")]);
    }
    run_ok(&mut package)?;
    Ok((Report::check("with the crates of the tree"), candle.tarball()))
}

/// The published crates compile with the oldest versions of their direct dependencies.
pub fn check_minimal_versions() -> Result<Report> {
    let mut check = Command::new(tree::root().join("tools/minimal_versions.sh"));
    check.arg(tree::cache().join("minimal-versions")).arg(tree::target().join("minimal-versions"));
    check.args(published("Cargo.toml")?.iter().map(|published| &published.name));
    run_ok(check.current_dir(tree::root()))?;
    Ok(Report::check("the oldest versions of direct dependencies"))
}
