//! Ordinary calls as users make them, and what PyTorch's `autograd.Function` calls on either side of those whose gradient is
//! recorded, without Python in between.
//!
//! A function of autograd in Python costs what PyTorch takes for it; what it is given and what it keeps need not go through Python
//! once more. Whatever is not ordinary when the gradient is asked for goes to the Python half, with what was kept.

use std::sync::Mutex;

use msdeform_torch::call::Head;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyTuple;

use crate::operand::RuleGiven;
use crate::torch::{self, Torch, expecting};

static RECORDER: PyOnceLock<Recorder> = PyOnceLock::new();

/// What recording needs of the Python half.
struct Recorder {
    plain: Operator,
    from_offsets: Operator,
    is_grad_enabled: Py<PyAny>,
    /// Whether all of PyTorch is to have the same bits in every run.
    is_deterministic: Py<PyAny>,
}

/// One of the operators.
#[derive(FromPyObject)]
pub struct Operator(
    /// Applies the function of autograd.
    Py<PyAny>,
    /// The gradients of what is not ordinary: `grad_output`, what was kept, which are wanted, the call.
    Py<PyAny>,
);

/// Hands over what recording needs.
#[pyfunction]
pub fn use_recorder(
    py: Python<'_>,
    plain: Operator,
    from_offsets: Operator,
    is_grad_enabled: Py<PyAny>,
    is_deterministic: Py<PyAny>,
) {
    // An interpreter that imports the package again keeps what it had.
    let _ = RECORDER.set(py, Recorder { plain, from_offsets, is_grad_enabled, is_deterministic });
}

/// What a call is beside its tensors, kept until its gradient is asked for.
#[pyclass(frozen, module = "msdeform._native")]
pub struct Recorded {
    /// Four numbers for each level.
    #[pyo3(get)]
    levels: Vec<i64>,
    /// How samples follow from offsets, if they do: anchors, scale, softmax, nearest.
    #[pyo3(get)]
    rule: Option<RuleGiven>,
    /// Whether this call's gradients must have the same bits in every run.
    #[pyo3(get)]
    deterministic: bool,
    /// Computed before PyTorch's function of autograd is called, which takes it: that need not look at the tensors again.
    output: Mutex<Option<Py<PyAny>>>,
}

impl Recorder {
    fn is(&self, py: Python<'_>, question: &Py<PyAny>) -> PyResult<bool> {
        question.bind(py).call0()?.is_truthy()
    }

    fn same_bits(&self, py: Python<'_>, deterministic: bool) -> PyResult<bool> {
        Ok(deterministic || self.is(py, &self.is_deterministic)?)
    }

    const fn operator(&self, rule: Option<RuleGiven>) -> &Operator {
        match rule {
            None => &self.plain,
            Some(_) => &self.from_offsets,
        }
    }
}

/// Which of them want a gradient.
fn wanting<const TENSORS: usize>(
    tensors: [&Bound<'_, PyAny>; TENSORS],
) -> PyResult<[bool; TENSORS]> {
    let mut wanting = [false; TENSORS];
    for (wants, tensor) in wanting.iter_mut().zip(tensors) {
        *wants = tensor.getattr(intern!(tensor.py(), "requires_grad"))?.is_truthy()?;
    }
    Ok(wanting)
}

/// The output of an ordinary call as users make it, with its gradient if that `is_recorded` and a tensor wants one. `shapes` are pairs
/// (height, width) of levels that follow each other.
#[pyfunction]
pub fn torch_attend<'py>(
    py: Python<'py>,
    value: &Bound<'py, PyAny>,
    locations: &Bound<'py, PyAny>,
    weights: &Bound<'py, PyAny>,
    shapes: &Bound<'py, PyAny>,
    deterministic: bool,
    is_recorded: bool,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let tensors = [value, locations, weights];
    attend(tensors, shapes, None, deterministic, is_recorded, |operator, call| {
        operator.0.bind(py).call1((value, locations, weights, call))
    })
}

/// The same from offsets.
#[pyfunction]
#[allow(clippy::too_many_arguments, reason = "the tensors of a call; Python passes them in order")]
pub fn torch_attend_from_offsets<'py>(
    py: Python<'py>,
    value: &Bound<'py, PyAny>,
    references: &Bound<'py, PyAny>,
    offsets: &Bound<'py, PyAny>,
    logits: &Bound<'py, PyAny>,
    shapes: &Bound<'py, PyAny>,
    rule: &Bound<'py, PyAny>,
    deterministic: bool,
    is_recorded: bool,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let Ok(rule) = rule.extract::<RuleGiven>() else { return Ok(None) };
    let tensors = [value, references, offsets, logits];
    attend(tensors, shapes, Some(rule), deterministic, is_recorded, |operator, call| {
        operator.0.bind(py).call1((value, references, offsets, logits, call))
    })
}

