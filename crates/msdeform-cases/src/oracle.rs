//! What must come out of a call, and whether it did.
//!
//! The contract is relative to the result: `|found - reference| <= bound * |reference|` in the L2 norm of a
//! tensor. Five things can make the result small or large, or the error large, without making the computation less
//! careful. They are said in the contract (RELIABILITY.md) and worked out here:
//!
//! - Terms that cancel. `magnitude` is the operator on absolute values; where the result is less than a sixteenth
//!   of it ([`CANCELLATION`]), a sixteenth of it takes the result's place.
//! - Numbers so small that the format has no digits for them: every element may be off by a few steps of its
//!   format's subnormal numbers ([`floor`]), times the largest sum of a query's weights where that exceeds 1.
//! - Samples beside a border, whose share of a pixel is hardly more than the rounding of an `f32` coordinate: what one
//!   rounding of the coordinate moves is part of what is allowed (`drift`).
//! - So few numbers in the gradient of the values that its two roundings do not average out ([`crate::roundings`]).
//! - Numbers beyond the largest of the format, which are infinite in it.
//!
//! A NaN among the values or gradients spreads to whatever a corner of a sample touches, also with a share
//! of zero: a corner counts if it lies inside of its level. Where `f32` coordinates may fall into another
//! cell than `f64` ones, NaN may appear in either, and those elements are not compared.

use msdeform::{DType, Offsets, Problem, ReferenceKind, Role, reference};

use crate::axis::Axis;
use crate::case::{Case, Wants};
use crate::roundings::Roundings;
use crate::tensors::{Inputs, SourceInputs, load_all};

/// A result that is less than this part of what was summed has lost digits to cancellation.
pub const CANCELLATION: f64 = 16.0;

/// How far every element may be off, whatever its size: two steps of the format's subnormal numbers, since halves
/// are interpolated as halves, or the smallest normal number where intermediate results may be flushed to zero.
#[must_use]
pub const fn floor(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 1.0 / (1u64 << 23) as f64,
        DType::Bf16 | DType::F32 => f32::MIN_POSITIVE as f64,
        DType::F64 => f64::MIN_POSITIVE,
    }
}

/// Numbers from here on are infinite in a format.
fn overflow(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 65_520.0,
        DType::Bf16 | DType::F32 => f64::from(f32::MAX),
        DType::F64 => f64::INFINITY,
    }
}

/// A tensor that must come out.
#[derive(Clone, Debug)]
pub struct Expected {
    /// Which.
    pub tensor: Role,
    /// Its format.
    pub dtype: DType,
    /// The reference's numbers for the inputs as stored.
    pub numbers: Vec<f64>,
    /// The size of what was summed.
    pub magnitude: Vec<f64>,
    /// Which elements are compared; all if empty.
    pub compared: Vec<bool>,
    /// How far every element may be off, whatever its size.
    pub floor: f64,
    /// What the rounding of `f32` coordinates moves, in the L2 norm.
    pub drift: f64,
    /// How far two roundings may take every element; empty where there is one.
    pub roundings: Vec<f64>,
}

/// What a comparison found.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// The error as a part of what is allowed: up to 1 is within the contract. NaN fails.
    pub of_allowed: f64,
    /// The relative error itself, for tables.
    pub relative: f64,
    /// What is wrong, if anything.
    pub fault: Option<String>,
}

