//! The operator from offsets: what the Python half calls for the processor, for a GPU, and for ordinary calls of PyTorch.

use msdeform::{DType, Direction, Role};
use msdeform_cuda::Pointers;
use msdeform_torch::call::{Described, Head, Rule, with_key};
use msdeform_torch::cpu::{self, SourceStrides};
use msdeform_torch::cuda;
use pyo3::prelude::*;

use crate::error::exception;
use crate::exchange::{DlTensor, Place};
use crate::operand::{Operand, RuleGiven, level_numbers};
use crate::torch::{self, Expected, Torch, expecting};
use crate::{Request, on_threads, workspace};

/// What a call computes, in the order in which Python has its gradients.
const GRADIENTS: [Role; 4] =
    [Role::GradValue, Role::GradReferences, Role::GradOffsets, Role::GradLogits];
/// What each of them is in [`Head::gradients`].
const BITS: [i64; 4] = [1, 8, 2, 4];

fn inputs(addresses: [u64; 4]) -> Pointers {
    let roles = [Role::Value, Role::References, Role::Offsets, Role::Logits];
    let mut pointers = Pointers::default();
    for (role, address) in roles.into_iter().zip(addresses) {
        pointers = pointers.with(role, address);
    }
    pointers
}

/// With the gradient of the output and those of the inputs, 0 for those nobody wants.
fn with_gradients(pointers: Pointers, grad_output: u64, gradients: [u64; 4]) -> Pointers {
    let mut pointers = pointers.with(Role::GradOutput, grad_output);
    for (role, address) in GRADIENTS.into_iter().zip(gradients) {
        pointers = pointers.with(role, address);
    }
    pointers
}

// Calls that Python has taken apart ------------------------------------------------------------------------------------

/// Value, references, offsets and logits of a call, and how the last three lie in memory.
#[derive(FromPyObject)]
pub struct Projected<'py>(Operand<'py>, Operand<'py>, Operand<'py>, Operand<'py>, SourceStrides);

impl Projected<'_> {
    fn pointers(&self) -> Pointers {
        inputs([self.0.0, self.1.0, self.2.0, self.3.0].map(|address| address as u64))
    }

    fn operands(&self) -> [&dyn Described; 4] {
        [&self.0, &self.1, &self.2, &self.3]
    }

    /// Of images and queries. The rows of a query are contiguous on a GPU, those of references too.
    fn row_strides(&self) -> [(i64, i64); 3] {
        let ((image, query, _), offsets, logits) = self.4;
        [(image, query), offsets, logits].map(|(image, query)| (image as i64, query as i64))
    }

    fn run(
        &self,
        py: Python<'_>,
        direction: Direction,
        levels: &Bound<'_, PyAny>,
        (threads, rule): (i64, RuleGiven),
        pointers: &Pointers,
    ) -> PyResult<()> {
        let head = Head { rule: Some(rule.into()), ..on_threads(threads) };
        let strides = self.4;
        with_key(head, &self.operands(), &level_numbers(levels)?, |key| {
            // SAFETY: the Python half allocates what is written for exactly this call, holds all tensors until it
            // returns, and passes addresses, shapes and strides of the same tensors.
            py.detach(|| unsafe { cpu::run_from_offsets(direction, key, pointers, &strides) })
        })
        .map_err(exception)
    }
}

/// `output` from offsets and logits in host memory, by `place`: at most so many threads, and a rule.
#[pyfunction]
pub fn cpu_forward_from_offsets(
    py: Python<'_>,
    levels: &Bound<'_, PyAny>,
    place: (i64, RuleGiven),
    inputs: Projected<'_>,
    output: u64,
) -> PyResult<()> {
    let pointers = inputs.pointers().with(Role::Output, output);
    inputs.run(py, Direction::Forward, levels, place, &pointers)
}

/// The gradients of value, references, offsets and logits whose address is not 0, likewise.
#[pyfunction]
pub fn cpu_backward_from_offsets(
    py: Python<'_>,
    levels: &Bound<'_, PyAny>,
    place: (i64, RuleGiven),
    inputs: Projected<'_>,
    grad_output: u64,
    gradients: [u64; 4],
) -> PyResult<()> {
    let pointers = with_gradients(inputs.pointers(), grad_output, gradients);
    inputs.run(py, Direction::Backward, levels, place, &pointers)
}

