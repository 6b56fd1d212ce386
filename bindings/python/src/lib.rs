//! `msdeform._native`: the functions that the Python package calls.
//!
//! They take addresses: the Python half has the tensors, keeps them alive during the call and has made
//! them contiguous. Only [`torch`] takes tensors themselves. Nothing is linked against PyTorch, NumPy or CUDA.

#![allow(clippy::needless_pass_by_value, reason = "PyO3 hands extracted arguments over by value")]

mod error;
mod exchange;
mod facts;
mod from_offsets;
mod interpreter;
mod native;
mod onnx;
mod operand;
mod recorded;
mod torch;
mod warm;

use std::ffi::OsString;
use std::path::PathBuf;

use msdeform::{Direction, Role};
use msdeform_cuda::Pointers;
use msdeform_torch::call::{self, Head, with_key};
use msdeform_torch::{cpu, cuda};
// Nothing here calls it: the library exports `RegisterCustomOps`, which ONNX Runtime looks for.
use msdeform_onnxruntime as _;
use pyo3::prelude::*;

use error::exception;
use operand::{Operand, level_numbers};

fn inputs(value: &Operand<'_>, locations: &Operand<'_>, weights: &Operand<'_>) -> Pointers {
    Pointers::from([
        (Role::Value, value.0 as u64),
        (Role::Locations, locations.0 as u64),
        (Role::Weights, weights.0 as u64),
    ])
}

/// With what a backward call reads and writes beside: `grad_output` and the gradients, 0 for those nobody wants.
fn with_gradients(pointers: Pointers, grad_output: u64, gradients: (u64, u64, u64)) -> Pointers {
    pointers
        .with(Role::GradOutput, grad_output)
        .with(Role::GradValue, gradients.0)
        .with(Role::GradLocations, gradients.1)
        .with(Role::GradWeights, gradients.2)
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
    output: u64,
) -> PyResult<()> {
    let pointers = inputs(&value, &locations, &weights).with(Role::Output, output);
    with_key(on_threads(threads), &[&value, &locations, &weights], &level_numbers(levels)?, |key| {
        // SAFETY: the Python half allocates the output for exactly this call, holds all tensors until it
        // returns, and passes addresses and shapes of the same contiguous tensors.
        py.detach(|| unsafe { cpu::run(Direction::Forward, key, &pointers) })
    })
    .map_err(exception)
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
    grad_output: u64,
    gradients: (u64, u64, u64),
) -> PyResult<()> {
    let pointers = with_gradients(inputs(&value, &locations, &weights), grad_output, gradients);
    with_key(on_threads(threads), &[&value, &locations, &weights], &level_numbers(levels)?, |key| {
        // SAFETY: as in `cpu_forward`; the gradients are allocated for exactly this call.
        py.detach(|| unsafe { cpu::run(Direction::Backward, key, &pointers) })
    })
    .map_err(exception)
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
    let pointers = inputs(&value, &locations, &weights).with(Role::Output, output);
    with_key(head, &[&value, &locations, &weights], &level_numbers(levels)?, |key| {
        // SAFETY: PyTorch's allocator frees memory in stream order and the tensors are held until the
        // launch is queued; addresses, shapes and strides are of the same tensors; the stream is
        // PyTorch's current one on that device.
        py.detach(|| unsafe { cuda::plan(key)?.launch(stream, &pointers) })
    })
    .map_err(exception)
}

/// What a backward call on a GPU is, beside its tensors: `(device, wanted gradients (1 value, 2 locations or offsets,
/// 4 weights or logits, 8 references), deterministic, value strides, strides of grad_output)`.
#[derive(FromPyObject)]
struct Request(i64, i64, bool, (i64, i64, i64), (i64, i64, i64));

impl Request {
    fn head(&self) -> Head {
        Head {
            place: self.0,
            gradients: self.1,
            deterministic: self.2,
            value_strides: self.3,
            grad_strides: self.4,
            ..Head::default()
        }
    }
}

/// Queues the gradients that are wanted on `stream` of a GPU. `addresses` are those of `grad_output` and the three
/// gradients; `allocate` is asked for the address of so many bytes beside them, if any are needed.
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
    addresses: (u64, u64, u64, u64),
    allocate: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let (grad_output, grad_value, grad_locations, grad_weights) = addresses;
    let gradients = (grad_value, grad_locations, grad_weights);
    let pointers = with_gradients(inputs(&value, &locations, &weights), grad_output, gradients);
    let levels = level_numbers(levels)?;
    let plan = with_key(request.head(), &[&value, &locations, &weights], &levels, |key| {
        py.detach(|| cuda::plan(key))
    })
    .map_err(exception)?;
    let pointers = pointers.with_workspace(workspace(&plan, allocate)?);
    // SAFETY: as in `cuda_forward`; gradients and workspace are allocated for exactly this call.
    py.detach(|| unsafe { plan.launch(stream, &pointers) }).map_err(exception)
}

/// The address of the memory that a plan needs beside its tensors, if it needs any.
fn workspace(plan: &cuda::Planned, allocate: &Bound<'_, PyAny>) -> PyResult<u64> {
    match plan.workspace_bytes() {
        0 => Ok(0),
        bytes => allocate.call1((bytes,))?.extract(),
    }
}

/// Where the packages of this Python are: NVRTC may be among them.
#[pyfunction]
fn search_packages(folders: Vec<PathBuf>) {
    msdeform_cuda::nvrtc::search_packages(folders);
}

/// What the command `msdeform` does with these words, the first of which is its name; its exit code.
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
    cuda::with_interpreter(interpreter::warn);
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    let names: Vec<&str> = call::DTYPES.iter().map(|dtype| dtype.name()).collect();
    module.add("DTYPES", names)?;
    module.add("Unavailable", module.py().get_type::<error::Unavailable>())?;
    add_functions!(
        module,
        cpu_forward,
        cpu_backward,
        interpreter::end_compiling_ahead,
        from_offsets::cpu_forward_from_offsets,
        from_offsets::cpu_backward_from_offsets,
        from_offsets::cuda_forward_from_offsets,
        from_offsets::cuda_backward_from_offsets,
        from_offsets::torch_forward_from_offsets,
        from_offsets::torch_backward_from_offsets,
        cuda_forward,
        cuda_backward,
        native::register_kernels,
        native::schemas,
        native::refusal,
        torch::use_torch,
        torch::torch_forward,
        torch::torch_backward,
        recorded::use_recorder,
        recorded::torch_attend,
        recorded::torch_attend_from_offsets,
        recorded::recorded_forward,
        recorded::recorded_backward,
        onnx::onnx_inspect,
        onnx::onnx_rewrite,
        onnx::onnx_probes,
        onnx::onnx_write,
        search_packages,
        command_line,
        facts::variants_json,
        facts::device_info_json,
        facts::bench_json,
        facts::workloads_json,
        warm::warm_up_json,
    );
    Ok(())
}
