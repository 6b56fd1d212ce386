//! `cargo xtask crates`: what goes to crates.io, and whether it builds from there.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::process::{capture, cargo, run_ok};
use crate::steps::{Count, Report, Steps};
use crate::tree;

/// A crate that is published.
#[derive(Debug)]
pub struct Published {
    pub name: String,
    folder: PathBuf,
    metadata: Value,
}

/// What `cargo xtask crates` does.
pub fn run() -> Result<ExitCode> {
    let mut steps = Steps::default();
    steps.run("crate contents", check_contents);
    steps.run("crates", || package(true).map(|(report, _)| report));
    steps.run("minimal versions", check_minimal_versions);
    Ok(if steps.finish() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The published crates, each after those that it depends on.
pub fn published() -> Result<Vec<Published>> {
    let listed =
        capture(&mut cargo(["metadata", "--locked", "--no-deps", "--format-version", "1"]))?;
    let metadata: Value = serde_json::from_str(&listed).context("cargo's metadata")?;
    let packages = metadata["packages"].as_array().context("cargo lists no packages")?;
    // `publish = false` is an empty list of registries.
    let is_published = |package: &&Value| package["publish"].is_null();
    let mut left: Vec<Published> = packages
        .iter()
        .filter(is_published)
        .filter_map(|package| {
            let folder = Path::new(package["manifest_path"].as_str()?).parent()?.to_owned();
            let name = package["name"].as_str()?.to_owned();
            Some(Published { name, folder, metadata: package.clone() })
        })
        .collect();
    let mut ordered: Vec<Published> = Vec::new();
    while !left.is_empty() {
        let waits = |package: &Published| {
            needs(&package.metadata).iter().any(|need| left.iter().any(|other| other.name == *need))
        };
        let next = left.iter().position(|package| !waits(package));
        ordered.push(left.swap_remove(next.context("crates depend on each other in a circle")?));
    }
    Ok(ordered)
}

/// What a crate needs where it is published; tests do not go by a registry.
fn needs(package: &Value) -> Vec<&str> {
    let dependencies = package["dependencies"].as_array().map(Vec::as_slice).unwrap_or_default();
    let named = dependencies.iter().filter(|dependency| dependency["kind"] != "dev");
    named.filter_map(|dependency| dependency["name"].as_str()).collect()
}

/// Whether each crate says what it is and contains all of its files: kernels, workloads, licences. Builds nothing.
pub fn check_contents() -> Result<Report> {
    let crates = published()?;
    let files = tree::files()?;
    for Published { name, folder, metadata } in &crates {
        for field in ["description", "license", "repository", "rust_version", "readme"] {
            ensure!(metadata[field].is_string(), "{name} has no {field}");
        }
        let listed = capture(&mut cargo([
            "package",
            "--locked",
            "--list",
            "--allow-dirty",
            "--package",
            name,
        ]))?;
        let packed: Vec<&Path> = listed.lines().map(Path::new).collect();
        let own = folder.strip_prefix(tree::root()).unwrap_or(folder);
        let missing: Vec<_> = files
            .iter()
            .filter_map(|file| file.strip_prefix(own).ok())
            .filter(|file| !packed.contains(file))
            .collect();
        ensure!(missing.is_empty(), "{name} is published without {missing:?}");
        for licence in ["LICENSE-APACHE", "LICENSE-MIT"] {
            ensure!(packed.contains(&Path::new(licence)), "{name} has no {licence}");
        }
    }
    Ok(Report::check(format!("{} crates", crates.len())))
}

/// Makes the tarballs, and builds every crate from its own and from those that it depends on. Returns the files.
pub fn package(verify: bool) -> Result<(Report, Vec<PathBuf>)> {
    let crates = published()?;
    let mut package = cargo(["package", "--locked", "--allow-dirty"]);
    if !verify {
        package.arg("--no-verify");
    }
    for Published { name, .. } in &crates {
        package.args(["--package", name]);
    }
    run_ok(&mut package)?;
    let file = |published: &Published| {
        let version = published.metadata["version"].as_str().unwrap_or_default();
        tree::target().join("package").join(format!("{}-{version}.crate", published.name))
    };
    let files: Vec<PathBuf> = crates.iter().map(file).collect();
    let absent = files.iter().find(|file| !file.is_file());
    ensure!(absent.is_none(), "cargo packed no {absent:?}");
    let count = Count { passed: crates.len(), ..Count::default() };
    Ok((Report { count, note: format!("{} crates", crates.len()) }, files))
}

/// Whether the published crates build with the oldest versions that they say they take of what they name.
pub fn check_minimal_versions() -> Result<Report> {
    let copy = tree::cache().join("minimal-versions");
    if copy.exists() {
        std::fs::remove_dir_all(&copy)?;
    }
    for file in tree::files()? {
        // The package of Python and the tools are not published as crates; `Cargo.lock` is what this is about.
        if !file.starts_with("crates") && file != Path::new("Cargo.toml") {
            continue;
        }
        let target = copy.join(&file);
        std::fs::create_dir_all(target.parent().unwrap_or(&copy))?;
        std::fs::copy(tree::root().join(&file), target)?;
    }
    let manifest = copy.join("Cargo.toml");
    let text = std::fs::read_to_string(&manifest)?;
    std::fs::write(&manifest, crates_alone(&text)?)?;
    let in_copy = |arguments: &[&str]| {
        let mut command = cargo(arguments);
        command.current_dir(&copy);
        command
    };
    // The option is one of nightly compilers; the compiler is ours all the same.
    let mut resolve = in_copy(&["-Zdirect-minimal-versions", "generate-lockfile"]);
    run_ok(resolve.env("RUSTC_BOOTSTRAP", "1"))?;
    let mut check = in_copy(&["check", "--locked", "--lib", "--target-dir"]);
    check.arg(tree::target().join("minimal-versions"));
    for Published { name, .. } in published()? {
        check.args(["--package", &name]);
    }
    run_ok(&mut check)?;
    Ok(Report::check("the oldest versions of direct dependencies"))
}

/// The workspace's manifest with the crates as its only members.
fn crates_alone(manifest: &str) -> Result<String> {
    let members = manifest.lines().find(|line| line.starts_with("members = "));
    Ok(manifest
        .replace(members.context("a workspace without members")?, "members = [\"crates/*\"]"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crates_come_after_those_that_they_depend_on() {
        let crates = published().unwrap();
        let place = |name: &str| crates.iter().position(|published| published.name == name);
        assert_eq!(place("msdeform-emulator"), None);
        assert_eq!(place("xtask"), None);
        for published in &crates {
            for need in needs(&published.metadata) {
                let before = place(need).is_none_or(|at| Some(at) < place(&published.name));
                assert!(before, "{} before {need}", published.name);
            }
        }
        assert!(place("msdeform-cli").is_some() && place("msdeform") < place("msdeform-cuda"));
    }

    #[test]
    fn the_workspace_is_cut_down_to_the_crates() {
        let manifest = "[workspace]\nmembers = [\"bindings/python\", \"crates/*\"]\n";
        assert_eq!(crates_alone(manifest).unwrap(), "[workspace]\nmembers = [\"crates/*\"]\n");
        assert!(crates_alone("[package]").is_err());
    }
}
