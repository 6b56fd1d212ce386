//! Python environments, made by uv because pip takes several times as long.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};

use crate::process::{on_path, run_ok, sh};
use crate::setup::apt_install;
use crate::tree;

/// A Python environment with some packages, under `target/xtask`. The first caller makes it; others wait for that.
pub struct Environment<'a> {
    name: &'a str,
    packages: &'a [&'a str],
    clean: bool,
    made: Mutex<bool>,
}

impl<'a> Environment<'a> {
    /// An environment that is kept: the next process takes a fraction of a second to make sure of it.
    pub const fn new(name: &'a str, packages: &'a [&'a str]) -> Self {
        Self { name, packages, clean: false, made: Mutex::new(false) }
    }

    /// An environment that every process makes anew, to install a wheel as a user would.
    pub const fn clean(name: &'a str, packages: &'a [&'a str]) -> Self {
        Self { clean: true, ..Self::new(name, packages) }
    }

    /// Makes the environment on the first call, and returns its folder.
    pub fn folder(&self) -> Result<PathBuf> {
        let folder = tree::cache().join(self.name);
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if !*made {
            let existing = if self.clean { "--clear" } else { "--allow-existing" };
            let mut create = uv(&["venv", existing, "--python"])?;
            run_ok(create.arg(program_in(&uv_folder(), "python")).arg(&folder))?;
            if !self.packages.is_empty() {
                let mut install = uv(&["pip", "install", "--python"])?;
                run_ok(install.arg(program_in(&folder, "python")).args(self.packages))?;
            }
            *made = true;
        }
        Ok(folder)
    }

    /// The path of a program: `python`, or one of a package.
    pub fn program(&self, name: &str) -> Result<PathBuf> {
        Ok(program_in(&self.folder()?, name))
    }

    /// A command as one types it with the environment active, in the root of the tree.
    pub fn sh(&self, line: &str) -> Result<Command> {
        let (name, arguments) = line.split_once(' ').unwrap_or((line, ""));
        let mut command = Command::new(self.program(name)?);
        command.args(arguments.split_whitespace()).current_dir(tree::root());
        Ok(command)
    }

    /// Installs a wheel with what it depends on.
    pub fn install(&self, wheel: &Path, extra: &str) -> Result<()> {
        let python = self.program("python")?;
        let mut install = uv(&["pip", "install", "--reinstall-package", "msdeform", "--python"])?;
        run_ok(install.arg(python).arg(format!("{}{extra}", wheel.display())))?;
        Ok(())
    }

    /// A library of one of the packages, by how its file name begins; the name ends with a version.
    pub fn library(&self, begin: &str) -> Result<PathBuf> {
        let files_in = |folder: PathBuf| std::fs::read_dir(folder).into_iter().flatten().flatten();
        let folders = ["nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib", "onnxruntime/capi"];
        let pythons = files_in(self.folder()?.join("lib")).map(|python| python.path());
        let folders = pythons.flat_map(|p| folders.map(|f| p.join("site-packages").join(f)));
        let mut files = folders.flat_map(files_in);
        let found = files.find(|file| file.file_name().to_string_lossy().starts_with(begin));
        Ok(found.with_context(|| format!("no {begin}* in {:?}", self.packages))?.path())
    }
}

fn program_in(environment: &Path, name: &str) -> PathBuf {
    let folder = if cfg!(windows) { "Scripts" } else { "bin" };
    environment.join(folder).join(format!("{name}{}", std::env::consts::EXE_SUFFIX))
}

const UV_VERSION: &str = "0.13";

fn uv_folder() -> PathBuf {
    tree::cache().join(format!("python-uv-{UV_VERSION}"))
}

/// A command of uv, which is installed on first use, in an environment of its own.
pub fn uv(arguments: &[&str]) -> Result<Command> {
    static INSTALLING: Mutex<()> = Mutex::new(());
    let _installing = INSTALLING.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = uv_folder();
    let program = program_in(&folder, "uv");
    if !program.is_file() {
        let create = || run_ok(sh("python3 -m venv").arg(&folder));
        if on_path(&["python3"]).is_none() || create().is_err() {
            // Debian packs the module separately.
            apt_install("python3 python3-venv").context("no python3 with venv")?;
            create()?;
        }
        let mut install = Command::new(program_in(&folder, "python"));
        install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
        run_ok(install.arg(format!("uv=={UV_VERSION}.*")))?;
    }
    let mut command = Command::new(program);
    command.env("UV_CACHE_DIR", tree::cache().join("uv-packages")).arg("--quiet").args(arguments);
    Ok(command)
}
