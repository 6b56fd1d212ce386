//! The Python package: its lints, and its tests from the built wheel in clean environments.

use std::hash::{BuildHasher, RandomState};
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use clap::Args;

use crate::environments::{ALONE, CUDA_12, CUDA_13, MATURIN, SCRIPTS, TORCH};
use crate::process::{built, capture, run_ok};
use crate::ship::wheel;
use crate::steps::{Report, tests};
use crate::uv::Environment;
use crate::{openvino, setup, tree};

/// PyTorch is gigabytes to fetch and to unpack.
pub const ENVIRONMENTS: &[&Environment<'_>] = &[&ALONE, &TORCH, &MATURIN];

/// A file in one process: importing PyTorch's compiler or transformers takes longer than most tests.
const TWO_PROCESSES: &str = "--numprocesses=2 --dist=loadfile";

/// Format, lints and types of Python.
pub fn lint() -> Result<Report> {
    run_ok(&mut SCRIPTS.sh("ruff format --check .")?)?;
    run_ok(&mut SCRIPTS.sh("ruff check .")?)?;
    run_ok(in_package(&mut SCRIPTS.sh("mypy")?))?;
    Ok(Report::check("ruff, mypy --strict"))
}

/// Builds the wheel and tests it in clean environments: alone, with each NVRTC, with PyTorch.
pub fn test() -> Result<Report> {
    let folder = tree::empty_folder(tree::target().join("wheels"))?;
    let wheel = wheel::build(None, "--tried", &folder)?;
    let mut report = test_alone(&wheel)?;
    for (environment, extra, major) in
        [(&CUDA_12, "[cuda12]", "12."), (&CUDA_13, "[cuda13]", "13.")]
    {
        environment.install(&wheel, extra)?;
        check_nvrtc(environment, major).with_context(|| format!("msdeform{extra}"))?;
        report.add(&Report::check(""));
    }
    TORCH.install(&wheel, "")?;
    // ultralytics and rfdetr import OpenCV, which links libraries of windows.
    if capture(TORCH.sh("python -c")?.arg("import cv2")).is_err() {
        setup::apt_install("libgl1 libglib2.0-0").context("OpenCV does not load")?;
    }
    let mut python = pytest(&TORCH, TWO_PROCESSES)?;
    python.env("MSDEFORM_OPENVINO_EXTENSION", openvino::build(&TORCH)?);
    report.add(&tests(with_random_problems(&mut python)?)?);
    let versions = "import torch as p, transformers as t; print(f'torch {p.__version__}, transformers {t.__version__}')";
    Ok(report.noted(capture(TORCH.sh("python -c")?.arg(versions))?.trim()))
}

#[derive(Args)]
pub struct PythonArgs {
    /// Packages as pip names them, such as torch==2.11.0 transformers==5.17.0
    #[arg(required = true)]
    packages: Vec<String>,
}

/// Builds the wheel and tests it with other versions of packages than the newest, which CI has.
pub fn test_with(args: &PythonArgs) -> Result<ExitCode> {
    let mut packages = vec!["numpy", "pillow", "pytest"];
    packages.extend(args.packages.iter().map(String::as_str));
    let environment = Environment::clean("package-with", &packages);
    environment.folder()?;
    let wheel = wheel::build(None, "--tried", &tree::target().join("wheels"))?;
    environment.install(&wheel, "")?;
    let report = tests(&mut pytest(&environment, "")?)?;
    println!("{report} with {}", args.packages.join(", "));
    Ok(if report.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Tests a wheel in a fresh environment with NumPy alone.
pub fn test_alone(wheel: &Path) -> Result<Report> {
    ALONE.install(wheel, "")?;
    tests(&mut pytest(&ALONE, TWO_PROCESSES)?)
}

/// Pytest on the tests of the package.
fn pytest(environment: &Environment<'_>, options: &str) -> Result<Command> {
    let line = format!("python -m pytest --quiet -p no:cacheprovider {options}");
    let mut command = environment.sh(&line)?;
    in_package(&mut command);
    Ok(command)
}

fn in_package(command: &mut Command) -> &mut Command {
    command.current_dir(tree::root().join("bindings/python"))
}

/// The extra brings a compiler that is found although the environment is not activated.
fn check_nvrtc(environment: &Environment<'_>, major: &str) -> Result<()> {
    let program = "import msdeform, sys; nvrtc = msdeform.device_info()['cuda']['nvrtc']; print('NVRTC', nvrtc); \
                   assert nvrtc['version'].startswith(sys.argv[1]), f'expected version {sys.argv[1]}x'; \
                   assert nvrtc['path'].startswith(sys.prefix), f'expected a path in {sys.prefix}'";
    let mut command = environment.sh("python -I -c")?;
    run_ok(command.args([program, major]).env_remove("VIRTUAL_ENV")).map(|_| ())
}

/// Random problems of another seed each time, which is printed; `MSDEFORM_SEED` repeats one.
fn with_random_problems(python: &mut Command) -> Result<&mut Command> {
    const MODELS: &str = "60";
    let fresh = || (RandomState::new().hash_one(std::process::id()) >> 32).to_string();
    let seed = std::env::var("MSDEFORM_SEED").unwrap_or_else(|_| fresh());
    println!("random problems: MSDEFORM_SEED={seed}");
    let folder = tree::cache().join("random-problems");
    run_ok(built("--example write_cases")?.arg(&folder).args([&seed, MODELS]))?;
    Ok(python.env("MSDEFORM_CASES", folder))
}