/// Queues the operator on a GPU. `place` is its number, the stream, and the strides of the value's images, heads and
/// pixels.
#[pyfunction]
pub fn cuda_forward_from_offsets(
    py: Python<'_>,
    levels: &Bound<'_, PyAny>,
    place: (i64, usize, (i64, i64, i64)),
    rule: RuleGiven,
    inputs: Projected<'_>,
    output: u64,
) -> PyResult<()> {
    let (device, stream, value_strides) = place;
    let head = Head {
        place: device,
        value_strides,
        rule: Some(rule.into()),
        source_strides: inputs.row_strides(),
        ..Head::default()
    };
    let pointers = inputs.pointers().with(Role::Output, output);
    with_key(head, &inputs.operands(), &level_numbers(levels)?, |key| {
        // SAFETY: PyTorch's allocator frees memory in stream order and the tensors are held until the
        // launch is queued; addresses, shapes and strides are of the same tensors; the stream is
        // PyTorch's current one on that device.
        py.detach(|| unsafe { cuda::plan(key)?.launch(stream, &pointers) })
    })
    .map_err(exception)
}

/// Queues the gradients that are wanted on `stream` of a GPU. `addresses` are those of `grad_output` and the four
/// gradients; `allocate` is asked for the address of so many bytes beside them, if any are needed.
#[pyfunction]
#[allow(clippy::too_many_arguments, reason = "what a call is made of; Python passes it in order")]
pub fn cuda_backward_from_offsets(
    py: Python<'_>,
    levels: &Bound<'_, PyAny>,
    request: Request,
    stream: usize,
    rule: RuleGiven,
    inputs: Projected<'_>,
    addresses: (u64, [u64; 4]),
    allocate: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let head =
        Head { rule: Some(rule.into()), source_strides: inputs.row_strides(), ..request.head() };
    let plan = with_key(head, &inputs.operands(), &level_numbers(levels)?, |key| {
        py.detach(|| cuda::plan(key))
    })
    .map_err(exception)?;
    let pointers = with_gradients(inputs.pointers(), addresses.0, addresses.1)
        .with_workspace(workspace(&plan, allocate)?);
    // SAFETY: as in `cuda_forward_from_offsets`; gradients and workspace are allocated for exactly this call.
    py.detach(|| unsafe { plan.launch(stream, &pointers) }).map_err(exception)
}

// Ordinary calls on PyTorch's tensors ------------------------------------------------------------------------------------

/// Value, references, offsets and logits on one GPU, as the kernels read them.
struct Source {
    tensors: [DlTensor; 4],
    ordinal: i32,
}

