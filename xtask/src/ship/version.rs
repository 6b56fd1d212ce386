//! The version of a release in the manifests, and its section of the changelog.

use anyhow::{Context, Result, ensure};

fn parse(version: &str) -> Result<[u64; 3]> {
    let numbers: Option<Vec<u64>> = version.split('.').map(|part| part.parse().ok()).collect();
    let three = numbers.and_then(|numbers| <[u64; 3]>::try_from(numbers).ok());
    three.with_context(|| format!("{version} is no version such as 0.2.0"))
}

/// The version in a workspace's manifest.
pub fn current(manifest: &str) -> Result<String> {
    let section = manifest.split("[workspace.package]").nth(1).context("no [workspace.package]")?;
    let line = section.lines().find(|line| line.starts_with("version = "));
    Ok(line.and_then(|line| line.split('"').nth(1)).context("no version")?.to_owned())
}

/// The manifest with another version, of the workspace and of its crates. The version may stay the same: the changelog
/// refuses one that was released.
pub fn bump(manifest: &str, to: &str) -> Result<String> {
    let from = current(manifest)?;
    ensure!(parse(to)? >= parse(&from)?, "{to} is before {from}");
    let is_ours = |line: &str| line.starts_with("version = ") || line.starts_with("msdeform");
    let replaced =
        |line: &str| line.replace(&format!("version = \"{from}\""), &format!("version = \"{to}\""));
    let lines =
        manifest.lines().map(|line| if is_ours(line) { replaced(line) } else { line.into() });
    Ok(lines.map(|line| line + "\n").collect())
}

/// A lock file with another version of our crates, as `cargo update --workspace` writes it, but without a registry.
pub fn bump_lock(lock: &str, from: &str, to: &str) -> String {
    let mut ours = false;
    let lines = lock.lines().map(|line| {
        let bumped = if ours { line.replace(from, to) } else { line.to_owned() };
        ours = line.starts_with("name = \"msdeform") || line.starts_with("name = \"xtask");
        bumped + "\n"
    });
    lines.collect()
}

const UNRELEASED: &str = "## [Unreleased]";
const KINDS: [&str; 6] = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"];

/// The changelog with what is unreleased under its version.
pub fn release_changelog(changelog: &str, version: &str, date: &str) -> Result<String> {
    let heading = format!("## [{version}]");
    ensure!(!changelog.contains(&heading), "the changelog has {version} already");
    let text = notes(changelog, "Unreleased")?;
    ensure!(text.lines().any(|line| line.starts_with("- ")), "nothing is unreleased");
    for kind in text.lines().filter_map(|line| line.strip_prefix("### ")) {
        ensure!(KINDS.contains(&kind), "the changelog has a section {kind}, none of {KINDS:?}");
    }
    Ok(changelog.replacen(UNRELEASED, &format!("{UNRELEASED}\n\n{heading} - {date}"), 1))
}

/// The section of a version in the changelog.
pub fn notes(changelog: &str, version: &str) -> Result<String> {
    let heading = format!("## [{version}]");
    let after = changelog.split_once(&heading).with_context(|| format!("no {heading}"))?.1;
    let body = after.split_once('\n').unwrap_or_default().1;
    Ok(body.split("\n## [").next().unwrap_or_default().trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFEST: &str = "[workspace.package]\nversion = \"0.1.0\"\nrust-version = \"1.95\"\n\
        [workspace.dependencies]\nmsdeform = { path = \"crates/msdeform\", version = \"0.1.0\" }\nother = \"0.1.0\"\n";

    #[test]
    fn a_version_only_grows_and_changes_where_it_is_ours() {
        let bumped = bump(MANIFEST, "0.2.0").unwrap();
        assert_eq!(current(&bumped).unwrap(), "0.2.0");
        assert!(bumped.contains("crates/msdeform\", version = \"0.2.0\""), "{bumped}");
        assert!(bumped.contains("other = \"0.1.0\"") && bumped.contains("\"1.95\""), "{bumped}");
        for wrong in ["0.0.9", "0.2", "0.2.0-rc1", "later"] {
            assert!(bump(MANIFEST, wrong).is_err(), "{wrong}");
        }
        // The first release has the version that the manifests always had.
        assert_eq!(bump(MANIFEST, "0.1.0").unwrap(), MANIFEST);
        let lock =
            "name = \"half\"\nversion = \"0.1.0\"\n\nname = \"msdeform\"\nversion = \"0.1.0\"\n";
        let expected =
            lock.replace("msdeform\"\nversion = \"0.1.0", "msdeform\"\nversion = \"0.2.0");
        assert_eq!(bump_lock(lock, "0.1.0", "0.2.0"), expected);
    }

    #[test]
    fn what_is_unreleased_gets_its_version_and_date() {
        let changelog = "# Changelog\n\n## [Unreleased]\n\n### Added\n\n- A thing.\n\n## [0.1.0] - 2026-01-01\n\n- First.\n";
        let released = release_changelog(changelog, "0.2.0", "2026-12-01").unwrap();
        assert!(released.contains("## [Unreleased]\n\n## [0.2.0] - 2026-12-01\n\n### Added"));
        assert_eq!(notes(&released, "0.2.0").unwrap(), "### Added\n\n- A thing.");
        assert_eq!(notes(&released, "0.1.0").unwrap(), "- First.");
        assert!(release_changelog(&released, "0.3.0", "2026-12-02").is_err(), "nothing unreleased");
        assert!(release_changelog(changelog, "0.1.0", "2026-12-02").is_err(), "released before");
        let odd = changelog.replace("### Added", "### News");
        assert!(release_changelog(&odd, "0.2.0", "2026-12-01").is_err());
    }
}
