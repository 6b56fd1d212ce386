//! One-shot calls, and what the tensors of any call must look like.

use half::{bf16, f16};

use crate::cpu::{CpuOptions, GradientsMut, OffsetGradientsMut, PlanOrReference, Tensors};
use crate::view::Expected;
use crate::{
    ATTENTION, Access, DType, Error, FROM_OFFSETS, Operator, Problem, Role, TensorView,
    TensorViewMut, Typed, reference,
};

/// Whether a call is of the problem's operator: whether it gives its samples as the problem says.
pub(crate) fn check_operator(problem: &Problem, operator: &Operator) -> Result<(), Error> {
    if operator == problem.operator() {
        return Ok(());
    }
    let reason = if problem.offsets().is_some() {
        "the problem has a rule for them, but locations and weights are given; call the functions named `from_offsets`"
    } else {
        "the problem has no rule for them; build it with `.offsets(rule)`"
    };
    Err(Error::OffsetRule { reason: reason.into() })
}

/// Computes the output of one call, on all cores, with the best instructions this machine has.
///
/// What the CPU backend does not take (`f64`, above all) goes through the
/// [reference](crate::reference). For repeated calls keep a [`CpuPlan`](crate::CpuPlan).
///
/// # Errors
/// A tensor of another dtype, shape or order than the problem says, or an output too small.
pub fn forward<'v, 'l, 'w, 'o>(
    problem: &Problem,
    value: impl Into<TensorView<'v>>,
    locations: impl Into<TensorView<'l>>,
    weights: impl Into<TensorView<'w>>,
    output: impl Into<TensorViewMut<'o>>,
) -> Result<(), Error> {
    let read = [value.into(), locations.into(), weights.into()];
    compute(problem, Tensors::of(&ATTENTION, read, [Some(output.into())]))
}

/// Computes the gradients of one call, on all cores, with the best instructions this machine has.
///
/// What the CPU backend does not take (`f64`, above all) goes through the
/// [reference](crate::reference). For repeated calls keep a [`CpuPlan`](crate::CpuPlan).
///
/// # Errors
/// A tensor of another dtype, shape or order than the problem says, or a gradient too small.
pub fn backward<'v, 'l, 'w, 'g>(
    problem: &Problem,
    value: impl Into<TensorView<'v>>,
    locations: impl Into<TensorView<'l>>,
    weights: impl Into<TensorView<'w>>,
    grad_output: impl Into<TensorView<'g>>,
    gradients: GradientsMut<'_>,
) -> Result<(), Error> {
    let read = [value.into(), locations.into(), weights.into(), grad_output.into()];
    compute(problem, Tensors::of(&ATTENTION, read, gradients.in_order()))
}

/// Computes the output of one call [from offsets](crate::Offsets), on all cores, with the best instructions this machine has.
///
/// ```
/// use msdeform::{Offsets, Problem};
///
/// let problem = Problem::builder()
///     .heads(8).channels(32).queries(300).points(4).levels([(32, 32), (16, 16)])
///     .offsets(Offsets::from_points()).build()?;
/// let value = vec![1f32; problem.value_len()]; //          [1, 1280, 8, 32]
/// let references = vec![0.5f32; problem.references_len()]; // [1, 300, 2, 2], one (x, y) for each level
/// let offsets = vec![0f32; problem.locations_len()]; //    [1, 300, 8, 2, 4, 2], in pixels
/// let logits = vec![0f32; problem.weights_len()]; //       [1, 300, 8, 2, 4]
/// let mut output = vec![0f32; problem.output_len()]; //    [1, 300, 256]
/// msdeform::forward_from_offsets(&problem, &value, &references, &offsets, &logits, &mut output)?;
/// assert!(output.iter().all(|&x| (x - 1.0).abs() < 1e-6));
/// # Ok::<(), msdeform::Error>(())
/// ```
///
/// # Errors
/// As [`forward`]; a problem without a rule for offsets.
pub fn forward_from_offsets<'v, 'r, 'd, 'l, 'o>(
    problem: &Problem,
    value: impl Into<TensorView<'v>>,
    references: impl Into<TensorView<'r>>,
    offsets: impl Into<TensorView<'d>>,
    logits: impl Into<TensorView<'l>>,
    output: impl Into<TensorViewMut<'o>>,
) -> Result<(), Error> {
    let read = [value.into(), references.into(), offsets.into(), logits.into()];
    compute(problem, Tensors::of(&FROM_OFFSETS, read, [Some(output.into())]))
}

/// Computes the gradients of one call [from offsets](crate::Offsets), on all cores, with the best instructions this machine
/// has.
///
/// # Errors
/// As [`backward`]; a problem without a rule for offsets.
pub fn backward_from_offsets<'v, 'r, 'd, 'l, 'g>(
    problem: &Problem,
    value: impl Into<TensorView<'v>>,
    references: impl Into<TensorView<'r>>,
    offsets: impl Into<TensorView<'d>>,
    logits: impl Into<TensorView<'l>>,
    grad_output: impl Into<TensorView<'g>>,
    gradients: OffsetGradientsMut<'_>,
) -> Result<(), Error> {
    let (value, grad_output) = (value.into(), grad_output.into());
    let read = [value, references.into(), offsets.into(), logits.into(), grad_output];
    compute(problem, Tensors::of(&FROM_OFFSETS, read, gradients.in_order()))
}

