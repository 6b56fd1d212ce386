//! `cargo xtask release`: everything of a release that a machine can do.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};
use clap::Args;

use super::platforms::{self, PLATFORMS};
use super::trial::{self, Tried};
use super::{api, crates, version, wheel};
use crate::process::{capture, run_ok};
use crate::steps::{Report, Steps};
use crate::{c, candle, setup, tree};

/// Options of `release`.
#[derive(Args)]
pub struct ReleaseArgs {
    /// The version to release [default: that of Cargo.toml, as it is]
    version: Option<String>,
    /// Leave the manifests and the changelog as they were
    #[arg(long)]
    dry_run: bool,
    /// Only wheels for these platforms [default: all]
    #[arg(long, value_name = "TRIPLE")]
    target: Vec<String>,
    /// Only these steps, by the names in the summary; files of other steps from before are kept
    #[arg(long, value_name = "STEP", value_delimiter = ',')]
    only: Vec<String>,
}

const MANIFESTS: [&str; 2] = ["Cargo.toml", candle::MANIFEST];
const LOCKS: [&str; 2] = ["Cargo.lock", candle::LOCK];
const CHANGELOG: &str = "CHANGELOG.md";

/// What `cargo xtask release` does.
pub fn run(args: &ReleaseArgs) -> Result<ExitCode> {
    let all = ["all".to_owned()];
    let platforms = platforms::named(if args.target.is_empty() { &all } else { &args.target })?;
    let mut status = Command::new("git");
    status.args(["status", "--porcelain"]).current_dir(tree::root());
    ensure!(
        args.dry_run || capture(&mut status)?.is_empty(),
        "the tree differs from its commit; a release is made of one"
    );
    // Dropped at the end, also after an error.
    let _before = args.dry_run.then(Contents::of_changed).transpose()?;
    let released = set_version(args.version.as_deref())?;
    let folder = tree::target().join("published").join(&released);
    let is_whole = args.only.is_empty() && args.target.is_empty();
    if is_whole {
        tree::empty_folder(folder.clone())?;
    }
    std::fs::create_dir_all(&folder)?;

    let mut steps = Steps::only(&args.only);
    steps.run("crate contents", crates::check_contents);
    steps.run("public api", api::check);
    steps.run("minimal versions", crates::check_minimal_versions);
    steps.run("crates", || {
        let (report, files) = crates::package()?;
        files.iter().try_for_each(|file| copy_into(&folder, file))?;
        Ok(report)
    });
    steps.run("candle crate", || {
        let (report, file) = crates::package_candle()?;
        copy_into(&folder, &file)?;
        Ok(report)
    });
    let mut tried = Vec::new();
    for platform in platforms {
        wheel::step(&mut steps, platform, &folder);
        let built = || trial::wheel_of(platform, &folder).context("no wheel was built");
        let trial = trial::steps_of(&mut steps, platform, built);
        tried.extend(built().is_ok().then_some(trial));
    }
    steps.run("c library", || c_library(&released, &folder));
    steps.run("release notes", || {
        let changelog = std::fs::read_to_string(tree::root().join(CHANGELOG))?;
        std::fs::write(folder.join("RELEASE-NOTES.md"), notes(&changelog, &released, &tried))?;
        Ok(Report::check(""))
    });
    steps.run("sbom, checksums", || {
        setup::programs(&[(&["unzip"], "unzip")])?;
        let mut write = Command::new(tree::root().join("tools/release_files.sh"));
        Ok(Report::check(format!("{} files", run_ok(write.arg(&folder))?.trim())))
    });
    let code = steps.finish();
    let shown = folder.strip_prefix(tree::root()).unwrap_or(&folder).display().to_string();
    if code == ExitCode::SUCCESS && is_whole {
        println!("\n{}", what_is_left(&released, &shown, args.dry_run));
    } else if code == ExitCode::SUCCESS {
        println!("\nIn {shown}: a part of {released}, nothing to publish.");
    }
    Ok(code)
}

fn copy_into(folder: &Path, file: &Path) -> Result<()> {
    std::fs::copy(file, folder.join(file.file_name().unwrap_or_default()))?;
    Ok(())
}

/// Builds the library for C into an archive in a folder, with the licences, and compiles programs with that archive. It is
/// linked for old systems, as the wheel is: one that is linked on Debian 12 loads on nothing older.
fn c_library(released: &str, folder: &Path) -> Result<Report> {
    let platform = &PLATFORMS[0];
    platform.set_up()?;
    setup::programs(c::PROGRAMS)?;
    run_ok(platform.cargo("build")?.args(["--profile", "dist", "--package", "msdeform-c"]))?;
    let name = format!("msdeform-c-{released}-x86_64-linux");
    let parent = tree::empty_folder(tree::cache().join("libraries"))?;
    let prefix = parent.join(&name);
    c::install_from(&tree::target().join(platform.triple).join("dist"), released, &prefix)?;
    for licence in ["LICENSE-APACHE", "LICENSE-MIT"] {
        copy_into(&prefix, &tree::root().join(licence))?;
    }
    let archive = folder.join(format!("{name}.tar.gz"));
    let mut pack = Command::new("tar");
    pack.args(["--create", "--gzip", "--owner=0", "--group=0", "--sort=name", "--file"]);
    run_ok(pack.arg(&archive).arg("--directory").arg(&parent).arg(&name))?;
    let mut compile = Command::new(tree::root().join("tools/try_c_library.sh"));
    compile.arg(&archive).arg(tree::root().join("crates/msdeform-c/examples/attention.c"));
    run_ok(&mut compile)?;
    Ok(Report::check(format!("{} bytes", std::fs::metadata(&archive)?.len())))
}

