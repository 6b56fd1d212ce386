//! One-shot calls, and what the tensors of any call must look like.

use half::{bf16, f16};

use crate::cpu::{CpuOptions, CpuPlan, GradientsMut, OffsetGradientsMut};
use crate::view::Expected;
use crate::{DType, Error, Problem, TensorView, TensorViewMut, Typed, reference};

/// Shapes and formats of the tensors of a problem.
pub(crate) struct Shapes {
    dtype: DType,
    sampling_dtype: DType,
    value: [usize; 4],
    locations: [usize; 5],
    weights: [usize; 4],
    output: [usize; 3],
    reference_dtype: DType,
    references: [usize; 4],
}

impl Shapes {
    pub(crate) fn new(problem: &Problem) -> Self {
        Self {
            dtype: problem.dtype(),
            sampling_dtype: problem.sampling_dtype(),
            value: problem.value_shape(),
            locations: problem.locations_shape(),
            weights: problem.weights_shape(),
            output: problem.output_shape(),
            reference_dtype: problem.reference_dtype(),
            references: problem.references_shape(),
        }
    }

    pub(crate) fn value(&self, tensor: &'static str) -> Expected<'_> {
        Expected { tensor, dtype: self.dtype, shape: &self.value }
    }

    pub(crate) fn locations(&self, tensor: &'static str) -> Expected<'_> {
        Expected { tensor, dtype: self.sampling_dtype, shape: &self.locations }
    }

    pub(crate) fn weights(&self, tensor: &'static str) -> Expected<'_> {
        Expected { tensor, dtype: self.sampling_dtype, shape: &self.weights }
    }

    pub(crate) fn references(&self, tensor: &'static str) -> Expected<'_> {
        Expected { tensor, dtype: self.reference_dtype, shape: &self.references }
    }

    pub(crate) fn output(&self, tensor: &'static str) -> Expected<'_> {
        Expected { tensor, dtype: self.dtype, shape: &self.output }
    }
}

/// Whether a call gives its samples as the problem says.
pub(crate) fn check_samples(problem: &Problem, from_offsets: bool) -> Result<(), Error> {
    let reason = match (problem.offsets(), from_offsets) {
        (Some(_), true) | (None, false) => return Ok(()),
        (Some(_), false) => {
            "the problem has a rule for them, but locations and weights are given; call the functions named `from_offsets`"
        }
        (None, true) => "the problem has no rule for them; build it with `.offsets(rule)`",
    };
    Err(Error::OffsetRule { reason: reason.into() })
}

/// Computes the output of one call, on all cores, with the best instructions this machine has.
///
/// What the CPU backend does not take (`f64`, above all) goes through the
/// [reference](crate::reference). For repeated calls keep a [`CpuPlan`].
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
    match CpuPlan::new(problem, &CpuOptions::default()) {
        Ok(mut plan) => plan.forward(value, locations, weights, output),
        Err(Error::Unsupported { .. }) => {
            check_samples(problem, false)?;
            let shapes = Shapes::new(problem);
            let value = widen(value.into(), &shapes.value("value"))?;
            let locations = widen(locations.into(), &shapes.locations("sampling_locations"))?;
            let weights = widen(weights.into(), &shapes.weights("attention_weights"))?;
            let to = output.into();
            let check = shapes.output("output");
            // Nothing is computed for a buffer that turns out to be too small.
            let write = narrowing(to, &check)?;
            write(&reference::forward(problem, &value, &locations, &weights));
            Ok(())
        }
        Err(error) => Err(error),
    }
}

/// Computes the gradients of one call, on all cores, with the best instructions this machine has.
///
/// What the CPU backend does not take (`f64`, above all) goes through the
/// [reference](crate::reference). For repeated calls keep a [`CpuPlan`].
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
    match CpuPlan::new(problem, &CpuOptions::default()) {
        Ok(mut plan) => plan.backward(value, locations, weights, grad_output, gradients),
        Err(Error::Unsupported { .. }) => {
            check_samples(problem, false)?;
            let shapes = Shapes::new(problem);
            let value = widen(value.into(), &shapes.value("value"))?;
            let locations = widen(locations.into(), &shapes.locations("sampling_locations"))?;
            let weights = widen(weights.into(), &shapes.weights("attention_weights"))?;
            let grad_output = widen(grad_output.into(), &shapes.output("grad_output"))?;
            let writes = [
                (gradients.value, shapes.value("grad_value")),
                (gradients.locations, shapes.locations("grad_sampling_locations")),
                (gradients.weights, shapes.weights("grad_attention_weights")),
            ]
            .map(|(to, expected)| to.map(|to| narrowing(to, &expected)).transpose());
            let found = reference::backward(problem, &value, &locations, &weights, &grad_output);
            write_all(writes, &[found.value, found.locations, found.weights])
        }
        Err(error) => Err(error),
    }
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
    match CpuPlan::new(problem, &CpuOptions::default()) {
        Ok(mut plan) => plan.forward_from_offsets(value, references, offsets, logits, output),
        Err(Error::Unsupported { .. }) => {
            check_samples(problem, true)?;
            let shapes = Shapes::new(problem);
            let value = widen(value.into(), &shapes.value("value"))?;
            let source = widen_source(&shapes, references.into(), offsets.into(), logits.into())?;
            let [references, offsets, logits] = &source;
            let check = shapes.output("output");
            let write = narrowing(output.into(), &check)?;
            write(&reference::forward_from_offsets(problem, &value, references, offsets, logits));
            Ok(())
        }
        Err(error) => Err(error),
    }
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
    match CpuPlan::new(problem, &CpuOptions::default()) {
        Ok(mut plan) => {
            plan.backward_from_offsets(value, references, offsets, logits, grad_output, gradients)
        }
        Err(Error::Unsupported { .. }) => {
            check_samples(problem, true)?;
            let shapes = Shapes::new(problem);
            let value = widen(value.into(), &shapes.value("value"))?;
            let source = widen_source(&shapes, references.into(), offsets.into(), logits.into())?;
            let [references, offsets, logits] = &source;
            let grad_output = widen(grad_output.into(), &shapes.output("grad_output"))?;
            let OffsetGradientsMut { value: to_value, .. } = gradients;
            let writes = [
                (to_value, shapes.value("grad_value")),
                (gradients.references, shapes.references("grad_reference_points")),
                (gradients.offsets, shapes.locations("grad_sampling_offsets")),
                (gradients.logits, shapes.weights("grad_attention_logits")),
            ]
            .map(|(to, expected)| to.map(|to| narrowing(to, &expected)).transpose());
            let found = reference::backward_from_offsets(
                problem,
                &value,
                references,
                offsets,
                logits,
                &grad_output,
            );
            let grads = [found.value, found.references, found.offsets, found.logits];
            write_all(writes, &grads)
        }
        Err(error) => Err(error),
    }
}

/// Writes what was asked for, if everything that was asked for can be written.
fn write_all<'a, const COUNT: usize>(
    writes: [Result<Option<Write<'a>>, Error>; COUNT],
    results: &[Vec<f64>; COUNT],
) -> Result<(), Error> {
    let mut checked = Vec::with_capacity(COUNT);
    for write in writes {
        checked.push(write?);
    }
    for (write, result) in checked.into_iter().zip(results) {
        if let Some(write) = write {
            write(result);
        }
    }
    Ok(())
}

/// References, offsets and logits as `f64`, packed.
fn widen_source(
    shapes: &Shapes,
    references: TensorView<'_>,
    offsets: TensorView<'_>,
    logits: TensorView<'_>,
) -> Result<[Vec<f64>; 3], Error> {
    Ok([
        widen_spread::<3>(references, &shapes.references("reference_points"))?,
        widen_spread::<2>(offsets, &shapes.locations("sampling_offsets"))?,
        widen_spread::<2>(logits, &shapes.weights("attention_logits"))?,
    ])
}

/// The elements of a checked tensor whose first axes may lie anywhere, packed, as `f64`.
fn widen_spread<const AXES: usize>(
    view: TensorView<'_>,
    expected: &Expected<'_>,
) -> Result<Vec<f64>, Error> {
    fn as_f64<T: Typed, const AXES: usize>(
        view: TensorView<'_>,
        expected: &Expected<'_>,
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

/// The elements of a checked tensor as `f64`.
fn widen(view: TensorView<'_>, expected: &Expected<'_>) -> Result<Vec<f64>, Error> {
    fn as_f64<T: Typed>(view: TensorView<'_>, expected: &Expected<'_>) -> Result<Vec<f64>, Error> {
        Ok(view.elements::<T>(expected)?.iter().map(|x| x.to_f64()).collect())
    }
    match expected.dtype {
        DType::F32 => as_f64::<f32>(view, expected),
        DType::F16 => as_f64::<f16>(view, expected),
        DType::Bf16 => as_f64::<bf16>(view, expected),
        DType::F64 => as_f64::<f64>(view, expected),
    }
}

/// Writes a result, in `f64`, to where it was asked for.
type Write<'a> = Box<dyn FnOnce(&[f64]) + 'a>;

/// Checks a tensor to be written and returns what writes it.
fn narrowing<'a>(view: TensorViewMut<'a>, expected: &Expected<'_>) -> Result<Write<'a>, Error> {
    fn from_f64<'a, T: Typed>(
        view: TensorViewMut<'a>,
        expected: &Expected<'_>,
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