/// Computes what must come out, in the order of [`crate::memory::tensors`].
#[must_use]
pub fn expect(case: &Case, inputs: &Inputs) -> Vec<Expected> {
    let problem = &case.problem;
    let (value, locations, weights) =
        (&inputs.value.numbers, &inputs.locations.numbers, &inputs.weights.numbers);
    let spread = Spread::of(case, inputs);
    let weight_sum = largest_weight_sum(case, inputs);
    let expected = |tensor, numbers, magnitude, compared, drift: f64| {
        let dtype = problem.format_of(tensor);
        let (floor, drift) = (floor(dtype) * weight_sum, drift.sqrt());
        let roundings = Vec::new();
        Expected { tensor, dtype, numbers, magnitude, compared, floor, drift, roundings }
    };
    let drift = spread.drift;
    let of_value = |numbers: Vec<f64>, rounded: &Roundings, magnitude, compared| {
        let roundings = rounded.with_stores(&numbers);
        let one = expected(Role::GradValue, numbers, magnitude, compared, drift.grad_value);
        Expected { roundings, ..one }
    };
    let gradients = match case.wants {
        Wants::Output => {
            let numbers = reference::forward(problem, value, locations, weights);
            let Spread { output, sure_output, .. } = spread;
            return vec![expected(Role::Output, numbers, output, sure_output, drift.output)];
        }
        Wants::Gradients(gradients) => gradients,
    };
    let upstream = &inputs.upstream.numbers;
    if let Some(source) = &inputs.source {
        let SourceInputs { references, offsets, logits } = source;
        let (references, offsets, logits) =
            (&references.numbers, &offsets.numbers, &logits.numbers);
        let found =
            reference::backward_from_offsets(problem, value, references, offsets, logits, upstream);
        let by = BySource::of(problem, references, offsets, weights, &spread);
        let Spread { grad_value, rounded, sure_grad_value, sure_locations, .. } = spread;
        let all = [
            of_value(found.value, &rounded, grad_value, sure_grad_value),
            expected(
                Role::GradReferences,
                found.references,
                by.references,
                by.sure_references,
                0.0,
            ),
            expected(Role::GradOffsets, found.offsets, by.offsets, sure_locations, 0.0),
            // Twice: the weight's own share, and that in the mean of its row.
            expected(
                Role::GradLogits,
                found.logits,
                by.logits,
                by.sure_logits,
                4.0 * drift.grad_weights,
            ),
        ];
        return all.into_iter().filter(|wanted| gradients.includes(wanted.tensor)).collect();
    }
    let found = reference::backward(problem, value, locations, weights, upstream);
    let Spread { grad_value, rounded, grad_locations, grad_weights, .. } = spread;
    let Spread { sure_grad_value, sure_locations, sure_weights, .. } = spread;
    let all = [
        of_value(found.value, &rounded, grad_value, sure_grad_value),
        expected(Role::GradLocations, found.locations, grad_locations, sure_locations, 0.0),
        expected(Role::GradWeights, found.weights, grad_weights, sure_weights, drift.grad_weights),
    ];
    all.into_iter().filter(|expected| gradients.includes(expected.tensor)).collect()
}

/// What an element must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Anything: not compared.
    Any,
    /// Near the reference's number.
    Number,
    /// NaN.
    Nan,
    /// Infinite, with the sign of the reference's number.
    Infinite,
}

impl Expected {
    /// What an element must be.
    #[must_use]
    pub fn class(&self, index: usize) -> Class {
        let wanted = self.numbers[index];
        let of_overflow = wanted.abs() / overflow(self.dtype);
        match self.compared.get(index) {
            Some(false) => Class::Any,
            _ if wanted.is_nan() => Class::Nan,
            _ if of_overflow > 1.01 => Class::Infinite,
            // Rounding may take it either way.
            _ if of_overflow > 0.99 => Class::Any,
            _ => Class::Number,
        }
    }

    /// The L2 norm of all numbers, and of the error that they may have.
    #[must_use]
    pub fn norm_and_allowed(&self, bound: f64) -> (f64, f64) {
        let (mut norm, mut summed, mut rounded, mut count) = (0.0, 0.0, 0.0, 0u64);
        for index in (0..self.numbers.len()).filter(|&index| self.class(index) == Class::Number) {
            norm += self.numbers[index] * self.numbers[index];
            summed += self.magnitude[index] * self.magnitude[index];
            rounded += self.roundings.get(index).map_or(0.0, |by| by * by);
            count += 1;
        }
        let (norm, summed) = (f64::sqrt(norm), f64::sqrt(summed));
        let of_format = self.floor * (count as f64).sqrt();
        let of_sum = bound * norm.max(summed / CANCELLATION);
        (norm, of_sum.max(f64::sqrt(rounded)) + of_format + self.drift)
    }

    /// The same without allowances: the error is held against the result alone.
    #[must_use]
    pub fn strict(&self) -> Self {
        let magnitude = vec![0.0; self.numbers.len()];
        Self { magnitude, floor: 0.0, drift: 0.0, roundings: Vec::new(), ..self.clone() }
    }

