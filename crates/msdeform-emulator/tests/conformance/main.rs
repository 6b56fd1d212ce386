//! Runs every registered kernel on the host and compares it with the `f64` reference.
//!
//! Runs every variant of the registry, over its dtypes, layouts and knobs and over the shapes and scenes of
//! `msdeform_lab::conformance`. It is a program of its own and not a list of `#[test]`s, so that it always shows
//! what ran and what was skipped. Arguments that are no flags select variants by a part of their id;
//! `MSDEFORM_EMULATOR_FULL=1` runs every combination instead of a cover.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking, also in its shared functions"
)]

#[path = "../common/mod.rs"]
mod common;
mod cover;
mod report;
mod run;

use std::process::ExitCode;

use msdeform_cuda_lab::REGISTRY;

fn main() -> ExitCode {
    let wanted: Vec<String> =
        std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    match msdeform_emulator::compiler_version() {
        Ok(version) => {
            println!("emulated kernels against the f64 reference, compiled by {version}");
        }
        // A failure and not a skip, because without a compiler no kernel has run.
        Err(error) => {
            println!("{error}");
            return ExitCode::FAILURE;
        }
    }
    let full = std::env::var_os("MSDEFORM_EMULATOR_FULL").is_some_and(|value| value == "1");
    let mut report = report::Report::default();
    let is_wanted = |id: &str| wanted.is_empty() || wanted.iter().any(|part| id.contains(part));
    let variants: Vec<_> =
        REGISTRY.iter().copied().filter(|variant| is_wanted(variant.spec.id)).collect();
    run::run_variants(&variants, full, |outcome| {
        println!("{outcome}");
        report.add(outcome);
    });
    println!("{report}");
    if report.passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
