//! The version of a release in the manifests, and its section of the changelog.

use anyhow::{Context, Result, ensure};

/// `0.1.0` as three numbers.
pub fn parse(version: &str) -> Result<[u64; 3]> {
    let numbers: Option<Vec<u64>> = version.split('.').map(|part| part.parse().ok()).collect();
    let three = numbers.and_then(|numbers| <[u64; 3]>::try_from(numbers).ok());
    three.with_context(|| format!("{version} is no version such as 0.2.0"))
}

/// The version in the workspace's manifest.
pub fn current(manifest: &str) -> Result<String> {
    let section = manifest.split("[workspace.package]").nth(1).context("no [workspace.package]")?;
    let line = section.lines().find(|line| line.starts_with("version = "));
    let version = line.and_then(|line| line.split('"').nth(1)).context("no version")?;
    Ok(version.to_owned())
}

/// The manifest with another version, of the workspace and of its crates. The same is none that was released: the changelog
/// refuses those.
pub fn bump(manifest: &str, to: &str) -> Result<String> {
    let from = current(manifest)?;
    ensure!(parse(to)? >= parse(&from)?, "{to} is before {from}");
    let quoted = (format!("version = \"{from}\""), format!("version = \"{to}\""));
    let lines = manifest.lines().map(|line| {
        if line.starts_with("version = ") || line.starts_with("msdeform") {
            line.replace(&quoted.0, &quoted.1)
        } else {
            line.to_owned()
        }
    });
    Ok(lines.map(|line| line + "\n").collect())
}

/// A lock file with another version of our crates: what `cargo update --workspace` writes, without asking a registry about the rest.
pub fn bump_lock(lock: &str, from: &str, to: &str) -> String {
    let mut ours = false;
    let lines = lock.lines().map(|line| {
        let bumped = if ours { line.replace(from, to) } else { line.to_owned() };
        ours = line.starts_with("name = \"msdeform");
        bumped + "\n"
    });
    lines.collect()
}

const UNRELEASED: &str = "## [Unreleased]";
const KINDS: [&str; 6] = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"];

/// The changelog with what is unreleased under its version.
pub fn release_changelog(changelog: &str, version: &str, date: &str) -> Result<String> {
    ensure!(!changelog.contains(&heading(version)), "the changelog has {version} already");
    let notes = section(changelog, UNRELEASED)?;
    check_section(&notes)?;
    let dated = format!("{UNRELEASED}\n\n{} - {date}", heading(version));
    Ok(changelog.replacen(UNRELEASED, &dated, 1))
}

/// What the changelog says about a version.
pub fn notes(changelog: &str, version: &str) -> Result<String> {
    section(changelog, &heading(version))
}

fn heading(version: &str) -> String {
    format!("## [{version}]")
}

/// The text below a heading, up to the next of its kind.
fn section(changelog: &str, heading: &str) -> Result<String> {
    let after = changelog.split_once(heading).with_context(|| format!("no {heading}"))?.1;
    let body = after.split_once('\n').unwrap_or_default().1;
    Ok(body.split("\n## [").next().unwrap_or_default().trim().to_owned())
}

fn check_section(text: &str) -> Result<()> {
    ensure!(
        text.lines().any(|line| line.starts_with("- ")),
        "the changelog has nothing unreleased"
    );
    let kinds = text.lines().filter_map(|line| line.strip_prefix("### "));
    for kind in kinds {
        ensure!(KINDS.contains(&kind), "the changelog has a section {kind}, none of {KINDS:?}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFEST: &str = "[workspace.package]\nversion = \"0.1.0\"\nrust-version = \"1.95\"\n\
        [workspace.dependencies]\nmsdeform = { path = \"crates/msdeform\", version = \"0.1.0\" }\nother = \"0.1.0\"\n";

    #[test]
    fn a_version_changes_where_it_is_ours() {
        let bumped = bump(MANIFEST, "0.2.0").unwrap();
        assert_eq!(current(&bumped).unwrap(), "0.2.0");
        assert!(bumped.contains("crates/msdeform\", version = \"0.2.0\""), "{bumped}");
        assert!(bumped.contains("other = \"0.1.0\"") && bumped.contains("\"1.95\""), "{bumped}");
    }

    #[test]
    fn a_lock_file_follows_where_the_crate_is_ours() {
        let lock = "[[package]]\nname = \"half\"\nversion = \"0.1.0\"\n\n[[package]]\nname = \"msdeform\"\nversion = \"0.1.0\"\n\
                    dependencies = [\n \"half\",\n]\n";
        let expected =
            lock.replace("msdeform\"\nversion = \"0.1.0", "msdeform\"\nversion = \"0.2.0");
        assert_eq!(bump_lock(lock, "0.1.0", "0.2.0"), expected);
    }

    #[test]
    fn versions_only_grow() {
        for wrong in ["0.0.9", "0.2", "0.2.0-rc1", "later"] {
            assert!(bump(MANIFEST, wrong).is_err(), "{wrong}");
        }
        assert!(bump(MANIFEST, "0.10.0").is_ok());
        // The first release is of the version that the manifests have had all along.
        assert_eq!(bump(MANIFEST, "0.1.0").unwrap(), MANIFEST);
    }

    #[test]
    fn what_is_unreleased_gets_its_version_and_date() {
        let changelog = "# Changelog\n\n## [Unreleased]\n\n### Added\n\n- A thing.\n\n## [0.1.0] - 2026-01-01\n\n- First.\n";
        let released = release_changelog(changelog, "0.2.0", "2026-12-01").unwrap();
        assert!(released.contains("## [Unreleased]\n\n## [0.2.0] - 2026-12-01\n\n### Added"));
        assert_eq!(notes(&released, "0.2.0").unwrap(), "### Added\n\n- A thing.");
        assert_eq!(notes(&released, "0.1.0").unwrap(), "- First.");
        assert!(
            release_changelog(&released, "0.3.0", "2026-12-02").is_err(),
            "nothing is unreleased"
        );
        assert!(release_changelog(changelog, "0.1.0", "2026-12-02").is_err(), "released before");
        let odd = changelog.replace("### Added", "### News");
        assert!(release_changelog(&odd, "0.2.0", "2026-12-01").is_err());
    }
}
