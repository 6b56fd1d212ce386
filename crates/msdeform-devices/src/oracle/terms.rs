//! The size of what is summed, and what rounding moves in it: the parts of an [`Allowance`].

use msdeform::{Direction, Offsets, Problem, ReferenceKind, Role};

use super::roundings::Roundings;
use super::{Allowance, FEW_ROUNDINGS, Sample, floor};
use crate::Widened;

/// The operator on absolute values, by tensor.
pub(super) struct Terms {
    is_backward: bool,
    output: Vec<f64>,
    grad_value: Vec<f64>,
    roundings: Roundings,
    /// Of locations, then of offsets.
    samples: Vec<f64>,
    /// Of weights, then of logits.
    weights: Vec<f64>,
    references: Vec<f64>,
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
    pub(super) fn new(problem: &Problem, direction: Direction) -> Self {
        let is_backward = direction == Direction::Backward;
        let backward = |len: usize| if is_backward { len } else { 0 };
        Self {
            is_backward,
            output: vec![0.0; problem.output_len() - backward(problem.output_len())],
            grad_value: vec![0.0; backward(problem.value_len())],
            roundings: Roundings::new(problem.dtype(), backward(problem.value_len())),
            samples: vec![0.0; backward(problem.locations_len())],
            weights: vec![0.0; backward(problem.weights_len())],
            references: Vec::new(),
            drift: Drift::default(),
            weight_sum: 1.0,
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
                    let output = &mut self.output[row * channels..][..channels];
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
                    self.grad_value[offset + c] += weight * share_x * share_y * grad.abs();
                    self.drift.grad_value += square(weight * moved * grad);
                }
                self.drift.weights += square(moved * dot);
                self.weights[*index] += share_x * share_y * dot;
                self.samples[2 * index] += weight * dot * share_y * level.width as f64;
                self.samples[2 * index + 1] += weight * dot * share_x * level.height as f64;
            }
        }
    }

    /// From gradients of locations and weights to those of references, offsets and logits, if there are any.
    pub(super) fn finish(mut self, problem: &Problem, inputs: &Widened, weights: &[f64]) -> Self {
        let samples = problem.samples().max(1);
        let sum = |row: &[f64]| row.iter().filter(|w| !w.is_nan()).map(|w| w.abs()).sum();
        self.weight_sum = weights.chunks(samples).map(sum).fold(1.0, f64::max);
        if let Some(rule) = problem.offsets().filter(|_| self.is_backward) {
            self.follow_offsets(problem, rule, inputs);
            if rule.has_softmax() {
                let rows = self.weights.chunks_mut(samples).zip(weights.chunks(samples));
                for (terms, weights) in rows {
                    let mean: f64 = terms.iter().zip(weights).map(|(x, weight)| x * weight).sum();
                    for (terms, weight) in terms.iter_mut().zip(weights) {
                        *terms = weight * (*terms + mean);
                    }
                }
            }
        }
        self
    }

    fn follow_offsets(&mut self, problem: &Problem, rule: &Offsets, inputs: &Widened) {
        let (references, offsets) = (inputs.get(Role::References), inputs.get(Role::Offsets));
        let [_, _, per_query, components] = problem.references_shape();
        self.references = vec![0.0; problem.references_len()];
        for row in 0..problem.batch() * problem.queries() * problem.heads() {
            for (l, level) in problem.levels().iter().enumerate() {
                for (point, sample) in problem.level_samples(l).enumerate() {
                    let first = row / problem.heads() * per_query + rule.reference(l, point);
                    let first = first * components;
                    for (axis, size) in [level.width, level.height].into_iter().enumerate() {
                        let index = 2 * (row * problem.samples() + sample) + axis;
                        let terms = self.samples[index];
                        self.references[first + axis] += terms;
                        self.samples[index] = terms / size as f64;
                        if rule.kind() == ReferenceKind::Box {
                            let scale = f64::from(rule.scale()) / problem.points()[l] as f64;
                            // A sample that does not count adds nothing, even if its offset is infinite.
                            let times = |by: f64| if terms == 0.0 { 0.0 } else { terms * by.abs() };
                            self.references[first + 2 + axis] += times(offsets[index] * scale);
                            self.samples[index] = times(references[first + 2 + axis] * scale);
                        }
                    }
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
        let magnitude = match tensor {
            Role::Output => &mut self.output,
            Role::GradValue => &mut self.grad_value,
            Role::GradWeights | Role::GradLogits => &mut self.weights,
            Role::GradReferences => &mut self.references,
            _ => &mut self.samples,
        };
        let has_two = tensor == Role::GradValue;
        // Each sample adds four corners in its dtype, and the output is rounded once. Other tensors have few roundings.
        let roundings = match tensor {
            Role::Output => (4 * problem.samples() + 1).max(FEW_ROUNDINGS),
            _ => FEW_ROUNDINGS,
        };
        Allowance {
            magnitude: std::mem::take(magnitude),
            floor: floor(problem.format_of(tensor), roundings) * self.weight_sum,
            drift: drift.sqrt(),
            roundings: if has_two { self.roundings.with_stores(numbers) } else { Vec::new() },
        }
    }
}
