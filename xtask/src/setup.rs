//! Programs that the steps need besides cargo, installed where this process may.

use std::sync::{Mutex, PoisonError};

use anyhow::{Result, ensure};

use crate::process::{capture, on_path, run_ok, sh};

/// Programs by any of their names, with the Debian packages that have them.
pub type Programs<'a> = &'a [(&'a [&'a str], &'a str)];

/// Installs the missing programs, all of them at once.
pub fn programs(wanted: Programs<'_>) -> Result<()> {
    let missing = wanted.iter().filter(|(names, _)| on_path(names).is_none());
    let packages: Vec<&str> = missing.map(|(_, packages)| *packages).collect();
    if packages.is_empty() { Ok(()) } else { apt_install(&packages.join(" ")) }
}

/// Installs Debian packages, for one thread after the other.
pub fn apt_install(packages: &str) -> Result<()> {
    static INSTALLING: Mutex<()> = Mutex::new(());
    let _installing = INSTALLING.lock().unwrap_or_else(PoisonError::into_inner);
    let is_root = capture(&mut sh("id -u")).is_ok_and(|id| id.trim() == "0");
    ensure!(
        is_root && on_path(&["apt-get"]).is_some(),
        "programs are missing; install them (on Debian: `apt-get install {packages}`)"
    );
    let install = format!("apt-get install -y -qq --no-install-recommends {packages}");
    for line in ["apt-get update -y -qq", &install] {
        run_ok(sh(line).env("DEBIAN_FRONTEND", "noninteractive"))?;
    }
    Ok(())
}
