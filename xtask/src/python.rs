//! The Python package: `cargo xtask wheel`, `cargo xtask python`, and its lints and tests from the built wheel.

use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::thread::JoinHandle;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::process::{Finished, built, capture, run, run_ok};
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

/// Formats the Python half, and the scripts of the tree.
pub fn format() -> Result<()> {
    ruff(&["format"])
}

/// Format, lints and types of the Python half; format and lints of the scripts.
pub fn lint() -> Result<Report> {
    ruff(&["format", "--check"])?;
    ruff(&["check"])?;
    let environment = setup::python_environment("lint", &LINT_PACKAGES)?;
    run_ok(Command::new(python_in(&environment)).args(["-m", "mypy"]).current_dir(package()))?;
    Ok(Report::check("ruff, mypy --strict"))
}

fn ruff(arguments: &[&str]) -> Result<()> {
    const SCRIPTS: [&str; 3] = ["../../tools", "../../docs/site", "../../xtask/kernels"];
    let environment = setup::python_environment("lint", &LINT_PACKAGES)?;
    // Scripts are no library: not each of their functions has a docstring.
    let check = arguments.first() == Some(&"check");
    let scripts = if check { &["--extend-ignore", "D1"][..] } else { &[] };
    for paths in [vec!["."], [scripts, &SCRIPTS].concat()] {
        let mut ruff = Command::new(python_in(&environment));
        ruff.args(["-m", "ruff"]).args(arguments).args(["--config", "pyproject.toml"]);
        run_ok(ruff.args(paths).current_dir(package()))?;
    }
    Ok(())
}

/// The clean environments that the wheel is tested in, being made in the background.
pub type Environments = JoinHandle<Result<(Uv, PathBuf, PathBuf)>>;

/// Starts to make them early: PyTorch is gigabytes to fetch and to unpack.
pub fn start_environments() -> Environments {
    std::thread::spawn(|| {
        let uv = Uv::new()?;
        let alone = uv.environment("package-alone", &["pytest"])?;
        let torch = uv.environment("package-torch", &TORCH_PACKAGES)?;
        // Fetched here as well; the wheel is built with it.
        setup::python_environment("wheel", &platforms::BUILD_PACKAGES)?;
        Ok((uv, alone, torch))
    })
}

/// Builds the wheel and tests it in clean environments: alone, with each NVRTC, with PyTorch.
pub fn test(environments: Environments) -> Result<Report> {
    let (uv, alone, torch) =
        environments.join().unwrap_or_else(|_| bail!("making the environments broke off"))?;
    let folder = tree::empty_folder(tree::target().join("wheels"))?;
    let wheel = wheel::build(None, Effort::Tried, &folder)?;
    let mut count = Count::default();
    uv.install(&alone, &wheel, "")?;
    count = count.plus(pytest(&mut Command::new(python_in(&alone)), &package())?);
    for (extra, major) in [("[cuda12]", "12."), ("[cuda13]", "13.")] {
        let folder =
            uv.environment(&format!("package-nvrtc{}", major.trim_end_matches('.')), &[])?;
        uv.install(&folder, &wheel, extra)?;
        check_nvrtc(&folder, major).with_context(|| format!("msdeform{extra}"))?;
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
    let mut python = Command::new(python_in(&torch));
    python.env("MSDEFORM_CASES", &problems);
    count = count.plus(pytest_with(&mut python, &options, &package())?);
    let versions = "import torch, transformers as t; print(torch.__version__, t.__version__)";
    let versions = capture(Command::new(python_in(&torch)).args(["-c", versions]))?;
    let (torch, transformers) = versions.trim().split_once(' ').unwrap_or_default();
    Ok(Report { count, note: format!("torch {torch}, transformers {transformers}") })
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
    let mut packages = vec!["numpy", "pillow", "pytest"];
    packages.extend(args.packages.iter().map(String::as_str));
    let environment = uv.environment("package-with", &packages)?;
    let wheel = wheel::build(None, Effort::Tried, &tree::target().join("wheels"))?;
    uv.install(&environment, &wheel, "")?;
    let count = pytest(&mut Command::new(python_in(&environment)), &package())?;
    println!("{count} with {}", args.packages.join(", "));
    Ok(if count.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Tests a wheel in a fresh environment with NumPy alone.
pub fn test_alone(wheel: &Path) -> Result<Report> {
    let uv = Uv::new()?;
    let environment = uv.environment("package-alone", &["pytest"])?;
    uv.install(&environment, wheel, "")?;
    let count = pytest(&mut Command::new(python_in(&environment)), &package())?;
    Ok(Report { count, note: String::new() })
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
    let mut write = built("--example", "write_cases")?;
    run_ok(write.arg(&folder).args([&seed, MODELS]))?;
    Ok(folder)
}

/// Runs the tests of a folder with a Python, quietly.
pub fn pytest(python: &mut Command, folder: &Path) -> Result<Count> {
    pytest_with(python, &[], folder)
}

/// The same with options of pytest.
pub fn pytest_with(python: &mut Command, options: &[&str], folder: &Path) -> Result<Count> {
    python.args(["-m", "pytest", "--quiet", "-p", "no:cacheprovider"]).args(options);
    pytest_count(&run(python.current_dir(folder))?)
}

/// Reads pytest's last line: `3 failed, 120 passed, 71 skipped in 90.00s (0:01:30)`.
fn pytest_count(finished: &Finished) -> Result<Count> {
    let count = |line: &str| Count {
        passed: number_before(line, "passed"),
        failed: ["failed", "error", "errors"].map(|word| number_before(line, word)).iter().sum(),
        skipped: number_before(line, "skipped"),
    };
    let ends =
        |line: &&str| ["s in ", "d in ", "r in ", "g in "].iter().any(|end| line.contains(end));
    let mut counts = finished.output.lines().rev().filter(ends).map(count);
    let found = counts.find(|found| *found != Count::default());
    let found = found.context("pytest did not run to its end")?;
    ensure!(finished.success || found.failed > 0, "pytest failed without saying what");
    Ok(found)
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
        let long = count(true, "170 passed, 71 skipped in 191.44s (0:03:11)").unwrap();
        assert_eq!(long, Count { passed: 170, failed: 0, skipped: 71 });
        let warned = count(true, "24 passed, 1 warning in 37.06s").unwrap();
        assert_eq!(warned, Count { passed: 24, failed: 0, skipped: 0 });
    }
}
