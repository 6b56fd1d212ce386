//! The software around a measurement.

use serde::{Deserialize, Serialize};
use sysinfo::System;

/// Versions that may explain a difference between two records.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Environment {
    /// Version of this crate.
    pub msdeform: String,
    /// The compiler that built it.
    pub rustc: String,
    /// Target and whether it was optimised.
    pub build: String,
    /// Operating system and its version.
    pub os: String,
    /// Kernel version.
    pub kernel: String,
}

impl Environment {
    /// Of this process.
    #[must_use]
    pub fn now() -> Self {
        let profile = if cfg!(debug_assertions) { "debug" } else { "release" };
        Self {
            msdeform: env!("CARGO_PKG_VERSION").to_owned(),
            rustc: env!("MSDEFORM_RUSTC").to_owned(),
            build: format!("{} {profile}", env!("MSDEFORM_TARGET")),
            os: System::long_os_version().unwrap_or_else(|_| std::env::consts::OS.to_owned()),
            kernel: System::kernel_version().unwrap_or_default(),
        }
    }
}
