//! Random problems through the emulator: every production kernel as the dispatcher or a tuning file could choose
//! it, under the sanitizers, against the `f64` reference.
//!
//! Every run repeats the cases of past faults, then draws problems for a few minutes from a new seed, which it prints.
//! `MSDEFORM_SEED` repeats a seed, `MSDEFORM_RANDOM_PROBLEMS` sets the number of problems of every dtype and
//! direction, and `MSDEFORM_CASE` runs one line that an earlier run printed.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking, also in its shared functions"
)]

#[path = "../common/mod.rs"]
mod common;
mod emulated;

use std::hash::{BuildHasher, RandomState};
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

use emulated::EmulatedRunner;
use msdeform::Operator;
use msdeform_emulator::compiler_version;
use msdeform_lab::Case;
use msdeform_lab::runner::check;
use msdeform_lab::soak::{Bounds, Limit, SoakOptions, SoakReport, soak};

/// Cases of past faults, found here or on a GPU, each with its fault. Part of every run.
const ONCE_WRONG: [&str; 5] = [
    // The step that sums lists read raw bf16 weights as f16 weights of a softmax.
    "batch=1 heads=1 channels=8 queries=1 levels=1x1@0 spatial=1 points=1 dtype=bf16 \
     from=points,anchors:5,scale:0.25,raw references=bf16 gradients=value mode=fast locations=inside \
     values=unit weights=softmax upstream=unit seed=3289355724 variant=bwd_level_sort knobs=ENTRY_BYTES:8",
    "batch=1 heads=1 channels=8 queries=1 levels=1x1@0 spatial=1 points=1 dtype=bf16 \
     from=points,anchors:5,scale:0.25,raw references=bf16 gradients=value mode=fast locations=inside \
     values=unit weights=signed upstream=unit seed=3289355724 variant=bwd_tile_sort knobs=ENTRY_BYTES:8",
    // One sample was rounded twice, which the accuracy contract did not allow.
    "batch=1 heads=1 channels=8 queries=1 levels=3x3@0 spatial=9 points=1 dtype=bf16 sampling=f32 \
     gradients=value mode=fast upstream_memory=expanded locations=inside values=unit weights=signed \
     upstream=unit seed=40",
    // The same; most of the result was not compared, because of a NaN that an expanded tensor had no room for.
    "batch=2 heads=4 channels=32 queries=2 levels=3x3@0,3x2@9,3x2@15,1x2@21 spatial=23 points=1,1,1,1 dtype=bf16 \
     sampling=f32 gradients=value mode=fast upstream_memory=expanded locations=borders values=unit \
     weights=softmax upstream=one_nan seed=2343565141",
    // Two lanes had the last quad of a row, and the duplicate wrote weights of zero over the other's.
    "batch=1 heads=5 channels=88 queries=5 levels=2x2@0,2x2@16,2x2@32,2x2@48 spatial=64 points=1,3,7,7 dtype=f16 \
     layout=head_major_padded from=points references=f16 source_memory=shared_references locations=mixed values=unit \
     weights=softmax seed=1335042605",
];

/// Outputs in another dtype than the values, in both directions and for both operators. Rarely drawn, so part of every
/// run.
const OTHER_OUTPUTS: [&str; 4] = [
    "batch=2 heads=3 channels=24 queries=9 levels=5x7@0,3x2@35 spatial=41 points=3,2 dtype=f16 output=f32 \
     locations=mixed values=unit weights=softmax seed=1",
    "batch=2 heads=3 channels=7 queries=9 levels=5x7@0,3x2@35 spatial=41 points=3,2 dtype=bf16 output=f32 \
     from=points references=f32 locations=mixed values=unit weights=softmax seed=2",
    "batch=2 heads=3 channels=24 queries=9 levels=5x7@0,3x2@35 spatial=41 points=3,2 dtype=bf16 sampling=f32 \
     output=f32 gradients=value+locations+weights mode=deterministic locations=mixed values=unit weights=softmax \
     upstream=unit seed=3",
    "batch=2 heads=3 channels=7 queries=9 levels=5x7@0,3x2@35 spatial=41 points=3,2 dtype=f16 output=f32 \
     from=boxes references=f16 gradients=value+locations+weights+references mode=fast \
     upstream_memory=expanded locations=mixed values=unit weights=softmax upstream=unit seed=4",
];

