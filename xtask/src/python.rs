//! The Python package: `cargo xtask wheel`, `cargo xtask python`, and its lints and tests from the built wheel.

use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::thread::JoinHandle;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::process::{Finished, capture, cargo, run, run_ok};
use crate::setup::{self, python_in};
use crate::ship::platforms;
use crate::ship::wheel::{self, Effort};
use crate::steps::{Count, Report};
use crate::test::number_before;
use crate::tree;
use crate::uv::Uv;

const LINT_PACKAGES: [&str; 3] = ["mypy==2.4.*", "numpy", "ruff==0.17.*"];
/// With the packages whose models are patched, as far as they are light; the others are named in
/// `tests/test_patching_others.py`. The checkers of types are here for the test of a user's file, which needs PyTorch's
/// types too.
const TORCH_PACKAGES: [&str; 13] = [
    "mypy==2.4.*",
    "numpy",
    "onnx",
    "onnxruntime",
    "onnxscript",
    "pillow",
    "pyright[nodejs]==1.1.*",
    "pytest",
    "pytest-xdist",
    "rfdetr",
    "torch",
    // With the version of `kernels` that it takes: with another one it looks for none, in silence.
    "transformers[kernels]",
    "ultralytics",
];

fn package() -> PathBuf {
    tree::root().join("bindings/python")
}

/// Formats the Python half.
pub fn format() -> Result<()> {
    let environment = setup::python_environment("lint", &LINT_PACKAGES)?;
    let mut ruff = Command::new(python_in(&environment));
    run_ok(ruff.args(["-m", "ruff", "format", "."]).current_dir(package()))?;
    Ok(())
}

/// Format, lints and types of the Python half.
pub fn lint() -> Result<Report> {
    let environment = setup::python_environment("lint", &LINT_PACKAGES)?;
    let python = python_in(&environment);
    for arguments in [
        &["-m", "ruff", "format", "--check", "."][..],
        &["-m", "ruff", "check", "."],
        &["-m", "mypy"],
    ] {
        run_ok(Command::new(&python).args(arguments).current_dir(package()))?;
    }
    Ok(Report::check("ruff, mypy --strict"))
}

/// The clean environments that the wheel is tested in, being made in the background.
pub struct Environments(JoinHandle<Result<(Uv, PathBuf, PathBuf)>>);

impl Environments {
    /// Starts to make them. PyTorch is gigabytes to fetch and to unpack, and whoever starts early need not wait.
    pub fn start() -> Self {
        Self(std::thread::spawn(|| {
            let uv = Uv::new()?;
            let alone = uv.environment("package-alone", &["pytest"])?;
            let torch = uv.environment("package-torch", &TORCH_PACKAGES)?;
            // Fetched here as well; the wheel is built with it.
            setup::python_environment("wheel", &platforms::BUILD_PACKAGES)?;
            Ok((uv, alone, torch))
        }))
    }

    fn finish(self) -> Result<(Uv, PathBuf, PathBuf)> {
        self.0.join().unwrap_or_else(|_| bail!("making the environments broke off"))
    }
}

/// Builds the wheel and tests it in clean environments: alone, with each NVRTC, with PyTorch.
pub fn test(environments: Environments) -> Result<Report> {
    let (uv, alone, torch) = environments.finish()?;
    let folder = tree::target().join("wheels");
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    let wheel = wheel::build(None, Effort::Tried, &folder)?;
    let mut count = Count::default();
    uv.install(&alone, &wheel, "")?;
    count = count.plus(pytest(&alone, &[], None)?);
    for (extra, major) in [("cuda12", "12."), ("cuda13", "13.")] {
        let folder = uv.environment(&format!("package-{extra}"), &[])?;
        uv.install(&folder, &wheel, extra)?;
        check_nvrtc(&folder, major).with_context(|| format!("msdeform[{extra}]"))?;
        count = count.plus(Count::CHECK);
    }
    uv.install(&torch, &wheel, "")?;
    // ultralytics and rfdetr need OpenCV, which draws into windows and links what that takes.
    if capture(Command::new(python_in(&torch)).args(["-c", "import cv2"])).is_err() {
        setup::apt_install(&["libgl1", "libglib2.0-0"]).context("OpenCV does not load")?;
    }
    // Two processes, a file in one of them: importing PyTorch's compiler or transformers takes longer than most
    // tests, and is done once per process.
    let problems = write_random_problems()?;
    let options = ["--numprocesses=2", "--dist=loadfile"];
    count = count.plus(pytest(&torch, &options, Some(&problems))?);
    let versions = "import torch, transformers as t; print(torch.__version__, t.__version__)";
    let versions = capture(Command::new(python_in(&torch)).args(["-c", versions]))?;
    let (torch, transformers) = versions.trim().split_once(' ').unwrap_or_default();
    let Count { passed, failed, skipped } = count;
    let note = format!(
        "{passed} passed, {failed} failed, {skipped} skipped; torch {torch}, transformers {transformers}"
    );
    Ok(Report { count, note })
}

