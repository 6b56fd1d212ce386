//! One-shot calls, and what the tensors of any call must look like.

use half::{bf16, f16};

use crate::cpu::{CpuOptions, CpuPlan, GradientsMut};
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

    pub(crate) fn output(&self, tensor: &'static str) -> Expected<'_> {
        Expected { tensor, dtype: self.dtype, shape: &self.output }
    }
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
            let shapes = Shapes::new(problem);
            let value = widen(value.into(), &shapes.value("value"))?;
            let locations = widen(locations.into(), &shapes.locations("sampling_locations"))?;
            let weights = widen(weights.into(), &shapes.weights("attention_weights"))?;
            let grad_output = widen(grad_output.into(), &shapes.output("grad_output"))?;
            let write_value =
                gradients.value.map(|to| narrowing(to, &shapes.value("grad_value"))).transpose()?;
            let write_locations = gradients
                .locations
                .map(|to| narrowing(to, &shapes.locations("grad_sampling_locations")))
                .transpose()?;
            let write_weights = gradients
                .weights
                .map(|to| narrowing(to, &shapes.weights("grad_attention_weights")))
                .transpose()?;
            let grads = reference::backward(problem, &value, &locations, &weights, &grad_output);
            for (write, grad) in [
                (write_value, &grads.value),
                (write_locations, &grads.locations),
                (write_weights, &grads.weights),
            ] {
                if let Some(write) = write {
                    write(grad);
                }
            }
            Ok(())
        }
        Err(error) => Err(error),
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
