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

use msdeform::{ATTENTION, Direction, FROM_OFFSETS, Operator, Role};
use msdeform_cuda::Pointers;
use msdeform_torch::call::{self, Described, Head, with_key};
use msdeform_torch::cpu::{self, SourceStrides};
use msdeform_torch::cuda;
// Nothing here calls it: the library exports `RegisterCustomOps`, which ONNX Runtime looks for.
use msdeform_onnxruntime as _;
use pyo3::prelude::*;

use error::exception;
use operand::{Operand, level_numbers};

/// The operator that takes so many tensors.
fn operator(tensors: usize) -> &'static Operator {
    if tensors == FROM_OFFSETS.inputs.len() { &FROM_OFFSETS } else { &ATTENTION }
}

/// The addresses of what an operator reads.
fn pointers_to<const TENSORS: usize>(addresses: [u64; TENSORS]) -> Pointers {
    let each = operator(TENSORS).inputs.iter().zip(addresses);
    each.fold(Pointers::default(), |all, (&role, address)| all.with(role, address))
}

/// With what a backward call reads and writes beside: `grad_output` and the gradients, 0 for those nobody wants.
fn with_gradients<const TENSORS: usize>(
    pointers: Pointers,
    grad_output: u64,
    gradients: [u64; TENSORS],
) -> Pointers {
    let pointers = pointers.with(Role::GradOutput, grad_output);
    let each = operator(TENSORS).written(Direction::Backward).zip(gradients);
    each.fold(pointers, |all, (role, address)| all.with(role, address))
}

/// Computes on the processor what Python has taken apart.
fn run_on_cpu(
    py: Python<'_>,
    direction: Direction,
    head: Head,
    operands: &[&dyn Described],
    levels: &Bound<'_, PyAny>,
    pointers: &Pointers,
    strides: Option<&SourceStrides>,
) -> PyResult<()> {
    with_key(head, operands, &level_numbers(levels)?, |key| {
        // SAFETY: the Python half allocates what is written for exactly this call, holds all tensors until it
        // returns, and passes addresses, shapes and strides of the same tensors.
        py.detach(|| unsafe { cpu::run(direction, key, pointers, strides) })
    })
    .map_err(exception)
}

/// Queues such a call on a stream of a GPU.
fn launch_forward(
    py: Python<'_>,
    stream: usize,
    head: Head,
    operands: &[&dyn Described],
    levels: &Bound<'_, PyAny>,
    pointers: &Pointers,
) -> PyResult<()> {
    with_key(head, operands, &level_numbers(levels)?, |key| {
        // SAFETY: PyTorch's allocator frees memory in stream order and the tensors are held until the
        // launch is queued; addresses, shapes and strides are of the same tensors; the stream is
        // PyTorch's current one on that device.
        py.detach(|| unsafe { cuda::plan(key)?.launch(stream, pointers) })
    })
    .map_err(exception)
}

/// The gradients, likewise, with memory beside them that is asked for.
fn launch_backward(
    py: Python<'_>,
    stream: usize,
    head: Head,
    operands: &[&dyn Described],
    levels: &Bound<'_, PyAny>,
    pointers: Pointers,
    allocate: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let levels = level_numbers(levels)?;
    let plan = with_key(head, operands, &levels, |key| py.detach(|| cuda::plan(key)));
    let plan = plan.map_err(exception)?;
    let workspace = match plan.workspace_bytes() {
        0 => 0,
        bytes => allocate.call1((bytes,))?.extract()?,
    };
    let pointers = pointers.with_workspace(workspace);
    // SAFETY: as in `launch_forward`; gradients and workspace are allocated for exactly this call.
    py.detach(|| unsafe { plan.launch(stream, &pointers) }).map_err(exception)
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
    let operands = [&value, &locations, &weights];
    let pointers = pointers_to(operands.map(Operand::address)).with(Role::Output, output);
    let (head, operands) = (on_threads(threads), operands.map(|operand| operand as &dyn Described));
    run_on_cpu(py, Direction::Forward, head, &operands, levels, &pointers, None)
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
    let operands = [&value, &locations, &weights];
    let pointers = pointers_to(operands.map(Operand::address));
    let pointers = with_gradients(pointers, grad_output, gradients.into());
    let (head, operands) = (on_threads(threads), operands.map(|operand| operand as &dyn Described));
    run_on_cpu(py, Direction::Backward, head, &operands, levels, &pointers, None)
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
    let operands = [&value, &locations, &weights];
    let pointers = pointers_to(operands.map(Operand::address)).with(Role::Output, output);
    let operands = operands.map(|operand| operand as &dyn Described);
    launch_forward(py, stream, head, &operands, levels, &pointers)
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
    let operands = [&value, &locations, &weights];
    let pointers = pointers_to(operands.map(Operand::address));
    let (grad_output, grad_value, grad_locations, grad_weights) = addresses;
    let gradients = [grad_value, grad_locations, grad_weights];
    let pointers = with_gradients(pointers, grad_output, gradients);
    let operands = operands.map(|operand| operand as &dyn Described);
    launch_backward(py, stream, request.head(), &operands, levels, pointers, allocate)
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
        torch::torch_forward_from_offsets,
        torch::torch_backward_from_offsets,
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