/// Options of `python`.
#[derive(Args)]
pub struct PythonArgs {
    /// Packages as pip names them, such as torch==2.11.0 transformers==5.17.0
    #[arg(required = true)]
    packages: Vec<String>,
}

/// Builds the wheel and tests it with other versions of packages than the newest, which CI has.
pub fn test_with(args: &PythonArgs) -> Result<ExitCode> {
    let uv = Uv::new()?;
    let packages: Vec<&str> = ["numpy", "pillow", "pytest"]
        .into_iter()
        .chain(args.packages.iter().map(String::as_str))
        .collect();
    let environment = uv.environment("package-with", &packages)?;
    let wheel = wheel::build(None, Effort::Tried, &tree::target().join("wheels"))?;
    uv.install(&environment, &wheel, "")?;
    let Count { passed, failed, skipped } = pytest(&environment, &[], None)?;
    println!(
        "{passed} passed, {failed} failed, {skipped} skipped with {}",
        args.packages.join(", ")
    );
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Tests a wheel in a fresh environment with NumPy alone.
pub fn test_alone(wheel: &Path) -> Result<Report> {
    let uv = Uv::new()?;
    let environment = uv.environment("package-alone", &["pytest"])?;
    uv.install(&environment, wheel, "")?;
    Ok(Report { count: pytest(&environment, &[], None)?, note: String::new() })
}

/// The extra must bring a compiler that is found, in an environment that nobody activated.
fn check_nvrtc(environment: &Path, major: &str) -> Result<()> {
    let program = "import msdeform; nvrtc = msdeform.device_info()['cuda']['nvrtc']; \
                   print(nvrtc['version'], nvrtc['path'])";
    let mut command = Command::new(python_in(environment));
    command.args(["-I", "-c", program]).env_remove("VIRTUAL_ENV");
    let found = capture(&mut command)?;
    println!("NVRTC {}", found.trim());
    let (version, path) = found.trim().split_once(' ').unwrap_or_default();
    ensure!(
        version.starts_with(major) && Path::new(path).starts_with(environment),
        "expected NVRTC {major}x of the environment, found {version} at {path}"
    );
    Ok(())
}

/// Random problems of another seed each time, which is printed; `MSDEFORM_SEED` repeats one.
fn write_random_problems() -> Result<PathBuf> {
    const MODELS: &str = "60";
    let fresh = || (RandomState::new().hash_one(std::process::id()) >> 32).to_string();
    let seed = std::env::var("MSDEFORM_SEED").unwrap_or_else(|_| fresh());
    println!("random problems: MSDEFORM_SEED={seed}");
    let folder = tree::cache().join("random-problems");
    // Of the workspace, not of its package: for that alone cargo would compile its crates once more.
    run_ok(&mut cargo(["build", "--workspace", "--locked", "--example", "write_cases"]))?;
    let mut write = Command::new(tree::target().join("debug/examples/write_cases"));
    run_ok(write.arg(&folder).args([&seed, MODELS]))?;
    Ok(folder)
}

fn pytest(environment: &Path, options: &[&str], problems: Option<&Path>) -> Result<Count> {
    let mut command = Command::new(python_in(environment));
    command.args(["-m", "pytest", "--quiet", "-p", "no:cacheprovider"]).args(options);
    command.envs(problems.map(|folder| ("MSDEFORM_CASES", folder)));
    command.current_dir(package());
    let finished = run(&mut command)?;
    pytest_count(&finished)
}

/// Reads pytest's last line: `3 failed, 120 passed, 71 skipped in 90.00s`, with ` (0:01:30)` behind it from a
/// minute on.
pub fn pytest_count(finished: &Finished) -> Result<Count> {
    let is_summary = |line: &&str| {
        let line = line.trim_end();
        let line = line.rsplit_once(" (").map_or(line, |(before, _)| before);
        line.contains(" in ") && line.ends_with('s')
    };
    let words = ["passed", "failed", "skipped", "error", "errors"];
    let line = finished
        .output
        .lines()
        .filter(is_summary)
        .rfind(|line| words.iter().any(|word| number_before(line, word) > 0))
        .context("pytest did not run to its end")?;
    let number = |word| number_before(line, word);
    let failed = number("failed") + number("error") + number("errors");
    ensure!(finished.success || failed > 0, "pytest failed without saying what");
    Ok(Count { passed: number("passed"), failed, skipped: number("skipped") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_of_pytest_counts_failures_errors_and_skips() {
        let count =
            |success, output: &str| pytest_count(&Finished { success, output: output.to_owned() });
        let output =
            "5 passed in a test's own words\n3 failed, 120 passed, 71 skipped, 1 error in 9.5s\n";
        let found = count(false, output).unwrap();
        assert_eq!(found, Count { passed: 120, failed: 4, skipped: 71 });
        assert!(count(false, "120 passed in 9.5s").is_err());
        assert!(count(true, "Traceback").is_err());
        assert_eq!(count(true, "7 passed in 0.1s").unwrap().passed, 7);
        let long = count(true, "170 passed, 71 skipped in 191.44s (0:03:11)").unwrap();
        assert_eq!(long, Count { passed: 170, failed: 0, skipped: 71 });
    }
}
