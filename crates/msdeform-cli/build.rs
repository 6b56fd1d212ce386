//! Embeds the commit that the program is built from, so that records name the sources that ran.

use std::path::Path;
use std::process::Command;

/// What the program and the wheel are made of. A change elsewhere, of a page or a record, does not make a build dirty.
const SOURCES: [&str; 5] =
    ["Cargo.toml", "Cargo.lock", "crates", "bindings/python/src", "bindings/python/python"];

fn main() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (commit, is_dirty) = from_git(&package.join("../.."))
        .or_else(|| from_published_package(package))
        .unwrap_or_else(|| ("unknown".to_owned(), false));
    println!("cargo::rustc-env=MSDEFORM_BUILD_COMMIT={commit}");
    println!("cargo::rustc-env=MSDEFORM_BUILD_DIRTY={is_dirty}");
    let short: String = commit.chars().take(9).collect();
    let suffix = if is_dirty { "-dirty" } else { "" };
    println!("cargo::rustc-env=MSDEFORM_VERSION={} ({short}{suffix})", env!("CARGO_PKG_VERSION"));
    println!("cargo::rerun-if-changed=build.rs");
}

fn from_git(root: &Path) -> Option<(String, bool)> {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").arg("-C").arg(root).args(arguments).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    // Sources that lie in another project's repository are not described by its commit.
    git(&["ls-files", "--error-unmatch", "crates/msdeform-cli/Cargo.toml"])?;
    let commit = git(&["rev-parse", "HEAD"])?;
    let changes = git(&[&["status", "--porcelain", "--"][..], &SOURCES].concat())?;
    for source in SOURCES {
        println!("cargo::rerun-if-changed={}", root.join(source).display());
    }
    // The log of HEAD grows with every commit and checkout.
    let log = git(&["rev-parse", "--git-path", "logs/HEAD"])?;
    println!("cargo::rerun-if-changed={}", root.join(log).display());
    Some((commit, !changes.is_empty()))
}

/// `cargo package` notes the commit in a file of its own.
fn from_published_package(package: &Path) -> Option<(String, bool)> {
    let text = std::fs::read_to_string(package.join(".cargo_vcs_info.json")).ok()?;
    let commit = text.split("\"sha1\":").nth(1)?.split('"').nth(1)?;
    let is_hash = commit.len() >= 40 && commit.chars().all(|digit| digit.is_ascii_hexdigit());
    is_hash.then(|| (commit.to_owned(), text.contains("\"dirty\": true")))
}
