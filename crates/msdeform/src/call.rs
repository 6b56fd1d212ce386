//! The tensors of a call of any operator, and what computes calls that no plan takes.

use half::{bf16, f16};

use crate::view::Expected;
use crate::{
    Access, CpuOptions, CpuPlan, DType, Direction, Element, Error, Problem, Role, TensorView,
    TensorViewMut, reference,
};

/// Computes the output of one call, on all cores, with the best instructions this machine has.
///
/// `inputs` are those of the problem's operator, in its order: `[value, locations, weights]`, or
/// `[value, references, offsets, logits]` of the [fused operator](crate::Offsets). Inputs of several dtypes are
/// [`TensorView`]s.
///
/// ```
/// use msdeform::{Offsets, Problem, forward};
///
/// let problem = Problem::builder()
///     .heads(8).channels(32).queries(300).points(4).levels([(32, 32), (16, 16)])
///     .offsets(Offsets::from_points()).build()?;
/// let value = vec![1f32; problem.value_len()]; //          [1, 1280, 8, 32]
/// let references = vec![0.5f32; problem.references_len()]; // [1, 300, 2, 2], one (x, y) for each level
/// let offsets = vec![0f32; problem.locations_len()]; //    [1, 300, 8, 2, 4, 2], in pixels
/// let logits = vec![0f32; problem.weights_len()]; //       [1, 300, 8, 2, 4]
/// let mut output = vec![0f32; problem.output_len()]; //    [1, 300, 256]
/// forward(&problem, [&value, &references, &offsets, &logits], &mut output)?;
/// assert!(output.iter().all(|&x| (x - 1.0).abs() < 1e-6));
/// # Ok::<(), msdeform::Error>(())
/// ```
///
/// # Errors
/// As [`CpuPlan::forward`].
pub fn forward<'r, 'w>(
    problem: &Problem,
    inputs: impl IntoIterator<Item: Into<TensorView<'r>>>,
    output: impl Into<TensorViewMut<'w>>,
) -> Result<(), Error> {
    CpuPlan::new(problem, &CpuOptions::default())?.forward(inputs, output)
}

