//! One file per command.

pub mod analyze;
pub mod bench;
pub mod main_job;
pub mod probe;
pub mod profile;
pub mod records;
pub mod report;
pub mod soak;
pub mod tune;
pub mod variants;
pub mod verify;
pub mod workloads;
