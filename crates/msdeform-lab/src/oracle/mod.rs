//! The accuracy contract as code: what must come out of a call, and whether it did.
//!
//! Every output and gradient is compared with the `f64` reference on the same stored inputs, in the L2 norm of the tensor:
//!
//! `|found - reference| <= bound * |reference|`, where the bound is 1e-5 for `f32`, 5e-4 for `f16`, 4e-3 for `bf16`.
//!
//! - A kernel with another bound states it, with the reason, in its `VariantSpec::numerics`.
//! - Gradients of locations and offsets jump between cells. They are compared more than [`BORDER_DISTANCE`] away from a
//!   cell border, or where `f32` coordinates are exact. Gradients of references are sums over many samples and are compared
//!   where every sample is further from a border than `f32` coordinates are off.
//! - A NaN or infinity of the reference must come out at the same place, and nowhere else. Non-finite inputs, and samples
//!   that take the nearest pixel, make every result jump at borders; those elements are treated like gradients of references.
//! - A result beyond the largest number of its dtype is infinite.
//! - NaN fails every comparison. Outputs are filled with NaN before a run, so an element that was not written fails.
//!
//! Numbers drawn at random reach calls in which a careful computation exceeds the bound. [`expect_with_allowances`] adds what
//! the format cannot hold ([`Allowance`]); [`expect`] does not.

mod axis;
mod comparison;
mod roundings;
mod terms;

use msdeform::{DType, Direction, Gradients, Offsets, Problem, Role, VariantSpec, reference};
use rayon::prelude::*;

use crate::{Buffer, Case, HostTensors, Widened};

use axis::Axis;
use terms::Terms;

pub use axis::BORDER_DISTANCE;
pub use comparison::{Comparison, TensorCheck, Verdict};

/// A result that is less than this part of what was summed has lost digits to cancellation.
const CANCELLATION: f64 = 16.0;

/// A tensor that must come out.
#[derive(Clone, Debug)]
pub struct Expected {
    pub tensor: Role,
    pub dtype: DType,
    /// The reference's numbers for the inputs as stored.
    pub numbers: Vec<f64>,
    /// Which elements are compared; all if empty.
    pub compared: Vec<bool>,
    /// What is allowed besides the bound.
    pub allowance: Option<Allowance>,
    /// Whether a number that the dtype cannot hold may come out infinite. If not, it fails: a user wants to know of it.
    pub may_overflow: bool,
}

/// Errors that a careful computation makes where the result is small, or so few that they do not average out.
#[derive(Clone, Debug, Default)]
pub struct Allowance {
    /// The operator on absolute values. If a result is less than a sixteenth of it, terms cancelled, and a sixteenth of it
    /// takes the result's place in the bound.
    magnitude: Vec<f64>,
    /// Error that every element may have, small or large: see [`floor`].
    floor: f64,
    /// What the rounding of `f32` coordinates moves, in the L2 norm. It matters for samples a hair inside of their level.
    drift: f64,
    /// How far two roundings may take each element; empty if there is one. See `roundings.rs`.
    roundings: Vec<f64>,
}

/// Of a result that few numbers are added to: two steps of the subnormal numbers.
const FEW_ROUNDINGS: usize = 16;

/// Error that every element may have. Halves are interpolated as halves, so each of these `roundings` costs up to half a
/// step of the subnormal numbers, and errors of independent roundings add up as squares do. In other dtypes it is the
/// smallest normal number, because intermediate results may be flushed to zero.
fn floor(dtype: DType, roundings: usize) -> f64 {
    match dtype {
        DType::F16 => 0.5 * (roundings as f64).sqrt() / (1u64 << 24) as f64,
        DType::Bf16 | DType::F32 => f32::MIN_POSITIVE as f64,
        DType::F64 => f64::MIN_POSITIVE,
    }
}

/// Numbers from here on are infinite in a dtype.
fn overflow(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 65_520.0,
        DType::Bf16 | DType::F32 => f64::from(f32::MAX),
        DType::F64 => f64::MAX,
    }
}

/// The tensors that a case must write, in the order of [`Case::tensors`].
pub fn expect(case: &Case, inputs: &HostTensors) -> Vec<Expected> {
    expected(&case.problem, case.wants, &inputs.widened(), false)
}

