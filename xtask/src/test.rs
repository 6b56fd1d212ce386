//! `cargo xtask test`: everything that must hold before a change lands.

use std::ffi::OsString;
use std::process::{Command, ExitCode};
use std::thread::JoinHandle;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::process::{Finished, capture, cargo, on_path, run, run_ok};
use crate::steps::{Count, Report, Steps};
use crate::uv::Uv;
use crate::{browser, c, candle, checks, format, python, records, setup, ship, site};

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

/// Runs all steps; the exit code says whether all of them passed.
pub fn run_all(args: &TestArgs) -> Result<ExitCode> {
    let mut steps = Steps::only(&args.only);
    steps.run("setup", set_up);
    // What is fetched comes in the background; not before the setup, which may have to install Python.
    let libraries = steps.wants("tests").then(|| std::thread::spawn(libraries));
    let environments = (!args.quick && steps.wants("python")).then(python::start_environments);
    steps.run("format", || {
        candle::check_format()?;
        succeed(&mut cargo(["fmt", "--all", "--check"]))
    });
    steps.run("cuda format", format::check);
    steps.run("kernel text", checks::kernel_text);
    steps.run("links", checks::links);
    steps.run("paths", checks::paths);
    steps.run("records", checks::records);
    steps.run("wheel parts", checks::wheel_parts);
    steps.run("shared builds", checks::shared_builds);
    steps.run("crate contents", ship::crates::check_contents);
    steps.run("clippy", || {
        let lint = ["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"];
        succeed(&mut cargo(lint))
    });
    if let Some(libraries) = libraries {
        steps.run("tests", || tests(libraries));
    }
    // After the tests, which compile the crates that this needs.
    steps.run("readme", records::check_tables);
    if !args.quick {
        steps.run("doctests", || {
            let mut doctests =
                cargo(["test", "--workspace", "--locked", "--doc", "--no-fail-fast"]);
            harness_report(&run(&mut doctests)?)
        });
        steps.run("documentation", || {
            let mut docs = cargo(["doc", "--workspace", "--locked", "--no-deps"]);
            succeed(docs.env("RUSTDOCFLAGS", "-D warnings"))
        });
        steps.run("public api", ship::api::check);
    }
    steps.run("site", site::check);
    steps.run("browser", browser::test);
    steps.run("python lint", python::lint);
    if let Some(environments) = environments {
        steps.run("python", || python::test(environments));
    }
    Ok(steps.finish())
}

/// The compiler of the CUDA kernels, as a wheel: no GPU and no toolkit is needed to compile. Pinned to the
/// version that `crates/msdeform-cuda/resources.csv` names: another one allocates registers differently.
/// With the disassembler that its machine code is checked with.
const NVRTC_PACKAGES: [&str; 2] = ["nvidia-cuda-nvrtc==13.4.*", "nvidia-cuda-nvdisasm==13.4.*"];

/// Other versions that users have, whose machine code is checked too: that of the GPU machine, and one of CUDA 12.
const OTHER_NVRTC_PACKAGES: [(&str, &str); 2] =
    [("nvrtc-13.0", "nvidia-cuda-nvrtc==13.0.*"), ("nvrtc-12.9", "nvidia-cuda-nvrtc-cu12==12.9.*")];

/// The runtime that the custom operators are tested in: its wheel has the library that programs link.
const ONNXRUNTIME_PACKAGES: [&str; 1] = ["onnxruntime==1.31.*"];

