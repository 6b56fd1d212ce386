//! `msdeform._native`: the functions that the Python package calls.
//!
//! They take addresses: the Python half has the tensors, keeps them alive during the call and has made
//! them contiguous. Only [`torch`] takes tensors themselves. Nothing is linked against PyTorch, NumPy or CUDA.

#![allow(clippy::needless_pass_by_value, reason = "PyO3 hands extracted arguments over by value")]

mod call;
mod cpu;
mod cuda;
mod error;
mod exchange;
mod facts;
mod memory;
mod torch;

use std::cell::RefCell;
use std::path::PathBuf;

use msdeform_cuda::{BackwardPointers, DevicePointers};
use pyo3::prelude::*;

use call::{Described, Head, Key, Operand, level_numbers};

thread_local! {
    /// The key of the call in progress, written over by the next one: a repeated call allocates nothing.
    static KEY: RefCell<Key> = RefCell::default();
}

/// Encodes a call and runs something with its key.
fn with_key<T>(
    head: Head,
    operands: [&dyn Described; 3],
    levels: &[i64],
    run: impl FnOnce(&Key) -> PyResult<T>,
) -> PyResult<T> {
    KEY.with_borrow_mut(|key| {
        key.encode(head, operands, levels)?;
        run(key)
    })
}

fn on_threads(place: i64) -> Head {
    Head { place, ..Head::default() }
}

/// `output` from contiguous tensors in host memory, with at most `threads` threads.
#[pyfunction]
fn cpu_forward(
    py: Python<'_>,
    levels: &Bound<'_, PyAny>,
    threads: i64,
    value: Operand<'_>,
    locations: Operand<'_>,
    weights: Operand<'_>,
    output: usize,
) -> PyResult<()> {
    let inputs = cpu::Inputs { value: value.0, locations: locations.0, weights: weights.0 };
    with_key(on_threads(threads), [&value, &locations, &weights], &level_numbers(levels)?, |key| {
        // SAFETY: the Python half allocates the output for exactly this call, holds all tensors until it
        // returns, and passes addresses and shapes of the same contiguous tensors.
        py.detach(|| unsafe { cpu::forward(key, inputs, output) }).map_err(PyErr::from)
    })
}

/// The gradients whose address is not 0, likewise.
#[pyfunction]
#[allow(
    clippy::too_many_arguments,
    reason = "the tensors of a backward call; Python passes them in order"
)]
fn cpu_backward(
    py: Python<'_>,
    levels: &Bound<'_, PyAny>,
    threads: i64,
    value: Operand<'_>,
    locations: Operand<'_>,
    weights: Operand<'_>,
    grad_output: usize,
    gradients: (usize, usize, usize),
) -> PyResult<()> {
    let inputs = cpu::Inputs { value: value.0, locations: locations.0, weights: weights.0 };
    let (grad_value, grad_locations, grad_weights) = gradients;
    let gradients =
        cpu::Gradients { value: grad_value, locations: grad_locations, weights: grad_weights };
    with_key(on_threads(threads), [&value, &locations, &weights], &level_numbers(levels)?, |key| {
        // SAFETY: as in `cpu_forward`; the gradients are allocated for exactly this call.
        py.detach(|| unsafe { cpu::backward(key, inputs, grad_output, gradients) })
            .map_err(PyErr::from)
    })
}

/// Queues the operator on `stream` of a GPU. `strides` are those of the value's images, heads and pixels;
/// its channels and all other tensors are contiguous.
#[pyfunction]
#[allow(clippy::too_many_arguments, reason = "the tensors of a call; Python passes them in order")]
fn cuda_forward(
    py: Python<'_>,
    levels: &Bound<'_, PyAny>,
    device: i64,
    stream: usize,
    strides: (i64, i64, i64),
    value: Operand<'_>,
    locations: Operand<'_>,
    weights: Operand<'_>,
    output: u64,
) -> PyResult<()> {
    let head = Head { place: device, value_strides: strides, ..Head::default() };
    let pointers = DevicePointers {
        value: value.0 as u64,
        locations: locations.0 as u64,
        weights: weights.0 as u64,
        output,
    };
    with_key(head, [&value, &locations, &weights], &level_numbers(levels)?, |key| {
        // SAFETY: PyTorch's allocator frees memory in stream order and the tensors are held until the
        // launch is queued; addresses, shapes and strides are of the same tensors; the stream is
        // PyTorch's current one on that device.
        py.detach(|| unsafe { cuda::forward(key, stream, pointers) }).map_err(PyErr::from)
    })
}

