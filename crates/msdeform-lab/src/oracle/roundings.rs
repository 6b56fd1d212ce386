//! The two roundings of a gradient of the values in half precision.
//!
//! Tensor cores take operands in the dtype of the values. A sample's share of a pixel (attention weight times both
//! interpolation weights) is rounded to it once. The product with the gradient of the output is exact, sums are `f32`, and the
//! sum is rounded when it is stored. With `u` half a step at 1 (2^-8 in bf16, 2^-11 in f16) each of the two roundings is at
//! most `u` of its number, and 0.4 `u` in the root mean square. Over many numbers both come to 0.6 `u`, and the contract allows
//! 1.02 `u`. Few numbers do not average out: one sample with the same gradient in every channel has the same two roundings
//! everywhere, and they may come to 2 `u`.
//!
//! So each element may be off by what these roundings are for its numbers, if that is more than the bound over the tensor. The
//! first rounding is known for each sample, unless `f32` cannot tell which of two numbers is nearer. The second is at most half a
//! step. Over many numbers this is 1.06 `u`, 4 % above the bound; it hides neither a third rounding nor truncation.

use half::{bf16, f16};
use msdeform::DType;

/// What the rounding of shares moves in a gradient of the values.
pub(super) struct Roundings {
    format: Option<Format>,
    /// The sum over samples.
    moved: Vec<f64>,
    /// How much more it is if shares in the middle between two numbers are rounded the other way.
    in_doubt: Vec<f64>,
}

/// A dtype that shares are rounded to.
#[derive(Clone, Copy)]
struct Format {
    nearest: fn(f64) -> f64,
    /// Of a number.
    bits: i32,
    /// The exponent below which steps get no smaller.
    smallest: i32,
}

impl Format {
    fn of(dtype: DType) -> Option<Self> {
        let f16 = Self { nearest: |x| f16::from_f64(x).to_f64(), bits: 11, smallest: -14 };
        let bf16 = Self { nearest: |x| bf16::from_f64(x).to_f64(), bits: 8, smallest: -126 };
        match dtype {
            DType::F16 => Some(f16),
            DType::Bf16 => Some(bf16),
            DType::F32 | DType::F64 => None,
        }
    }

    fn half_step(self, number: f64) -> f64 {
        let exponent = number.abs().log2().floor().max(f64::from(self.smallest));
        f64::exp2(exponent - f64::from(self.bits))
    }
}

impl Roundings {
    /// For a gradient of so many elements; empty for dtypes that shares are not rounded to.
    pub(super) fn new(dtype: DType, elements: usize) -> Self {
        let format = Format::of(dtype);
        let zeros = vec![0.0; if format.is_some() { elements } else { 0 }];
        Self { format, moved: zeros.clone(), in_doubt: zeros }
    }

    /// Adds a sample's share of the pixel at `offset`; the rounding of coordinates may move it by `drift`.
    pub(super) fn add(&mut self, offset: usize, share: f64, drift: f64, upstream: &[f64]) {
        let Some(format) = self.format else { return };
        let rounded = (format.nearest)(share) - share;
        // The rounding of three factors and their products.
        let in_f32 = drift + 4.0 * f64::from(f32::EPSILON) * share.abs();
        let is_in_doubt = format.half_step(share) - rounded.abs() <= in_f32;
        for (element, grad) in (offset..).zip(upstream).filter(|(_, grad)| grad.is_finite()) {
            self.moved[element] += rounded * grad;
            self.in_doubt[element] += if is_in_doubt { (2.0 * rounded * grad).abs() } else { 0.0 };
        }
    }

    /// How far each element may be off, with the rounding of its sum to the dtype.
    pub(super) fn with_stores(&self, sums: &[f64]) -> Vec<f64> {
        let Some(format) = self.format else { return Vec::new() };
        let of_shares =
            self.moved.iter().zip(&self.in_doubt).map(|(moved, more)| moved.abs() + more);
        let both = |(of_shares, sum): (f64, &f64)| of_shares + format.half_step(*sum);
        of_shares.zip(sums).map(both).collect()
    }
}

#[cfg(test)]
mod tests {
    use msdeform::{Gradients, Problem, Role};

    use crate::Case;
    use crate::oracle::axis::Axis;
    use crate::oracle::{Allowance, Expected, expect_with_allowances};
    use crate::{HostTensors, Random};

    use super::*;

    const SIZE: usize = 4;
    const CHANNELS: usize = 8;

    fn nearest(number: f64, dtype: DType) -> f64 {
        if dtype == DType::F16 {
            f16::from_f64(number).to_f64()
        } else {
            bf16::from_f64(number).to_f64()
        }
    }

    fn cut_off(number: f64, dtype: DType) -> f64 {
        let bits = if dtype == DType::F16 { 42 } else { 45 };
        f64::from_bits(number.to_bits() >> bits << bits)
    }

