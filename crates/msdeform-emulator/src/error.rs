//! Errors of the emulator.

use std::path::PathBuf;

/// Why a kernel could not be compiled or did not run to its end. The text of a run that failed names
/// the block and the thread.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EmulatorError {
    /// There is no C++ compiler.
    #[error("no C++ compiler found (tried {tried}); install g++ or set CXX")]
    CompilerMissing {
        /// The commands tried.
        tried: String,
    },
    /// The compiler refused the kernel.
    #[error("`{kernel}` does not compile for the host:\n{log}")]
    Compile {
        /// File name of the kernel or of the runtime's source.
        kernel: String,
        /// The compiler's messages.
        log: String,
    },
    /// A file could not be read or written, or a process not started.
    #[error("{what} `{path}`: {source}")]
    Io {
        /// The failed operation.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// `AddressSanitizer` or `UndefinedBehaviorSanitizer` stopped the kernel.
    #[error("`{kernel}` was stopped by a sanitizer:\n{report}")]
    Sanitizer {
        /// The kernel.
        kernel: String,
        /// The sanitizer's report.
        report: String,
    },
    /// Threads that must meet did not: at a barrier or in a warp-wide instruction.
    #[error("`{kernel}` diverged:\n{report}")]
    Divergence {
        /// The kernel.
        kernel: String,
        /// The threads and their places.
        report: String,
    },
    /// No thread of a block could go on.
    #[error("`{kernel}` deadlocked:\n{report}")]
    Deadlock {
        /// The kernel.
        kernel: String,
        /// The threads and what each waited for.
        report: String,
    },
    /// An instruction was given an operand it forbids, or an input was written to.
    #[error("`{kernel}` misused an instruction:\n{report}")]
    Misuse {
        /// The kernel.
        kernel: String,
        /// Which one and how.
        report: String,
    },
    /// An access wider than its address is aligned.
    #[error("`{kernel}` made a misaligned access:\n{report}")]
    Misaligned {
        /// The kernel.
        kernel: String,
        /// Which one.
        report: String,
    },
    /// The kernel itself gave up.
    #[error("`{kernel}` trapped:\n{report}")]
    Trap {
        /// The kernel.
        kernel: String,
        /// Where.
        report: String,
    },
    /// The launch took longer than allowed.
    #[error("`{kernel}` ran out of time:\n{report}")]
    Timeout {
        /// The kernel.
        kernel: String,
        /// Which thread ran last.
        report: String,
    },
    /// The request does not fit the kernel; the caller is wrong.
    #[error("`{kernel}` was not started: {report}")]
    Request {
        /// The kernel.
        kernel: String,
        /// What is wrong with the request.
        report: String,
    },
    /// The process ended in a way that none of the above describes.
    #[error("`{kernel}` ended with {status}:\n{report}")]
    Crashed {
        /// The kernel.
        kernel: String,
        /// Its exit status.
        status: String,
        /// What it printed.
        report: String,
    },
}

/// The exit code that the sanitizers are told to use.
pub(crate) const SANITIZER_EXIT: i32 = 51;

impl EmulatorError {
    /// The error that an exit code of the runner stands for (`Fault` in `cpp/runtime.hpp`).
    pub(crate) fn from_exit(
        kernel: &str,
        status: std::process::ExitStatus,
        report: String,
    ) -> Self {
        let kernel = kernel.to_owned();
        match status.code() {
            Some(40) => Self::Request { kernel, report },
            Some(41) => Self::Divergence { kernel, report },
            Some(42) => Self::Deadlock { kernel, report },
            Some(43) => Self::Misuse { kernel, report },
            Some(44) => Self::Misaligned { kernel, report },
            Some(45) => Self::Trap { kernel, report },
            Some(46) => Self::Timeout { kernel, report },
            Some(SANITIZER_EXIT) => Self::Sanitizer { kernel, report },
            _ => Self::Crashed { kernel, status: status.to_string(), report },
        }
    }
}
