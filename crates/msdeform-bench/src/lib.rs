//! Workloads, verification, timing and records.
