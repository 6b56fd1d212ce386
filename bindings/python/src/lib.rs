//! `msdeform._native`: the functions that the Python package calls.
//!
//! [`forward`] and [`backward`] take addresses. The Python half keeps the tensors alive during the call and has made them
//! contiguous. Only [`torch`] takes tensors themselves. Nothing is linked against PyTorch, NumPy or CUDA.

#![allow(clippy::needless_pass_by_value, reason = "PyO3 hands extracted arguments over by value")]

mod error;
mod exchange;
mod facts;
mod interpreter;
mod native;
mod onnx;
mod operand;
mod torch;
mod warm;

use std::ffi::OsString;
use std::path::PathBuf;

use msdeform::{Direction, Operator, Role};
use msdeform_cuda::Pointers;
use msdeform_torch::call::{self, Described, Head, Inputs, gradient_bits, with_key};
use msdeform_torch::{cpu, cuda};
// Nothing here calls it: the library exports `RegisterCustomOps`, which ONNX Runtime looks for.
use msdeform_onnxruntime as _;
use pyo3::prelude::*;

use error::exception;
use operand::{Operands, level_numbers};

/// Adds the addresses of `grad_output` and of the gradients, 0 for a gradient that is not wanted.
fn with_gradients(
    operator: &Operator,
    pointers: Pointers,
    grad_output: u64,
    gradients: &[u64],
) -> Pointers {
    let pointers = pointers.with(Role::GradOutput, grad_output);
    let each = operator.written(Direction::Backward).zip(gradients);
    each.fold(pointers, |all, (role, &address)| all.with(role, address))
}

/// Computes a call on the CPU.
///
/// # Safety
/// As of [`cpu::run`], for tensors that the inputs describe.
unsafe fn run_on_cpu(
    py: Python<'_>,
    direction: Direction,
    threads: i64,
    inputs: &Inputs<'_, impl Described>,
    levels: &[i64],
    pointers: &Pointers,
) -> PyResult<()> {
    let (head, strides) = inputs.head_of_cpu(threads).map_err(exception)?;
    with_key(head, inputs.tensors, levels, |key| {
        // SAFETY: passed on from the caller.
        py.detach(|| unsafe { cpu::run(direction, key, pointers, strides.as_ref()) })
    })
    .map_err(exception)
}

/// Queues a call on a stream of a GPU. `allocate` gives the address of a workspace, or `None`, which ends the call.
///
/// # Safety
/// As of [`cuda::Planned::launch`], for tensors that the inputs describe.
unsafe fn launch(
    py: Python<'_>,
    (ordinal, stream): (i64, usize),
    of_gradients: Head,
    inputs: &Inputs<'_, impl Described>,
    levels: &[i64],
    pointers: Pointers,
    allocate: impl FnOnce(usize) -> PyResult<Option<u64>>,
) -> PyResult<Option<()>> {
    let head = inputs.head_of_gpu(ordinal, of_gradients).map_err(exception)?;
    // Without a workspace the interpreter is given up once.
    let planned = with_key(head, inputs.tensors, levels, |key| {
        py.detach(|| {
            let plan = cuda::plan(key)?;
            if plan.workspace_bytes() > 0 {
                return Ok(Some(plan));
            }
            // SAFETY: passed on from the caller.
            unsafe { plan.launch(stream, &pointers) }?;
            Ok(None)
        })
    });
    let Some(plan) = planned.map_err(exception)? else { return Ok(Some(())) };
    let Some(workspace) = allocate(plan.workspace_bytes())? else { return Ok(None) };
    let pointers = pointers.with_workspace(workspace);
    // SAFETY: as above; the workspace has the bytes that the plan needs.
    py.detach(|| unsafe { plan.launch(stream, &pointers) }).map_err(exception)?;
    Ok(Some(()))
}

/// The device of a call: the threads of the CPU, or the number and the stream of a GPU.
type Place = (i64, Option<usize>);

/// Computes `output`. On a GPU the call is then in the queue.
#[pyfunction]
fn forward(
    py: Python<'_>,
    levels: &Bound<'_, PyAny>,
    place: Place,
    inputs: Operands<'_>,
    output: u64,
) -> PyResult<()> {
    let (place, stream) = place;
    let levels = level_numbers(levels)?;
    let inputs = inputs.described()?;
    let pointers = inputs.pointers().map_err(exception)?.with(Role::Output, output);
    // SAFETY: the Python half allocates the output for exactly this call, holds all tensors until it returns, and passes
    // addresses, shapes and strides of the same tensors. PyTorch's allocator frees memory in the order of the stream, which
    // is its current one on that GPU. A forward call has no workspace.
    unsafe {
        match stream {
            None => run_on_cpu(py, Direction::Forward, place, &inputs, &levels, &pointers),
            Some(stream) => {
                let (place, head) = ((place, stream), Head::default());
                launch(py, place, head, &inputs, &levels, pointers, |_| Ok(Some(0))).map(|_| ())
            }
        }
    }
}

/// The gradients of a backward call: address and strides of `grad_output`, which gradients are wanted, their addresses,
/// whether they must be bitwise reproducible.
#[derive(FromPyObject)]
struct Wanted(u64, (i64, i64, i64), Vec<bool>, Vec<u64>, bool);

/// Computes the gradients that are wanted. `allocate` returns the address of a workspace of so many bytes on a GPU; it is
/// called if the plan needs one.
#[pyfunction]
fn backward(
    py: Python<'_>,
    levels: &Bound<'_, PyAny>,
    place: Place,
    inputs: Operands<'_>,
    wanted: Wanted,
    allocate: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let (place, stream) = place;
    let levels = level_numbers(levels)?;
    let Wanted(grad_output, grad_strides, wanted, gradients, deterministic) = wanted;
    let inputs = inputs.described()?;
    let operator = inputs.operator();
    let pointers = inputs.pointers().map_err(exception)?;
    let pointers = with_gradients(operator, pointers, grad_output, &gradients);
    // SAFETY: as in `forward`; gradients and workspace are allocated for exactly this call.
    unsafe {
        match stream {
            None => run_on_cpu(py, Direction::Backward, place, &inputs, &levels, &pointers),
            Some(stream) => {
                let head = Head {
                    gradients: gradient_bits(operator, wanted),
                    deterministic,
                    grad_strides,
                    ..Head::default()
                };
                let allocate = |bytes| Ok(Some(allocate.call1((bytes,))?.extract()?));
                launch(py, (place, stream), head, &inputs, &levels, pointers, allocate).map(|_| ())
            }
        }
    }
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
    cuda::with_interpreter(interpreter::warn);
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    let names: Vec<&str> = call::DTYPES.iter().map(|dtype| dtype.name()).collect();
    module.add("DTYPES", names)?;
    module.add_class::<torch::Levels>()?;
    module.add("Unavailable", module.py().get_type::<error::Unavailable>())?;
    add_functions!(
        module,
        forward,
        backward,
        interpreter::end_compiling_ahead,
        native::register_kernels,
        native::schemas,
        native::refusal,
        torch::use_torch,
        torch::torch_forward,
        torch::torch_backward,
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
