//! A single call of any operator, and the check that its tensors are those of the problem's operator.

use half::{bf16, f16};

use crate::cpu::{CpuOptions, PlanOrReference, Tensors};
use crate::view::Expected;
use crate::{
    Access, DType, Error, Operator, Problem, Role, TensorView, TensorViewMut, Typed, reference,
};

/// Refuses the tensors of another operator than the problem's.
pub(crate) fn check_operator(problem: &Problem, called: &Operator) -> Result<(), Error> {
    let expected = problem.operator();
    if called == expected {
        return Ok(());
    }
    let reason = format!(
        "the call has the tensors of the {} operator, but the problem is one of the {} operator; call {}, or build the problem \
         {}",
        called.name, expected.name, expected.functions, called.built
    );
    Err(Error::OffsetRule { reason })
}

/// Computes a call of any operator, with its tensors by role: a forward call if the output is among `written`, else a
/// backward call.
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
pub(crate) fn compute(problem: &Problem, tensors: Tensors<'_, '_>) -> Result<(), Error> {
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

/// The elements of a checked tensor as `f64`, packed. Tensors of the fused operator may have strides.
fn widen(role: Role, view: TensorView<'_>, expected: &Expected) -> Result<Vec<f64>, Error> {
    match role {
        Role::References => widen_spread::<3>(view, expected),
        Role::Offsets | Role::Logits => widen_spread::<2>(view, expected),
        _ => widen_spread::<0>(view, expected),
    }
}

/// The elements of a checked tensor whose first axes may have any strides, packed, as `f64`.
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

/// Writes a result, given in `f64`, to its tensor.
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
