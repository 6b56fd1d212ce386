//! What a call can fail with.

use msdeform_cuda::Error as CudaError;

/// Everything that can be wrong with a call.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    #[error(
        "`grad_output` has shape {found:?} and is {format}; expected {expected:?} of {expected_format}"
    )]
    GradOutput { found: Vec<i64>, format: String, expected: Vec<i64>, expected_format: String },
    #[error("`{tensor}` is {found}; expected torch.float32, float16, bfloat16 or float64")]
    Dtype { tensor: &'static str, found: String },
    #[error("`{tensor}` is {found}; expected a dense tensor, as `.to_dense()` makes one")]
    Layout { tensor: &'static str, found: String },
    #[error("all tensors must be on one device, found {0}; move them with `.to(device)`")]
    Devices(String),
    #[error("unknown dtype code {0}")]
    DtypeCode(usize),
    #[error("{0} is a size of a tensor, and no 64-bit integer")]
    Size(String),
    #[error(
        "`levels` has {0} numbers; give height, width, start and points for each level, one after \
         the other"
    )]
    LevelNumbers(usize),
    /// Levels in tensors that cannot be read; the sentence says what is wrong.
    #[error("{0}")]
    Levels(String),
    #[error("`{tensor}` is {found}; expected integers")]
    NoIntegers { tensor: &'static str, found: String },
    /// Memory that is gone: a tensor whose storage was freed or resized to nothing.
    #[error(
        "`{tensor}` has no memory behind it: its storage was freed or resized; pass a live tensor"
    )]
    NoMemory { tensor: &'static str },
    #[error(transparent)]
    Problem(#[from] msdeform::Error),
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// Something that cannot be part of a CUDA graph, while one is being captured; the sentence says what to do.
    #[error("{0}")]
    Capture(String),
    #[error("{0}")]
    Torch(String),
}

/// What kind of exception says it best.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Type,
    Value,
    /// No GPU of this machine can be used.
    Unavailable,
    Runtime,
}

impl CallError {
    /// What kind of exception says it best.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        match self {
            Self::Dtype { .. }
            | Self::Layout { .. }
            | Self::NoIntegers { .. }
            | Self::Problem(
                msdeform::Error::DtypeMismatch { .. } | msdeform::Error::SamplingDtypes { .. },
            )
            | Self::Cuda(CudaError::Problem(msdeform::Error::DtypeMismatch { .. })) => Kind::Type,
            Self::Cuda(CudaError::Problem(_)) => Kind::Value,
            Self::Cuda(
                CudaError::MissingDriver
                | CudaError::OldDriver { .. }
                | CudaError::NoDevice { .. }
                | CudaError::OldGpu { .. }
                | CudaError::MissingNvrtc { .. }
                | CudaError::BadNvrtc { .. }
                | CudaError::UnknownArch { .. },
            ) => Kind::Unavailable,
            Self::Problem(msdeform::Error::Threads { .. })
            | Self::Cuda(_)
            | Self::Capture(_)
            | Self::Torch(_) => Kind::Runtime,
            _ => Kind::Value,
        }
    }
}
