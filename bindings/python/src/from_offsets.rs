//! The operator from offsets: what the Python half calls for the processor and for a GPU.

use msdeform::{Direction, Role};
use msdeform_cuda::Pointers;
use msdeform_torch::call::{Described, Head};
use msdeform_torch::cpu::SourceStrides;
use pyo3::prelude::*;

use crate::operand::{Operand, RuleGiven};
use crate::{
    Request, launch_backward, launch_forward, on_threads, pointers_to, run_on_cpu, with_gradients,
};

/// Value, references, offsets and logits of a call, and how the last three lie in memory.
#[derive(FromPyObject)]
pub struct Projected<'py>(Operand<'py>, Operand<'py>, Operand<'py>, Operand<'py>, SourceStrides);

impl Projected<'_> {
    fn pointers(&self) -> Pointers {
        pointers_to([self.0.0, self.1.0, self.2.0, self.3.0].map(|address| address as u64))
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
        run_on_cpu(py, direction, head, &self.operands(), levels, pointers, Some(&self.4))
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
    launch_forward(py, stream, head, &inputs.operands(), levels, &pointers)
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
    let pointers = with_gradients(inputs.pointers(), addresses.0, addresses.1);
    launch_backward(py, stream, head, &inputs.operands(), levels, pointers, allocate)
}
