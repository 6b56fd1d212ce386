//! Checks that `cargo xtask test` leaves out because they need the nightly compiler, or minutes: Miri, the thread sanitizer,
//! loom, fuzzing, `cargo deny`, the crate for candle, exports of many packages.

use std::process::{Command, ExitCode};

use anyhow::{Result, ensure};
use clap::Args;

use crate::environments::{EXPORTS, OPTIMUM};
use crate::process::{capture, on_path, run, run_ok, sh};
use crate::steps::{Do, Report, Steps, tests};
use crate::test::CANDLE_FORMAT;
use crate::tree;

#[derive(Args)]
pub struct FuzzArgs {
    /// Targets by name [default: all]
    #[arg(value_name = "TARGET")]
    targets: Vec<String>,
    /// Seconds for each
    #[arg(long, value_name = "N", default_value_t = 60)]
    seconds: u32,
}

/// Fuzzes one target after the other.
pub fn fuzz(args: &FuzzArgs) -> Result<ExitCode> {
    let mut steps = Steps::only(&args.targets);
    for target in capture(&mut sh("tools/fuzz.sh --list"))?.lines() {
        steps.run(target, || {
            let finished = run(&mut sh(&format!("tools/fuzz.sh {target} {}", args.seconds)))?;
            ensure!(finished.success, "the fuzzer found something");
            let done = finished.output.lines().rev().find(|line| line.starts_with("Done "));
            Ok(Report::check(done.unwrap_or_default()))
        });
    }
    Ok(steps.finish())
}

/// Steps in build folders of their own: cargo would compile everything again after every change of flags.
pub const MIRI: &[(&str, Do)] = &[("miri", Do::Tests("tools/nightly.sh miri"))];
pub const TSAN: &[(&str, Do)] = &[("tsan", Do::Tests("tools/nightly.sh tsan"))];
pub const LOOM: &[(&str, Do)] = &[(
    "msdeform-cuda",
    Do::Tests(
        "RUSTFLAGS=--cfg=loom CARGO_TARGET_DIR=target/loom cargo test --locked --package msdeform-cuda --lib interleavings",
    ),
)];
/// Exports models of many packages, and prints what the command finds in each and in what other tools make of it.
pub fn exports() -> Result<ExitCode> {
    run_ok(&mut sh("cargo build --release --locked --package msdeform-cli"))?;
    let (target, optimum) = (tree::target(), OPTIMUM.program("python")?);
    let folder = target.join("exports");
    let scripts = tree::root().join("crates/msdeform-onnx/fixtures");
    let python = || EXPORTS.program("python").map(Command::new);
    let mut make = python()?;
    make.arg(scripts.join("exports.py")).arg("all").arg(&folder).arg("--optimum").arg(optimum);
    run_ok(&mut make)?;
    let mut table = python()?;
    table.arg(scripts.join("table.py")).arg(&folder).arg("--program");
    let finished = run(table.arg(target.join("release/msdeform")))?;
    Ok(if finished.success { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// `bindings/candle` is a workspace of its own, because candle takes minutes to compile.
pub fn candle() -> ExitCode {
    const WORKSPACE: &str =
        "--manifest-path bindings/candle/Cargo.toml --target-dir target/candle --locked";
    let cargo = |command: &str, end: &str| sh(&format!("{command} {WORKSPACE} {end}"));
    let check = |mut command: Command| run_ok(&mut command).map(|_| Report::check(""));
    let mut steps = Steps::only(&[]);
    steps.run("format", || check(sh(CANDLE_FORMAT)));
    steps.run("clippy", || check(cargo("cargo clippy", "--all-targets -- -D warnings")));
    steps.run("tests", || tests(&mut cargo("cargo test", "--no-fail-fast --all-targets")));
    steps.run("doctests", || tests(&mut cargo("cargo test", "--no-fail-fast --doc")));
    steps.run("documentation", || check(cargo("RUSTDOCFLAGS=-Dwarnings cargo doc", "--no-deps")));
    steps.finish()
}

/// Checks dependencies. `offline` leaves out advisories, because their database is on the network.
pub fn deny(offline: bool) -> Result<()> {
    if on_path(&["cargo-deny"]).is_none() {
        println!("installing cargo-deny, which takes minutes");
        run_ok(&mut sh("cargo install --locked cargo-deny"))?;
    }
    let mut check = sh("cargo deny --locked check licenses bans sources");
    run_ok(check.args((!offline).then_some("advisories"))).map(|_| ())
}
