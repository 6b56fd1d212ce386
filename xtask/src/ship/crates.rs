//! `cargo xtask crates`: what goes to crates.io, and whether it builds from there.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::process::{capture, cargo, run_ok};
use crate::steps::{Count, Report, Steps};
use crate::{candle, tree};

/// A crate that is published.
#[derive(Debug)]
pub struct Published {
    pub name: String,
    folder: PathBuf,
    metadata: Value,
}

impl Published {
    fn file_stem(&self) -> String {
        format!("{}-{}", self.name, self.metadata["version"].as_str().unwrap_or_default())
    }

    /// Where cargo packs it.
    fn tarball(&self) -> PathBuf {
        tree::target().join("package").join(format!("{}.crate", self.file_stem()))
    }

    /// Unpacks its tarball into a folder of its name in this one.
    fn unpack(&self, folder: &Path) -> Result<()> {
        let mut unpack = Command::new("tar");
        unpack.arg("--extract").arg("--gzip").arg("--file").arg(self.tarball());
        run_ok(unpack.arg("--directory").arg(folder))?;
        Ok(())
    }
}

/// What `cargo xtask crates` does.
pub fn run() -> Result<ExitCode> {
    let mut steps = Steps::default();
    steps.run("crate contents", check_contents);
    steps.run("crates", || package().map(|(report, _)| report));
    steps.run("candle crate", || package_candle().map(|(report, _)| report));
    steps.run("minimal versions", check_minimal_versions);
    Ok(if steps.finish() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The published crates of the workspace, each after those that it depends on.
pub fn published() -> Result<Vec<Published>> {
    let mut left = published_of("Cargo.toml")?;
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

/// Those of the workspace that has this manifest, in no order.
fn published_of(manifest: &str) -> Result<Vec<Published>> {
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

/// What a crate needs where it is published; tests do not go by a registry.
fn needs(package: &Value) -> Vec<&str> {
    let dependencies = package["dependencies"].as_array().map(Vec::as_slice).unwrap_or_default();
    let named = dependencies.iter().filter(|dependency| dependency["kind"] != "dev");
    named.filter_map(|dependency| dependency["name"].as_str()).collect()
}

/// Whether each crate says what it is and contains all of its files: kernels, workloads, licences. Builds nothing.
pub fn check_contents() -> Result<Report> {
    let mut crates = published()?;
    crates.extend(published_of(candle::MANIFEST)?);
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
pub fn package() -> Result<(Report, Vec<PathBuf>)> {
    let crates = published()?;
    let mut package = cargo(["package", "--locked", "--allow-dirty"]);
    // Named, it is where tarballs are built too: what they are made of is compiled once, not once for each of them.
    package.arg("--target-dir").arg(tree::target());
    for Published { name, .. } in &crates {
        package.args(["--package", name]);
    }
    run_ok(&mut package)?;
    let files: Vec<PathBuf> = crates.iter().map(Published::tarball).collect();
    let absent = files.iter().find(|file| !file.is_file());
    ensure!(absent.is_none(), "cargo packed no {absent:?}");
    let count = Count { passed: crates.len(), ..Count::default() };
    Ok((Report { count, note: format!("{} crates", crates.len()) }, files))
}

/// The same for the crate for candle, after the others. It is in another workspace: cargo would look for what it depends on in
/// the registry, where that is not yet.
pub fn package_candle() -> Result<(Report, PathBuf)> {
    let ours = published_of(candle::MANIFEST)?.pop().context("no crate for candle")?;
    let registered = needed_by(&ours, published()?);
    let mut libraries = vec!["--locked"];
    libraries.extend(registered.iter().flat_map(|library| ["--package", &library.name]));
    for options in [&libraries[..], &["--exclude-lockfile", "--manifest-path", candle::MANIFEST]] {
        let mut package = cargo(["package", "--allow-dirty", "--no-verify", "--target-dir"]);
        run_ok(package.arg(tree::target()).args(options))?;
    }
    let folder = tree::cache().join("unpacked-crates");
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    std::fs::create_dir_all(&folder)?;
    for unpacked in registered.iter().chain([&ours]) {
        unpacked.unpack(&folder)?;
    }
    std::fs::write(folder.join("Cargo.toml"), workspace_of(&ours, &registered))?;
    // The versions that the tests run with.
    std::fs::copy(tree::root().join(candle::LOCK), folder.join("Cargo.lock"))?;
    let mut check = cargo(["check", "--package", &ours.name, "--target-dir"]);
    run_ok(check.arg(tree::target().join("candle")).current_dir(&folder))?;
    let tarball = ours.tarball();
    Ok((Report::check(format!("with candle and {} of ours", registered.len())), tarball))
}

/// Those that a crate needs, and that they need, out of crates of which each comes after what it needs.
fn needed_by(package: &Published, mut crates: Vec<Published>) -> Vec<Published> {
    let mut wanted: Vec<String> = needs(&package.metadata).into_iter().map(str::to_owned).collect();
    for published in crates.iter().rev().filter(|published| published.name != package.name) {
        if wanted.contains(&published.name) {
            wanted.extend(needs(&published.metadata).into_iter().map(str::to_owned));
        }
    }
    crates.retain(|published| wanted.contains(&published.name));
    crates
}

/// A workspace around an unpacked crate in which other unpacked ones are what the registry would have.
fn workspace_of(member: &Published, registered: &[Published]) -> String {
    let mut text = format!(
        "[workspace]\nresolver = \"3\"\nmembers = [\"{}\"]\n\n[patch.crates-io]\n",
        member.file_stem()
    );
    for library in registered {
        let _ = writeln!(text, "{} = {{ path = \"{}\" }}", library.name, library.file_stem());
    }
    text
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
    let mut check = in_copy(&["check", "--locked", "--lib", "--bins", "--target-dir"]);
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
    fn what_a_crate_needs_comes_with_what_that_needs_and_nothing_else() {
        let all = published().unwrap();
        let cuda = all.iter().find(|published| published.name == "msdeform-cuda").unwrap();
        let names = needed_by(cuda, published().unwrap());
        let names: Vec<&str> = names.iter().map(|published| published.name.as_str()).collect();
        assert!(names.contains(&"msdeform") && names.contains(&"msdeform-files"), "{names:?}");
        assert!(!names.contains(&"msdeform-cuda") && !names.contains(&"msdeform-cli"), "{names:?}");
        let text = workspace_of(cuda, &all[..1]);
        assert!(text.contains("members = [\"msdeform-cuda-"), "{text}");
        assert!(text.contains(&format!("\n{} = {{ path = ", all[0].name)), "{text}");
    }

    #[test]
    fn the_workspace_is_cut_down_to_the_crates() {
        let manifest = "[workspace]\nmembers = [\"bindings/python\", \"crates/*\"]\n";
        assert_eq!(crates_alone(manifest).unwrap(), "[workspace]\nmembers = [\"crates/*\"]\n");
        assert!(crates_alone("[package]").is_err());
    }
}
