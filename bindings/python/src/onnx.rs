//! ONNX models: bytes in, bytes and JSON out.

use std::path::PathBuf;

use msdeform_files::Existing;
use msdeform_onnx::{Form, OnnxError, Options};
use pyo3::exceptions::{PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use serde::Serialize;

fn failed(error: OnnxError) -> PyErr {
    match error {
        OnnxError::NotConfirmed { .. } => PyRuntimeError::new_err(error.to_string()),
        _ => PyValueError::new_err(error.to_string()),
    }
}

fn json(value: &impl Serialize) -> PyResult<String> {
    serde_json::to_string(value).map_err(|error| PyRuntimeError::new_err(error.to_string()))
}

/// What `msdeform onnx inspect --json` prints.
#[pyfunction]
pub fn onnx_inspect(py: Python<'_>, model: &[u8]) -> PyResult<String> {
    json(&py.detach(|| msdeform_onnx::inspect(model, Options::default())).map_err(failed)?)
}

/// The new model, or none if nothing has changed, and what was done.
#[pyfunction]
pub fn onnx_rewrite<'py>(
    py: Python<'py>,
    model: &[u8],
    to: &str,
) -> PyResult<(Option<Bound<'py, PyBytes>>, String)> {
    let to: Form = to.parse().map_err(PyValueError::new_err)?;
    let result =
        py.detach(|| msdeform_onnx::rewrite(model, to, Options::default())).map_err(failed)?;
    Ok((result.model.as_ref().map(|bytes| PyBytes::new(py, bytes)), json(&result)?))
}

/// Every site of standard operators as a model of its own, and what its inputs and outputs are.
#[pyfunction]
pub fn onnx_probes<'py>(
    py: Python<'py>,
    model: &[u8],
) -> PyResult<Vec<(Bound<'py, PyBytes>, String)>> {
    let probes = py.detach(|| msdeform_onnx::probes(model, Options::default())).map_err(failed)?;
    probes.iter().map(|probe| Ok((PyBytes::new(py, &probe.model), json(probe)?))).collect()
}

/// Writes a model, whole or not at all.
#[pyfunction]
pub fn onnx_write(py: Python<'_>, path: PathBuf, model: &[u8]) -> PyResult<()> {
    py.detach(|| msdeform_files::write(&path, model, Existing::Replace))
        .map_err(|error| PyOSError::new_err(error.to_string()))
}