    /// Compares what came out with what should have.
    #[must_use]
    pub fn compare(&self, bytes: &[u8], bound: f64) -> Verdict {
        self.compare_numbers(&load_all(bytes, self.dtype), bound)
    }

    /// The same for numbers that were read already.
    #[must_use]
    pub fn compare_numbers(&self, found: &[f64], bound: f64) -> Verdict {
        let broken = |fault: String| Verdict {
            of_allowed: f64::NAN,
            relative: f64::NAN,
            fault: Some(format!("{}: {fault}", self.tensor)),
        };
        if found.len() != self.numbers.len() {
            return broken(format!("{} elements of {}", found.len(), self.numbers.len()));
        }
        let mut error = 0.0;
        for (index, (&found, &wanted)) in found.iter().zip(&self.numbers).enumerate() {
            let is_right = match self.class(index) {
                Class::Any => true,
                Class::Nan => found.is_nan(),
                Class::Infinite => found == f64::INFINITY.copysign(wanted),
                Class::Number => {
                    error += (found - wanted) * (found - wanted);
                    found.is_finite()
                }
            };
            if !is_right {
                return broken(format!("element {index} is {found}, should be {wanted:.6e}"));
            }
        }
        let error = f64::sqrt(error);
        let (norm, allowed) = self.norm_and_allowed(bound);
        let of_allowed = if error == 0.0 { 0.0 } else { error / allowed };
        let relative = if error == 0.0 { 0.0 } else { error / norm };
        // Written so that NaN fails.
        let within = of_allowed <= 1.0;
        let fault = (!within).then(|| {
            format!(
                "{}: relative L2 error {relative:.2e} ({of_allowed:.2} of what is allowed)",
                self.tensor
            )
        });
        Verdict { of_allowed, relative, fault }
    }
}

/// Sizes of what is summed, and which elements `f32` coordinates decide about.
#[derive(Default)]
struct Spread {
    output: Vec<f64>,
    grad_value: Vec<f64>,
    rounded: Roundings,
    grad_locations: Vec<f64>,
    grad_weights: Vec<f64>,
    sure_output: Vec<bool>,
    sure_grad_value: Vec<bool>,
    sure_locations: Vec<bool>,
    sure_weights: Vec<bool>,
    drift: Drift,
}

/// What the rounding of coordinates moves, squared and summed over elements.
#[derive(Clone, Copy, Default)]
struct Drift {
    output: f64,
    grad_value: f64,
    grad_weights: f64,
}

impl Spread {
    fn of(case: &Case, inputs: &Inputs) -> Self {
        let problem = &case.problem;
        let is_backward = case.wants != Wants::Output;
        // Without NaN only the derivatives by the locations jump between cells; nearest pixels always do.
        let is_nearest = problem.offsets().is_some_and(Offsets::is_nearest);
        let has_nan = has_nan(case, inputs) || is_nearest;
        let when = |wanted: bool, len: usize| if wanted { len } else { 0 };
        let samples = when(is_backward, problem.weights_len());
        let mut spread = Self {
            output: vec![0.0; when(!is_backward, problem.output_len())],
            grad_value: vec![0.0; when(is_backward, problem.value_len())],
            rounded: Roundings::new(problem.dtype(), when(is_backward, problem.value_len())),
            grad_locations: vec![0.0; 2 * samples],
            grad_weights: vec![0.0; samples],
            sure_output: vec![true; when(!is_backward && has_nan, problem.output_len())],
            sure_grad_value: vec![true; when(is_backward && has_nan, problem.value_len())],
            sure_locations: vec![true; 2 * samples],
            sure_weights: vec![true; when(has_nan, samples)],
            drift: Drift::default(),
        };
        let (heads, samples) = (problem.heads(), problem.samples());
        for row in 0..problem.batch() * problem.queries() * heads {
            for l in 0..problem.levels().len() {
                for s in problem.level_samples(l) {
                    let index = row * samples + s;
                    spread.add(problem, inputs, Place { row, level: l, index });
                }
            }
        }
        spread
    }

