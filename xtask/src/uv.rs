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
        const VERSION: &str = "0.13";
        static INSTALLING: Mutex<()> = Mutex::new(());
        let _installing = INSTALLING.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = tree::cache().join(format!("python-uv-{VERSION}"));
        let python = python_in(&folder);
        let program = python.with_file_name(format!("uv{}", std::env::consts::EXE_SUFFIX));
        if !program.is_file() {
            let create = || run_ok(Command::new("python3").args(["-m", "venv"]).arg(&folder));
            if on_path(&["python3"]).is_none() || create().is_err() {
                // Debian splits the module off.
                apt_install(&["python3", "python3-venv"]).context("no python3 with venv")?;
                create()?;
            }
            let mut install = Command::new(&python);
            install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
            run_ok(install.arg(format!("uv=={VERSION}.*")))?;
        }
        Ok(Self { program, python })
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.env("UV_CACHE_DIR", tree::cache().join("uv-packages")).arg("--quiet");
        command.args(arguments);
        command
    }

    /// A fresh environment with some packages.
    pub fn environment(&self, name: &str, packages: &[&str]) -> Result<PathBuf> {
        self.create(name, "--clear", packages)
    }

    /// An environment with these packages; where they are already, this takes a fraction of a second.
    pub fn kept_environment(&self, name: &str, packages: &[&str]) -> Result<PathBuf> {
        self.create(name, "--allow-existing", packages)
    }

    fn create(&self, name: &str, existing: &str, packages: &[&str]) -> Result<PathBuf> {
        let folder = tree::cache().join(name);
        let mut create = self.command(&["venv", existing, "--python"]);
        run_ok(create.args([&self.python, &folder]))?;
        if !packages.is_empty() {
            let mut install = self.command(&["pip", "install", "--python"]);
            run_ok(install.arg(python_in(&folder)).args(packages))?;
        }
        Ok(folder)
    }

    /// Unpacks packages for another platform into a folder, as Python 3.11 there would have them.
    pub fn unpack(&self, platform: &str, folder: &Path, packages: &[&str]) -> Result<()> {
        let mut install = self.command(&["pip", "install", "--python"]);
        install.arg(&self.python).args(["--python-platform", platform, "--python-version", "3.11"]);
        run_ok(install.args(["--only-binary", ":all:", "--target"]).arg(folder).args(packages))?;
        Ok(())
    }

    /// Installs the wheel as a user would, with what it depends on.
    pub fn install(&self, environment: &Path, wheel: &Path, extra: &str) -> Result<()> {
        let mut install = self.command(&["pip", "install", "--reinstall-package", "msdeform"]);
        install.arg("--python").arg(python_in(environment));
        run_ok(install.arg(format!("{}{extra}", wheel.display())))?;
        Ok(())
    }
}
