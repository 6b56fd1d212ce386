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

/// Value, references, offsets and logits in one place, as the kernels read them.
pub struct Source {
    tensors: [DlTensor; 4],
    place: Place,
}

impl Source {
    /// `None` for what the long way must look at: formats that differ, references for several images or queries, rows that are not
    /// contiguous, and everything that is wrong.
    pub fn of(torch: &Torch, tensors: [&Bound<'_, PyAny>; 4]) -> Option<Self> {
        let [value, references, offsets, logits] = tensors.map(|tensor| torch.describe(tensor));
        let tensors = [value?, references?, offsets?, logits?];
        let [value, references, offsets, logits] = &tensors;
        let place = value.place()?;
        let (format, sampling) = (value.dtype()?, offsets.dtype()?);
        let is_double = tensors.each_ref().map(|tensor| tensor.dtype() == Some(DType::F64));
        let is_read_beside =
            |format: DType, beside: DType| format == beside || format == DType::F32;
        let fits = tensors.iter().all(|t| t.place() == Some(place) && t.is_full())
            && is_double == [format == DType::F64; 4]
            && logits.dtype() == Some(sampling)
            && is_read_beside(sampling, format)
            && is_read_beside(references.dtype()?, sampling)
            && matches!(tensors.each_ref().map(|t| t.shape().len()), [4, 4, 5 | 6, 4 | 5])
            && references.shape()[..2] == offsets.shape()[..2]
            && matches!(references.shape()[3], 2 | 4)
            && [offsets, logits].iter().all(|t| t.has_contiguous_rows(2));
        let is_readable = match place {
            Place::Cpu => value.is_contiguous() && references.has_contiguous_rows(3),
            // float64 is computed on the processor.
            Place::Gpu(_) => {
                format != DType::F64
                    && value.has_unit_last_stride()
                    && references.has_contiguous_rows(2)
            }
        };
        (fits && is_readable).then_some(Self { tensors, place })
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

    /// Pairs (height, width) of levels that follow each other, as [`torch::read_shapes`] does.
    pub fn read_shapes(&self, shapes: &Bound<'_, PyAny>) -> Option<Vec<i64>> {
        torch::read_shapes(shapes, &self.tensors[0], &self.tensors[2])
    }

    /// Whether this is the gradient of the output, readable where it is.
    fn takes_gradient(&self, gradient: &DlTensor) -> bool {
        gradient.is_gradient_of(&self.output_shape(), &self.tensors[0])
            && (matches!(self.place, Place::Gpu(_)) || gradient.is_contiguous())
    }

    /// On a GPU.
    fn head(&self, ordinal: i32, rule: RuleGiven, of_gradients: Head) -> Head {
        let [value, references, offsets, logits] = self.tensors.each_ref().map(DlTensor::strides);
        Head {
            place: i64::from(ordinal),
            value_strides: (value[0], value[2], value[1]),
            rule: Some(Rule::from(rule)),
            source_strides: [references, offsets, logits].map(|strides| (strides[0], strides[1])),
            ..of_gradients
        }
    }

    /// Computes on the processor what the pointers lead to.
    fn run_on_cpu(
        &self,
        py: Python<'_>,
        direction: Direction,
        (threads, rule): (i64, RuleGiven),
        levels: &[i64],
        pointers: &Pointers,
    ) -> PyResult<()> {
        let [_, references, offsets, logits] = self.tensors.each_ref().map(DlTensor::strides);
        // PyTorch has no negative ones.
        let stride = |strides: &[i64], axis: usize| strides[axis].unsigned_abs() as usize;
        let of_rows = |strides: &[i64]| (stride(strides, 0), stride(strides, 1));
        let of_references = (stride(references, 0), stride(references, 1), stride(references, 2));
        let strides: SourceStrides = (of_references, of_rows(offsets), of_rows(logits));
        let head = Head { rule: Some(rule.into()), ..on_threads(threads) };
        with_key(head, &self.operands(), levels, |key| {
            // SAFETY: addresses, shapes and strides come from the same live tensors, which `of` found to be contiguous
            // but for these strides; what is written was made for this call.
            py.detach(|| unsafe { cpu::run_from_offsets(direction, key, pointers, &strides) })
        })
        .map_err(exception)
    }
}

/// The output of an ordinary call, from value, references, offsets and logits, whose gradient somebody else records. `levels`
/// are four numbers for each level: height, width, start, points.
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
    let Some(source) = Source::of(torch, tensors.each_ref()) else { return Ok(None) };
    torch.forward_from_offsets(&tensors[0], &source, &level_numbers(levels)?, rule, expected)
}

/// The gradients of an ordinary call, `None` in place of those that are not wanted.
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
    let levels = level_numbers(levels)?;
    let expected = (wanted, deterministic);
    torch.backward_from_offsets(grad_output, tensors.each_ref(), &levels, rule, expected)
}

