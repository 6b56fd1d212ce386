//! `cargo xtask release`: all steps of a release that a machine can do. And `cargo xtask crates`, a part of it.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::Args;

use super::platforms::{self, PLATFORMS, Platform};
use super::{api, wheel};
use crate::environments::{MATURIN, SCRIPTS};
use crate::process::{capture, run_ok, sh};
use crate::steps::{Report, Steps};
use crate::test::CRATE_CONTENTS;
use crate::{c, setup, tree};

#[derive(Args)]
pub struct ReleaseArgs {
    /// The version to release [default: that of Cargo.toml, as it is]
    version: Option<String>,
    /// Restore the manifests and the changelog at the end
    #[arg(long)]
    dry_run: bool,
    /// Only wheels for these platforms [default: all]
    #[arg(long, value_name = "TRIPLE")]
    target: Vec<String>,
    /// Only these steps, by the names in the summary; files of other steps are kept
    #[arg(long, value_name = "STEP", value_delimiter = ',')]
    only: Vec<String>,
}

/// The version of the tree.
const CURRENT: &str = env!("CARGO_PKG_VERSION");

pub fn run(args: &ReleaseArgs) -> Result<ExitCode> {
    let all = ["all".to_owned()];
    let platforms = platforms::named(if args.target.is_empty() { &all } else { &args.target })?;
    ensure!(
        args.dry_run || capture(&mut sh("git status --porcelain"))?.is_empty(),
        "the tree differs from its commit; commit first, or add --dry-run"
    );
    // Dropped at the end, also after an error.
    let _restored = args.dry_run.then(Restored::now).transpose()?;
    if let Some(version) = &args.version {
        run_ok(SCRIPTS.sh("python tools/release_version.py set")?.args([CURRENT, version]))?;
    }
    let version = args.version.as_deref().unwrap_or(CURRENT);
    let folder = tree::target().join("published").join(version);
    let is_whole = args.only.is_empty() && args.target.is_empty();
    if is_whole {
        tree::empty_folder(folder.clone())?;
    }
    std::fs::create_dir_all(&folder)?;

    let mut steps = Steps::only(&args.only);
    steps.run("crate contents", || CRATE_CONTENTS.run());
    steps.run("public api", api::check);
    crates_to(&mut steps, &folder);
    for platform in &platforms {
        wheel::step(&mut steps, Some(platform), &folder);
        platform.try_in(&mut steps, || platform.wheel_in(&folder).context("no wheel was built"));
    }
    steps.run("c library", || c_library(version, &folder));
    let tried = platforms.iter().filter(|platform| platform.wheel_in(&folder).is_some());
    let tried: String =
        tried.map(|platform| trials(platform, |name| steps.outcome(name))).collect();
    steps.run("release notes", || {
        let mut notes = SCRIPTS.sh("python tools/release_version.py notes")?;
        let mut notes = capture(notes.arg(version))?;
        if !tried.is_empty() {
            notes += &format!("\n### Run before this release\n\n{tried}");
        }
        std::fs::write(folder.join("RELEASE-NOTES.md"), notes)?;
        Ok(Report::check(""))
    });
    steps.run("checksums", || {
        setup::programs(&[(&["unzip"], "unzip")])?;
        let files = run_ok(sh("tools/release_files.sh").arg(&folder))?;
        Ok(Report::check(format!("{} files", files.trim())))
    });
    let code = steps.finish();
    let shown = folder.strip_prefix(tree::root()).unwrap_or(&folder).display();
    if code == ExitCode::SUCCESS && is_whole {
        let again = format!("  cargo xtask release {version}    # the dry run changed nothing\n");
        println!(
            "\n{shown} has all files of {version}. To publish them:\n\n{}\
             \x20 git commit -am 'Version {version}' && git tag v{version} && git push --follow-tags\n\n\
             The tag starts .github/workflows/release.yml, which does the rest. docs/releasing.md has its commands, to type them by hand.",
            if args.dry_run { &again } else { "" }
        );
    } else if code == ExitCode::SUCCESS {
        println!("\n{shown} has a part of {version}; only a whole release can be published.");
    }
    Ok(code)
}

