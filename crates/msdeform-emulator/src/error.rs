//! Errors of the emulator.

use std::path::{Path, PathBuf};
use std::process::ExitStatus;

/// Why a kernel could not be compiled or did not run to its end.
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
    /// A kernel did not start or did not run to its end.
    #[error("`{kernel}` {fault}:\n{report}")]
    Run {
        /// The kernel.
        kernel: String,
        /// What happened.
        fault: Fault,
        /// Where: the block, its threads and what each did.
        report: String,
    },
}

/// What ends the run of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The request does not fit the kernel; the caller is wrong.
    #[error("was not started")]
    Request,
    /// Threads that must meet did not: at a barrier or in a warp-wide instruction.
    #[error("diverged")]
    Divergence,
    /// No thread of a block could go on.
    #[error("deadlocked")]
    Deadlock,
    /// An instruction was given an operand it forbids, or an input was written to.
    #[error("misused an instruction")]
    Misuse,
    /// An access wider than its address is aligned.
    #[error("made a misaligned access")]
    Misaligned,
    /// The kernel itself gave up.
    #[error("trapped")]
    Trap,
    /// The launch took longer than allowed.
    #[error("ran out of time")]
    Timeout,
    /// `AddressSanitizer` or `UndefinedBehaviorSanitizer` stopped the kernel.
    #[error("was stopped by a sanitizer")]
    Sanitizer,
    /// The process ended in a way that none of the above describes.
    #[error("ended with {0}")]
    Crashed(ExitStatus),
}

/// The exit code that the sanitizers are told to use.
pub(crate) const SANITIZER_EXIT: i32 = 51;

impl Fault {
    /// The fault that an exit code of the runner stands for (`Fault` in `cpp/runtime.hpp`).
    pub(crate) fn from_exit(status: ExitStatus) -> Self {
        match status.code() {
            Some(40) => Self::Request,
            Some(41) => Self::Divergence,
            Some(42) => Self::Deadlock,
            Some(43) => Self::Misuse,
            Some(44) => Self::Misaligned,
            Some(45) => Self::Trap,
            Some(46) => Self::Timeout,
            Some(SANITIZER_EXIT) => Self::Sanitizer,
            _ => Self::Crashed(status),
        }
    }

    /// The error of a kernel.
    pub(crate) fn of(self, kernel: &str, report: String) -> EmulatorError {
        EmulatorError::Run { kernel: kernel.to_owned(), fault: self, report }
    }
}

/// Turns an error of the system into one about a path.
pub(crate) fn io(what: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> EmulatorError {
    let path = path.to_owned();
    move |source| EmulatorError::Io { what, path, source }
}
