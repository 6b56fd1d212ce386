//! What looks for undefined behaviour and races: Miri, the thread sanitizer, loom. And `cargo deny`, which looks at
//! what the crates are made of.
//!
//! Not part of `cargo xtask test`: they need the nightly compiler, or minutes that every change would pay for.

use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};

use crate::process::{on_path, run, run_ok};
use crate::steps::{Report, Steps};
use crate::test::harness_report;
use crate::tree;

/// Miri and sanitizers exist for the nightly compiler only. Any will do: what they find does not depend on it.
const NIGHTLY: &str = "nightly";

const MIRI_PACKAGES: [&str; 4] = ["msdeform", "msdeform-tuning", "msdeform-cuda", "msdeform-torch"];

/// What has no foreign code in it, as nextest's filters say it: all of the library, of the CUDA backend everything that
/// decides, of the Python package the plans and the memory behind addresses. Left out: NVRTC is loaded from a library, and
/// Miri cannot set the time of a file, which the cubin cache does.
const MIRI_TESTS: &str = "(package(msdeform) + kind(lib) + binary(plan_table)) \
                          - test(/^(nvrtc|probe)::tests::|^jit::cache::/)";

/// Tree borrows and pointers made of integers: what rayon and crossbeam-epoch are written for. Threads of the global
/// pool never end, which is no leak. Files, folders and variables are the machine's: tuning files are tested on disk. Tests
/// compare bits, so exponentials are those of the machine, without the errors that Miri would add to each.
const MIRI_FLAGS: &str = "-Zmiri-tree-borrows -Zmiri-permissive-provenance -Zmiri-ignore-leaks \
                          -Zmiri-disable-isolation -Zmiri-deterministic-floats";

/// Tests in which threads share something: the package, what cargo builds of it, filters of the harness.
const THREADS: [(&str, &[&str], &[&str]); 3] = [
    ("msdeform", &["--test", "cpu_plan", "--test", "cpu_threads"], &[]),
    ("msdeform-cuda", &["--lib"], &["jit::", "driver::", "tuning::"]),
    ("msdeform-torch", &["--lib", "--test", "plan_table"], &[]),
];

const TSAN_TARGET: &str = "x86_64-unknown-linux-gnu";

/// `cargo xtask miri`. By nextest: Miri has one thread, and a process for each test keeps all cores busy; where one test
/// has undefined behaviour, which ends the process, the others still run.
pub fn miri() -> Result<ExitCode> {
    components(&["miri", "rust-src"])?;
    installed("cargo-nextest")?;
    let mut command = nightly_cargo(&["miri", "nextest", "run"]);
    command.args(["--locked", "--no-fail-fast", "--lib", "--tests"]);
    command.args(MIRI_PACKAGES.iter().flat_map(|package| ["--package", package]));
    command.args(["--filterset", MIRI_TESTS]).args(own_folder("miri"));
    command.env("MIRIFLAGS", MIRI_FLAGS);
    let mut steps = Steps::default();
    steps.run("miri", || {
        let output = run_ok(&mut command)?;
        let summary = output.lines().find(|line| line.contains("Summary [")).unwrap_or_default();
        ensure!(summary.contains(" passed"), "no test ran");
        Ok(Report::check(summary.trim()))
    });
    Ok(steps.finish())
}

/// `cargo xtask tsan`.
pub fn tsan() -> Result<ExitCode> {
    components(&["rust-src"])?;
    let mut steps = Steps::default();
    for (package, built, filters) in THREADS {
        let mut command = nightly_cargo(&["test", "--locked", "--no-fail-fast"]);
        // The standard library as well: what it does not report, the sanitizer would take for a race.
        command.args(["-Zbuild-std", "--target", TSAN_TARGET, "--package", package]).args(built);
        command.args(own_folder("tsan")).arg("--").args(filters);
        command.env("RUSTFLAGS", "-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer");
        // A test asks for more memory than there is, and accepts the refusal.
        command.env("TSAN_OPTIONS", "halt_on_error=1 allocator_may_return_null=1");
        steps.run(package, || harness_report(&run(&mut command)?));
    }
    Ok(steps.finish())
}

/// `cargo xtask loom`.
pub fn loom() -> Result<ExitCode> {
    let mut command =
        crate::process::cargo(["test", "--locked", "--package", "msdeform-cuda", "--lib"]);
    command.args(own_folder("loom")).arg("interleavings").env("RUSTFLAGS", "--cfg loom");
    let mut steps = Steps::default();
    steps.run("msdeform-cuda", || harness_report(&run(&mut command)?));
    Ok(steps.finish())
}

/// `cargo xtask deny`. Advisories come from a database on the network; `offline` leaves them out.
pub fn deny(offline: bool) -> Result<ExitCode> {
    installed("cargo-deny")?;
    let mut check = crate::process::cargo(["deny", "--locked", "check"]);
    check.args(["licenses", "bans", "sources"]).args((!offline).then_some("advisories"));
    run_ok(&mut check)?;
    Ok(ExitCode::SUCCESS)
}

/// Installs a command of cargo where it is missing.
fn installed(name: &str) -> Result<()> {
    if on_path(&[name]).is_none() {
        println!("installing {name}, which takes minutes");
        run_ok(&mut crate::process::cargo(["install", "--locked", name]))?;
    }
    Ok(())
}

/// Cargo of the nightly compiler. The sanitizers exist for that one only.
pub fn nightly_cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new("rustup");
    command.args(["run", NIGHTLY, "cargo"]).args(arguments).current_dir(tree::root());
    // Those of the pinned compiler, which `cargo xtask` runs under.
    for variable in ["CARGO", "RUSTC", "RUSTDOC", "RUSTFLAGS", "RUSTUP_TOOLCHAIN"] {
        command.env_remove(variable);
    }
    command
}

/// Installs the nightly compiler and parts of it, if they are missing; one that is there is not updated.
fn components(wanted: &[&str]) -> Result<()> {
    let rustup = |arguments: &[&str]| run_ok(Command::new("rustup").args(arguments));
    let add = ["component", "add", "--toolchain", NIGHTLY];
    if rustup(&[&add, wanted].concat()).is_err() {
        rustup(&["toolchain", "install", NIGHTLY, "--profile", "minimal"])
            .and_then(|_| rustup(&[&add, wanted].concat()))
            .context("the nightly compiler is needed for this")?;
    }
    Ok(())
}

/// A build folder of its own: flags differ, and cargo would build everything again with every change of them.
fn own_folder(name: &str) -> [String; 2] {
    ["--target-dir".to_owned(), tree::target().join(name).display().to_string()]
}