impl Torch {
    /// The output of tensors that are known to be ordinary; `expected` is what will be asked of their gradients.
    pub fn forward_from_offsets<'py>(
        &self,
        value: &Bound<'py, PyAny>,
        source: &Source,
        levels: &[i64],
        rule: RuleGiven,
        expected: Option<Expected<4>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let py = value.py();
        let output = self.new_tensor(value, &source.tensors[0], &source.output_shape())?;
        let Some(to) = self.describe(&output) else { return Ok(None) };
        let pointers = source.pointers().with(Role::Output, to.address());
        match source.place {
            Place::Cpu => {
                let place = (self.threads(py)?, rule);
                source.run_on_cpu(py, Direction::Forward, place, levels, &pointers)?;
            }
            Place::Gpu(ordinal) => {
                let stream = self.stream(py, ordinal)?;
                let head = source.head(ordinal, rule, expecting(expected, BITS));
                with_key(head, &source.operands(), levels, |key| {
                    // SAFETY: addresses, shapes and strides come from the same live tensors; the output was made for this
                    // call. PyTorch's allocator frees memory in the order of the stream, which is its current one on the
                    // tensors' GPU.
                    py.detach(|| unsafe { cuda::plan(key)?.launch(stream, &pointers) })
                })
                .map_err(exception)?;
            }
        }
        Ok(Some(output))
    }

    /// The gradients, likewise: which of them, and whether with the same bits in every run.
    pub fn backward_from_offsets<'py>(
        &self,
        grad_output: &Bound<'py, PyAny>,
        tensors: [&Bound<'py, PyAny>; 4],
        levels: &[i64],
        rule: RuleGiven,
        (wanted, deterministic): Expected<4>,
    ) -> PyResult<Option<[Option<Bound<'py, PyAny>>; 4]>> {
        let py = grad_output.py();
        let Some(source) = Source::of(self, tensors) else { return Ok(None) };
        let Some(from) = self.describe(grad_output) else { return Ok(None) };
        if !source.takes_gradient(&from) {
            return Ok(None);
        }
        let made = self.new_gradients(tensors, source.tensors.each_ref(), wanted)?;
        let Some((gradients, addresses)) = made else { return Ok(None) };
        let pointers = with_gradients(source.pointers(), from.address(), addresses);
        match source.place {
            Place::Cpu => {
                let place = (self.threads(py)?, rule);
                source.run_on_cpu(py, Direction::Backward, place, levels, &pointers)?;
            }
            Place::Gpu(ordinal) => {
                let strides = from.strides();
                let of_gradients = Head {
                    gradients: expecting(Some((wanted, deterministic)), BITS).expected,
                    deterministic,
                    grad_strides: (strides[0], strides[1], strides[2]),
                    ..Head::default()
                };
                let head = source.head(ordinal, rule, of_gradients);
                let operands = source.operands();
                // SAFETY: as in `forward_from_offsets`; the gradients were made for this call.
                let launched = unsafe {
                    self.launch_backward(tensors[0], ordinal, head, &operands, levels, pointers)?
                };
                if launched.is_none() {
                    return Ok(None);
                }
            }
        }
        Ok(Some(gradients))
    }
}
