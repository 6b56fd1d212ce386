//! Errors of devices.

use super::DeviceId;

#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    #[error("unknown device `{name}`; known: cpu, cuda, cuda:0, cuda:1, ...")]
    Unknown { name: String },
    #[error("device {device} is not available: {missing}")]
    Unavailable { device: DeviceId, missing: String },
    #[error("device {device} has no variant `{variant}`; it has: {}", known.join(", "))]
    UnknownVariant { device: DeviceId, variant: String, known: Vec<&'static str> },
    #[error("variant `{variant}` cannot do this: {reason}")]
    Unsupported { variant: &'static str, reason: String },
    /// The variant that a case names does not take it.
    #[error("refused: {reason}")]
    Refused { reason: String },
    #[error("variant `{variant}` failed: {source}")]
    Run { variant: &'static str, source: msdeform::Error },
    /// A write outside of a tensor, or into one that is only read.
    #[error(transparent)]
    Trespass(#[from] crate::case::Trespass),
    #[error("{reason}")]
    Failed { reason: String },
    /// A case went wrong, and nothing will work on this device any more.
    #[error("the device is lost: {reason}")]
    Lost { reason: String },
    #[error("variant `{variant}` failed on the GPU: {source}")]
    Cuda { variant: &'static str, source: Box<msdeform_cuda::Error> },
    #[error("probing {device} failed: {source}")]
    Probe { device: DeviceId, source: Box<msdeform_cuda::Error> },
    #[error(
        "variant `{variant}` is not bitwise reproducible: a second run in deterministic mode gave other bits"
    )]
    OtherBits { variant: String },
    #[error(
        "cannot run on {threads} threads: at least one is needed, and at most {most} are started"
    )]
    ThreadCount { threads: usize, most: usize },
    #[error("cannot start {threads} threads: {reason}")]
    Threads { threads: usize, reason: String },
}

impl DeviceError {
    pub(crate) fn unsupported(variant: &'static str, reason: &dyn ToString) -> Self {
        Self::Unsupported { variant, reason: reason.to_string() }
    }

    pub(crate) fn refusal(variant: &'static str, error: msdeform::Error) -> Self {
        match error {
            msdeform::Error::Unsupported { variant, reason } => Self::unsupported(variant, &reason),
            other => Self::unsupported(variant, &other),
        }
    }
}