/// Writes the version into manifests and changelog, if one is given. Returns the one that is released.
fn set_version(wanted: Option<&str>) -> Result<String> {
    let read = |name: &str| std::fs::read_to_string(tree::root().join(name));
    let write = |name: &str, text: String| std::fs::write(tree::root().join(name), text);
    let before = version::current(&read("Cargo.toml")?)?;
    let Some(wanted) = wanted else { return Ok(before) };
    let today = capture(Command::new("date").arg("+%F"))?;
    let dated = version::release_changelog(&read(CHANGELOG)?, wanted, today.trim())?;
    for name in MANIFESTS {
        write(name, version::bump(&read(name)?, wanted)?)?;
    }
    for name in LOCKS {
        write(name, version::bump_lock(&read(name)?, &before, wanted))?;
    }
    write(CHANGELOG, dated)?;
    Ok(wanted.to_owned())
}

/// The release notes: the changelog, what was run before the release, and what was not.
fn notes(changelog: &str, released: &str, tried: &[Tried]) -> String {
    let unreleased = || version::notes(changelog, "Unreleased").unwrap_or_default();
    let mut text = version::notes(changelog, released).unwrap_or_else(|_| unreleased());
    if !tried.is_empty() {
        text.push_str("\n\n### Run before this release\n\n");
    }
    for Tried { platform, run, not_run } in tried {
        let run: Vec<_> = run.iter().map(|(step, outcome)| format!("{step}: {outcome}")).collect();
        let _ = write!(text, "- {}", platform.triple);
        for (word, part) in [("", run.join("; ")), ("Not run: ", (*not_run).to_owned())] {
            if !part.is_empty() {
                let _ = write!(text, ". {word}{part}");
            }
        }
        text.push_str(".\n");
    }
    text
}

/// What a person has to do, in order.
fn what_is_left(released: &str, folder: &str, dry_run: bool) -> String {
    let again =
        format!("  cargo xtask release {released}    # this was a trial: nothing was changed\n");
    format!(
        "In {folder}: all files of {released}. To publish them:\n\n{}\
         \x20 git commit -am 'Version {released}' && git tag v{released} && git push --follow-tags\n\
         \n  # The tag starts .github/workflows/release.yml, which does the rest. By hand:\n\
         \x20 cargo publish --workspace --locked\n\
         \x20 cargo publish --locked --manifest-path {}\n\
         \x20 python -m twine upload {folder}/*.whl\n\
         \x20 gh release create v{released} --notes-file {folder}/RELEASE-NOTES.md {folder}/*",
        if dry_run { &again } else { "" },
        candle::MANIFEST
    )
}

/// Files as they were, which come back when this is dropped.
struct Contents(Vec<(PathBuf, Vec<u8>)>);

impl Contents {
    fn of_changed() -> Result<Self> {
        let read = |name: &str| {
            let path = tree::root().join(name);
            let bytes = std::fs::read(&path).with_context(|| path.display().to_string())?;
            Ok((path, bytes))
        };
        MANIFESTS
            .into_iter()
            .chain(LOCKS)
            .chain([CHANGELOG])
            .map(read)
            .collect::<Result<_>>()
            .map(Self)
    }
}

impl Drop for Contents {
    fn drop(&mut self) {
        for (path, bytes) in &self.0 {
            if std::fs::write(path, bytes).is_err() {
                eprintln!("{}: could not be restored; `git checkout` restores it", path.display());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_list_what_changed_what_was_run_and_what_was_not() {
        let changelog = "## [Unreleased]\n\n## [0.2.0] - 2026-12-01\n\n### Added\n\n- A thing.\n";
        let run = vec![("windows library".to_owned(), "9 passed".to_owned())];
        let tried = [
            Tried { platform: &PLATFORMS[2], run, not_run: "CUDA" },
            Tried { platform: &PLATFORMS[3], run: Vec::new(), not_run: "anything" },
        ];
        let text = notes(changelog, "0.2.0", &tried);
        assert!(text.starts_with("### Added\n\n- A thing."), "{text}");
        let windows = "- x86_64-pc-windows-gnu. windows library: 9 passed. Not run: CUDA.\n";
        assert!(text.contains(windows), "{text}");
        assert!(text.contains("- aarch64-apple-darwin. Not run: anything.\n"), "{text}");
        assert!(notes("## [Unreleased]\n\n- B.\n", "0.1.0", &[]).starts_with("- B."));
    }

    #[test]
    fn the_crate_for_candle_has_the_version_of_the_rest() {
        let read = |name: &str| std::fs::read_to_string(tree::root().join(name)).unwrap();
        let version = version::current(&read("Cargo.toml")).unwrap();
        let manifest = read(candle::MANIFEST);
        assert_eq!(version::current(&manifest).unwrap(), version);
        // All of it, or a release would leave a part behind.
        let bumped = version::bump(&manifest, "999.0.0").unwrap();
        assert_eq!(bumped.matches("999.0.0").count(), 3, "{bumped}");
        let lock = version::bump_lock(&read(candle::LOCK), &version, "999.0.0");
        assert_eq!(lock.matches("999.0.0").count(), 5);
    }
}
