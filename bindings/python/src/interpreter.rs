//! What the interpreter does for the GPU's half: warns, and waits for compilers before it ends.

use std::ffi::CString;

use msdeform_torch::cuda;
use pyo3::exceptions::PyRuntimeWarning;
use pyo3::prelude::*;

/// Issues a Python warning. The call goes on even if Python turns warnings into errors.
pub fn warn(message: &str) {
    let Ok(message) = CString::new(message) else { return };
    Python::attach(|py| {
        drop(PyErr::warn(py, &py.get_type::<PyRuntimeWarning>(), &message, 1));
    });
}

/// Waits for what is being compiled ahead and compiles nothing more.
#[pyfunction]
pub fn end_compiling_ahead(py: Python<'_>) {
    py.detach(cuda::end_compiling_ahead);
}
