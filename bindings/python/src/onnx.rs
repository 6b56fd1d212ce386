//! ONNX models: bytes in, bytes and JSON out.

use std::path::PathBuf;

use msdeform_files::Existing;
use msdeform_onnx::{Form, OnnxError, Options, Runtime, Target};
use pyo3::exceptions::{PyOSError, PyRuntimeError, PyTypeError, PyValueError};
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
    to: Option<&str>,
    runtime: Option<&str>,
    rank: Option<usize>,
) -> PyResult<(Option<Bound<'py, PyBytes>>, String)> {
    let mut target: Target = match (to, runtime) {
        (Some(form), None) => form.parse::<Form>().map_err(PyValueError::new_err)?.into(),
        (None, Some(name)) => name.parse::<Runtime>().map_err(PyValueError::new_err)?.into(),
        _ => {
            return Err(PyTypeError::new_err(
                "give a form as `to` or a runtime as `runtime`, and not both",
            ));
        }
    };
    if let Some(most) = rank {
        target = target.with_most_axes(most);
    }
    let result =
        py.detach(|| msdeform_onnx::rewrite(model, target, Options::default())).map_err(failed)?;
    Ok((result.model.as_ref().map(|bytes| PyBytes::new(py, bytes)), json(&result)?))
}

/// Models, each with its description as JSON.
type Described<'py> = Vec<(Bound<'py, PyBytes>, String)>;

/// Every site of standard operators as a model of its own, and what its inputs and outputs are.
#[pyfunction]
pub fn onnx_probes<'py>(py: Python<'py>, model: &[u8]) -> PyResult<Described<'py>> {
    let probes = py.detach(|| msdeform_onnx::probes(model, Options::default())).map_err(failed)?;
    probes.iter().map(|probe| Ok((PyBytes::new(py, &probe.model), json(probe)?))).collect()
}

/// Every site in each form and dtype as a model of its own with its description, and what was left alone, as JSON.
#[pyfunction]
pub fn onnx_trials<'py>(
    py: Python<'py>,
    model: &[u8],
    forms: Vec<String>,
) -> PyResult<(Described<'py>, String)> {
    let target = |name: &String| match name.parse::<Runtime>() {
        // `tensorrt` is a form too.
        Ok(runtime) if name.parse::<Form>().is_err() => Ok(runtime.into()),
        _ => name.parse::<Form>().map(Target::from).map_err(PyValueError::new_err),
    };
    let targets: Vec<Target> = forms.iter().map(target).collect::<PyResult<_>>()?;
    let found = py.detach(|| msdeform_onnx::trials(model, &targets, Options::default()));
    let (trials, left) = found.map_err(failed)?;
    let each = trials.iter().map(|trial| Ok((PyBytes::new(py, &trial.model), json(trial)?)));
    Ok((each.collect::<PyResult<_>>()?, json(&left)?))
}

/// Writes a model, whole or not at all.
#[pyfunction]
pub fn onnx_write(py: Python<'_>, path: PathBuf, model: &[u8]) -> PyResult<()> {
    py.detach(|| msdeform_files::write(&path, model, Existing::Replace))
        .map_err(|error| PyOSError::new_err(error.to_string()))
}
