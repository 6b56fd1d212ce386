//! Everything that needs a GPU. Without one each test is listed as ignored, with the reason on top;
//! `MSDEFORM_REQUIRE_GPU=1` makes that a failure instead. The binary needs no files of the repository,
//! so it can be carried to a machine with a GPU and run there.

#![allow(clippy::unwrap_used, reason = "a test binary; its harness catches panics")]

mod backward;
mod conformance;
mod contention;
mod faults;
mod jit;
mod ladder;
mod launches;
mod lost_context;
mod random;
mod resident;
mod tensorrt;
mod without_cuda;

use libtest_mimic::{Arguments, Failed};
use msdeform_cuda::{DiskCache, Engine, Stream, broken_guards, device_count, guard_allocations};

/// What a test body returns: any error fails it.
type Outcome = Result<(), Failed>;

/// Fails a test unless something holds.
macro_rules! ensure {
    ($holds:expr, $($words:tt)+) => {
        if !$holds {
            return Err(format!($($words)+).into());
        }
    };
}
pub(crate) use ensure;

/// An engine that keeps nothing on disk.
fn engine() -> Result<Engine, Failed> {
    Ok(Engine::with_cache(0, DiskCache::nowhere())?)
}

/// The same with a stream.
fn engine_and_stream() -> Result<(Engine, Stream), Failed> {
    with_stream(engine()?)
}

/// The engine of the matrix, which has compiled most kernels, with a stream.
fn shared_engine() -> Result<(Engine, Stream), Failed> {
    with_stream(conformance::runner()?.engine()?)
}

fn with_stream(engine: Engine) -> Result<(Engine, Stream), Failed> {
    let stream = Stream::new(engine.context())?;
    Ok((engine, stream))
}

fn main() {
    // A test that loses its context does so in a process of its own.
    if let Some(code) = lost_context::run_as_child() {
        std::process::exit(code);
    }
    let arguments = Arguments::from_args();
    let devices = device_count();
    let required = std::env::var_os("MSDEFORM_REQUIRE_GPU").is_some_and(|value| value == "1");
    if let Err(error) = &devices {
        eprintln!("tests that need a GPU are ignored: {error}");
    }
    let count = devices.as_ref().copied().unwrap_or(0);

    let mut trials = Vec::new();
    let on_one = [
        conformance::trials(),
        ladder::trials(),
        backward::trials(),
        contention::trials(),
        launches::trials(),
        faults::trials(),
        random::trials(),
        lost_context::trials(),
        jit::trials(),
        tensorrt::trials(),
    ];
    trials.extend(
        on_one.into_iter().flatten().map(|trial| trial.with_ignored_flag(count < 1 && !required)),
    );
    // A machine with one GPU is an ordinary machine: never a failure.
    let on_two = faults::trials_on_two_devices().into_iter();
    trials.extend(on_two.map(|trial| trial.with_ignored_flag(count < 2)));
    let without = without_cuda::trials().into_iter();
    trials.extend(without.map(|trial| trial.with_ignored_flag(devices.is_ok())));
    // Every buffer of every test, workspaces too, lies in poison that is looked at when it is freed.
    guard_allocations();
    let conclusion = libtest_mimic::run(&arguments, trials);
    let broken = broken_guards();
    if !broken.is_empty() {
        eprintln!("memory around buffers was written:\n{}", broken.join("\n"));
        std::process::exit(101);
    }
    conclusion.exit();
}
