//! `cargo xtask try`: what was built for a platform is run, on this machine or under an emulator.
//!
//! Linux on ARM: the library's tests and the Python package's, under qemu, with Python from Debian. Windows: the library's
//! tests and the command line under Wine; no registry has a Python for it. The libraries of the wheels for Windows and
//! macOS are checked without running them; the forge runs both.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Result, ensure};
use clap::Args;

use super::platforms::{self, PLATFORMS, Platform};
use super::wheel::{self, Effort};
use crate::process::{self, capture, run_ok};
use crate::setup;
use crate::steps::{Count, Report, Steps};
use crate::test::harness_report;
use crate::uv::Uv;
use crate::{python, tree};

/// Options of `try`.
#[derive(Args)]
pub struct TryArgs {
    /// The platforms to try, or `all` [default: this machine]
    #[arg(long, value_name = "TRIPLE")]
    target: Vec<String>,
    /// Where wheels of `cargo xtask wheel` are; one that is missing is built, hardly optimised [default: target/tried]
    #[arg(long, value_name = "FOLDER")]
    wheels: Option<PathBuf>,
    /// Only these steps, by the names in the summary
    #[arg(long, value_name = "STEP", value_delimiter = ',')]
    only: Vec<String>,
}

/// What was run of a platform, and what was not, for the release notes.
pub struct Tried {
    pub platform: &'static Platform,
    /// Steps, with their results.
    pub run: Vec<(String, String)>,
    pub not_run: &'static str,
}

/// What `cargo xtask try` does.
pub fn run(args: &TryArgs) -> Result<ExitCode> {
    let mut chosen = platforms::named(&args.target)?;
    if chosen.is_empty() {
        chosen.push(&PLATFORMS[0]);
    }
    let folder = args.wheels.clone().unwrap_or_else(|| tree::target().join("tried"));
    let mut steps = Steps::only(&args.only);
    for platform in chosen {
        let found_or_built = || match wheel_of(platform, &folder) {
            Some(found) => Ok(found),
            None => wheel::build(Some(platform), Effort::Tried, &folder),
        };
        let tried = steps_of(&mut steps, platform, found_or_built);
        if !tried.not_run.is_empty() {
            println!("{}: not run: {}", platform.triple, tried.not_run);
        }
    }
    Ok(steps.finish())
}

/// The wheel for a platform in a folder.
pub fn wheel_of(platform: &Platform, folder: &Path) -> Option<PathBuf> {
    let end = format!("{}.whl", platform.wheel_tag);
    let mut files = std::fs::read_dir(folder).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    files.find(|file| file.to_string_lossy().ends_with(&end))
}

/// Runs everything that can be run of a platform here. `wheel` is called by the steps that need it.
pub fn steps_of(
    steps: &mut Steps,
    platform: &'static Platform,
    wheel: impl Fn() -> Result<PathBuf>,
) -> Tried {
    let mut names = Vec::new();
    let mut step = |name: String, run: &dyn Fn() -> Result<Report>| {
        steps.run(name.clone(), run);
        names.push(name);
    };
    let checked = || platforms::check_wheel(&wheel()?, platform.wheel_tag, &[]).map(Report::check);
    let not_run = match platform.triple {
        _ if platform.is_host() => {
            step("x86_64 wheel".to_owned(), &|| python::test_alone(&wheel()?));
            ""
        }
        "aarch64-unknown-linux-gnu" => {
            step("aarch64 library".to_owned(), &|| library_under_qemu(platform));
            step("aarch64 wheel".to_owned(), &|| wheel_under_qemu(&wheel()?));
            "CUDA, PyTorch"
        }
        "x86_64-pc-windows-gnu" => {
            step("windows library".to_owned(), &|| library_under_wine(platform));
            step("windows command".to_owned(), &|| command_under_wine(platform));
            step("windows wheel".to_owned(), &checked);
            "the Python package, CUDA, PyTorch"
        }
        _ => {
            let (processor, _) = platform.triple.split_once('-').unwrap_or_default();
            step(format!("macos {processor}"), &checked);
            "anything: it is linked, and its library is checked"
        }
    };
    let run = names.into_iter().filter_map(|name| Some((steps.outcome(&name)?, name)));
    Tried { platform, run: run.map(|(outcome, name)| (name, outcome)).collect(), not_run }
}

/// The tests of the CPU backend as on any machine: conformance, random problems, threads.
fn library_under_qemu(platform: &Platform) -> Result<Report> {
    platform.set_up()?;
    let mut test = platform.cargo("test")?;
    test.args(["--no-fail-fast", "--package", "msdeform", "--lib", "--tests"]);
    let emulator = format!("qemu-aarch64 -L {}", arm_system()?.display());
    test.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", emulator);
    harness_report(&process::run(&mut test)?)
}

