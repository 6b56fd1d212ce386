//! One file per command.

pub mod analyze;
pub mod bench;
pub mod completions;
pub mod counters;
pub mod ledger;
pub mod main_job;
pub mod man;
pub mod onnx;
pub mod probe;
pub mod records;
pub mod report;
pub mod soak;
pub mod tune;
pub mod variants;
pub mod verify;
pub mod warm;
pub mod workloads;
