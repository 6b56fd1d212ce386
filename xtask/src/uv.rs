//! Python environments, made by uv: pip takes several times as long.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};

use crate::process::{on_path, run_ok};
use crate::setup::{apt_install, python_in};
use crate::tree;

/// The program, and the Python that environments are made for.
pub struct Uv {
    program: PathBuf,
    python: PathBuf,
}

impl Uv {
    /// Installs it on first use, in an environment of its own.
    pub fn new() -> Result<Self> {
        const PACKAGE: &str = "uv==0.13.*";
        static INSTALLING: Mutex<()> = Mutex::new(());
        let _installing = INSTALLING.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = tree::cache().join("python-uv");
        once(&folder, PACKAGE, || {
            if on_path(&["python3"]).is_none() {
                apt_install(&["python3", "python3-venv"]).context("no python3")?;
            }
            let create = || run_ok(Command::new("python3").args(["-m", "venv"]).arg(&folder));
            if create().is_err() {
                // Debian splits the module off.
                apt_install(&["python3-venv"]).context("python3 has no venv module")?;
                create()?;
            }
            let options = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
            run_ok(Command::new(python_in(&folder)).args(options).arg(PACKAGE))?;
            Ok(())
        })?;
        let python = python_in(&folder);
        Ok(Self { program: python.with_file_name("uv"), python })
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.env("UV_CACHE_DIR", tree::cache().join("uv-packages")).arg("--quiet");
        command
    }

    /// A fresh environment with some packages.
    pub fn environment(&self, name: &str, packages: &[&str]) -> Result<PathBuf> {
        let folder = tree::cache().join(name);
        run_ok(self.command().args(["venv", "--clear", "--python"]).args([&self.python, &folder]))?;
        if !packages.is_empty() {
            let mut install = self.command();
            install.args(["pip", "install", "--python"]).arg(python_in(&folder)).args(packages);
            run_ok(&mut install)?;
        }
        Ok(folder)
    }

    /// An environment with these packages, made again when the list changes.
    pub fn kept_environment(&self, name: &str, packages: &[&str]) -> Result<PathBuf> {
        let folder = tree::cache().join(name);
        once(&folder, &packages.join("\n"), || self.environment(name, packages).map(|_| ()))?;
        Ok(folder)
    }

    /// Unpacks packages for another platform into a folder, as Python 3.11 there would have them.
    pub fn unpack(&self, platform: &str, folder: &Path, packages: &[&str]) -> Result<()> {
        let mut install = self.command();
        install.args(["pip", "install", "--python"]).arg(&self.python);
        install.args(["--python-platform", platform, "--python-version", "3.11"]);
        run_ok(install.args(["--only-binary", ":all:", "--target"]).arg(folder).args(packages))?;
        Ok(())
    }

    /// Installs the wheel as a user would, with what it depends on.
    pub fn install(&self, environment: &Path, wheel: &Path, extra: &str) -> Result<()> {
        let wheel = match extra {
            "" => wheel.display().to_string(),
            _ => format!("{}[{extra}]", wheel.display()),
        };
        let mut install = self.command();
        install.args(["pip", "install", "--reinstall-package", "msdeform", "--python"]);
        run_ok(install.arg(python_in(environment)).arg(wheel))?;
        Ok(())
    }
}

/// Makes a folder anew unless it was made from the same before.
fn once(folder: &Path, made_from: &str, make: impl FnOnce() -> Result<()>) -> Result<()> {
    let stamp = folder.join("msdeform-packages.txt");
    if std::fs::read_to_string(&stamp).is_ok_and(|found| found == made_from) {
        return Ok(());
    }
    if folder.exists() {
        std::fs::remove_dir_all(folder)
            .with_context(|| format!("{}: cannot be removed", folder.display()))?;
    }
    make()?;
    std::fs::write(&stamp, made_from)?;
    Ok(())
}
