//! What must come out of a call, and whether it did.
//!
//! The contract is relative to the result: `|found - reference| <= bound * |reference|` in the L2 norm of a
//! tensor. Two things can make the result small without making the computation less careful, and there the
//! bound is relative to what was summed: terms that cancel, and numbers so small that the format itself has
//! no digits for them. Both are said in the contract (RELIABILITY.md) and both are worked out here:
//!
//! - `magnitude` is the operator on absolute values. Where the result is less than a sixteenth of it
//!   ([`CANCELLATION`]), a sixteenth of it takes the result's place.
//! - every element may be off by half the distance of subnormal numbers of its format ([`floor`]).
//!
//! A NaN among the values or gradients spreads to whatever a corner of a sample touches, also with a share
//! of zero: a corner counts if it lies inside of its level. Where `f32` coordinates may fall into another
//! cell than `f64` ones, NaN may appear in either, and those elements are not compared.

use msdeform::{DType, Problem, reference};

use crate::case::{Case, Wants};
use crate::memory::Tensor;
use crate::tensors::{Inputs, load_all};

/// A result that is less than this part of what was summed has lost digits to cancellation.
pub const CANCELLATION: f64 = 16.0;

/// How far every element may be off, whatever its size: half the distance of the format's subnormal numbers,
/// or the smallest normal number where intermediate results may be flushed to zero.
#[must_use]
pub const fn floor(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 1.0 / (1u64 << 25) as f64,
        DType::Bf16 | DType::F32 => f32::MIN_POSITIVE as f64,
        DType::F64 => f64::MIN_POSITIVE,
    }
}

/// A tensor that must come out.
#[derive(Clone, Debug)]
pub struct Expected {
    /// Which.
    pub tensor: Tensor,
    /// Its format.
    pub dtype: DType,
    /// The reference's numbers for the inputs as stored.
    pub numbers: Vec<f64>,
    /// The size of what was summed.
    pub magnitude: Vec<f64>,
    /// Which elements are compared; all if empty.
    pub compared: Vec<bool>,
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
    let (dtype, sampling) = (problem.dtype(), problem.sampling_dtype());
    let spread = Spread::of(case, inputs);
    let expected = |tensor, dtype, numbers, magnitude, compared| Expected {
        tensor,
        dtype,
        numbers,
        magnitude,
        compared,
    };
    let gradients = match case.wants {
        Wants::Output => {
            let numbers = reference::forward(problem, value, locations, weights);
            let Spread { output, sure_output, .. } = spread;
            return vec![expected(Tensor::Output, dtype, numbers, output, sure_output)];
        }
        Wants::Gradients(gradients) => gradients,
    };
    let found = reference::backward(problem, value, locations, weights, &inputs.upstream.numbers);
    let all = [
        (
            gradients.value,
            expected(
                Tensor::GradValue,
                dtype,
                found.value,
                spread.grad_value,
                spread.sure_grad_value,
            ),
        ),
        (
            gradients.locations,
            expected(
                Tensor::GradLocations,
                sampling,
                found.locations,
                spread.grad_locations,
                spread.sure_locations,
            ),
        ),
        (
            gradients.weights,
            expected(
                Tensor::GradWeights,
                sampling,
                found.weights,
                spread.grad_weights,
                spread.sure_weights,
            ),
        ),
    ];
    all.into_iter().filter_map(|(asked, expected)| asked.then_some(expected)).collect()
}

