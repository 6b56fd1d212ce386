//! Exit codes that scripts can trust.

use std::error::Error;

use msdeform_files::{Fault, FileError};
use msdeform_lab::warm::WarmError;
use msdeform_lab::{BenchError, DeviceError, WorkloadError};

/// The codes, as `--help` shows them.
pub const EXIT_CODES: &str = "Exit codes:
  0  done, and everything that was checked is within its bound
  1  a check failed: a variant is not within its bound of the f64 reference, or a comparison of
     records found something slower
  2  the command line is wrong; change it: an option, name, size or file that is unknown, a size
     that is missing, an output that exists
  3  the device, the system or the data failed: a file that cannot be read or written, tensors that
     do not fit together, no memory";

/// A check that ran and failed.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct CheckFailed(pub String);

/// A command line that parses but cannot be run as it is.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(pub String);

/// The reader of standard output closed it.
#[derive(Debug, thiserror::Error)]
#[error("standard output was closed")]
pub struct OutputClosed;

/// Reports an error on standard error and turns it into its code.
pub fn report(error: &anyhow::Error) -> u8 {
    if error.is::<OutputClosed>() {
        return 0;
    }
    eprintln!("error: {}", message(error));
    code(error)
}

/// An error and its causes, but those that it has quoted already.
pub fn message(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
    }
    text
}

fn code(error: &anyhow::Error) -> u8 {
    let of_cause = |cause: &(dyn Error + 'static)| match cause {
        _ if cause.is::<CheckFailed>() => Some(1),
        _ if is_usage(cause) => Some(2),
        _ => None,
    };
    error.chain().find_map(of_cause).unwrap_or(3)
}

fn is_usage(cause: &(dyn Error + 'static)) -> bool {
    if let Some(
        DeviceError::UnknownVariant { .. }
        | DeviceError::Unknown { .. }
        | DeviceError::ThreadCount { .. },
    ) = cause.downcast_ref()
    {
        return true;
    }
    // The path names something that the command cannot use. A file that cannot be read or written has code 3.
    if let Some(error) = cause.downcast_ref::<FileError>() {
        return matches!(error.fault, Fault::Exists | Fault::Folder | Fault::Special(_));
    }
    match cause.downcast_ref() {
        Some(BenchError::Workload(error)) => return is_usage(error),
        Some(BenchError::Device(error)) => return is_usage(error),
        _ => {}
    }
    cause.is::<Usage>()
        || matches!(cause.downcast_ref(), Some(WarmError::UnknownArchitecture { .. }))
        || cause.downcast_ref().is_some_and(|error| !matches!(error, WorkloadError::Memory(_)))
}

#[cfg(test)]
mod tests {
    use anyhow::{Context, anyhow};

    use super::*;

    #[test]
    fn causes_decide_about_the_code_however_deep_they_lie() {
        let check = Err::<(), _>(CheckFailed("x".into())).context("outer").unwrap_err();
        assert_eq!(code(&check), 1);
        assert_eq!(code(&anyhow!(Usage("x".into()))), 2);
        let workload = WorkloadError::Parse { path: "x".into(), message: "y".into() };
        assert_eq!(code(&anyhow!(BenchError::Workload(workload)).context("z")), 2);
        let missing = DeviceError::Unavailable {
            device: msdeform_lab::DeviceId::Cuda(0),
            missing: "no driver".into(),
        };
        assert_eq!(code(&anyhow!(missing)), 3);
        assert_eq!(code(&anyhow!("anything")), 3);
    }

    #[test]
    fn nothing_is_said_twice() {
        let missing = std::io::Error::from(std::io::ErrorKind::NotFound);
        let said = missing.to_string();
        let quoted =
            anyhow!(missing).context(format!("cannot open x: {said}")).context("cannot read x");
        assert_eq!(message(&quoted), format!("cannot read x: cannot open x: {said}"));
        assert_eq!(message(&anyhow!("alone")), "alone");
    }
}