/// The Python package's tests with NumPy alone, without those of dozens of processes, and its command.
fn wheel_under_qemu(wheel: &Path) -> Result<Report> {
    const FACTS: &str = "import platform, msdeform, numpy; \
        print(platform.machine(), msdeform.device_info()['cpu']['instructions'], 'NumPy', numpy.__version__)";
    let system = arm_system()?;
    let site = tree::empty_folder(tree::cache().join("arm64-site"))?;
    let wheel = wheel.to_string_lossy();
    Uv::new()?.unpack("aarch64-manylinux_2_28", &site, &["numpy", "pytest", &wheel])?;
    // Python for ARM also to the processes that its tests start: no kernel runs the real one.
    let (root, real) = (system.display(), system.join("usr/bin/python3.11"));
    let command = format!("exec qemu-aarch64 -0 \"$0\" -L '{root}' '{}' \"$@\"", real.display());
    let emulated = tree::write_script(system.join("usr/bin/emulated-python"), &command)?;
    let python = |arguments: &[&str]| {
        let mut command = Command::new(&emulated);
        command.args(arguments).env("PYTHONPATH", &site).env("PYTHONDONTWRITEBYTECODE", "1");
        command
    };
    let facts = capture(&mut python(&["-c", FACTS]))?;
    ensure!(facts.contains("aarch64 neon"), "expected the instructions of ARM: {facts}");
    let script = site.join("bin/msdeform");
    let version = capture(&mut python(&[&script.to_string_lossy(), "--version"]))?;
    ensure!(version.starts_with("msdeform "), "`msdeform --version` printed {version}");
    let tests = ["tests/test_facts.py", "tests/test_first_look.py", "tests/test_numpy.py"];
    let folder = tree::root().join("bindings/python");
    let count = python::pytest_with(&mut python(&[]), &tests, &folder)?.plus(Count::CHECK);
    Ok(Report { count, note: facts.trim().to_owned() })
}

/// Debian's C library and Python for ARM, unpacked; and qemu.
fn arm_system() -> Result<PathBuf> {
    setup::programs(&[(&["qemu-aarch64"], "qemu-user"), (&["mmdebstrap"], "mmdebstrap")])?;
    let folder = tree::cache().join("arm64-debian");
    if !folder.join("usr/bin/python3.11").exists() {
        tree::empty_folder(folder.clone())?;
        let mut unpack = Command::new("mmdebstrap");
        unpack.args(["--quiet", "--variant=extract", "--architectures=arm64", "--skip=check/qemu"]);
        run_ok(unpack.args(["--include=python3,libstdc++6", "bookworm"]).arg(&folder))?;
    }
    Ok(folder)
}

/// The tests of the CPU backend, of files, of the tuning file, and of what the CUDA backend does without a GPU.
fn library_under_wine(platform: &Platform) -> Result<Report> {
    platform.set_up()?;
    // The CUDA backend's other tests are for a GPU.
    let chosen: [(&[&str], &[&str]); 2] = [
        (&["msdeform"], &["--lib", "--tests"]),
        (&["msdeform-files", "msdeform-tuning", "msdeform-cuda"], &["--lib"]),
    ];
    let mut count = Count::default();
    for (packages, kinds) in chosen {
        let mut test = platform.cargo("test")?;
        test.arg("--no-fail-fast").args(kinds);
        test.args(packages.iter().flat_map(|package| ["--package", package]));
        count = count.plus(harness_report(&process::run(in_wine(&mut test)?)?)?.count);
    }
    Ok(Report { count, note: String::new() })
}

/// The main commands, from the same sources as the wheel's.
fn command_under_wine(platform: &Platform) -> Result<Report> {
    platform.set_up()?;
    run_ok(platform.cargo("build")?.args(["--package", "msdeform-cli"]))?;
    let mut commands = Command::new(tree::root().join("tools/try_windows_command.sh"));
    commands.arg(tree::target().join(platform.triple).join("debug/msdeform.exe"));
    commands.arg(tree::root().join("docs/examples/tiny_decoder.safetensors"));
    run_ok(in_wine(&mut commands)?)?;
    Ok(Report::check(""))
}

/// A command whose Windows programs Wine runs, in a system of their own.
fn in_wine(command: &mut Command) -> Result<&mut Command> {
    setup::programs(&[(&["wine"], "wine wine64")])?;
    let runner = tree::root().join("tools/run_in_wine.sh");
    command.env("WINEPREFIX", tree::cache().join("wine"));
    Ok(command.env("CARGO_TARGET_X86_64_PC_WINDOWS_GNU_RUNNER", runner))
}