impl Source {
    /// `None` for what the long way must look at: the processor, where PyTorch has native kernels, formats that differ, rows
    /// that are not contiguous, and everything that is wrong.
    fn of(torch: &Torch, tensors: &[Bound<'_, PyAny>; 4]) -> Option<Self> {
        let [value, references, offsets, logits] = tensors.each_ref().map(|t| torch.describe(t));
        let tensors = [value?, references?, offsets?, logits?];
        let Some(Place::Gpu(ordinal)) = tensors[0].place() else { return None };
        let [value, references, offsets, logits] = &tensors;
        let (format, sampling) = (value.dtype()?, offsets.dtype()?);
        let is_read_beside =
            |format: DType, beside: DType| format == beside || format == DType::F32;
        let fits = tensors.iter().all(|t| t.place() == value.place() && t.is_full())
            && format != DType::F64
            && logits.dtype() == Some(sampling)
            && is_read_beside(sampling, format)
            && is_read_beside(references.dtype()?, sampling)
            && matches!(tensors.each_ref().map(|t| t.shape().len()), [4, 4, 5 | 6, 4 | 5])
            && value.has_unit_last_stride()
            && [references, offsets, logits].iter().all(|t| t.has_contiguous_rows(2));
        fits.then_some(Self { tensors, ordinal })
    }

    fn pointers(&self) -> Pointers {
        inputs(self.tensors.each_ref().map(DlTensor::address))
    }

    fn operands(&self) -> [&dyn Described; 4] {
        self.tensors.each_ref().map(|tensor| tensor as &dyn Described)
    }

    fn output_shape(&self) -> [i64; 3] {
        let (value, offsets) = (self.tensors[0].shape(), self.tensors[2].shape());
        [value[0], offsets[1], value[2] * value[3]]
    }

    fn head(&self, rule: RuleGiven, of_gradients: Head) -> Head {
        let [value, references, offsets, logits] = self.tensors.each_ref().map(DlTensor::strides);
        Head {
            place: i64::from(self.ordinal),
            value_strides: (value[0], value[2], value[1]),
            rule: Some(Rule::from(rule)),
            source_strides: [references, offsets, logits].map(|strides| (strides[0], strides[1])),
            ..of_gradients
        }
    }
}

/// The output of an ordinary call on a GPU, from value, references, offsets and logits. `levels` are four numbers for each
/// level: height, width, start, points.
#[pyfunction]
#[pyo3(signature = (tensors, levels, rule, expected=None))]
pub fn torch_forward_from_offsets<'py>(
    py: Python<'py>,
    tensors: [Bound<'py, PyAny>; 4],
    levels: &Bound<'py, PyAny>,
    rule: RuleGiven,
    expected: Option<Expected<4>>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let Some(torch) = torch::of(py) else { return Ok(None) };
    if !torch.is_ordinary(py, &tensors.each_ref())? {
        return Ok(None);
    }
    let Some(source) = Source::of(torch, &tensors) else { return Ok(None) };
    let output = torch.new_tensor(&tensors[0], &source.tensors[0], &source.output_shape())?;
    let Some(to) = torch.describe(&output) else { return Ok(None) };
    let pointers = source.pointers().with(Role::Output, to.address());
    let stream = torch.stream(py, source.ordinal)?;
    let head = source.head(rule, expecting(expected, BITS));
    with_key(head, &source.operands(), &level_numbers(levels)?, |key| {
        // SAFETY: addresses, shapes and strides come from the same live tensors; the output was made for this call.
        // PyTorch's allocator frees memory in the order of the stream, which is its current one on the tensors' GPU.
        py.detach(|| unsafe { cuda::plan(key)?.launch(stream, &pointers) })
    })
    .map_err(exception)?;
    Ok(Some(output))
}

/// The gradients of an ordinary call on a GPU, `None` in place of those that are not wanted.
#[pyfunction]
pub fn torch_backward_from_offsets<'py>(
    py: Python<'py>,
    grad_output: &Bound<'py, PyAny>,
    tensors: [Bound<'py, PyAny>; 4],
    levels: &Bound<'py, PyAny>,
    rule: RuleGiven,
    wanted: [bool; 4],
    deterministic: bool,
) -> PyResult<Option<[Option<Bound<'py, PyAny>>; 4]>> {
    let Some(torch) = torch::of(py) else { return Ok(None) };
    let [value, references, offsets, logits] = &tensors;
    if !torch.is_ordinary(py, &[grad_output, value, references, offsets, logits])? {
        return Ok(None);
    }
    let Some(source) = Source::of(torch, &tensors) else { return Ok(None) };
    let Some(from) = torch.describe(grad_output) else { return Ok(None) };
    if !from.is_gradient_of(&source.output_shape(), &source.tensors[0]) {
        return Ok(None);
    }
    let mut gradients: [Option<Bound<'py, PyAny>>; 4] = [const { None }; 4];
    let mut addresses = [0; 4];
    for (at, like) in source.tensors.iter().enumerate().filter(|&(at, _)| wanted[at]) {
        let gradient = torch.new_tensor(&tensors[at], like, like.shape())?;
        let Some(described) = torch.describe(&gradient) else { return Ok(None) };
        addresses[at] = described.address();
        gradients[at] = Some(gradient);
    }
    let strides = from.strides();
    let of_gradients = Head {
        gradients: expecting(Some((wanted, deterministic)), BITS).expected,
        deterministic,
        grad_strides: (strides[0], strides[1], strides[2]),
        ..Head::default()
    };
    let head = source.head(rule, of_gradients);
    let plan = with_key(head, &source.operands(), &level_numbers(levels)?, |key| {
        py.detach(|| cuda::plan(key))
    })
    .map_err(exception)?;
    // From PyTorch's allocator: freed in stream order, and part of a graph that is being captured.
    let bytes = plan.workspace_bytes();
    let held = (bytes > 0).then(|| torch.new_bytes(value, bytes)).transpose()?;
    let described = held.as_ref().map(|tensor| torch.describe(tensor));
    let Some(at) = described.map_or(Some(0), |found| found.map(|found| found.address())) else {
        return Ok(None);
    };
    let stream = torch.stream(py, source.ordinal)?;
    let pointers = with_gradients(source.pointers(), from.address(), addresses).with_workspace(at);
    // SAFETY: as in `torch_forward_from_offsets`; gradients and workspace were made for this call.
    py.detach(|| unsafe { plan.launch(stream, &pointers) }).map_err(exception)?;
    Ok(Some(gradients))
}