    /// Samples on a level of one tile, each with a gradient of the output that is the same in every channel.
    fn drawn(queries: usize, dtype: DType, random: &mut Random) -> (Case, HostTensors) {
        let size = SIZE as i64;
        let built = Problem::builder().queries(queries).levels([(size, size)]).channels(CHANNELS);
        let problem = built.points(1).dtype(dtype).sampling_dtype(DType::F32).build().unwrap();
        let gradients = Gradients { value: true, ..Gradients::NONE };
        let case = Case::plain(problem, Some(gradients));
        let mut inputs = case.inputs();
        let mut fill = |role: Role, draw: &mut dyn FnMut(usize) -> f64| {
            let numbers: Vec<f64> = (0..case.problem.len_of(role)).map(draw).collect();
            inputs.set(role, &numbers);
        };
        fill(Role::Locations, &mut |_| random.between(0.15, 0.85));
        fill(Role::Weights, &mut |_| random.between(0.01, 1.0));
        let rows: Vec<f64> = (0..queries).map(|_| random.between(-1.0, 1.0)).collect();
        fill(Role::GradOutput, &mut |index| rows[index / CHANNELS]);
        (case, inputs)
    }

    /// The gradient of the values by a kernel that makes this of shares.
    fn computed(case: &Case, inputs: &HostTensors, share: impl Fn([f64; 3]) -> f64) -> Vec<f64> {
        let mut sums = vec![0.0; case.problem.value_len()];
        let inputs = inputs.widened();
        for (sample, &weight) in inputs.get(Role::Weights).iter().enumerate() {
            let at = &inputs.get(Role::Locations)[2 * sample..][..2];
            for (column, x) in Axis::at(at[0], SIZE).corners() {
                for (line, y) in Axis::at(at[1], SIZE).corners() {
                    for c in 0..CHANNELS {
                        let grad = inputs.get(Role::GradOutput)[sample * CHANNELS + c];
                        let pixel = line * SIZE + column;
                        sums[pixel * CHANNELS + c] += share([weight, x, y]) * grad;
                    }
                }
            }
        }
        sums.iter().map(|&sum| nearest(sum, case.problem.dtype())).collect()
    }

    fn passes(expected: &Expected, found: &[f64]) -> bool {
        expected.compare_numbers(found, expected.dtype.rel_l2_bound()).fault.is_none()
    }

    fn without_roundings(expected: &Expected) -> Expected {
        let allowance = expected.allowance.clone().unwrap();
        let allowance = Some(Allowance { roundings: Vec::new(), ..allowance });
        Expected { allowance, ..expected.clone() }
    }

    #[test]
    fn two_roundings_pass_however_few_numbers_there_are_and_others_are_found() {
        const PROBLEMS: usize = 4000;
        for dtype in [DType::F16, DType::Bf16] {
            let mut random = Random::new(7);
            let (mut beyond_the_bound, mut cut, mut four) = (0, 0, 0);
            for problem in 0..PROBLEMS {
                let (case, inputs) = drawn(1 + problem % 3, dtype, &mut random);
                let expected = expect_with_allowances(&case, &inputs).remove(0);
                let product = |[weight, x, y]: [f64; 3]| weight * x * y;
                let rounded = computed(&case, &inputs, |of| nearest(product(of), dtype));
                assert!(passes(&expected, &rounded), "{dtype} {problem}");
                let by_bound = without_roundings(&expected);
                beyond_the_bound += usize::from(!passes(&by_bound, &rounded));
                let is_found = |share: &dyn Fn([f64; 3]) -> f64| {
                    !passes(&expected, &computed(&case, &inputs, share))
                };
                cut += usize::from(is_found(&|of| cut_off(product(of), dtype)));
                // Of the weight and of both shares before their product, too.
                let each = |of: [f64; 3]| product(of.map(|factor| nearest(factor, dtype)));
                four += usize::from(is_found(&|of| nearest(each(of), dtype)));
            }
            let counted = [beyond_the_bound, cut, four];
            assert!(counted[0] > PROBLEMS / 50, "{dtype}: no need for it, {counted:?}");
            assert!(cut > PROBLEMS / 5 && four > PROBLEMS / 6, "{dtype}: blind, {counted:?}");
        }
    }

    #[test]
    fn of_many_numbers_no_more_is_allowed_than_before() {
        for dtype in [DType::F16, DType::Bf16] {
            for queries in [300, 3000] {
                let (case, inputs) = drawn(queries, dtype, &mut Random::new(8));
                let expected = expect_with_allowances(&case, &inputs).remove(0);
                let bound = dtype.rel_l2_bound();
                let (_, allowed) = expected.norm_and_allowed(bound);
                let before = without_roundings(&expected).norm_and_allowed(bound).1;
                assert_eq!(allowed.to_bits(), before.to_bits(), "{dtype} {queries}");
            }
        }
    }
}
