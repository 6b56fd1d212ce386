//! The device compiler for machines without CUDA: NVRTC out of its Python wheel.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::EmulatorError;
use crate::toolchain::io;

/// The wheel, pinned to the minor version that `crates/msdeform-cuda/resources.csv` was made with:
/// another compiler allocates registers differently.
pub const REQUIREMENT: &str = "nvidia-cuda-nvrtc==13.4.*";

/// Installs the wheel into a virtual environment below `target` unless it is there already, and returns
/// the library: what `MSDEFORM_NVRTC` is to be set to for the tests that compile kernels.
///
/// # Errors
/// [`EmulatorError::Provision`] if there is no Python, no network or no such wheel.
pub fn install(target: &Path) -> Result<PathBuf, EmulatorError> {
    let hash = blake3::hash(REQUIREMENT.as_bytes()).to_hex();
    let folder = target.join(format!("nvrtc-{}", &hash[..12]));
    if let Some(library) = library_below(&folder) {
        return Ok(library);
    }
    std::fs::create_dir_all(target).map_err(|source| io("cannot create", target, source))?;
    // Put in place whole: an interrupted installation leaves nothing that looks like one.
    let unfinished = tempfile::Builder::new()
        .prefix("nvrtc-unfinished-")
        .tempdir_in(target)
        .map_err(|source| io("cannot create a folder in", target, source))?;
    run(Command::new("python3").args(["-m", "venv"]).arg(unfinished.path()))?;
    run(Command::new(unfinished.path().join("bin/python")).args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        REQUIREMENT,
    ]))?;
    match std::fs::rename(unfinished.path(), &folder) {
        Ok(()) => {}
        // Somebody else was faster.
        Err(_) if folder.exists() => {}
        Err(source) => return Err(io("cannot move into place", &folder, source)),
    }
    library_below(&folder).ok_or_else(|| EmulatorError::Provision {
        command: format!("pip install {REQUIREMENT}"),
        log: format!("no libnvrtc.so below {}", folder.display()),
    })
}

fn run(command: &mut Command) -> Result<(), EmulatorError> {
    let text = format!("{command:?}");
    let failed = |log: String| EmulatorError::Provision { command: text.clone(), log };
    let output = command.output().map_err(|error| failed(error.to_string()))?;
    if output.status.success() {
        return Ok(());
    }
    Err(failed(String::from_utf8_lossy(&output.stderr).into_owned()))
}

/// `lib/python3.x/site-packages/nvidia/cu13/lib/libnvrtc.so.13`.
fn library_below(environment: &Path) -> Option<PathBuf> {
    let pythons = std::fs::read_dir(environment.join("lib")).ok()?;
    let folders =
        pythons.flatten().map(|python| python.path().join("site-packages/nvidia/cu13/lib"));
    folders
        .filter_map(|folder| std::fs::read_dir(folder).ok())
        .flatten()
        .flatten()
        .map(|file| file.path())
        .find(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with("libnvrtc.so") && !name.contains("alt")
        })
}