    fn add(&mut self, problem: &Problem, inputs: &Inputs, place: Place) {
        let Place { row, level, index } = place;
        let (height, width) = (problem.levels()[level].height, problem.levels()[level].width);
        let (x, y) = axes(problem, inputs, place, (height, width));
        if !(x.is_sure && y.is_sure) {
            self.mark(problem, place, &x, &y);
        }
        if !(x.counts && y.counts) {
            return;
        }
        let weight = inputs.weights.numbers[index].abs();
        let channels = problem.channels();
        for (column, share_x) in x.corners() {
            for (line, share_y) in y.corners() {
                let offset = pixel(problem, place, line, column);
                let values = &inputs.value.numbers[offset..][..channels];
                let moved = x.rounding() * share_y + y.rounding() * share_x;
                let square = |number: f64| if number.is_finite() { number * number } else { 0.0 };
                if self.grad_weights.is_empty() {
                    let output = &mut self.output[row * channels..][..channels];
                    for (sum, value) in output.iter_mut().zip(values) {
                        *sum += weight * share_x * share_y * value.abs();
                        self.drift.output += square(weight * moved * value);
                    }
                    continue;
                }
                let upstream = &inputs.upstream.numbers[row * channels..][..channels];
                let mut dot = 0.0;
                let signed = inputs.weights.numbers[index] * share_x * share_y;
                self.rounded.add(offset, signed, weight * moved, upstream);
                for (c, (value, grad)) in values.iter().zip(upstream).enumerate() {
                    dot += (value * grad).abs();
                    self.grad_value[offset + c] += weight * share_x * share_y * grad.abs();
                    self.drift.grad_value += square(weight * moved * grad);
                }
                self.drift.grad_weights += square(moved * dot);
                self.grad_weights[index] += share_x * share_y * dot;
                self.grad_locations[2 * index] += weight * dot * share_y * width as f64;
                self.grad_locations[2 * index + 1] += weight * dot * share_x * height as f64;
            }
        }
    }

    /// What a sample may touch in one cell or in the one beside it.
    fn mark(&mut self, problem: &Problem, place: Place, x: &Axis, y: &Axis) {
        let Place { row, index, .. } = place;
        let channels = problem.channels();
        if let Some(pair) = self.sure_locations.get_mut(2 * index..2 * index + 2) {
            pair.fill(false);
        }
        if let Some(sure) = self.sure_weights.get_mut(index) {
            *sure = false;
        }
        if !self.sure_output.is_empty() {
            self.sure_output[row * channels..][..channels].fill(false);
        }
        if !self.sure_grad_value.is_empty() {
            for column in x.reach() {
                for line in y.reach() {
                    let offset = pixel(problem, place, line, column);
                    self.sure_grad_value[offset..][..channels].fill(false);
                }
            }
        }
    }
}

/// Which sample.
#[derive(Clone, Copy)]
struct Place {
    row: usize,
    level: usize,
    index: usize,
}

/// Both coordinates of a sample.
fn axes(
    problem: &Problem,
    inputs: &Inputs,
    place: Place,
    (height, width): (usize, usize),
) -> (Axis, Axis) {
    let Place { index, row, level } = place;
    let at = &inputs.locations.numbers[2 * index..][..2];
    let (Some(rule), Some(source)) = (problem.offsets(), &inputs.source) else {
        return (Axis::at(at[0], width), Axis::at(at[1], height));
    };
    let point = index % problem.samples() - problem.level_samples(level).start;
    let [_, _, per_query, components] = problem.references_shape();
    let reference = row / problem.heads() * per_query + rule.reference(level, point);
    let centre = &source.references.numbers[reference * components..][..2];
    let axis = |axis: usize, size: usize| {
        // What is added up: it may be much more than what comes out.
        let summed = (centre[axis].abs() + (at[axis] - centre[axis]).abs()) * size as f64;
        if rule.is_nearest() {
            Axis::nearest(at[axis], size)
        } else {
            Axis::at(at[axis], size).summed(summed)
        }
    };
    (axis(0, width), axis(1, height))
}

/// Sizes of what is summed into gradients by references, offsets and logits, and which of them are in doubt.
struct BySource {
    references: Vec<f64>,
    offsets: Vec<f64>,
    logits: Vec<f64>,
    sure_references: Vec<bool>,
    sure_logits: Vec<bool>,
}