/// As [`expect`], with an [`Allowance`]: for numbers drawn at random.
pub fn expect_with_allowances(case: &Case, inputs: &HostTensors) -> Vec<Expected> {
    expected(&case.problem, case.wants, &inputs.widened(), true)
}

/// Every tensor that the operator writes, computed by the reference.
pub fn reference_of(
    problem: &Problem,
    inputs: &HostTensors,
    direction: Direction,
) -> Vec<(Role, Vec<f64>)> {
    let inputs = inputs.widened();
    reference::compute(problem, direction, |role| inputs.get(role))
}

fn expected(
    problem: &Problem,
    wants: Option<Gradients>,
    inputs: &Widened,
    has_allowance: bool,
) -> Vec<Expected> {
    let direction = if wants.is_some() { Direction::Backward } else { Direction::Forward };
    let samples = reference::samples_of(problem, |role| inputs.get(role));
    let mut compared = Compared::new(problem, inputs, direction);
    let mut terms = has_allowance.then(|| Terms::new(problem, direction, &samples.weights));
    each_sample(problem, inputs, &samples.locations, |sample| {
        compared.add(problem, &sample);
        if let Some(terms) = &mut terms {
            terms.add(problem, inputs, &samples.weights, &sample);
        }
    });
    compared.finish(problem);
    if let Some(terms) = &mut terms {
        terms.finish(problem, &samples.weights);
    }
    let found = reference::compute(problem, direction, |role| inputs.get(role));
    let is_wanted = |role| wants.is_none_or(|wanted| wanted.includes(role));
    let wanted = found.into_iter().filter(|(role, _)| is_wanted(*role));
    let expected = |(tensor, numbers): (Role, Vec<f64>)| Expected {
        tensor,
        dtype: problem.format_of(tensor),
        compared: std::mem::take(compared.0.of(tensor)),
        allowance: terms.as_mut().map(|terms| terms.allowance(problem, tensor, &numbers)),
        may_overflow: true,
        numbers,
    };
    wanted.map(expected).collect()
}

/// What an element must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Anything: not compared.
    Any,
    /// Near the reference's number.
    Number,
    /// Near the reference's number, or infinite with its sign: the dtype ends here.
    NumberOrInfinite,
    /// NaN.
    Nan,
    /// Infinite, with the sign of the reference's number.
    Infinite,
}

/// Sums of squares over the elements that are compared as numbers.
#[derive(Default)]
struct Squares {
    numbers: f64,
    magnitude: f64,
    roundings: f64,
    count: usize,
}

impl Expected {
    /// What an element must be.
    pub fn class(&self, index: usize) -> Class {
        let wanted = self.numbers[index];
        let of_largest = wanted.abs() / overflow(self.dtype);
        // Rounding may take a number near the largest one either way.
        let margin = if self.allowance.is_some() { 0.01 } else { 0.001 };
        match self.compared.get(index) {
            Some(false) => Class::Any,
            _ if wanted.is_nan() => Class::Nan,
            _ if wanted.is_infinite() || of_largest > 1.0 + margin => Class::Infinite,
            _ if of_largest > 1.0 - margin => Class::NumberOrInfinite,
            _ => Class::Number,
        }
    }

    fn add(&self, squares: &mut Squares, index: usize) {
        squares.numbers += self.numbers[index].powi(2);
        squares.count += 1;
        if let Some(allowance) = &self.allowance {
            squares.magnitude += allowance.magnitude[index].powi(2);
            squares.roundings += allowance.roundings.get(index).map_or(0.0, |by| by * by);
        }
    }

    /// The largest error in the L2 norm.
    fn allowed(&self, squares: &Squares, bound: f64) -> f64 {
        let norm = squares.numbers.sqrt();
        let Some(Allowance { floor, drift, .. }) = &self.allowance else { return bound * norm };
        let of_sum = bound * norm.max(squares.magnitude.sqrt() / CANCELLATION);
        let of_format = floor * (squares.count as f64).sqrt();
        of_sum.max(squares.roundings.sqrt()) + of_format + drift
    }

    /// The L2 norm of all numbers, and of the error that they may have.
    pub fn norm_and_allowed(&self, bound: f64) -> (f64, f64) {
        let mut squares = Squares::default();
        for index in (0..self.numbers.len()).filter(|&index| self.class(index) == Class::Number) {
            self.add(&mut squares, index);
        }
        (squares.numbers.sqrt(), self.allowed(&squares, bound))
    }