/// Computes the requested gradients of one call, on all cores, with the best instructions this machine has.
///
/// # Errors
/// As [`CpuPlan::backward`].
pub fn backward<'r, 'w>(
    problem: &Problem,
    inputs: impl IntoIterator<Item: Into<TensorView<'r>>>,
    grad_output: impl Into<TensorView<'r>>,
    gradients: impl IntoIterator<Item = (Role, impl Into<TensorViewMut<'w>>)>,
) -> Result<(), Error> {
    CpuPlan::new(problem, &CpuOptions::default())?.backward(inputs, grad_output, gradients)
}

/// The tensors of a call, by role.
pub(crate) struct Tensors<'r, 'w> {
    pub direction: Direction,
    read: [Option<TensorView<'r>>; Role::COUNT],
    written: [Option<TensorViewMut<'w>>; Role::COUNT],
}

impl<'r, 'w> Tensors<'r, 'w> {
    /// What a call of a problem reads and writes: a forward call if the output is among `written`, else a backward call.
    pub(crate) fn by_role(
        problem: &Problem,
        read: impl IntoIterator<Item = (Role, TensorView<'r>)>,
        written: impl IntoIterator<Item = (Role, impl Into<TensorViewMut<'w>>)>,
    ) -> Result<Self, Error> {
        let direction = Direction::Backward;
        let mut tensors = Self { direction, read: Default::default(), written: Default::default() };
        for (role, view) in read {
            tensors.read[role.index()] = Some(view);
        }
        for (role, view) in written {
            tensors.written[role.index()] = Some(view.into());
        }
        if tensors.written[Role::Output.index()].is_some() {
            tensors.direction = Direction::Forward;
        }
        let mut surplus = tensors.written.each_ref().map(Option::is_some);
        problem
            .operator()
            .written(tensors.direction)
            .for_each(|role| surplus[role.index()] = false);
        let Some(tensor) = Role::ALL.into_iter().find(|role| surplus[role.index()]) else {
            return Ok(tensors);
        };
        let reason = "to be written, but the call computes no such tensor; leave it out";
        Err(Error::Tensors { tensor: tensor.name(), reason })
    }

    /// What a call reads and writes whose inputs come in the order of the problem's operator.
    pub(crate) fn in_order(
        problem: &Problem,
        inputs: impl IntoIterator<Item: Into<TensorView<'r>>>,
        grad_output: Option<TensorView<'r>>,
        written: impl IntoIterator<Item = (Role, impl Into<TensorViewMut<'w>>)>,
    ) -> Result<Self, Error> {
        let operator = problem.operator();
        let (mut inputs, mut found) = (inputs.into_iter(), 0);
        let read = operator.inputs.iter().copied().zip(inputs.by_ref().map(Into::into));
        let read = read.inspect(|_| found += 1);
        let upstream = grad_output.map(|view| (Role::GradOutput, view));
        let tensors = Self::by_role(problem, read.chain(upstream), written);
        found += inputs.count();
        if found == operator.inputs.len() {
            tensors
        } else {
            Err(Error::Inputs { operator, found })
        }
    }

    pub(crate) fn input(&mut self, role: Role) -> Result<TensorView<'r>, Error> {
        let reason = "missing; the call reads it";
        self.read[role.index()].take().ok_or(Error::Tensors { tensor: role.name(), reason })
    }

    pub(crate) fn result(&mut self, role: Role) -> Option<TensorViewMut<'w>> {
        self.written[role.index()].take()
    }
}

/// Computes a call with the reference.
pub(crate) fn compute_by_reference(
    problem: &Problem,
    tensors: &mut Tensors<'_, '_>,
) -> Result<(), Error> {
    let direction = tensors.direction;
    let mut inputs: [Vec<f64>; Role::COUNT] = Default::default();
    // Nothing is computed for a buffer that turns out to be too small.
    let mut writes: [Option<Write<'_>>; Role::COUNT] = Default::default();
    for (role, access) in problem.operator().tensors(direction) {
        let (place, expected) = (role.index(), Expected::new(problem, role));
        match access {
            Access::Read => inputs[place] = widen(tensors.input(role)?, &expected)?,
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

/// The elements of a checked tensor, whose free axes may have any strides, packed, as `f64`.
fn widen(view: TensorView<'_>, expected: &Expected) -> Result<Vec<f64>, Error> {
    fn as_f64<T: Element>(view: TensorView<'_>, expected: &Expected) -> Result<Vec<f64>, Error> {
        let (elements, strides) = view.spread::<T>(expected)?;
        let (outer, inner) = expected.shape.split_at(expected.free_axes);
        let inner = inner.iter().product::<usize>();
        let rows = outer.iter().product::<usize>();
        let mut packed = Vec::with_capacity(rows * inner);
        for row in 0..if inner == 0 { 0 } else { rows } {
            let (mut rest, mut first) = (row, 0);
            for (size, stride) in outer.iter().zip(strides).rev() {
                first += rest % size * stride;
                rest /= size;
            }
            packed.extend(elements[first..][..inner].iter().map(|x| x.to_f64()));
        }
        Ok(packed)
    }
    match expected.dtype {
        DType::F32 => as_f64::<f32>(view, expected),
        DType::F16 => as_f64::<f16>(view, expected),
        DType::Bf16 => as_f64::<bf16>(view, expected),
        DType::F64 => as_f64::<f64>(view, expected),
    }
}

/// Writes a result, given in `f64`, to its tensor.
type Write<'a> = Box<dyn FnOnce(&[f64]) + 'a>;

/// Checks a tensor to be written and returns what writes it.
fn narrowing<'a>(view: TensorViewMut<'a>, expected: &Expected) -> Result<Write<'a>, Error> {
    fn from_f64<'a, T: Element>(
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
