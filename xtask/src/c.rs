//! `cargo xtask c`: the C library, built and installed.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use clap::Args;

use crate::process::{run_ok, sh};
use crate::setup::Programs;
use crate::tree;

// Shared with the tests of the crate.
#[path = "../../crates/msdeform-c/packaging/install.rs"]
mod install;

#[derive(Args)]
pub struct CArgs {
    /// Folder for include/, lib/, lib/pkgconfig/ and lib/cmake/
    #[arg(long, value_name = "FOLDER", default_value = "target/c")]
    prefix: PathBuf,
}

/// The programs with which the tests of the crate compile programs, as users do, and look into them.
pub const PROGRAMS: Programs<'_> = &[
    (&["cc"], "gcc"),
    (&["cmake"], "cmake"),
    (&["make"], "make"),
    (&["nm"], "binutils"),
    (&["pkg-config"], "pkg-config"),
];

/// Builds libmsdeform for release and installs it.
pub fn run(args: &CArgs) -> Result<()> {
    ensure!(cfg!(target_os = "linux"), "libmsdeform is installed on Linux only");
    run_ok(&mut sh("cargo build --release --locked --package msdeform-c"))?;
    let prefix = std::path::absolute(&args.prefix)?;
    install_from(&tree::target().join("release"), env!("CARGO_PKG_VERSION"), &prefix)?;
    println!("PKG_CONFIG_PATH={}", prefix.join("lib/pkgconfig").display());
    println!("CMAKE_PREFIX_PATH={}", prefix.display());
    Ok(())
}

/// Installs what cargo built in a folder.
pub fn install_from(built: &Path, version: &str, prefix: &Path) -> Result<()> {
    let package = tree::root().join("crates/msdeform-c");
    for file in install::install(&package, version, built, prefix)? {
        println!("{}", file.display());
    }
    Ok(())
}