fn attend<'py, const TENSORS: usize>(
    tensors: [&Bound<'py, PyAny>; TENSORS],
    shapes: &Bound<'py, PyAny>,
    rule: Option<RuleGiven>,
    deterministic: bool,
    is_recorded: bool,
    apply: impl FnOnce(&Operator, Recorded) -> PyResult<Bound<'py, PyAny>>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let py = shapes.py();
    let (Some(torch), Some(recorder)) = (torch::of(py), RECORDER.get(py)) else { return Ok(None) };
    let Some(inputs) = torch.inputs(py, tensors, rule)? else { return Ok(None) };
    let Some(levels) = inputs.read_shapes(shapes) else { return Ok(None) };
    let wanted = if is_recorded { wanting(tensors)? } else { [false; TENSORS] };
    if !wanted.contains(&true) {
        return torch.forward(tensors[0], &inputs, &levels, Head::default());
    }
    let expected = expecting(Some((wanted, recorder.same_bits(py, deterministic)?)));
    let Some(output) = torch.forward(tensors[0], &inputs, &levels, expected)? else {
        return Ok(None);
    };
    let output = Mutex::new(Some(output.unbind()));
    let call = Recorded { levels, rule, deterministic, output };
    apply(recorder.operator(rule), call).map(Some)
}

/// What the functions of autograd do forward: keep the tensors and the call, which come last, and give out what was computed.
#[pyfunction]
#[pyo3(signature = (ctx, *arguments))]
pub fn recorded_forward<'py>(
    ctx: &Bound<'py, PyAny>,
    arguments: &Bound<'py, PyTuple>,
) -> PyResult<Option<Py<PyAny>>> {
    let py = ctx.py();
    let tensors = arguments.len().saturating_sub(1);
    let call = arguments.get_item(tensors)?.cast_into::<Recorded>()?;
    // As `ctx.save_for_backward` does, in Python.
    ctx.setattr(intern!(py, "to_save"), arguments.get_slice(0, tensors))?;
    ctx.setattr(intern!(py, "call"), &call)?;
    Ok(call.get().output.lock().map_or(None, |mut output| output.take()))
}

/// What both do backward: the gradients, and nothing for the call.
#[pyfunction]
pub fn recorded_backward<'py>(
    py: Python<'py>,
    ctx: &Bound<'py, PyAny>,
    grad_output: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyTuple>> {
    let call = ctx.getattr(intern!(py, "call"))?.cast_into::<Recorded>()?;
    // Once: a checkpoint gives them out no second time.
    let kept = ctx.getattr(intern!(py, "saved_tensors"))?.cast_into::<PyTuple>()?;
    if let (Some(torch), Some(recorder)) = (torch::of(py), RECORDER.get(py)) {
        let asked = Asked { torch, recorder, call: call.get(), grad_output };
        let found = match call.get().rule {
            _ if recorder.is(py, &recorder.is_grad_enabled)? => None,
            None => match asked.gradients(ctx, &kept)? {
                Some([value, locations, weights]) => {
                    Some((value, locations, weights, py.None()).into_pyobject(py)?)
                }
                None => None,
            },
            Some(_) => match asked.gradients(ctx, &kept)? {
                Some([value, references, offsets, logits]) => {
                    Some((value, references, offsets, logits, py.None()).into_pyobject(py)?)
                }
                None => None,
            },
        };
        if let Some(found) = found {
            return Ok(found);
        }
        let wanted = ctx.getattr(intern!(py, "needs_input_grad"))?;
        let gradients = recorder.operator(call.get().rule).1.bind(py);
        return Ok(gradients.call1((grad_output, kept, wanted, call))?.cast_into::<PyTuple>()?);
    }
    // Never: the call was recorded with both of them.
    Ok(PyTuple::empty(py))
}

/// What is asked when a gradient is.
struct Asked<'a, 'py> {
    torch: &'a Torch,
    recorder: &'a Recorder,
    call: &'a Recorded,
    grad_output: &'a Bound<'py, PyAny>,
}

impl<'py> Asked<'_, 'py> {
    /// `None` for what is not ordinary.
    fn gradients<const TENSORS: usize>(
        &self,
        ctx: &Bound<'py, PyAny>,
        kept: &Bound<'py, PyTuple>,
    ) -> PyResult<Option<[Option<Bound<'py, PyAny>>; TENSORS]>> {
        let mut tensors = [const { None }; TENSORS];
        for (at, tensor) in tensors.iter_mut().enumerate() {
            *tensor = Some(kept.get_item(at)?);
        }
        // All are there; what stands for one that is not is never ordinary.
        let tensors = tensors.each_ref().map(|tensor| tensor.as_ref().unwrap_or(ctx));
        let (wanted, same_bits) =
            (wanted(ctx)?, self.recorder.same_bits(kept.py(), self.call.deterministic)?);
        let Recorded { levels, rule, .. } = self.call;
        self.torch.backward(self.grad_output, tensors, levels, *rule, (wanted, same_bits))
    }
}

/// Which gradients of the tensors are; what is behind them is none.
fn wanted<const TENSORS: usize>(ctx: &Bound<'_, PyAny>) -> PyResult<[bool; TENSORS]> {
    let needed = ctx.getattr(intern!(ctx.py(), "needs_input_grad"))?.cast_into::<PyTuple>()?;
    let mut wanted = [false; TENSORS];
    for (at, is_wanted) in wanted.iter_mut().enumerate() {
        *is_wanted = needed.get_item(at)?.is_truthy()?;
    }
    Ok(wanted)
}
