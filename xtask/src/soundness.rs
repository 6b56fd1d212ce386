//! What looks for undefined behaviour and races: Miri, the thread sanitizer, loom. And `cargo deny`, which looks at
//! what the crates are made of.
//!
//! Not part of `cargo xtask test`: they need the nightly compiler, or minutes that every change would pay for.

use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};

use crate::process::{capture, on_path, run, run_ok};
use crate::steps::{Report, Steps};
use crate::test::{harness_report, nextest_report};
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

/// Tests in which threads share something.
const THREADS: [&[&str]; 3] = [
    &["--package", "msdeform", "--test", "cpu_plan", "--test", "cpu_threads"],
    &["--package", "msdeform-cuda", "--lib", "--", "jit::", "driver::", "tuning::"],
    &["--package", "msdeform-torch", "--lib", "--test", "plan_table"],
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
    steps.run("miri", || nextest_report(&run(&mut command)?));
    Ok(if steps.finish() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// `cargo xtask tsan`.
pub fn tsan() -> Result<ExitCode> {
    components(&["rust-src"])?;
    finish(THREADS.map(|arguments| {
        let (cargo, harness) = split_at_dashes(arguments);
        let mut command = nightly_cargo(&["test"]);
        // The standard library as well: what it does not report, the sanitizer would take for a race.
        command.args(["--locked", "--no-fail-fast", "-Zbuild-std", "--target", TSAN_TARGET]);
        command.args(cargo).args(own_folder("tsan")).args(harness);
        command.env("RUSTFLAGS", "-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer");
        // A test asks for more memory than there is, and takes no for an answer.
        command.env("TSAN_OPTIONS", "halt_on_error=1 allocator_may_return_null=1");
        command
    }))
}

/// `cargo xtask loom`.
pub fn loom() -> Result<ExitCode> {
    let arguments: &[&str] = &["--package", "msdeform-cuda", "--lib"];
    let mut command = crate::process::cargo(["test", "--locked"]);
    command.args(arguments).args(own_folder("loom"));
    command.args(["interleavings"]).env("RUSTFLAGS", "--cfg loom");
    finish([command])
}

/// `cargo xtask deny`. Advisories come from a database on the network; where that cannot be had, the rest is
/// checked and this is said.
pub fn deny(offline: bool) -> Result<ExitCode> {
    installed("cargo-deny")?;
    let check = |what: &[&str]| {
        let mut command = crate::process::cargo(["deny", "--locked", "check"]);
        command.args(what);
        command
    };
    let mut steps = Steps::default();
    steps.run("licences", || run_ok(&mut check(&["licenses"])).map(|_| Report::check("")));
    steps.run("bans", || run_ok(&mut check(&["bans"])).map(|_| Report::check("")));
    steps.run("sources", || run_ok(&mut check(&["sources"])).map(|_| Report::check("")));
    if offline {
        println!("\nadvisories: not checked");
    } else {
        steps.run("advisories", || run_ok(&mut check(&["advisories"])).map(|_| Report::check("")));
    }
    Ok(if steps.finish() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs test commands one after the other and counts.
fn finish<const N: usize>(commands: [Command; N]) -> Result<ExitCode> {
    let mut steps = Steps::default();
    for mut command in commands {
        let package = command.get_args().skip_while(|argument| *argument != "--package").nth(1);
        let name = package.unwrap_or_default().to_string_lossy().into_owned();
        steps.run(name, || {
            let report = harness_report(&run(&mut command)?)?;
            ensure!(report.count.passed > 0, "no test ran");
            Ok(report)
        });
    }
    Ok(if steps.finish() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Installs a command of cargo where it is missing.
fn installed(name: &str) -> Result<()> {
    if on_path(&[name]).is_none() {
        println!("installing {name}, which takes minutes");
        run_ok(&mut crate::process::cargo(["install", "--locked", name]))?;
    }
    Ok(())
}

/// Cargo of the nightly compiler, whatever called this one.
fn nightly_cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new("rustup");
    command.args(["run", NIGHTLY, "cargo"]).args(arguments).current_dir(tree::root());
    // Those of the pinned compiler, which `cargo xtask` runs under.
    for variable in ["CARGO", "RUSTC", "RUSTDOC", "RUSTFLAGS"] {
        command.env_remove(variable);
    }
    command
}

/// Installs the nightly compiler's parts where they are missing.
fn components(wanted: &[&str]) -> Result<()> {
    let list = || {
        capture(Command::new("rustup").args([
            "component",
            "list",
            "--toolchain",
            NIGHTLY,
            "--installed",
        ]))
    };
    let missing = |listed: &str| {
        // Some are listed with their target: `miri-x86_64-unknown-linux-gnu`.
        let is = |line: &str, name: &str| {
            line.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
        };
        let has = |name: &str| listed.lines().any(|line| is(line, name));
        wanted.iter().copied().filter(|name| !has(name)).collect::<Vec<_>>()
    };
    let missing = list().map_or_else(|_| wanted.to_vec(), |listed| missing(&listed));
    if missing.is_empty() {
        return Ok(());
    }
    let mut install = Command::new("rustup");
    install.args(["toolchain", "install", NIGHTLY, "--profile", "minimal", "--component"]);
    run_ok(install.arg(missing.join(","))).context("the nightly compiler is needed for this")?;
    Ok(())
}

/// A build folder of its own: flags differ, and cargo would build everything again with every change of them.
fn own_folder(name: &str) -> [String; 2] {
    ["--target-dir".to_owned(), tree::target().join(name).display().to_string()]
}

fn split_at_dashes<'a>(arguments: &'a [&'a str]) -> (&'a [&'a str], &'a [&'a str]) {
    let at = arguments.iter().position(|argument| *argument == "--").unwrap_or(arguments.len());
    arguments.split_at(at)
}
