//! The laboratory of msdeform: workloads, seeded inputs, verification against the `f64` reference,
//! timing, statistics and records. The command line and the README table are made from it.

mod buffer;
pub mod generate;
pub mod workload;

pub use buffer::Buffer;
pub use generate::{Draw, HostTensors, STANDARD_SEED};
pub use workload::{Locations, Workload, WorkloadError};
