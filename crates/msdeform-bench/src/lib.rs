//! Measuring on a device: verification against the `f64` reference, timing, statistics, ceilings, counters, tuning, and
//! the records that all of them leave. What is made of records is `msdeform-report`'s.
#![allow(missing_docs, reason = "not published: comments give reasons, invariants and units")]

pub mod analyze;
mod bench;
pub mod ceilings;
pub mod counters;
pub mod digits;
#[cfg(any(test, feature = "fixtures"))]
pub mod fixtures;
mod grid;
mod measure;
pub mod models;
pub mod record;
mod statistics;
pub mod tune;
pub mod verify;
pub mod verify_compiled;
pub mod warm;

pub use analyze::Analysis;
pub use bench::{BenchError, Planned, Progress, Stage, bench_cases, bench_step};
pub use ceilings::{Ceilings, Floors};
pub use grid::{Breadth, Selection};
pub use measure::{Budget, Measurement};
pub use record::{Record, RecordError};
pub use statistics::Statistics;

#[cfg(test)]
mod laboratory_tests;
