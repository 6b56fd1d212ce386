//! Ordinary calls whose gradient is recorded: what PyTorch's `autograd.Function` calls on either side, without Python in between.
//!
//! A function of autograd in Python costs what PyTorch takes for it; what it is given and what it keeps need not go through Python
//! once more. Whatever is not ordinary when the gradient is asked for goes to the Python half, with what was kept.

use msdeform_torch::call::Head;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyTuple;

use crate::torch::{self, Expected, Torch, expecting, read_levels};

static RECORDER: PyOnceLock<Recorder> = PyOnceLock::new();

/// What recording needs of the Python half.
struct Recorder {
    /// Applies the function of autograd.
    apply: Py<PyAny>,
    /// The gradients of what is not ordinary: `grad_output`, what was kept, levels, which are wanted, whether deterministic.
    gradients: Py<PyAny>,
    is_grad_enabled: Py<PyAny>,
    /// Whether all of PyTorch is to have the same bits in every run.
    is_deterministic: Py<PyAny>,
}

/// Hands over what recording needs.
#[pyfunction]
pub fn use_recorder(
    py: Python<'_>,
    apply: Py<PyAny>,
    gradients: Py<PyAny>,
    is_grad_enabled: Py<PyAny>,
    is_deterministic: Py<PyAny>,
) {
    // An interpreter that imports the package again keeps what it had.
    let _ = RECORDER.set(py, Recorder { apply, gradients, is_grad_enabled, is_deterministic });
}

/// What a call is beside its tensors, kept until its gradient is asked for.
#[pyclass(frozen, module = "msdeform._native")]
pub struct Recorded {
    /// Four numbers for each level.
    #[pyo3(get)]
    levels: Vec<i64>,
    /// Whether this call's gradients must have the same bits in every run.
    #[pyo3(get)]
    deterministic: bool,
}

impl Recorder {
    fn is(&self, py: Python<'_>, question: &Py<PyAny>) -> PyResult<bool> {
        question.bind(py).call0()?.is_truthy()
    }

    fn same_bits(&self, py: Python<'_>, call: &Recorded) -> PyResult<bool> {
        Ok(call.deterministic || self.is(py, &self.is_deterministic)?)
    }
}

/// The output of an ordinary call, with its gradient if a tensor wants one. `None` as of `torch_forward`.
#[pyfunction]
pub fn torch_record<'py>(
    py: Python<'py>,
    value: &Bound<'py, PyAny>,
    locations: &Bound<'py, PyAny>,
    weights: &Bound<'py, PyAny>,
    levels: &Bound<'py, PyAny>,
    deterministic: bool,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let (Some(torch), Some(recorder)) = (torch::of(py), RECORDER.get(py)) else { return Ok(None) };
    let tensors = [value, locations, weights];
    if !torch.is_ordinary(py, &tensors)? {
        return Ok(None);
    }
    let Some(inputs) = torch.inputs(value, locations, weights) else { return Ok(None) };
    let Some(levels) = read_levels(levels, &inputs) else { return Ok(None) };
    for tensor in tensors {
        if tensor.getattr(intern!(py, "requires_grad"))?.is_truthy()? {
            let call = Bound::new(py, Recorded { levels, deterministic })?;
            return recorder.apply.bind(py).call1((value, locations, weights, call)).map(Some);
        }
    }
    torch.forward(value, &inputs, &levels, Head::default())
}

/// What the function of autograd does forward. It was asked by [`torch_record`], which has looked at the tensors.
#[pyfunction]
pub fn recorded_forward<'py>(
    py: Python<'py>,
    ctx: &Bound<'py, PyAny>,
    value: &Bound<'py, PyAny>,
    locations: &Bound<'py, PyAny>,
    weights: &Bound<'py, PyAny>,
    call: &Bound<'py, Recorded>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let (Some(torch), Some(recorder)) = (torch::of(py), RECORDER.get(py)) else { return Ok(None) };
    let Some(inputs) = torch.inputs(value, locations, weights) else { return Ok(None) };
    // As `ctx.save_for_backward` does, in Python.
    ctx.setattr(intern!(py, "to_save"), (value, locations, weights))?;
    ctx.setattr(intern!(py, "call"), call)?;
    let kept = call.get();
    let expected: Expected<3> = (wanted(ctx)?, recorder.same_bits(py, kept)?);
    torch.forward(value, &inputs, &kept.levels, expecting(Some(expected), torch::BITS))
}

/// What it does backward: the gradients, and nothing for the call.
#[pyfunction]
pub fn recorded_backward<'py>(
    py: Python<'py>,
    ctx: &Bound<'py, PyAny>,
    grad_output: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyTuple>> {
    let call = ctx.getattr(intern!(py, "call"))?.cast_into::<Recorded>()?;
    // Once: a checkpoint gives them out no second time.
    let kept = ctx.getattr(intern!(py, "saved_tensors"))?.cast_into::<PyTuple>()?;
    let (wanted, call) = (wanted(ctx)?, call.get());
    if let (Some(torch), Some(recorder)) = (torch::of(py), RECORDER.get(py)) {
        let found = if recorder.is(py, &recorder.is_grad_enabled)? {
            None
        } else {
            gradients(torch, recorder, grad_output, &kept, call, wanted)?
        };
        if let Some([value, locations, weights]) = found {
            return (value, locations, weights, py.None()).into_pyobject(py);
        }
        let found = recorder.gradients.bind(py).call1((
            grad_output,
            kept,
            call.levels.clone(),
            wanted,
            call.deterministic,
        ))?;
        return Ok(found.cast_into::<PyTuple>()?);
    }
    // Never: the call was recorded with both of them.
    Ok(PyTuple::empty(py))
}

/// `None` for what is not ordinary.
fn gradients<'py>(
    torch: &Torch,
    recorder: &Recorder,
    grad_output: &Bound<'py, PyAny>,
    kept: &Bound<'py, PyTuple>,
    call: &Recorded,
    wanted: [bool; 3],
) -> PyResult<Option<[Option<Bound<'py, PyAny>>; 3]>> {
    let py = grad_output.py();
    let (value, locations, weights) = (kept.get_item(0)?, kept.get_item(1)?, kept.get_item(2)?);
    if !torch.is_ordinary(py, &[grad_output, &value, &locations, &weights])? {
        return Ok(None);
    }
    let Some(inputs) = torch.inputs(&value, &locations, &weights) else { return Ok(None) };
    let (tensors, same_bits) = ([&value, &locations, &weights], recorder.same_bits(py, call)?);
    torch.backward(grad_output, tensors, &inputs, &call.levels, wanted, same_bits)
}

/// Which gradients are.
fn wanted(ctx: &Bound<'_, PyAny>) -> PyResult<[bool; 3]> {
    let needed = ctx.getattr(intern!(ctx.py(), "needs_input_grad"))?.cast_into::<PyTuple>()?;
    let is = |at| needed.get_item(at)?.is_truthy();
    Ok([is(0)?, is(1)?, is(2)?])
}
