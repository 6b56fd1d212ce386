//! `cargo xtask release`: everything of a release that a machine can do.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};
use clap::Args;

use super::artifacts::{c_library, write_bills, write_checksums};
use super::platforms::Platform;
use super::trial::{self, Tried};
use super::wheel;
use super::{api, crates, version};
use crate::process::{capture, cargo, run_ok};
use crate::steps::{Report, Steps};
use crate::{candle, tree};

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

/// Files that a release changes.
const CHANGED: [&str; 5] =
    ["Cargo.toml", "Cargo.lock", "CHANGELOG.md", candle::MANIFEST, candle::LOCK];

/// What `cargo xtask release` does.
pub fn run(args: &ReleaseArgs) -> Result<ExitCode> {
    let all = ["all".to_owned()];
    let platforms = wheel::platforms(if args.target.is_empty() { &all } else { &args.target })?;
    ensure!(
        args.dry_run || capture(&mut git(&["status", "--porcelain"]))?.is_empty(),
        "the tree differs from its commit; a release is made of one"
    );
    // Dropped at the end, also after an error.
    let _before = args.dry_run.then(Contents::of_changed).transpose()?;
    let released = set_version(args.version.as_deref())?;
    let folder = tree::target().join("published").join(&released);
    let is_whole = args.only.is_empty() && args.target.is_empty();
    if is_whole && folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    std::fs::create_dir_all(&folder)?;

    let mut steps = Steps::only(&args.only);
    steps.run("crate contents", crates::check_contents);
    steps.run("public api", api::check);
    steps.run("minimal versions", crates::check_minimal_versions);
    steps.run("crates", || {
        let (report, files) = crates::package()?;
        for file in files {
            copy_into(&folder, &file)?;
        }
        Ok(report)
    });
    steps.run("candle crate", || {
        let (report, file) = crates::package_candle()?;
        copy_into(&folder, &file)?;
        Ok(report)
    });
    let mut tried = Vec::new();
    for platform in platforms {
        build_and_try(&mut steps, platform, &folder, &mut tried);
    }
    steps.run("c library", || c_library(&released, &folder));
    steps.run("sbom", || write_bills(&folder));
    steps.run("release notes", || {
        let changelog = std::fs::read_to_string(tree::root().join("CHANGELOG.md"))?;
        std::fs::write(folder.join("RELEASE-NOTES.md"), notes(&changelog, &released, &tried))?;
        Ok(Report::check(""))
    });
    steps.run("checksums", || write_checksums(&folder));
    let fine = steps.finish();
    let shown = folder.strip_prefix(tree::root()).unwrap_or(&folder);
    if fine && is_whole {
        println!("\n{}", what_is_left(&released, shown, args.dry_run)?);
    } else if fine {
        println!("\nIn {}: a part of {released}, nothing to publish.", shown.display());
    }
    Ok(if fine { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn copy_into(folder: &Path, file: &Path) -> Result<()> {
    std::fs::copy(file, folder.join(file.file_name().unwrap_or_default()))?;
    Ok(())
}

fn build_and_try(
    steps: &mut Steps,
    platform: &'static Platform,
    folder: &Path,
    tried: &mut Vec<Tried>,
) {
    wheel::step(steps, platform, folder);
    let built = || trial::wheel_of(platform, folder).context("no wheel was built");
    let trial = trial::steps_of(steps, platform, built);
    if built().is_ok() {
        tried.push(trial);
    }
}

/// Writes the version into manifests and changelog, where one is given. Returns the one that is released.
fn set_version(wanted: Option<&str>) -> Result<String> {
    let path = |name: &str| tree::root().join(name);
    let manifest = std::fs::read_to_string(path("Cargo.toml"))?;
    let Some(wanted) = wanted else { return version::current(&manifest) };
    let bumped = version::bump(&manifest, wanted)?;
    let today = capture(Command::new("date").arg("+%F"))?;
    let changelog = std::fs::read_to_string(path("CHANGELOG.md"))?;
    let dated = version::release_changelog(&changelog, wanted, today.trim())?;
    std::fs::write(path("Cargo.toml"), bumped)?;
    std::fs::write(path("CHANGELOG.md"), dated)?;
    run_ok(&mut cargo(["update", "--workspace", "--offline", "--quiet"]))?;
    let of_candle = std::fs::read_to_string(path(candle::MANIFEST))?;
    std::fs::write(path(candle::MANIFEST), version::bump(&of_candle, wanted)?)?;
    let lock = std::fs::read_to_string(path(candle::LOCK))?;
    let released_before = version::current(&manifest)?;
    std::fs::write(path(candle::LOCK), version::bump_lock(&lock, &released_before, wanted))?;
    Ok(wanted.to_owned())
}

/// What a release says about itself: the changelog, what was run of it before, and what nobody has run.
fn notes(changelog: &str, released: &str, tried: &[Tried]) -> String {
    let unreleased = || version::notes(changelog, "Unreleased").unwrap_or_default();
    let mut text = version::notes(changelog, released).unwrap_or_else(|_| unreleased());
    if !tried.is_empty() {
        text.push_str("\n\n### Run before this release\n\n");
    }
    for Tried { platform, run, not_run } in tried {
        let run: Vec<_> = run.iter().map(|(step, outcome)| format!("{step}: {outcome}")).collect();
        let _ = write!(text, "- {}", platform.triple);
        for (word, said) in [("", run.join("; ")), ("Not run: ", (*not_run).to_owned())] {
            if !said.is_empty() {
                let _ = write!(text, ". {word}{said}");
            }
        }
        text.push_str(".\n");
    }
    text
}

/// What a person has to do, in order.
fn what_is_left(released: &str, folder: &Path, dry_run: bool) -> Result<String> {
    let mut text =
        format!("In {}: all files of {released}. To publish them:\n\n", folder.display());
    if dry_run {
        let _ = writeln!(
            text,
            "  cargo xtask release {released}    # this was a trial: nothing was changed"
        );
    }
    let _ = write!(
        text,
        "  git commit -am 'Version {released}' && git tag v{released} && git push --follow-tags\n\
         \n  # The tag starts .github/workflows/release.yml, which does the rest. By hand:\n"
    );
    for published in crates::published()? {
        let _ = writeln!(text, "  cargo publish --locked --package {}", published.name);
    }
    let _ = writeln!(text, "  cargo publish --locked --manifest-path {}", candle::MANIFEST);
    let folder = folder.display();
    let _ = write!(
        text,
        "  python -m twine upload {folder}/*.whl\n\
         \x20 gh release create v{released} --notes-file {folder}/RELEASE-NOTES.md {folder}/*"
    );
    Ok(text)
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
        CHANGED.iter().map(|name| read(name)).collect::<Result<_>>().map(Self)
    }
}

impl Drop for Contents {
    fn drop(&mut self) {
        for (path, bytes) in &self.0 {
            if std::fs::write(path, bytes).is_err() {
                eprintln!("{}: could not be put back; `git checkout` does", path.display());
            }
        }
    }
}

fn git(arguments: &[&str]) -> Command {
    let mut command = Command::new("git");
    command.args(arguments).current_dir(tree::root());
    command
}

#[cfg(test)]
mod tests {
    use super::super::platforms::PLATFORMS;
    use super::*;

    fn tried(at: usize, run: &[(&str, &str)], not_run: &'static str) -> Tried {
        let run = run.iter().map(|(step, outcome)| ((*step).to_owned(), (*outcome).to_owned()));
        Tried { platform: &PLATFORMS[at], run: run.collect(), not_run }
    }

    #[test]
    fn notes_say_what_changed_and_what_nobody_ran() {
        let changelog = "## [Unreleased]\n\n## [0.2.0] - 2026-12-01\n\n### Added\n\n- A thing.\n";
        let tried = [
            tried(0, &[("x86_64 wheel", "65 passed")], ""),
            tried(2, &[("windows library", "9 passed"), ("windows wheel", "15 libraries")], "CUDA"),
            tried(3, &[], "anything"),
        ];
        let text = notes(changelog, "0.2.0", &tried);
        assert!(text.starts_with("### Added\n\n- A thing."), "{text}");
        assert!(text.contains("- x86_64-unknown-linux-gnu. x86_64 wheel: 65 passed.\n"), "{text}");
        let windows = "- x86_64-pc-windows-gnu. windows library: 9 passed; windows wheel: 15 libraries. Not run: CUDA.\n";
        assert!(text.contains(windows), "{text}");
        assert!(text.contains("- aarch64-apple-darwin. Not run: anything.\n"), "{text}");
        assert!(notes("## [Unreleased]\n\n- B.\n", "0.1.0", &[]).starts_with("- B."));
    }

    #[test]
    fn a_person_publishes_crates_in_the_order_of_their_dependencies() {
        let text = what_is_left("0.2.0", Path::new("target/published/0.2.0"), true).unwrap();
        let at = |name: &str| text.find(&format!("--package {name}\n")).unwrap();
        assert!(at("msdeform") < at("msdeform-cuda") && at("msdeform-cuda") < at("msdeform-cli"));
        assert!(text.contains("cargo xtask release 0.2.0"), "{text}");
        assert!(at("msdeform-cli") < text.find(candle::MANIFEST).unwrap(), "{text}");
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
