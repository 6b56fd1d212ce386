//! `cargo xtask test`: everything that must hold before a change lands.

use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use clap::Args;

use crate::process::{capture, on_path, run_ok, sh};
use crate::steps::{Do, Report, Steps, tests};
use crate::uv::{Environment, uv};
use crate::{browser, c, checks, format, python, records, setup, ship, site};

/// Options of `test`.
#[derive(Args)]
pub struct TestArgs {
    /// Leave out what compiles everything once more: doctests, the documentation and the Python wheel
    #[arg(long)]
    quick: bool,
    /// Only these steps, by the names in the summary
    #[arg(long, value_name = "STEP", value_delimiter = ',')]
    only: Vec<String>,
}

/// A step: its name, when it runs, and what it does.
type Step = (&'static str, When, Do);

#[derive(PartialEq, Eq)]
enum When {
    Always,
    /// Not with `--quick`.
    Full,
}

const CLIPPY: &str = "cargo clippy --workspace --all-targets --locked -- -D warnings";
const DOCTESTS: &str = "cargo test --workspace --locked --doc --no-fail-fast";
const DOCUMENTATION: &str = "RUSTDOCFLAGS=-Dwarnings cargo doc --workspace --locked --no-deps";

/// In this order: the tests compile what `readme`, `browser` and `python` need.
const STEPS: [Step; 22] = [
    ("setup", When::Always, Do::Call(set_up)),
    ("format", When::Always, Do::Call(|| format::rust("--check").map(|()| Report::check("")))),
    ("cuda format", When::Always, Do::Call(format::check_c)),
    ("kernel text", When::Always, Do::Call(checks::kernel_text)),
    ("links", When::Always, Do::Call(checks::links)),
    ("words", When::Always, Do::Call(checks::words)),
    ("paths", When::Always, Do::Call(checks::paths)),
    ("records", When::Always, Do::Call(|| checks::script("check_tree.py records"))),
    ("scripts", When::Always, Do::Call(checks::scripts)),
    ("wheel parts", When::Always, Do::Call(|| checks::script("check_tree.py wheel-parts"))),
    ("shared builds", When::Always, Do::Call(|| checks::script("check_tree.py shared-builds"))),
    ("crate contents", When::Always, Do::Call(|| checks::script("crates.py contents"))),
    ("clippy", When::Always, Do::Check(CLIPPY)),
    ("tests", When::Always, Do::Call(rust_tests)),
    ("readme", When::Always, Do::Call(records::check_tables)),
    ("doctests", When::Full, Do::Tests(DOCTESTS)),
    ("documentation", When::Full, Do::Check(DOCUMENTATION)),
    ("public api", When::Full, Do::Call(ship::api::check)),
    ("site", When::Always, Do::Call(|| site::build().map(|_| Report::check("without a warning")))),
    ("browser", When::Always, Do::Call(browser::test)),
    ("python lint", When::Always, Do::Call(python::lint)),
    ("python", When::Full, Do::Call(python::test)),
];

/// Runs the steps. The exit code is a failure if one of them failed.
pub fn run_all(args: &TestArgs) -> Result<ExitCode> {
    let mut steps = Steps::only(&args.only);
    for (name, when, step) in STEPS {
        if when == When::Always || !args.quick {
            steps.run(name, || step.run());
        }
        // Packages are fetched in the background, once Python is there.
        if name == "setup" {
            if steps.wants("tests") {
                std::thread::spawn(test_environments);
            }
            if steps.wants("python") && !args.quick {
                python::start_environments();
            }
        }
    }
    Ok(steps.finish())
}

/// Installs the programs that are missing. Kernels are compiled for the host too, to run without a GPU.
fn set_up() -> Result<Report> {
    const CXX: [&str; 3] = ["c++", "g++", "clang++"];
    let named = std::env::var_os("CXX");
    let others: [(&[&str], &str); 3] =
        [(&CXX, "g++"), (&browser::CHROMIUM, "chromium"), (&["unifdef"], "unifdef")];
    let others = if named.is_some() { &others[1..] } else { &others };
    setup::programs(&[c::PROGRAMS, others].concat())?;
    uv(&[])?;
    let compiler = named.or_else(|| Some(on_path(&CXX)?.into())).context("no C++ compiler")?;
    let version = capture(Command::new(compiler).arg("--version"))?;
    Ok(Report::check(version.lines().next().unwrap_or_default()))
}

/// The compiler of the CUDA kernels as a wheel, because compiling needs neither a GPU nor a toolkit; with the disassembler
/// that its machine code is checked with. `crates/msdeform-cuda/resources.csv` names the same version: another one allocates
/// registers differently.
static NVRTC: Environment<'_> =
    Environment::new("nvrtc", &["nvidia-cuda-nvrtc==13.4.*", "nvidia-cuda-nvdisasm==13.4.*"]);

/// Other versions that users have, whose machine code is checked too: that of the GPU machine, and one of CUDA 12.
static OTHER_NVRTC: [Environment<'_>; 2] = [
    Environment::new("nvrtc-13.0", &["nvidia-cuda-nvrtc==13.0.*"]),
    Environment::new("nvrtc-12.9", &["nvidia-cuda-nvrtc-cu12==12.9.*"]),
];

/// The runtime that loads the custom operators in tests: its wheel has the library that programs link.
static ONNX_RUNTIME: Environment<'_> = Environment::new("onnxruntime", &["onnxruntime==1.31.*"]);

fn test_environments() {
    for environment in OTHER_NVRTC.iter().chain([&NVRTC, &ONNX_RUNTIME]) {
        // The step reports errors.
        let _ = environment.folder();
    }
}

/// Lets tests find the libraries of the packages above.
fn with_libraries(command: &mut Command) -> Result<&mut Command> {
    let others = OTHER_NVRTC.each_ref().map(|environment| environment.library("libnvrtc.so."));
    let others = others.into_iter().collect::<Result<Vec<_>>>()?;
    command.env("VIRTUAL_ENV", NVRTC.folder()?);
    command.env("MSDEFORM_OTHER_NVRTC", std::env::join_paths(others)?);
    // Without it, tests that do not find the compiler are skipped.
    command.env("MSDEFORM_REQUIRE_NVRTC", "1");
    Ok(command.env("MSDEFORM_ONNXRUNTIME", ONNX_RUNTIME.library("libonnxruntime.")?))
}

/// Unit and integration tests. Not by nextest: each suite of the emulator is one process, which compiles kernels once and in
/// parallel, and does not speak nextest's protocol.
fn rust_tests() -> Result<Report> {
    let mut cargo = sh("cargo test --workspace --locked --no-fail-fast --all-targets");
    tests(with_libraries(&mut cargo)?)
}

/// Rewrites the table of registers and spills that the tests hold kernels to.
pub fn bless_resources() -> Result<()> {
    set_up()?;
    let mut cargo = sh("cargo test --package msdeform-emulator --test resources");
    run_ok(with_libraries(&mut cargo)?.env("BLESS", "1")).map(|_| ())
}