/// Rewrites the table of registers and spills that the tests hold kernels to.
pub fn bless_resources() -> Result<ExitCode> {
    set_up()?;
    let mut command = cargo(["test", "--package", "msdeform-emulator", "--test", "resources"]);
    command.envs(libraries()?).env("BLESS", "1");
    let finished = run(&mut command)?;
    Ok(if finished.success { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Installs the programs that are missing. Kernels are compiled for the host too, to run without a GPU.
fn set_up() -> Result<Report> {
    const CXX: [&str; 3] = ["c++", "g++", "clang++"];
    let others: [(&[&str], &str); 3] =
        [(&CXX, "g++"), (&browser::CHROMIUM, "chromium"), (&["unifdef"], "unifdef")];
    let programs = if std::env::var_os("CXX").is_some() { &others[1..] } else { &others };
    setup::programs(&[c::PROGRAMS, programs].concat())?;
    Uv::new()?;
    let compiler = std::env::var_os("CXX").or_else(|| Some(on_path(&CXX)?.into()));
    let version = capture(Command::new(compiler.context("no C++ compiler")?).arg("--version"))?;
    let note = version.lines().next().unwrap_or_default().to_owned();
    Ok(Report { note, ..Report::default() })
}

/// Variables by which the tests know libraries that others publish.
type Libraries = Vec<(&'static str, OsString)>;

/// Fetches those libraries.
fn libraries() -> Result<Libraries> {
    let nvrtc = setup::python_environment("nvrtc", &NVRTC_PACKAGES)?;
    let mut others = Vec::new();
    for (name, package) in OTHER_NVRTC_PACKAGES {
        let folder = setup::python_environment(name, &[package])?;
        others.push(setup::nvrtc_in(&folder).with_context(|| format!("no NVRTC in {package}"))?);
    }
    let runtime = setup::python_environment("onnxruntime", &ONNXRUNTIME_PACKAGES)?;
    let runtime = setup::library_in(&runtime, "libonnxruntime.")
        .context("no library in the wheel of onnxruntime")?;
    Ok(vec![
        ("VIRTUAL_ENV", nvrtc.into()),
        ("MSDEFORM_OTHER_NVRTC", std::env::join_paths(others)?),
        // It was just installed: not finding it is a failure, not a reason to skip.
        ("MSDEFORM_REQUIRE_NVRTC", "1".into()),
        ("MSDEFORM_ONNXRUNTIME", runtime.into()),
    ])
}

fn succeed(command: &mut Command) -> Result<Report> {
    run_ok(command)?;
    Ok(Report::check(""))
}

/// Unit and integration tests. Not by nextest: the emulator's suites are one process each, so that kernels are
/// compiled once and in parallel, and do not speak its protocol.
fn tests(libraries: JoinHandle<Result<Libraries>>) -> Result<Report> {
    let libraries = libraries.join().unwrap_or_else(|_| bail!("fetching libraries broke off"))?;
    let mut command = cargo(["test", "--workspace", "--locked", "--no-fail-fast", "--all-targets"]);
    command.envs(libraries);
    harness_report(&run(&mut command)?)
}

/// The number in front of `word`, as in `22 passed, 1 failed`.
pub fn number_before(line: &str, word: &str) -> usize {
    let words: Vec<&str> =
        line.split([' ', ',', ';', '(', ')']).filter(|w| !w.is_empty()).collect();
    let position = words.iter().position(|found| *found == word);
    position.and_then(|at| words.get(at.checked_sub(1)?)?.parse().ok()).unwrap_or(0)
}

/// Reads the totals that the standard test harness prints for each binary.
pub fn harness_report(finished: &Finished) -> Result<Report> {
    let mut count = Count::default();
    for line in finished.output.lines().filter(|line| line.starts_with("test result: ")) {
        count.passed += number_before(line, "passed");
        count.failed += number_before(line, "failed");
        count.skipped += number_before(line, "ignored");
    }
    ensure!(finished.success || count.failed > 0, "the tests did not run to their end");
    ensure!(count.passed + count.failed > 0, "no test ran");
    Ok(Report { count, note: String::new() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finished(success: bool, output: &str) -> Finished {
        Finished { success, output: output.to_owned() }
    }

    #[test]
    fn harness_totals_of_all_binaries_are_added_up() {
        let output = "test result: ok. 10 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out\n\
                      test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured\n";
        let report = harness_report(&finished(false, output)).unwrap();
        assert_eq!(report.count, Count { passed: 12, failed: 1, skipped: 1 });
    }

    #[test]
    fn a_run_that_broke_off_is_no_success() {
        assert!(harness_report(&finished(false, "")).is_err());
        assert!(harness_report(&finished(true, "")).is_err());
    }
}
