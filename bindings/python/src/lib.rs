//! `msdeform._native`: the functions that the Python package calls.
//!
//! [`torch`] takes PyTorch's tensors, [`operand::forward`] the addresses of arrays. Nothing is linked against PyTorch, NumPy or
//! CUDA.

#![allow(clippy::needless_pass_by_value, reason = "PyO3 hands extracted arguments over by value")]

mod exchange;
mod facts;
mod onnx;
mod operand;
mod tensorrt;
mod torch;
mod warm;

use std::ffi::{CString, OsString};
use std::path::PathBuf;

use msdeform::DType;
use msdeform_torch::{Libtorch, cuda, register, take_refusal};
// Nothing here calls it: the library exports `RegisterCustomOps`, which ONNX Runtime looks for.
use msdeform_onnxruntime as _;
use pyo3::exceptions::{PyRuntimeError, PyRuntimeWarning};
use pyo3::prelude::*;

/// Registers the kernels with PyTorch's dispatcher, for operators that are defined. Dispatch key and name of those that are;
/// none where PyTorch is too old for that, and the Python half registers its own.
#[pyfunction]
fn register_kernels() -> PyResult<Vec<(&'static str, String)>> {
    let Ok(torch) = Libtorch::find() else { return Ok(Vec::new()) };
    register::implement(torch).map_err(|error| PyRuntimeError::new_err(error.to_string()))
}

/// The definitions that processes without Python use.
#[pyfunction]
fn schemas() -> Vec<String> {
    register::operators().iter().map(register::Operator::schema).collect()
}

/// The exception that a native kernel would have raised if it could: PyTorch's own has the same words, and its own type.
#[pyfunction]
fn refusal(py: Python<'_>, message: &str) -> Option<Py<PyAny>> {
    let (kind, words) = take_refusal()?;
    // PyTorch may have raised another error after a refusal that was never taken.
    let is_it = message.starts_with(words.as_str());
    is_it.then(|| operand::of_kind(kind, words).into_value(py).into_any())
}

/// Issues a Python warning. The call goes on even if Python turns warnings into errors.
fn warn(message: &str) {
    let Ok(message) = CString::new(message) else { return };
    Python::attach(|py| {
        drop(PyErr::warn(py, &py.get_type::<PyRuntimeWarning>(), &message, 1));
    });
}

/// Waits for what is being compiled ahead and compiles nothing more.
#[pyfunction]
fn end_compiling_ahead(py: Python<'_>) {
    py.detach(cuda::end_compiling_ahead);
}

/// Adds folders with packages of this Python: NVRTC may be in one of them.
#[pyfunction]
fn search_packages(folders: Vec<PathBuf>) {
    msdeform_cuda::nvrtc::search_packages(folders);
}

/// Runs the command `msdeform` with these words, the first of which is its name. Returns its exit code.
#[pyfunction]
fn command_line(py: Python<'_>, words: Vec<OsString>) -> u8 {
    py.detach(|| msdeform_cli::command_line(words))
}

macro_rules! add_functions {
    ($module:expr, $($function:path),+ $(,)?) => {
        $($module.add_function(wrap_pyfunction!($function, $module)?)?;)+
    };
}

/// The native half of the package `msdeform`.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    cuda::with_interpreter(warn);
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("DTYPES", DType::ALL.map(DType::name))?;
    module.add_class::<torch::Levels>()?;
    module.add("Unavailable", module.py().get_type::<operand::Unavailable>())?;
    add_functions!(
        module,
        register_kernels,
        schemas,
        refusal,
        end_compiling_ahead,
        search_packages,
        command_line,
        operand::forward,
        operand::level_numbers,
        torch::use_torch,
        torch::torch_forward,
        torch::torch_backward,
        torch::check_tensors,
        torch::kernel_forward,
        torch::kernel_backward,
        onnx::onnx_inspect,
        onnx::onnx_rewrite,
        onnx::onnx_probes,
        onnx::onnx_trials,
        onnx::onnx_write,
        facts::variants,
        facts::device_info,
        facts::bench,
        facts::workloads,
        warm::warm_up_json,
        tensorrt::tensorrt_kernel,
    );
    Ok(())
}