impl BySource {
    fn of(
        problem: &Problem,
        references: &[f64],
        offsets: &[f64],
        weights: &[f64],
        spread: &Spread,
    ) -> Self {
        let mut by = Self {
            references: vec![0.0; problem.references_len()],
            offsets: vec![0.0; problem.locations_len()],
            logits: spread.grad_weights.clone(),
            sure_references: vec![true; problem.references_len()],
            sure_logits: spread.sure_weights.clone(),
        };
        let (Some(rule), samples) = (problem.offsets(), problem.samples()) else { return by };
        let [_, _, per_query, components] = problem.references_shape();
        for row in 0..problem.weights_len() / samples.max(1) {
            for (l, level) in problem.levels().iter().enumerate() {
                for (point, sample) in problem.level_samples(l).enumerate() {
                    let first = row / problem.heads() * per_query + rule.reference(l, point);
                    let first = first * components;
                    for (axis, size) in [level.width, level.height].into_iter().enumerate() {
                        let index = 2 * (row * samples + sample) + axis;
                        let summed = spread.grad_locations[index];
                        let is_sure = spread.sure_locations[index];
                        let mut add = |component: usize, summed: f64| {
                            by.references[first + component] += summed;
                            by.sure_references[first + component] &= is_sure;
                        };
                        add(axis, summed);
                        by.offsets[index] = summed / size as f64;
                        if rule.kind() == ReferenceKind::Box {
                            let scale = f64::from(rule.scale()) / problem.points()[l] as f64;
                            // What does not count adds nothing, even where its offset is infinite.
                            let times =
                                |by: f64| if summed == 0.0 { 0.0 } else { summed * by.abs() };
                            add(2 + axis, times(offsets[index] * scale));
                            by.offsets[index] = times(references[first + 2 + axis] * scale);
                        }
                    }
                }
            }
        }
        if rule.has_softmax() {
            let rows = by.logits.chunks_mut(samples.max(1)).zip(weights.chunks(samples.max(1)));
            for (summed, weights) in rows {
                let mean: f64 = summed.iter().zip(weights).map(|(x, weight)| x * weight).sum();
                for (summed, weight) in summed.iter_mut().zip(weights) {
                    *summed = weight * (*summed + mean);
                }
            }
            // The mean carries a doubt to its whole row.
            for row in by.sure_logits.chunks_mut(samples.max(1)) {
                row.fill(row.iter().all(|&is_sure| is_sure));
            }
        }
        by
    }
}

fn pixel(problem: &Problem, place: Place, line: usize, column: usize) -> usize {
    let level = problem.levels()[place.level];
    let layout = problem.layout();
    let (n, m) = (place.row / problem.heads() / problem.queries(), place.row % problem.heads());
    let pixel = level.origin(layout) + line * level.row_pitch(layout) + column;
    problem.head_offset(n, m) + pixel * problem.pixel_stride()
}

/// The largest sum of a query's weights, at least 1.
fn largest_weight_sum(case: &Case, inputs: &Inputs) -> f64 {
    let rows = inputs.weights.numbers.chunks(case.problem.samples().max(1));
    let sums = rows.map(|row| row.iter().filter(|w| !w.is_nan()).map(|w| w.abs()).sum::<f64>());
    sums.fold(1.0, f64::max)
}

