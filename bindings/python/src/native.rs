//! The operators' native kernels: registered with PyTorch's dispatcher, which then calls them without the interpreter.

use std::ffi::CStr;

use msdeform_torch::{Libtorch, register, take_refusal};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::error::of_kind;

/// Registers the kernels, for operators that are defined. Dispatch key and name of those that are; none where PyTorch is too
/// old for that, and the Python half registers its own.
#[pyfunction]
pub fn register_kernels() -> PyResult<Vec<(String, String)>> {
    let Ok(torch) = Libtorch::find() else { return Ok(Vec::new()) };
    let done =
        register::implement(torch).map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
    let text = |word: &CStr| word.to_string_lossy().into_owned();
    Ok(done.into_iter().map(|(key, name)| (text(key), text(name))).collect())
}

/// The definitions that processes without Python use.
#[pyfunction]
pub fn schemas() -> Vec<String> {
    register::OPERATORS.as_flattened().iter().map(register::Operator::schema).collect()
}

/// The exception that a native kernel would have raised if it could: PyTorch's own has the same words, and its own type.
#[pyfunction]
pub fn refusal(py: Python<'_>, message: &str) -> Option<Py<PyAny>> {
    let (kind, words) = take_refusal()?;
    // PyTorch may have raised another error after a refusal that was never taken.
    message.starts_with(words.as_str()).then(|| of_kind(kind, words).into_value(py).into_any())
}
