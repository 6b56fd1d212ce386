//! The size of what is summed, and what rounding moves in it: the parts of an [`Allowance`].

use msdeform::{Direction, Level, Offsets, Problem, ReferenceKind, Role};

use super::roundings::Roundings;
use super::{Allowance, ByTensor, FEW_ROUNDINGS, Sample, floor};
use crate::Widened;

/// The operator on absolute values, by tensor.
pub(super) struct Terms {
    is_backward: bool,
    /// Of samples and weights first those of locations and weights, in the end those of offsets and logits.
    sums: ByTensor<f64>,
    roundings: Roundings,
    drift: Drift,
    /// The largest sum of a query's weights, at least 1.
    weight_sum: f64,
}

/// What the rounding of coordinates moves, squared and summed over elements.
#[derive(Clone, Copy, Default)]
struct Drift {
    output: f64,
    grad_value: f64,
    weights: f64,
}

impl Terms {
    pub(super) fn new(problem: &Problem, direction: Direction, weights: &[f64]) -> Self {
        let sums = ByTensor::new(problem, direction, &0.0);
        let sum = |row: &[f64]| row.iter().filter(|w| !w.is_nan()).map(|w| w.abs()).sum();
        Self {
            is_backward: direction == Direction::Backward,
            roundings: Roundings::new(problem.dtype(), sums.grad_value.len()),
            sums,
            drift: Drift::default(),
            weight_sum: weights.chunks(problem.samples().max(1)).map(sum).fold(1.0, f64::max),
        }
    }

    pub(super) fn add(
        &mut self,
        problem: &Problem,
        inputs: &Widened,
        weights: &[f64],
        sample: &Sample,
    ) {
        let Sample { row, level, index, x, y, .. } = sample;
        if !(x.counts && y.counts) {
            return;
        }
        let square = |number: f64| if number.is_finite() { number * number } else { 0.0 };
        let (level, weight) = (problem.levels()[*level], weights[*index].abs());
        let channels = problem.channels();
        for (column, share_x) in x.corners() {
            for (line, share_y) in y.corners() {
                let offset = sample.pixel(problem, line, column);
                let values = &inputs.get(Role::Value)[offset..][..channels];
                let moved = x.rounding() * share_y + y.rounding() * share_x;
                if !self.is_backward {
                    let output = &mut self.sums.output[row * channels..][..channels];
                    for (sum, value) in output.iter_mut().zip(values) {
                        *sum += weight * share_x * share_y * value.abs();
                        self.drift.output += square(weight * moved * value);
                    }
                    continue;
                }
                let upstream = &inputs.get(Role::GradOutput)[row * channels..][..channels];
                let mut dot = 0.0;
                let signed = weights[*index] * share_x * share_y;
                self.roundings.add(offset, signed, weight * moved, upstream);
                for (c, (value, grad)) in values.iter().zip(upstream).enumerate() {
                    dot += (value * grad).abs();
                    self.sums.grad_value[offset + c] += weight * share_x * share_y * grad.abs();
                    self.drift.grad_value += square(weight * moved * grad);
                }
                self.drift.weights += square(moved * dot);
                self.sums.weights[*index] += share_x * share_y * dot;
                self.sums.samples[2 * index] += weight * dot * share_y * level.width as f64;
                self.sums.samples[2 * index + 1] += weight * dot * share_x * level.height as f64;
            }
        }
        if self.is_backward {
            self.follow_offset(problem, inputs, sample);
        }
    }

    /// From the gradient of a location to those of its offset and its reference. A sample that does not count adds nothing, even
    /// if its offset is infinite.
    fn follow_offset(&mut self, problem: &Problem, inputs: &Widened, sample: &Sample) {
        let Some(rule) = problem.offsets() else { return };
        let Sample { level, index, reference, .. } = *sample;
        let (references, offsets) = (inputs.get(Role::References), inputs.get(Role::Offsets));
        let ByTensor { samples, references: of_references, .. } = &mut self.sums;
        let Level { width, height, .. } = problem.levels()[level];
        for (axis, size) in [width, height].into_iter().enumerate() {
            let terms = &mut samples[2 * index + axis];
            of_references[reference + axis] += *terms;
            if rule.kind() == ReferenceKind::Point {
                *terms /= size as f64;
                continue;
            }
            let scale = f64::from(rule.scale()) / problem.points()[level] as f64;
            let times = |by: f64| if *terms == 0.0 { 0.0 } else { *terms * by.abs() };
            let side = reference + 2 + axis;
            of_references[side] += times(offsets[2 * index + axis] * scale);
            *terms = times(references[side] * scale);
        }
    }

    /// From gradients of weights to those of logits, if there are any.
    pub(super) fn finish(&mut self, problem: &Problem, weights: &[f64]) {
        let samples = problem.samples().max(1);
        if problem.offsets().is_some_and(Offsets::has_softmax) {
            let rows = self.sums.weights.chunks_mut(samples).zip(weights.chunks(samples));
            for (terms, weights) in rows {
                let mean: f64 = terms.iter().zip(weights).map(|(x, weight)| x * weight).sum();
                for (terms, weight) in terms.iter_mut().zip(weights) {
                    *terms = weight * (*terms + mean);
                }
            }
        }
    }

    /// What is allowed for a tensor; takes the tensor's part.
    pub(super) fn allowance(
        &mut self,
        problem: &Problem,
        tensor: Role,
        numbers: &[f64],
    ) -> Allowance {
        let drift = match tensor {
            Role::Output => self.drift.output,
            Role::GradValue => self.drift.grad_value,
            Role::GradWeights => self.drift.weights,
            // Twice: the weight's own share, and its share in the mean of the row.
            Role::GradLogits => 4.0 * self.drift.weights,
            _ => 0.0,
        };
        let has_two = tensor == Role::GradValue;
        // Each sample adds four corners in its dtype, and the output is rounded once. Other tensors have few roundings.
        let roundings = match tensor {
            Role::Output => (4 * problem.samples() + 1).max(FEW_ROUNDINGS),
            _ => FEW_ROUNDINGS,
        };
        Allowance {
            magnitude: std::mem::take(self.sums.of(tensor)),
            floor: floor(problem.format_of(tensor), roundings) * self.weight_sum,
            drift: drift.sqrt(),
            roundings: if has_two { self.roundings.with_stores(numbers) } else { Vec::new() },
        }
    }
}
