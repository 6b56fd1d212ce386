//! Random problems for every backend of `msdeform`: one generator, one oracle, one comparison.
//!
//! A [`Case`] is a call with all that can be said about it; its line makes it again. A [`Generator`] draws
//! cases by the [`Rules`] of a backend, a [`Runner`] computes them in memory whose surroundings are checked,
//! and [`check`] compares with the `f64` reference. What fails is [shrunk](shrink). What every backend computes in
//! any case, by name, is in [`conformance`].
//!
//! ```
//! use msdeform_cases::{Bounds, CpuRunner, Generator, Runner, check};
//!
//! let runner = CpuRunner::default();
//! let generator = Generator::new(runner.rules(), Bounds { strided: false, ..Bounds::default() }, 1);
//! let mut worker = runner.worker().unwrap();
//! for case in generator.cases(0, 3) {
//!     let checked = check(runner.rules(), worker.as_mut(), &case, &mut |_| ()).unwrap();
//!     assert_eq!(checked.fault(), None, "{case}");
//! }
//! ```

mod axis;
mod case;
pub mod conformance;
mod coverage;
mod cpu;
mod cuda;
mod generate;
mod line;
pub mod memory;
mod numbers;
mod oracle;
mod random;
mod roundings;
mod rules;
mod runner;
mod shrink;
mod soak;
mod tensors;

pub use case::{
    Case, Numbers, Offsets, SourceMemory, UpstreamMemory, ValueMemory, VariantWish, Wants,
};
pub use coverage::Coverage;
pub use cpu::{CpuRunner, run_plan};
pub use cuda::CudaRunner;
pub use generate::{Bounds, Generator};
pub use line::BadLine;
pub use numbers::{Locations, Values, Weights};
pub use oracle::{CANCELLATION, Class, Expected, Verdict, expect, floor};
pub use random::Random;
pub use rules::{CpuRules, CudaRules, Resolved, Rules};
pub use runner::{Checked, Fault, Phase, Ran, Runner, Worker, check};
pub use shrink::shrink;
pub use soak::{Failure, Hang, Limit, MemorySample, Progress, SoakOptions, SoakReport, soak};
pub use tensors::{Input, Inputs, SourceInputs};

// Part of what a case says.
pub use msdeform_cuda::Gradients;