/// What a backward call on a GPU is, beside its tensors: `(device, wanted gradients (1 value, 2 locations,
/// 4 weights), deterministic, value strides, strides of grad_output)`.
#[derive(FromPyObject)]
struct Request(i64, i64, bool, (i64, i64, i64), (i64, i64, i64));

impl Request {
    const fn head(&self) -> Head {
        Head {
            place: self.0,
            gradients: self.1,
            deterministic: self.2,
            value_strides: self.3,
            grad_strides: self.4,
        }
    }
}

/// Bytes of workspace that the same call of `cuda_backward` needs.
#[pyfunction]
fn cuda_backward_workspace(
    py: Python<'_>,
    levels: &Bound<'_, PyAny>,
    request: Request,
    value: Operand<'_>,
    locations: Operand<'_>,
    weights: Operand<'_>,
) -> PyResult<usize> {
    with_key(request.head(), [&value, &locations, &weights], &level_numbers(levels)?, |key| {
        py.detach(|| cuda::workspace_bytes(key)).map_err(PyErr::from)
    })
}

/// Queues the gradients that are wanted on `stream` of a GPU; `addresses` are those of `grad_output`,
/// the three gradients and the workspace.
#[pyfunction]
#[allow(clippy::too_many_arguments, reason = "the tensors of a call; Python passes them in order")]
fn cuda_backward(
    py: Python<'_>,
    levels: &Bound<'_, PyAny>,
    request: Request,
    stream: usize,
    value: Operand<'_>,
    locations: Operand<'_>,
    weights: Operand<'_>,
    addresses: (u64, u64, u64, u64, u64),
) -> PyResult<()> {
    let (grad_output, grad_value, grad_locations, grad_weights, workspace) = addresses;
    let pointers = BackwardPointers {
        value: value.0 as u64,
        locations: locations.0 as u64,
        weights: weights.0 as u64,
        grad_output,
        grad_value,
        grad_locations,
        grad_weights,
        workspace,
    };
    with_key(request.head(), [&value, &locations, &weights], &level_numbers(levels)?, |key| {
        // SAFETY: as in `cuda_forward`; gradients and workspace are allocated for exactly this call.
        py.detach(|| unsafe { cuda::backward(key, stream, pointers) }).map_err(PyErr::from)
    })
}

/// Where the packages of this Python are: NVRTC may be among them.
#[pyfunction]
fn search_packages(folders: Vec<PathBuf>) {
    msdeform_cuda::nvrtc::search_packages(folders);
}

/// The native half of the package `msdeform`.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    let names: Vec<&str> = call::DTYPES.iter().map(|dtype| dtype.name()).collect();
    module.add("DTYPES", names)?;
    module.add_function(wrap_pyfunction!(cpu_forward, module)?)?;
    module.add_function(wrap_pyfunction!(cpu_backward, module)?)?;
    module.add_function(wrap_pyfunction!(cuda_forward, module)?)?;
    module.add_function(wrap_pyfunction!(cuda_backward_workspace, module)?)?;
    module.add_function(wrap_pyfunction!(cuda_backward, module)?)?;
    module.add_function(wrap_pyfunction!(torch::use_torch, module)?)?;
    module.add_function(wrap_pyfunction!(torch::torch_forward, module)?)?;
    module.add_function(wrap_pyfunction!(torch::torch_backward, module)?)?;
    module.add_function(wrap_pyfunction!(search_packages, module)?)?;
    module.add_function(wrap_pyfunction!(facts::variants_json, module)?)?;
    module.add_function(wrap_pyfunction!(facts::device_info_json, module)?)?;
    module.add_function(wrap_pyfunction!(facts::bench_json, module)?)?;
    module.add_function(wrap_pyfunction!(facts::workloads_json, module)?)?;
    Ok(())
}
