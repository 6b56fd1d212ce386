//! Errors of devices.

use super::DeviceId;

/// What can go wrong between a command and a device.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// An unknown name of a device.
    #[error("unknown device `{name}`; known: cpu, cuda, cuda:0, cuda:1, ...")]
    Unknown {
        /// The name as given.
        name: String,
    },
    /// A device that is known but not there.
    #[error("device {device} is not available: {missing}")]
    Unavailable {
        /// The device.
        device: DeviceId,
        /// What is missing and what to do about it.
        missing: String,
    },
    /// A variant that is not registered for the device.
    #[error("device {device} has no variant `{variant}`; it has: {}", known.join(", "))]
    UnknownVariant {
        /// The device.
        device: DeviceId,
        /// The id as given.
        variant: String,
        /// The ids it has.
        known: Vec<&'static str>,
    },
    /// A variant that cannot do this problem on this device.
    #[error("variant `{variant}` cannot do this: {reason}")]
    Unsupported {
        /// The variant.
        variant: &'static str,
        /// Why not.
        reason: String,
    },
    /// The variant ran, or tried to, and failed.
    #[error("variant `{variant}` failed: {source}")]
    Run {
        /// The variant.
        variant: &'static str,
        /// Its error.
        source: msdeform::Error,
    },
    /// A write outside of a tensor, or into one that is only read.
    #[error(transparent)]
    Trespass(#[from] crate::case::Trespass),
    /// A case went wrong.
    #[error("{reason}")]
    Failed {
        /// What went wrong.
        reason: String,
    },
    /// A case went wrong, and nothing will work on this device any more.
    #[error("{reason}")]
    Lost {
        /// What went wrong.
        reason: String,
    },
    /// A GPU, its driver or its compiler failed.
    #[error("variant `{variant}` failed on the GPU: {source}")]
    Cuda {
        /// The variant.
        variant: &'static str,
        /// What went wrong, and what to do about it.
        source: Box<msdeform_cuda::Error>,
    },
    /// A probe of a GPU failed.
    #[error("probing {device} failed: {source}")]
    Probe {
        /// The device.
        device: DeviceId,
        /// What went wrong, and what to do about it.
        source: Box<msdeform_cuda::Error>,
    },
    /// A variant that should be bitwise reproducible and is not.
    #[error(
        "variant `{variant}` is not bitwise reproducible: a second run in deterministic mode gave other bits"
    )]
    OtherBits {
        /// The variant.
        variant: String,
    },
    /// A number of threads out of range.
    #[error(
        "cannot run on {threads} threads: at least one is needed, and at most {most} are started"
    )]
    ThreadCount {
        /// The number of threads.
        threads: usize,
        /// The most that are started.
        most: usize,
    },
    /// Worker threads could not be started.
    #[error("cannot start {threads} threads: {reason}")]
    Threads {
        /// The number of threads.
        threads: usize,
        /// The error of the system.
        reason: String,
    },
}
