//! What can be wrong with a call, and what to do about it.

use candle_core::{DType, DeviceLocation};

/// Everything that can go wrong. It becomes a [`candle_core::Error`] by `?`, with the same words.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A tensor that lies where nothing computes in this build.
    #[error(
        "`{tensor}` is on {location:?}; expected the CPU or, with the feature `cuda`, an NVIDIA GPU; \
         pass `{tensor}.to_device(&Device::Cpu)?`"
    )]
    Device {
        /// The tensor.
        tensor: &'static str,
        /// Where it is.
        location: DeviceLocation,
    },
    /// A tensor that is not where the values are.
    #[error(
        "`{tensor}` is on {location:?}, `value` on {value:?}; move one of them with `to_device`"
    )]
    Devices {
        /// The tensor.
        tensor: &'static str,
        /// Where it is.
        location: DeviceLocation,
        /// Where the values are.
        value: DeviceLocation,
    },
    /// A tensor of a dtype that the operator does not compute, alone or with the others'.
    #[error("`{tensor}` is {found:?}, expected {expected}; convert it with `to_dtype`")]
    Format {
        /// The tensor.
        tensor: &'static str,
        /// Its format.
        found: DType,
        /// What it may be.
        expected: String,
    },
    /// Levels that are not those of the values.
    #[error(
        "the levels have {levels} pixels, `value` has {found}; check their (height, width), or say with `Levels::starts` where they lie"
    )]
    Pixels {
        /// Pixels of all levels.
        levels: usize,
        /// Pixels of the value tensor.
        found: usize,
    },
    /// Samples that levels do not share equally.
    #[error(
        "{samples} samples cannot be the same number of points on each of {levels} levels; \
         say how many each has with `Levels::points`"
    )]
    Points {
        /// Samples of a query and head.
        samples: usize,
        /// Number of levels.
        levels: usize,
    },
    /// Sizes of a module that do not fit each other.
    #[error("the configuration cannot be: {reason}")]
    Configuration {
        /// What is wrong with it.
        reason: String,
    },
    /// What the library has to say about the call.
    #[error(transparent)]
    Call(msdeform::Error),
    /// What the GPU has to say.
    #[cfg(feature = "cuda")]
    #[error(transparent)]
    Cuda(#[from] msdeform_cuda::Error),
    /// What candle has to say.
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
}

/// Results of this crate.
pub type Result<T> = std::result::Result<T, Error>;

impl From<msdeform::Error> for Error {
    /// What the callers of this crate can change is named as they know it.
    fn from(error: msdeform::Error) -> Self {
        let size = |number: i64| usize::try_from(number).unwrap_or(0);
        match error {
            msdeform::Error::LevelPixels { levels, pixels, .. } => {
                Self::Pixels { levels: size(levels), found: size(pixels) }
            }
            msdeform::Error::UnevenSamples { samples, levels, .. } => {
                Self::Points { samples: size(samples), levels }
            }
            other => Self::Call(other),
        }
    }
}

impl From<Error> for candle_core::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Candle(error) => error,
            other => Self::wrap(other),
        }
    }
}
