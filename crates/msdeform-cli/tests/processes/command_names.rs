//! The commands, for tests of what speaks about all of them.

/// Every command that has a help text and a page, and is completed.
pub const COMMANDS: [&str; 17] = [
    "variants",
    "verify",
    "bench",
    "ledger",
    "onnx",
    "probe",
    "analyze",
    "counters",
    "records",
    "report",
    "run",
    "soak",
    "tune",
    "warm",
    "workloads",
    "completions",
    "man",
];
