//! What a call from Python can fail with, as the exception that says it best.

use msdeform::DType;
use msdeform_cuda::Error as CudaError;
use pyo3::exceptions::{PyRuntimeError, PyTypeError, PyValueError};
use pyo3::{PyErr, create_exception};

create_exception!(
    msdeform,
    Unavailable,
    PyRuntimeError,
    "No GPU of this machine can be used, for want of a driver, a compiler or a GPU that is new enough: nothing went wrong on one."
);

/// Everything that can be wrong with a call.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// A tensor of the wrong shape.
    #[error("`{tensor}` has shape {found:?}, expected {expected}")]
    Shape { tensor: &'static str, found: Vec<i64>, expected: String },
    /// Locations and weights, or offsets and logits, of different formats.
    #[error("`{}` is {locations} and `{}` is {weights}; give both the same dtype", names.0, names.1)]
    SamplingDtypes { names: (&'static str, &'static str), locations: DType, weights: DType },
    /// A format code that the Python half does not send.
    #[error("unknown dtype code {0}")]
    DtypeCode(i64),
    /// A list of levels that is not four numbers for each.
    #[error(
        "`levels` has {0} numbers; give height, width, start and points for each level, one after \
         the other"
    )]
    LevelNumbers(usize),
    /// Memory that is gone: a tensor whose storage was freed or resized to nothing.
    #[error(
        "`{tensor}` has no memory behind it: its storage was freed or resized; pass a live tensor"
    )]
    NoMemory { tensor: &'static str },
    /// The description of the call makes no sense.
    #[error(transparent)]
    Problem(#[from] msdeform::Error),
    /// The GPU, its driver or its compiler said no.
    #[error(transparent)]
    Cuda(#[from] msdeform_cuda::Error),
}

impl From<CallError> for PyErr {
    fn from(error: CallError) -> Self {
        let message = error.to_string();
        match error {
            CallError::SamplingDtypes { .. }
            | CallError::Problem(msdeform::Error::DtypeMismatch { .. })
            | CallError::Cuda(msdeform_cuda::Error::Problem(msdeform::Error::DtypeMismatch {
                ..
            })) => PyTypeError::new_err(message),
            CallError::Cuda(msdeform_cuda::Error::Problem(_)) => PyValueError::new_err(message),
            CallError::Cuda(
                CudaError::MissingDriver
                | CudaError::OldDriver { .. }
                | CudaError::NoDevice { .. }
                | CudaError::OldGpu { .. }
                | CudaError::MissingNvrtc { .. }
                | CudaError::BadNvrtc { .. }
                | CudaError::UnknownArch { .. },
            ) => Unavailable::new_err(message),
            CallError::Problem(msdeform::Error::Threads { .. }) | CallError::Cuda(_) => {
                PyRuntimeError::new_err(message)
            }
            _ => PyValueError::new_err(message),
        }
    }
}