impl Expected {
    /// Compares what came out with what should have.
    #[must_use]
    pub fn compare(&self, bytes: &[u8], bound: f64) -> Verdict {
        let found = load_all(bytes, self.dtype);
        let broken = |fault: String| Verdict {
            of_allowed: f64::NAN,
            relative: f64::NAN,
            fault: Some(format!("{}: {fault}", self.tensor)),
        };
        if found.len() != self.numbers.len() {
            return broken(format!("{} elements of {}", found.len(), self.numbers.len()));
        }
        let (mut error, mut norm, mut summed, mut count) = (0.0, 0.0, 0.0, 0u64);
        for (index, (&found, &wanted)) in found.iter().zip(&self.numbers).enumerate() {
            if !self.compared.get(index).is_none_or(|&compared| compared) {
                continue;
            }
            if found.is_nan() != wanted.is_nan() {
                return broken(format!("element {index} is {found}, should be {wanted:.6e}"));
            }
            if wanted.is_nan() {
                continue;
            }
            error += (found - wanted) * (found - wanted);
            norm += wanted * wanted;
            summed += self.magnitude[index] * self.magnitude[index];
            count += 1;
        }
        let (error, norm, summed) = (error.sqrt(), f64::sqrt(norm), f64::sqrt(summed));
        let allowed =
            bound * norm.max(summed / CANCELLATION) + floor(self.dtype) * (count as f64).sqrt();
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
    grad_locations: Vec<f64>,
    grad_weights: Vec<f64>,
    sure_output: Vec<bool>,
    sure_grad_value: Vec<bool>,
    sure_locations: Vec<bool>,
    sure_weights: Vec<bool>,
}

impl Spread {
    fn of(case: &Case, inputs: &Inputs) -> Self {
        let problem = &case.problem;
        let is_backward = case.wants != Wants::Output;
        // Without NaN only the derivatives by the locations jump between cells.
        let has_nan = has_nan(case, inputs);
        let when = |wanted: bool, len: usize| if wanted { len } else { 0 };
        let samples = when(is_backward, problem.weights_len());
        let mut spread = Self {
            output: vec![0.0; when(!is_backward, problem.output_len())],
            grad_value: vec![0.0; when(is_backward, problem.value_len())],
            grad_locations: vec![0.0; 2 * samples],
            grad_weights: vec![0.0; samples],
            sure_output: vec![true; when(!is_backward && has_nan, problem.output_len())],
            sure_grad_value: vec![true; when(is_backward && has_nan, problem.value_len())],
            sure_locations: vec![true; 2 * samples],
            sure_weights: vec![true; when(has_nan, samples)],
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
        let at = &inputs.locations.numbers[2 * index..][..2];
        let x = Axis::at(at[0], width);
        let y = Axis::at(at[1], height);
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
                if self.grad_weights.is_empty() {
                    let output = &mut self.output[row * channels..][..channels];
                    for (sum, value) in output.iter_mut().zip(values) {
                        *sum += weight * share_x * share_y * value.abs();
                    }
                    continue;
                }
                let upstream = &inputs.upstream.numbers[row * channels..][..channels];
                let mut dot = 0.0;
                for (c, (value, grad)) in values.iter().zip(upstream).enumerate() {
                    dot += (value * grad).abs();
                    self.grad_value[offset + c] += weight * share_x * share_y * grad.abs();
                }
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

/// One coordinate of a sample.
struct Axis {
    position: f64,
    size: usize,
    counts: bool,
    /// Whether `f32` coordinates are in the same cell: exact, or away from its borders.
    is_sure: bool,
}

impl Axis {
    fn at(location: f64, size: usize) -> Self {
        const DISTANCE: f64 = 0.01;
        let position = location * size as f64 - 0.5;
        let counts = position > -1.0 && position < size as f64;
        // Product and difference both: not every backend has a fused multiply-add.
        let in_f32 = |number: f64| f64::from(number as f32) == number;
        let is_exact = in_f32(location * size as f64) && in_f32(position);
        let is_far = !(position > -1.5 && position < size as f64 + 0.5);
        let is_sure = is_exact || is_far || (position - position.round()).abs() > DISTANCE;
        Self { position, size, counts, is_sure }
    }

    /// The pixels of its cell that lie inside, and their shares.
    fn corners(&self) -> impl Iterator<Item = (usize, f64)> {
        let first = self.position.floor();
        let fraction = self.position - first;
        let pair = [(first, 1.0 - fraction), (first + 1.0, fraction)];
        let size = self.size as f64;
        let inside = move |&(pixel, _): &(f64, f64)| pixel >= 0.0 && pixel < size;
        pair.into_iter().filter(inside).map(|(pixel, share)| (pixel as usize, share))
    }

    /// All pixels that it may touch, whichever cell it falls into.
    fn reach(&self) -> impl Iterator<Item = usize> {
        let near = self.position.round().clamp(-2.0, self.size as f64 + 2.0) as i64;
        let size = self.size as i64;
        (near - 1..=near + 1).filter(move |pixel| (0..size).contains(pixel)).map(|p| p as usize)
    }
}

fn pixel(problem: &Problem, place: Place, line: usize, column: usize) -> usize {
    let level = problem.levels()[place.level];
    let layout = problem.layout();
    let (n, m) = (place.row / problem.heads() / problem.queries(), place.row % problem.heads());
    let pixel = level.origin(layout) + line * level.row_pitch(layout) + column;
    problem.head_offset(n, m) + pixel * problem.pixel_stride()
}

fn has_nan(case: &Case, inputs: &Inputs) -> bool {
    use crate::numbers::Values;
    case.numbers.values == Values::OneNan
        || case.numbers.upstream == Values::OneNan
        || inputs.upstream.numbers.iter().any(|number| number.is_nan())
}