    /// Compares the bytes of a tensor with what they should be.
    pub fn compare(&self, bytes: &[u8], bound: f64) -> Verdict {
        self.compare_numbers(&Buffer::from_le_bytes(self.dtype, bytes).to_f64(), bound)
    }

    /// Compares numbers with what they should be.
    pub fn compare_numbers(&self, found: &[f64], bound: f64) -> Verdict {
        let name = self.tensor;
        if found.len() != self.numbers.len() {
            let fault = Some(format!("{name}: {} elements of {}", found.len(), self.numbers.len()));
            return Verdict { comparison: Comparison::FAILED, of_allowed: f64::NAN, fault };
        }
        let rms = self.root_mean_square();
        let zero = Comparison { max_abs: 0.0, max_rel: 0.0, rel_l2: 0.0, ..Comparison::FAILED };
        let (mut figures, mut squares, mut error, mut wrong) =
            (zero, Squares::default(), 0.0, None);
        for (index, (&found, &wanted)) in found.iter().zip(&self.numbers).enumerate() {
            let class = self.class(index);
            if class == Class::Any {
                figures.left_out += 1;
                continue;
            }
            figures.elements += 1;
            let agrees = match class {
                Class::Nan => found.is_nan(),
                Class::Infinite | Class::NumberOrInfinite => {
                    let may_be = self.may_overflow || wanted.is_infinite();
                    may_be && found == f64::INFINITY.copysign(wanted)
                }
                _ => false,
            };
            let difference = (found - wanted).abs();
            if agrees {
                figures.not_finite_in_both += 1;
            } else if matches!(class, Class::Nan | Class::Infinite) || !difference.is_finite() {
                figures.not_finite_in_one += 1;
                wrong.get_or_insert((index, found, wanted));
            } else {
                self.add(&mut squares, index);
                error += difference * difference;
                figures.max_abs = figures.max_abs.max(difference);
                if difference > 0.0 {
                    figures.max_rel = figures.max_rel.max(difference / wanted.abs().max(rms));
                }
            }
        }
        if let Some((index, found, wanted)) = wrong {
            let (max_abs, max_rel, rel_l2) = (f64::NAN, f64::NAN, f64::NAN);
            let comparison = Comparison { max_abs, max_rel, rel_l2, ..figures };
            let fault = Some(format!("{name}: element {index} is {found}, should be {wanted:.6e}"));
            return Verdict { comparison, of_allowed: f64::NAN, fault };
        }
        // If all elements should be zero, any other number is infinitely wrong.
        let ratio = |of: f64| if error == 0.0 { 0.0 } else { f64::sqrt(error) / of };
        let (relative, of_allowed) =
            (ratio(squares.numbers.sqrt()), ratio(self.allowed(&squares, bound)));
        let comparison = Comparison { rel_l2: relative, ..figures };
        // Written so that NaN fails.
        let is_within = of_allowed <= 1.0;
        let fault = (!is_within).then(|| {
            format!("{name}: relative L2 error {relative:.2e} ({of_allowed:.2} of what is allowed)")
        });
        Verdict { comparison, of_allowed, fault }
    }

    fn root_mean_square(&self) -> f64 {
        let is_number =
            |index: &usize| matches!(self.class(*index), Class::Number | Class::NumberOrInfinite);
        let numbers = (0..self.numbers.len()).filter(is_number).map(|index| self.numbers[index]);
        let (sum, count) = numbers.fold((0.0, 0), |(sum, count), x| (sum + x * x, count + 1));
        (sum / f64::from(count.max(1))).sqrt()
    }
}

/// Results of the reference for some inputs, in the directions of some variants.
#[derive(Clone, Debug)]
pub struct Oracle(Vec<Expected>);

impl Oracle {
    /// Computes the reference for every direction that one of the variants runs.
    pub fn new(problem: &Problem, inputs: &HostTensors, variants: &[&VariantSpec]) -> Self {
        let inputs = &inputs.widened();
        let is_wanted =
            |direction: &Direction| variants.iter().any(|variant| variant.direction == *direction);
        // The reference itself stays plain: the two directions are all that runs in parallel.
        let directions = Direction::ALL.into_par_iter().filter(is_wanted);
        let expected = directions.flat_map_iter(|direction| {
            let is_backward = direction == Direction::Backward;
            let wants = is_backward.then(|| Gradients::all_of(problem));
            expected(problem, wants, inputs, false)
        });
        Self(expected.map(|expected| Expected { may_overflow: false, ..expected }).collect())
    }