/// Computes one call whose tensors are told by their roles: forward where the output is among what is written, else backward.
///
/// # Errors
/// As [`CpuPlan::run`](crate::CpuPlan::run).
pub fn run<'r, 'w>(
    problem: &Problem,
    read: impl IntoIterator<Item = (Role, TensorView<'r>)>,
    written: impl IntoIterator<Item = (Role, TensorViewMut<'w>)>,
) -> Result<(), Error> {
    compute(problem, Tensors::by_role(problem, read, written)?)
}

/// Computes a call with a plan of its own.
fn compute(problem: &Problem, tensors: Tensors<'_, '_>) -> Result<(), Error> {
    PlanOrReference::new(problem, &CpuOptions::default())?.compute(tensors)
}

/// Computes a call with the reference.
pub(crate) fn compute_by_reference(
    problem: &Problem,
    mut tensors: Tensors<'_, '_>,
) -> Result<(), Error> {
    check_operator(problem, tensors.operator)?;
    let direction = tensors.direction();
    let mut inputs: [Vec<f64>; Role::COUNT] = Default::default();
    // Nothing is computed for a buffer that turns out to be too small.
    let mut writes: [Option<Write<'_>>; Role::COUNT] = Default::default();
    for (role, access) in tensors.operator.tensors(direction) {
        let (place, expected) = (role.index(), Expected::new(problem, role));
        match access {
            Access::Read => inputs[place] = widen(role, tensors.input(role)?, &expected)?,
            Access::Write => {
                let to = tensors.result(role).map(|to| narrowing(to, &expected));
                writes[place] = to.transpose()?;
            }
        }
    }
    let input = |role: Role| inputs[role.index()].as_slice();
    for (role, result) in reference::compute(problem, direction, input) {
        if let Some(write) = writes[role.index()].take() {
            write(&result);
        }
    }
    Ok(())
}

/// The elements of a checked tensor as `f64`, packed. Those of a call from offsets may lie as its plan takes them.
fn widen(role: Role, view: TensorView<'_>, expected: &Expected) -> Result<Vec<f64>, Error> {
    match role {
        Role::References => widen_spread::<3>(view, expected),
        Role::Offsets | Role::Logits => widen_spread::<2>(view, expected),
        _ => widen_spread::<0>(view, expected),
    }
}

/// The elements of a checked tensor whose first axes may lie anywhere, packed, as `f64`.
fn widen_spread<const AXES: usize>(
    view: TensorView<'_>,
    expected: &Expected,
) -> Result<Vec<f64>, Error> {
    fn as_f64<T: Typed, const AXES: usize>(
        view: TensorView<'_>,
        expected: &Expected,
    ) -> Result<Vec<f64>, Error> {
        let (elements, strides) = view.spread::<T, AXES>(expected)?;
        let (outer, inner) = expected.shape.split_at(AXES);
        let inner = inner.iter().product::<usize>();
        let rows = outer.iter().product::<usize>();
        let mut packed = Vec::with_capacity(rows * inner);
        for row in 0..if inner == 0 { 0 } else { rows } {
            let (mut rest, mut first) = (row, 0);
            for axis in (0..AXES).rev() {
                first += rest % outer[axis] * strides[axis];
                rest /= outer[axis];
            }
            packed.extend(elements[first..][..inner].iter().map(|x| x.to_f64()));
        }
        Ok(packed)
    }
    match expected.dtype {
        DType::F32 => as_f64::<f32, AXES>(view, expected),
        DType::F16 => as_f64::<f16, AXES>(view, expected),
        DType::Bf16 => as_f64::<bf16, AXES>(view, expected),
        DType::F64 => as_f64::<f64, AXES>(view, expected),
    }
}

/// Writes a result, in `f64`, to where it was asked for.
type Write<'a> = Box<dyn FnOnce(&[f64]) + 'a>;

/// Checks a tensor to be written and returns what writes it.
fn narrowing<'a>(view: TensorViewMut<'a>, expected: &Expected) -> Result<Write<'a>, Error> {
    fn from_f64<'a, T: Typed>(
        view: TensorViewMut<'a>,
        expected: &Expected,
    ) -> Result<Write<'a>, Error> {
        let to = view.elements::<T>(expected)?;
        Ok(Box::new(move |from| {
            for (to, &from) in to.iter_mut().zip(from) {
                *to = T::from_f64(from);
            }
        }))
    }
    match expected.dtype {
        DType::F32 => from_f64::<f32>(view, expected),
        DType::F16 => from_f64::<f16>(view, expected),
        DType::Bf16 => from_f64::<bf16>(view, expected),
        DType::F64 => from_f64::<f64>(view, expected),
    }
}
