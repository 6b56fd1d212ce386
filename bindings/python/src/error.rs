//! What a call from Python fails with, as the exception that says it best.

use msdeform_torch::error::{CallError, Kind};
use pyo3::exceptions::{PyRuntimeError, PyTypeError, PyValueError};
use pyo3::{PyErr, create_exception};

create_exception!(
    msdeform,
    Unavailable,
    PyRuntimeError,
    "No GPU of this machine can be used, for want of a driver, a compiler or a GPU that is new enough: nothing went wrong on one."
);

/// The exception of an error.
#[allow(clippy::needless_pass_by_value, reason = "what `map_err` calls")]
pub fn exception(error: CallError) -> PyErr {
    of_kind(error.kind(), error.to_string())
}

/// The exception of a kind.
pub fn of_kind(kind: Kind, message: String) -> PyErr {
    match kind {
        Kind::Type => PyTypeError::new_err(message),
        Kind::Value => PyValueError::new_err(message),
        Kind::Unavailable => Unavailable::new_err(message),
        Kind::Runtime => PyRuntimeError::new_err(message),
    }
}