/// What `cargo xtask crates` does: are the published crates complete, and do they build from their tarballs?
pub fn crates() -> Result<ExitCode> {
    let mut steps = Steps::only(&[]);
    steps.run("crate contents", || CRATE_CONTENTS.run());
    crates_to(&mut steps, &tree::empty_folder(tree::target().join("crates"))?);
    Ok(steps.finish())
}

/// The steps that compile crates. Tarballs are copied into a folder.
fn crates_to(steps: &mut Steps, folder: &Path) {
    for (name, command) in [
        ("minimal versions", "minimal-versions"),
        ("crates", "package"),
        ("candle crate", "package-candle"),
    ] {
        steps.run(name, || {
            let mut script = SCRIPTS.sh(&format!("python tools/crates.py {command}"))?;
            let output = run_ok(script.arg(folder))?;
            let note = output.lines().rfind(|line| line.ends_with(" crates"));
            Ok(Report::check(note.unwrap_or_default()))
        });
    }
}

/// Builds the library for C into an archive, and compiles programs with that archive. It is linked for old systems as the wheel
/// is: one that is linked on Debian 12 loads on nothing older.
fn c_library(version: &str, folder: &Path) -> Result<Report> {
    let platform = &PLATFORMS[0];
    setup::programs(c::PROGRAMS)?;
    platform.set_up()?;
    let build = "cargo-zigbuild zigbuild --locked --profile dist --package msdeform-c --target";
    run_ok(wheel::with_zig(MATURIN.sh(build)?.arg(platform.triple))?)?;
    let name = format!("msdeform-c-{version}-x86_64-linux");
    let prefix = tree::empty_folder(tree::cache().join("libraries"))?.join(&name);
    c::install_from(&tree::target().join(platform.triple).join("dist"), version, &prefix)?;
    let archive = folder.join(format!("{name}.tar.gz"));
    run_ok(sh("tools/pack_c_library.sh").arg(&prefix).arg(&archive))?;
    Ok(Report::check(format!("{} bytes", std::fs::metadata(&archive)?.len())))
}

/// What was run of a platform, and what was not: a line of the release notes.
fn trials(platform: &Platform, outcome: impl Fn(&str) -> Option<String>) -> String {
    let run = platform.trials.iter().filter_map(|(name, _)| Some((name, outcome(name)?)));
    let run: Vec<_> = run.map(|(name, outcome)| format!("{name}: {outcome}")).collect();
    let mut parts = vec![platform.triple.to_owned()];
    parts.extend((!run.is_empty()).then(|| run.join("; ")));
    parts.extend((!platform.not_run.is_empty()).then(|| format!("Not run: {}", platform.not_run)));
    format!("- {}.\n", parts.join(". "))
}

/// The files that a version is written into, with their contents, which come back when this is dropped.
struct Restored(Vec<(PathBuf, Vec<u8>)>);

impl Restored {
    fn now() -> Result<Self> {
        let files = ["CHANGELOG.md", "Cargo.toml", "Cargo.lock"].into_iter();
        let files = files.chain(["bindings/candle/Cargo.toml", "bindings/candle/Cargo.lock"]);
        let read = |path: PathBuf| Ok((path.clone(), std::fs::read(path)?));
        files.map(|file| read(tree::root().join(file))).collect::<Result<_>>().map(Self)
    }
}

impl Drop for Restored {
    fn drop(&mut self) {
        for (path, bytes) in &self.0 {
            if std::fs::write(path, bytes).is_err() {
                eprintln!("could not restore {}; `git checkout` does", path.display());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_list_what_was_run_and_what_was_not() {
        let outcome = |name: &str| (name == "windows library").then(|| "9 passed".to_owned());
        let lines: String = PLATFORMS.iter().map(|platform| trials(platform, outcome)).collect();
        let windows = "- x86_64-pc-windows-gnu. windows library: 9 passed. Not run: the Python";
        assert!(lines.contains(windows), "{lines}");
        assert!(lines.contains("- aarch64-apple-darwin. Not run: anything: it is"), "{lines}");
        assert!(lines.starts_with("- x86_64-unknown-linux-gnu.\n"), "{lines}");
    }
}