/// Problems of every dtype and direction.
const PROBLEMS: u64 = 40;

fn main() -> ExitCode {
    // A failure and not a skip, because without a compiler no kernel has run.
    if let Err(error) = compiler_version() {
        println!("{error}");
        return ExitCode::FAILURE;
    }
    let runner = EmulatedRunner::default();
    if let Some(case) = from_environment::<Case>("MSDEFORM_CASE") {
        return run_case(&runner, &case);
    }
    let is_wrong = |line: &&str| run_case(&runner, &line.parse().unwrap()) != ExitCode::SUCCESS;
    let known = ONCE_WRONG.iter().chain(&OTHER_OUTPUTS).copied();
    let wrong = known.filter(is_wrong).collect::<Vec<_>>();
    if !wrong.is_empty() {
        println!("wrong: {wrong:#?}");
        return ExitCode::FAILURE;
    }
    let seed = from_environment("MSDEFORM_SEED")
        .unwrap_or_else(|| RandomState::new().hash_one(std::process::id()) >> 32);
    let options = SoakOptions {
        // A lane is a fiber, so problems are small. They find the same faults in a thousandth of the time.
        bounds: Bounds {
            work: 40_000,
            queries: 60,
            operators: Operator::ALL.to_vec(),
            ..Bounds::default()
        },
        seed,
        limit: Limit::Problems(from_environment("MSDEFORM_RANDOM_PROBLEMS").unwrap_or(PROBLEMS)),
        threads: std::thread::available_parallelism().map_or(1, usize::from),
        sizes: 10,
        hung_after: Duration::from_secs(120),
    };
    println!("random problems through the emulator, MSDEFORM_SEED={seed}");
    let mut shown = 0;
    let report = soak(&runner, &options, &mut |progress, hung| {
        if progress.elapsed.as_secs() / 60 > shown {
            shown = progress.elapsed.as_secs() / 60;
            println!("{} problems, {} wrong", progress.problems, progress.failures);
        }
        if let Some(report) = hung {
            print_report(report);
            std::process::exit(1);
        }
    });
    print_report(&report)
}

fn from_environment<T: FromStr>(name: &str) -> Option<T> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}

fn print_report(report: &SoakReport) -> ExitCode {
    for hang in &report.hangs {
        println!("hung for {} s: MSDEFORM_CASE=\"{}\"", hang.seconds, hang.case);
    }
    for failure in &report.failures {
        println!("{}\n    MSDEFORM_CASE=\"{}\"", failure.fault, failure.case);
        println!("    drawn as {}", failure.drawn);
    }
    println!("largest errors, relative to the allowed ones: {:.3?}", report.worst_of_allowed);
    println!(
        "{} of {} features, {} specialisations, {} launches in {:.0} s; {} refused",
        report.features_met,
        report.features,
        report.specialisations,
        report.launches,
        report.seconds,
        report.refused
    );
    let failed = report.failed + report.hangs.len() as u64;
    let passed = report.total() - report.failed.min(report.total());
    let verdict = if failed == 0 { "ok" } else { "FAILED" };
    println!("test result: {verdict}. {passed} passed; {failed} failed; 0 ignored");
    if failed == 0 && passed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run_case(runner: &EmulatedRunner, case: &Case) -> ExitCode {
    match check(runner, case) {
        Ok(checked) => {
            let (variant, fault) = (checked.resolved.variant, checked.fault().unwrap_or("passes"));
            println!("{variant}: {fault}");
            if checked.fault().is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(fault) => {
            println!("{fault}");
            ExitCode::FAILURE
        }
    }
}
