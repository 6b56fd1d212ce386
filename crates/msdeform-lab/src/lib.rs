//! The laboratory: what runs the operator, judges the results and measures the time. Tests, fuzzers and the command share it.
//!
//! - Run. [`workload`]: the shapes that people use. [`case`]: a call with everything that decides about its result.
//!   [`device`]: what runs and times variants. [`runner`]: backends that compute cases in memory whose surroundings are checked.
//! - Judge. [`oracle`]: the accuracy contract. [`conformance`]: the named cases of every backend. [`soak`]: random ones.
//!   [`verify`]: workloads. [`models`]: every kernel that dispatch can choose for known models.
//! - Measure. [`bench_cases`]: times with their errors. [`tune`]: the best variant and knobs. [`counters`], [`ceilings`] and
//!   [`analyze`] explain the times. [`record`]: all results on disk. `msdeform-report` makes tables and pages of them.
//!
//! The crate knows the variants of a GPU only as the list that a caller passes: the laboratory has more than the product.
//!
//! ```
//! use msdeform_lab::runner::{CpuRunner, Runner, check};
//! use msdeform_lab::soak::{Bounds, Generator};
//!
//! let runner = CpuRunner;
//! let generator = Generator::new(runner.rules(), Bounds { strided: false, ..Bounds::default() }, 1);
//! for case in generator.cases(0, 3) {
//!     let checked = check(&runner, &case).unwrap();
//!     assert_eq!(checked.fault(), None, "{case}");
//! }
//! ```

#![allow(
    missing_docs,
    reason = "a comment here gives a reason, an invariant or a unit; names tell the rest"
)]

pub mod analyze;
mod bench;
mod buffer;
pub mod case;
pub mod ceilings;
pub mod conformance;
pub mod counters;
pub mod device;
pub mod digits;
#[cfg(any(test, feature = "fixtures"))]
pub mod fixtures;
mod generate;
mod grid;
mod measure;
pub mod memory;
pub mod models;
mod names;
pub mod number;
pub mod oracle;
mod random;
pub mod record;
pub mod runner;
pub mod soak;
mod statistics;
mod tensors;
pub mod tune;
pub mod verify;
pub mod verify_compiled;
pub mod warm;
pub mod work;
pub mod workload;

pub use analyze::Analysis;
pub use bench::{BenchError, Planned, Progress, Stage, bench_cases, bench_step};
pub use buffer::Buffer;
pub use case::{Case, Numbers};
pub use ceilings::{Ceilings, Floors};
pub use device::{Ceiling, Device, DeviceError, DeviceId};
pub use generate::{Draw, STANDARD_SEED};
pub use grid::{Breadth, Selection};
pub use measure::{Budget, Measurement};
pub use memory::MemoryError;
pub use random::Random;
pub use record::{Record, RecordError};
pub use statistics::Statistics;
pub use tensors::{HostTensors, Widened};
pub use work::{Throughput, Work};
pub use workload::{Locations, Workload, WorkloadCase, WorkloadError};

#[cfg(test)]
mod laboratory_tests;