    /// Takes trusted results of the same inputs in place of the reference.
    pub fn of_outputs(problem: &Problem, inputs: &HostTensors, trusted: &HostTensors) -> Self {
        let inputs = &inputs.widened();
        let samples = reference::samples_of(problem, |role| inputs.get(role));
        let mut compared = Compared::new(problem, inputs, Direction::Backward);
        each_sample(problem, inputs, &samples.locations, |sample| compared.add(problem, &sample));
        compared.finish(problem);
        let expected = trusted.iter().map(|(tensor, buffer)| Expected {
            tensor,
            dtype: buffer.dtype(),
            numbers: buffer.to_f64(),
            compared: std::mem::take(compared.0.of(tensor)),
            allowance: None,
            may_overflow: false,
        });
        Self(expected.collect())
    }

    /// Accepts infinities for numbers that the dtype cannot hold.
    #[must_use]
    pub(crate) fn allowing_overflow(mut self) -> Self {
        self.0.iter_mut().for_each(|expected| expected.may_overflow = true);
        self
    }

    /// Compares what a variant wrote, tensor by tensor, with the bounds of that variant.
    pub fn check(
        &self,
        outputs: &HostTensors,
        variant: &VariantSpec,
        problem: &Problem,
    ) -> Vec<TensorCheck> {
        let check = |(role, buffer): (Role, &Buffer)| {
            let bound = variant.rel_l2_bound_on(problem, role);
            let expected = self.0.iter().find(|expected| expected.tensor == role);
            let verdict = expected.map(|of| of.compare_numbers(&buffer.to_f64(), bound));
            // A tensor that the oracle was not made for is compared with nothing, and must not pass.
            let (comparison, pass) = verdict.map_or((Comparison::FAILED, false), |found| {
                (found.comparison, found.fault.is_none())
            });
            TensorCheck { tensor: role.field().to_owned(), comparison, bound, pass }
        };
        outputs.iter().map(check).collect()
    }
}

/// A sample, and both of its coordinates.
struct Sample {
    /// Image, query and head.
    row: usize,
    level: usize,
    /// Among all samples of the call.
    index: usize,
    /// The first number of its reference, if it has one.
    reference: usize,
    x: Axis,
    y: Axis,
}

impl Sample {
    /// The first element of a pixel of its level.
    fn pixel(&self, problem: &Problem, line: usize, column: usize) -> usize {
        let level = problem.levels()[self.level];
        let layout = problem.layout();
        let (n, m) = (self.row / problem.heads() / problem.queries(), self.row % problem.heads());
        let pixel = level.origin(layout) + line * level.row_pitch(layout) + column;
        problem.head_offset(n, m) + pixel * problem.pixel_stride()
    }
}

fn each_sample(
    problem: &Problem,
    inputs: &Widened,
    locations: &[f64],
    mut visit: impl FnMut(Sample),
) {
    let [_, _, per_query, components] =
        problem.offsets().map_or([0; 4], |_| problem.references_shape());
    let references = inputs.get(Role::References);
    for row in 0..problem.batch() * problem.queries() * problem.heads() {
        for (l, level) in problem.levels().iter().enumerate() {
            for (point, sample) in problem.level_samples(l).enumerate() {
                let index = row * problem.samples() + sample;
                let at = &locations[2 * index..][..2];
                let Some(rule) = problem.offsets() else {
                    let (x, y) = (Axis::at(at[0], level.width), Axis::at(at[1], level.height));
                    visit(Sample { row, level: l, index, reference: 0, x, y });
                    continue;
                };
                let reference = row / problem.heads() * per_query + rule.reference(l, point);
                let reference = reference * components;
                let axis = |axis: usize, size: usize| {
                    let centre = references[reference + axis];
                    let terms = (centre.abs() + (at[axis] - centre).abs()) * size as f64;
                    let of = if rule.is_nearest() { Axis::nearest } else { Axis::of_sum };
                    of(at[axis], size, terms)
                };
                let (x, y) = (axis(0, level.width), axis(1, level.height));
                visit(Sample { row, level: l, index, reference, x, y });
            }
        }
    }
}

