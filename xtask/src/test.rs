//! `cargo xtask test`: everything that must hold before a change lands. And `cargo xtask format`.

use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use clap::Args;

use crate::environments::{CLANG_FORMAT, NVRTC, ONNX_RUNTIME, OTHER_NVRTC, SCRIPTS, SPHINX};
use crate::process::{capture, on_path, run_ok, sh};
use crate::steps::{Do, Report, Steps, tests};
use crate::uv::{Environment, uv};
use crate::{c, checks, python, records, setup, ship};

#[derive(Args)]
pub struct TestArgs {
    /// Leave out what compiles everything once more: doctests, the documentation and the Python wheel
    #[arg(long)]
    quick: bool,
    /// Only these steps, by the names in the summary
    #[arg(long, value_name = "STEP", value_delimiter = ',')]
    only: Vec<String>,
}

/// Not with `--quick`.
const SLOW: [&str; 4] = ["doctests", "documentation", "public api", "python"];

/// In the order in which they start, after `setup`. Two run at a time. Those that call cargo wait for each other while it
/// compiles, so others stand between them, and long ones stand first.
const STEPS: [(&str, Do); 21] = [
    ("format", Do::Check(&["cargo fmt --all --check", CANDLE_FORMAT])),
    ("clippy", Do::Check(&[CLIPPY])),
    ("cuda format", Do::Script(&CLANG_FORMAT, CHECK_C, checks::C_SOURCES)),
    ("kernel text", Do::Call(checks::kernel_text)),
    ("links", Do::Script(&SPHINX, "python tools/check_links.py", &["*.md"])),
    ("words", Do::Script(&SCRIPTS, "python tools/find_words.py", READ)),
    ("paths", Do::Call(checks::paths)),
    ("records", script("python tools/check_tree.py records")),
    ("scripts", Do::Call(scripts)),
    ("wheel parts", script("python tools/check_tree.py wheel-parts")),
    ("shared builds", script("python tools/check_tree.py shared-builds")),
    ("crate contents", CRATE_CONTENTS),
    ("python lint", Do::Call(python::lint)),
    ("site", Do::Call(|| checks::site().map(|_| Report::check("without a warning")))),
    ("tests", Do::Call(rust_tests)),
    ("python", Do::Call(python::test)),
    ("documentation", Do::Check(&[DOCUMENTATION])),
    ("public api", Do::Call(ship::api::check)),
    ("doctests", Do::Tests(DOCTESTS)),
    ("readme", Do::Call(records::check_tables)),
    ("browser", Do::Call(checks::browser)),
];

/// `cargo fmt --all` does not see the crate for candle, a workspace of its own.
pub const CANDLE_FORMAT: &str = "cargo fmt --manifest-path bindings/candle/Cargo.toml --check";
const CLIPPY: &str = "cargo clippy --workspace --all-targets --locked -- -D warnings";
const DOCTESTS: &str = "cargo test --workspace --locked --doc --no-fail-fast";
const DOCUMENTATION: &str = "RUSTDOCFLAGS=-Dwarnings cargo doc --workspace --locked --no-deps";
const CHECK_C: &str = "clang-format --dry-run --Werror";
/// What people read.
const READ: &[&str] = &["*.md", "*.py", "*.rs", ":!records"];

const fn script(line: &'static str) -> Do {
    Do::Script(&SCRIPTS, line, &[])
}

/// Every published crate contains all of its files; a step of releases too.
pub const CRATE_CONTENTS: Do = script("python tools/crates.py contents");

/// Runs the steps. The exit code is a failure if one of them failed.
pub fn run_all(args: &TestArgs) -> Result<ExitCode> {
    let mut steps = Steps::only(&args.only);
    if steps.wants("tests") {
        fetch(TEST_ENVIRONMENTS);
    }
    if steps.wants("python") && !args.quick {
        fetch(python::ENVIRONMENTS);
    }
    steps.run("setup", set_up);
    let planned = STEPS.iter().filter(|(name, _)| !(args.quick && SLOW.contains(name)));
    steps.together(&planned.collect::<Vec<_>>());
    Ok(steps.finish())
}

/// Makes environments in the background. The step that needs one reports errors.
fn fetch(environments: &'static [&Environment<'_>]) {
    std::thread::spawn(|| environments.iter().all(|environment| environment.folder().is_ok()));
}

/// Formats Rust, CUDA, C, C++ and Python.
pub fn format() -> Result<()> {
    for step in [
        Do::Check(&["cargo fmt --all", "cargo fmt --manifest-path bindings/candle/Cargo.toml"]),
        Do::Script(&CLANG_FORMAT, "clang-format -i", checks::C_SOURCES),
        script("ruff format ."),
    ] {
        step.run()?;
    }
    Ok(())
}

/// Installs the programs that are missing. Kernels are compiled for the host too, to run without a GPU.
fn set_up() -> Result<Report> {
    const CXX: [&str; 3] = ["c++", "g++", "clang++"];
    let named = std::env::var_os("CXX");
    let others: [(&[&str], &str); 3] =
        [(&CXX, "g++"), (&checks::CHROMIUM, "chromium"), (&["unifdef"], "unifdef")];
    let others = if named.is_some() { &others[1..] } else { &others };
    setup::programs(&[c::PROGRAMS, others].concat())?;
    uv(&[])?;
    let compiler = named.or_else(|| Some(on_path(&CXX)?.into())).context("no C++ compiler")?;
    let version = capture(Command::new(compiler).arg("--version"))?;
    Ok(Report::check(version.lines().next().unwrap_or_default()))
}

/// The scripts of `tools/` find what they look for.
fn scripts() -> Result<Report> {
    tests(&mut SCRIPTS.sh("python -m pytest --quiet -p no:cacheprovider tools/tests")?)
}

const TEST_ENVIRONMENTS: &[&Environment<'_>] =
    &[&OTHER_NVRTC[0], &OTHER_NVRTC[1], &NVRTC, &ONNX_RUNTIME];

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
    let mut cargo = sh("cargo test --package msdeform-cuda-lab --test compiled");
    run_ok(with_libraries(&mut cargo)?.env("BLESS", "1")).map(|_| ())
}
