//! What looks for undefined behaviour and races: Miri, the thread sanitizer, loom. And `cargo deny`, which looks at the
//! dependencies.
//!
//! Not part of `cargo xtask test`, because they need the nightly compiler, or minutes.

use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};

use crate::process::{on_path, run_ok, sh};
use crate::steps::{Report, Steps, tests};
use crate::tree;

const MIRI_PACKAGES: &str =
    "--package msdeform --package msdeform-tuning --package msdeform-cuda --package msdeform-torch";

/// What has no foreign code, as a filter of nextest: all of the library, the decisions of the CUDA backend, and of the Python
/// package the plans and the memory behind addresses. Left out: NVRTC is a foreign library, and Miri cannot set the time of a
/// file, as the cubin cache does.
const MIRI_TESTS: &str = "(package(msdeform) + kind(lib) + binary(plan_table)) \
                          - test(/^(nvrtc|probe)::tests::|^jit::cache::/)";

/// Tree borrows and pointers made of integers, because rayon and crossbeam-epoch are written for them. Threads of the global
/// pool never end, which is no leak. Tests use the files, folders and variables of the machine. They also compare bits, so
/// exponentials are those of the machine, without the errors that Miri would add.
const MIRI_FLAGS: &str = "-Zmiri-tree-borrows -Zmiri-permissive-provenance -Zmiri-ignore-leaks \
                          -Zmiri-disable-isolation -Zmiri-deterministic-floats";

/// Tests in which threads share something: the package, and the options of `cargo test`.
const THREADS: [(&str, &str); 3] = [
    ("msdeform", "--test cpu_plan --test cpu_threads"),
    ("msdeform-cuda", "--lib -- jit:: driver:: tuning::"),
    ("msdeform-torch", "--lib --test plan_table"),
];

/// `cargo xtask miri`. By nextest: Miri has one thread, so a process for each test keeps all cores busy. Undefined behaviour
/// ends a process, and the other tests still run.
pub fn miri() -> Result<ExitCode> {
    components("miri rust-src")?;
    installed("cargo-nextest")?;
    let run = "miri nextest run --locked --no-fail-fast --lib --tests";
    let mut command = nightly_cargo(&format!("{run} {MIRI_PACKAGES} --filterset"));
    command.arg(MIRI_TESTS).env("MIRIFLAGS", MIRI_FLAGS);
    let mut steps = Steps::default();
    steps.run("miri", || {
        let output = run_ok(with_own_folder(&mut command, "miri"))?;
        let summary = output.lines().find(|line| line.contains("Summary [")).unwrap_or_default();
        ensure!(summary.contains(" passed"), "no test ran");
        Ok(Report::check(summary.trim()))
    });
    Ok(steps.finish())
}

/// `cargo xtask tsan`.
pub fn tsan() -> Result<ExitCode> {
    components("rust-src")?;
    let mut steps = Steps::default();
    for (package, options) in THREADS {
        // With the standard library: the sanitizer would take its unseen synchronisation for races.
        let build = "test --locked --no-fail-fast -Zbuild-std --target x86_64-unknown-linux-gnu";
        let mut command = nightly_cargo(&format!("{build} --package {package} {options}"));
        command.env("RUSTFLAGS", "-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer");
        // A test asks for more memory than there is, and handles the refusal.
        command.env("TSAN_OPTIONS", "halt_on_error=1 allocator_may_return_null=1");
        steps.run(package, || tests(with_own_folder(&mut command, "tsan")));
    }
    Ok(steps.finish())
}

/// `cargo xtask loom`.
pub fn loom() -> Result<ExitCode> {
    let mut command = sh("cargo test --locked --package msdeform-cuda --lib interleavings");
    command.env("RUSTFLAGS", "--cfg loom");
    let mut steps = Steps::default();
    steps.run("msdeform-cuda", || tests(with_own_folder(&mut command, "loom")));
    Ok(steps.finish())
}

/// `cargo xtask deny`. `offline` leaves out advisories, because their database is on the network.
pub fn deny(offline: bool) -> Result<()> {
    installed("cargo-deny")?;
    let mut check = sh("cargo deny --locked check licenses bans sources");
    run_ok(check.args((!offline).then_some("advisories"))).map(|_| ())
}

/// Installs a command of cargo if it is missing.
fn installed(name: &str) -> Result<()> {
    if on_path(&[name]).is_none() {
        println!("installing {name}, which takes minutes");
        run_ok(&mut sh(&format!("cargo install --locked {name}")))?;
    }
    Ok(())
}

/// Cargo of the nightly compiler, because only that one has Miri and the sanitizers. Any version will do: what they find does
/// not depend on it.
pub fn nightly_cargo(line: &str) -> Command {
    let mut command = sh(&format!("rustup run nightly cargo {line}"));
    // Those of the pinned compiler, which `cargo xtask` runs under.
    for variable in ["CARGO", "RUSTC", "RUSTDOC", "RUSTFLAGS", "RUSTUP_TOOLCHAIN"] {
        command.env_remove(variable);
    }
    command
}

/// Installs the nightly compiler and parts of it, if they are missing; an installed one is not updated.
fn components(wanted: &str) -> Result<()> {
    let add = format!("rustup component add --toolchain nightly {wanted}");
    if run_ok(&mut sh(&add)).is_err() {
        run_ok(&mut sh("rustup toolchain install nightly --profile minimal"))
            .and_then(|_| run_ok(&mut sh(&add)))
            .context("the nightly compiler is needed for this")?;
    }
    Ok(())
}

/// Builds in another folder: flags differ, and cargo would compile everything again after every change of them.
fn with_own_folder<'a>(command: &'a mut Command, name: &str) -> &'a mut Command {
    command.env("CARGO_TARGET_DIR", tree::target().join(name))
}