/// Something for each element of the tensors that a call writes; empty for a tensor that it does not write.
#[derive(Default)]
struct ByTensor<T> {
    output: Vec<T>,
    grad_value: Vec<T>,
    /// Gradients of locations or offsets.
    samples: Vec<T>,
    /// Gradients of weights or logits.
    weights: Vec<T>,
    references: Vec<T>,
}

impl<T: Clone + Default> ByTensor<T> {
    fn new(problem: &Problem, direction: Direction, of_each: &T) -> Self {
        let mut all = Self::default();
        for role in problem.operator().written(direction) {
            *all.of(role) = vec![of_each.clone(); problem.len_of(role)];
        }
        all
    }

    const fn of(&mut self, tensor: Role) -> &mut Vec<T> {
        match tensor {
            Role::Output => &mut self.output,
            Role::GradValue => &mut self.grad_value,
            Role::GradLocations | Role::GradOffsets => &mut self.samples,
            Role::GradWeights | Role::GradLogits => &mut self.weights,
            _ => &mut self.references,
        }
    }
}

/// Which elements are compared; all of a tensor if empty.
struct Compared(ByTensor<bool>);

impl Compared {
    fn new(problem: &Problem, inputs: &Widened, direction: Direction) -> Self {
        let is_nearest = problem.offsets().is_some_and(Offsets::is_nearest);
        let mut all = ByTensor::new(problem, direction, &true);
        // With finite values only gradients of locations jump between cells, and references are sums of those.
        if !is_nearest && !reads_non_finite(problem, inputs) {
            let ByTensor { samples, references, .. } = all;
            all = ByTensor { samples, references, ..ByTensor::default() };
        }
        Self(all)
    }

    /// Leaves out what a sample decides about if rounding may put it into another cell.
    fn add(&mut self, problem: &Problem, sample: &Sample) {
        let Sample { row, index, reference, x, y, .. } = sample;
        let leave_out = |compared: &mut Vec<bool>, first: usize, len: usize| {
            if let Some(compared) = compared.get_mut(first..first + len) {
                compared.fill(false);
            }
        };
        if !(x.is_sure() && y.is_sure()) {
            leave_out(&mut self.0.samples, 2 * index, 2);
        }
        if x.is_sure_in_sums() && y.is_sure_in_sums() {
            return;
        }
        let channels = problem.channels();
        let components = problem.offsets().map_or(0, |rule| rule.kind().components());
        leave_out(&mut self.0.references, *reference, components);
        leave_out(&mut self.0.weights, *index, 1);
        leave_out(&mut self.0.output, row * channels, channels);
        if !self.0.grad_value.is_empty() {
            for column in x.reach() {
                for line in y.reach() {
                    let pixel = sample.pixel(problem, line, column);
                    leave_out(&mut self.0.grad_value, pixel, channels);
                }
            }
        }
    }

    fn finish(&mut self, problem: &Problem) {
        // The mean of a softmax row depends on all of its samples.
        if problem.offsets().is_some_and(Offsets::has_softmax) {
            for row in self.0.weights.chunks_mut(problem.samples().max(1)) {
                row.fill(row.iter().all(|&is_compared| is_compared));
            }
        }
    }
}

/// Whether a pixel that a sample can read, or the gradient of the output, is NaN or infinite.
fn reads_non_finite(problem: &Problem, inputs: &Widened) -> bool {
    let is_non_finite = |numbers: &[f64]| numbers.iter().any(|number| !number.is_finite());
    let (value, layout) = (inputs.get(Role::Value), problem.layout());
    let heads = (0..problem.batch() * problem.heads())
        .map(|head| problem.head_offset(head / problem.heads(), head % problem.heads()));
    let mut pixels = heads.flat_map(|head| {
        problem.levels().iter().flat_map(move |level| {
            (0..level.height * level.width).map(move |pixel| {
                let (line, column) = (pixel / level.width, pixel % level.width);
                let pixel = level.origin(layout) + line * level.row_pitch(layout) + column;
                head + pixel * problem.pixel_stride()
            })
        })
    });
    is_non_finite(inputs.get(Role::GradOutput))
        || pixels.any(|first| is_non_finite(&value[first..][..problem.channels()]))
}

#[cfg(test)]
mod tests;
