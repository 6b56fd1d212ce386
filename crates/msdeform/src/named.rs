//! Calls with an argument for each tensor, of every operator. All of them are [`run`](crate::run) and [`CpuPlan::run`] with
//! the roles filled in.

use crate::call::compute;
use crate::cpu::Tensors;
use crate::{
    ATTENTION, CpuPlan, Error, FROM_OFFSETS, GradientsMut, OffsetGradientsMut, Problem, TensorView,
    TensorViewMut,
};

/// Computes the output of one call, on all cores, with the best instructions this machine has.
///
/// The [reference](crate::reference) computes what the CPU backend does not take, above all `f64`. For repeated calls keep a
/// [`CpuPlan`].
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
/// The [reference](crate::reference) computes what the CPU backend does not take, above all `f64`. For repeated calls keep a
/// [`CpuPlan`].
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

/// Computes the output of one call of the [fused operator](crate::Offsets), on all cores, with the best instructions this
/// machine has.
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
/// As [`forward`]; a problem of the plain operator.
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

/// Computes the gradients of one call of the [fused operator](crate::Offsets), on all cores, with the best instructions this
/// machine has.
///
/// # Errors
/// As [`backward`]; a problem of the plain operator.
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

impl CpuPlan {
    /// Computes the output. Every element of it is written.
    ///
    /// # Errors
    /// A tensor of another dtype, shape or order than the problem says, or an output too small; no memory for the
    /// scratch space, in which case the output holds anything; a problem of the fused operator.
    pub fn forward<'v, 'l, 'w, 'o>(
        &mut self,
        value: impl Into<TensorView<'v>>,
        locations: impl Into<TensorView<'l>>,
        weights: impl Into<TensorView<'w>>,
        output: impl Into<TensorViewMut<'o>>,
    ) -> Result<(), Error> {
        let read = [value.into(), locations.into(), weights.into()];
        self.compute(Tensors::of(&ATTENTION, read, [Some(output.into())]), None)
    }

    /// Computes the requested gradients. Every element of them is written, with the same bits for any number of threads.
    ///
    /// # Errors
    /// As [`CpuPlan::forward`], with gradients in place of the output.
    pub fn backward<'v, 'l, 'w, 'g>(
        &mut self,
        value: impl Into<TensorView<'v>>,
        locations: impl Into<TensorView<'l>>,
        weights: impl Into<TensorView<'w>>,
        grad_output: impl Into<TensorView<'g>>,
        gradients: GradientsMut<'_>,
    ) -> Result<(), Error> {
        let read = [value.into(), locations.into(), weights.into(), grad_output.into()];
        self.compute(Tensors::of(&ATTENTION, read, gradients.in_order()), None)
    }

    /// Computes the output of the [fused operator](crate::Offsets). Images and queries of references, offsets and logits may
    /// have any strides, so that offsets and logits may be parts of one tensor, and all images may share their references.
    ///
    /// # Errors
    /// As [`CpuPlan::forward`]; a problem of the plain operator.
    pub fn forward_from_offsets<'v, 'r, 'd, 'l, 'o>(
        &mut self,
        value: impl Into<TensorView<'v>>,
        references: impl Into<TensorView<'r>>,
        offsets: impl Into<TensorView<'d>>,
        logits: impl Into<TensorView<'l>>,
        output: impl Into<TensorViewMut<'o>>,
    ) -> Result<(), Error> {
        let read = [value.into(), references.into(), offsets.into(), logits.into()];
        self.compute(Tensors::of(&FROM_OFFSETS, read, [Some(output.into())]), None)
    }

    /// Computes the requested gradients of the [fused operator](crate::Offsets). Every element of them is written, packed,
    /// with the same bits for any number of threads.
    ///
    /// # Errors
    /// As [`CpuPlan::backward`]; a problem of the plain operator.
    pub fn backward_from_offsets<'v, 'r, 'd, 'l, 'g>(
        &mut self,
        value: impl Into<TensorView<'v>>,
        references: impl Into<TensorView<'r>>,
        offsets: impl Into<TensorView<'d>>,
        logits: impl Into<TensorView<'l>>,
        grad_output: impl Into<TensorView<'g>>,
        gradients: OffsetGradientsMut<'_>,
    ) -> Result<(), Error> {
        let (value, grad_output) = (value.into(), grad_output.into());
        let read = [value, references.into(), offsets.into(), logits.into(), grad_output];
        self.compute(Tensors::of(&FROM_OFFSETS, read, gradients.in_order()), None)
    }
}