fn has_nan(case: &Case, inputs: &Inputs) -> bool {
    use crate::numbers::Values;
    case.numbers.values == Values::OneNan
        || inputs.upstream.numbers.iter().any(|number| number.is_nan())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numbers::Values;
    use crate::{Locations, Numbers};

    fn expected(dtype: DType, numbers: &[f64], magnitude: f64) -> Expected {
        Expected {
            tensor: Role::Output,
            dtype,
            numbers: numbers.to_vec(),
            magnitude: vec![magnitude; numbers.len()],
            compared: Vec::new(),
            floor: floor(dtype),
            drift: 0.0,
            roundings: Vec::new(),
        }
    }

    fn f16_bytes(numbers: &[f64]) -> Vec<u8> {
        numbers.iter().flat_map(|&x| half::f16::from_f64(x).to_le_bytes()).collect()
    }

    #[test]
    fn an_error_is_held_against_the_result_or_what_was_cancelled_or_the_format() {
        let bound = DType::F16.rel_l2_bound();
        let compare = |wanted: f64, found: f64, magnitude: f64| {
            let expected = expected(DType::F16, &[wanted; 4], magnitude);
            expected.compare(&f16_bytes(&[found; 4]), bound).fault.is_none()
        };
        assert!(compare(1.0, 1.0, 1.0));
        assert!(!compare(1.0, 1.002, 1.0), "0.2 % is too much");
        // Of terms a thousand times as large little is left.
        assert!(compare(0.001, 0.0012, 16.0));
        assert!(!compare(0.001, 0.0012, 1.0), "not where nothing was cancelled");
        // Two steps of subnormal numbers, and no more.
        assert!(compare(1.2e-6, 1.25e-6, 1e-6));
        assert!(!compare(1.2e-6, 1.7e-6, 1e-6));
    }

    #[test]
    fn nan_fails_unless_it_is_expected_and_infinity_unless_the_format_ends() {
        let bound = DType::F16.rel_l2_bound();
        let compare = |wanted: f64, found: f64| {
            let expected = expected(DType::F16, &[wanted, 1.0], 1.0);
            expected.compare(&f16_bytes(&[found, 1.0]), bound).fault.is_none()
        };
        assert!(compare(f64::NAN, f64::NAN));
        assert!(!compare(1.0, f64::NAN) && !compare(f64::NAN, 1.0));
        assert!(compare(1e6, f64::INFINITY) && compare(-1e6, f64::NEG_INFINITY));
        assert!(!compare(1e6, f64::NEG_INFINITY) && !compare(1e6, 6e4));
        assert!(!compare(1.0, f64::INFINITY));
    }

    /// A hair inside of the level a sample's share is a few roundings of its coordinate.
    #[test]
    fn what_the_rounding_of_a_coordinate_moves_is_allowed_and_no_more() {
        let problem =
            Problem::builder().queries(1).levels([(1, 64)]).channels(1).points(1).build().unwrap();
        let case = Case::plain(problem, Wants::Output);
        let mut inputs = Inputs::new(&case);
        inputs.value.numbers = vec![1.0; 64];
        inputs.weights.numbers = vec![1.0];
        let compare = |inputs: &Inputs, off: f64| {
            let expected = &expect(&case, inputs)[0];
            let found = (expected.numbers[0] + off) as f32;
            expected.compare(&found.to_le_bytes(), DType::F32.rel_l2_bound()).fault.is_none()
        };
        // Almost one pixel past the last: 1e-5 of it is left.
        inputs.locations.numbers = vec![(64.5 - 1e-5) / 64.0, 0.5];
        assert!(compare(&inputs, 5e-6));
        assert!(!compare(&inputs, 2e-5));
        // In the middle a millionth is as much as ever.
        inputs.locations.numbers = vec![0.505, 0.5];
        assert!(compare(&inputs, 5e-6) && !compare(&inputs, 3e-5));
    }

    /// Corners with a share of zero count: NaN reaches the pixel beside an exact centre.
    #[test]
    fn nan_spreads_by_corners_and_is_not_compared_where_cells_are_in_doubt() {
        let problem =
            Problem::builder().queries(1).levels([(1, 3)]).channels(1).points(1).build().unwrap();
        let wants = Wants::Gradients(msdeform_cuda::Gradients::ALL);
        let mut case = Case::plain(problem, wants);
        let upstream = Values::OneNan;
        case.numbers = Numbers { upstream, locations: Locations::Inside, ..Numbers::default() };
        let mut inputs = Inputs::new(&case);
        let compared = |inputs: &Inputs, at: f64| {
            let mut inputs = inputs.clone();
            inputs.locations.numbers = vec![at, 0.5];
            let found = expect(&case, &inputs);
            (found[0].numbers.clone(), found[0].compared.clone())
        };
        inputs.value.numbers = vec![1.0; 3];
        // The centre of the middle pixel, exactly: the one after it is a corner too.
        let (numbers, sure) = compared(&inputs, 0.5);
        assert!(numbers[1].is_nan() && numbers[2].is_nan() && numbers[0] == 0.0);
        assert_eq!(sure, [true; 3]);
        // Next to it, which pixel is the other corner is up to rounding.
        let (_, sure) = compared(&inputs, 0.5 + 1e-9);
        assert_eq!(sure, [false; 3]);
    }
}
