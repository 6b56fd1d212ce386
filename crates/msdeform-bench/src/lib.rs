//! The laboratory of msdeform: workloads, seeded inputs, verification against the `f64` reference,
//! timing, statistics and records. The command line and the README's tables are made from it.

pub mod analyze;
mod bench_case;
mod buffer;
pub mod case;
pub mod ceilings;
pub mod compare;
pub mod counters;
pub mod device;
pub mod generate;
pub mod grid;
pub mod ladder;
pub mod ledger;
mod measure;
pub mod memory;
mod number;
pub mod overview;
pub mod peers;
pub mod readme;
pub mod record;
pub mod report;
pub mod soak;
mod statistics;
pub mod tune;
pub mod verify;
pub mod verify_compiled;
pub mod work;
pub mod workload;

pub use analyze::Analysis;
pub use bench_case::{BenchError, bench_case, bench_step};
pub use buffer::Buffer;
pub use case::Case;
pub use ceilings::{Ceiling, Ceilings, Floors};
pub use device::{Device, DeviceError, DeviceId};
pub use generate::{Draw, HostTensors, STANDARD_SEED};
pub use grid::{Breadth, Selection};
pub use measure::{Budget, Measurement, measure, measure_step};
pub use memory::MemoryError;
pub use record::{Record, RecordError};
pub use statistics::Statistics;
pub use work::{Throughput, Work};
pub use workload::{Locations, Workload, WorkloadError};

#[cfg(test)]
mod laboratory_tests;
