//! What a call can fail with.

use msdeform_cuda::Error as CudaError;

/// Everything that can be wrong with a call.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// A gradient that is not one of the output.
    #[error(
        "`grad_output` has shape {found:?} and is {format}; expected {expected:?} of {expected_format}"
    )]
    GradOutput {
        /// Its shape.
        found: Vec<i64>,
        /// PyTorch's name of its format.
        format: String,
        /// The shape of the output.
        expected: Vec<i64>,
        /// PyTorch's name of the output's format.
        expected_format: String,
    },
    /// A tensor in a format that nothing here computes in.
    #[error("`{tensor}` is {found}; expected torch.float32, float16, bfloat16 or float64")]
    Dtype {
        /// Which.
        tensor: &'static str,
        /// PyTorch's name of the format.
        found: String,
    },
    /// A tensor that is not plain memory with strides.
    #[error("`{tensor}` is {found}; expected a dense tensor, as `.to_dense()` makes one")]
    Layout {
        /// Which.
        tensor: &'static str,
        /// PyTorch's name of the layout.
        found: String,
    },
    /// Tensors of more than one device.
    #[error("all tensors must be on one device, found {0}; move them with `.to(device)`")]
    Devices(String),
    /// A format code that the Python half does not send.
    #[error("unknown dtype code {0}")]
    DtypeCode(i64),
    /// A size that does not fit.
    #[error("{0} is a size of a tensor, and no 64-bit integer")]
    Size(String),
    /// A list of levels that is not four numbers for each.
    #[error(
        "`levels` has {0} numbers; give height, width, start and points for each level, one after \
         the other"
    )]
    LevelNumbers(usize),
    /// Levels in tensors that cannot be read; the sentence says what is wrong.
    #[error("{0}")]
    Levels(String),
    /// Levels in tensors that hold no integers.
    #[error("`{tensor}` is {found}; expected integers")]
    NoIntegers {
        /// Which.
        tensor: &'static str,
        /// PyTorch's name of the format.
        found: String,
    },
    /// Memory that is gone: a tensor whose storage was freed or resized to nothing.
    #[error(
        "`{tensor}` has no memory behind it: its storage was freed or resized; pass a live tensor"
    )]
    NoMemory {
        /// Which.
        tensor: &'static str,
    },
    /// The description of the call makes no sense.
    #[error(transparent)]
    Problem(#[from] msdeform::Error),
    /// The GPU, its driver or its compiler said no.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// Something that cannot be part of a CUDA graph, while one is being captured; the sentence says what to do.
    #[error("{0}")]
    Capture(String),
    /// PyTorch said no.
    #[error("{0}")]
    Torch(String),
}

/// What kind of exception says it best.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Something of the wrong type.
    Type,
    /// Something of the wrong value.
    Value,
    /// No GPU of this machine can be used.
    Unavailable,
    /// Any other error while running.
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
