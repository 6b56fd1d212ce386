//! Comparisons that NaN fails, unless the reference has it at the same place.
//!
//! A NaN or an infinity in the inputs goes wherever arithmetic carries it, and a result is right if it has them exactly
//! where the reference does. Everywhere else they fail: there the reference is a number, and an element that was never
//! written holds the NaN that outputs are filled with before a run.

use half::{bf16, f16};
use msdeform::{DType, Problem};
use serde::{Deserialize, Serialize};

use crate::number;

/// How far results are from what they should be. Any value that is not finite where the reference
/// is, or the reverse, makes every figure NaN, and NaN is within no bound.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// Elements compared.
    pub elements: usize,
    /// Elements left out, since the reference itself jumps there.
    pub left_out: usize,
    /// Elements that are NaN, or the same infinity, here and in the reference: agreement, of which no figure speaks.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub not_finite_in_both: usize,
    /// Elements that are not finite on one side alone, or two different infinities: why the figures are NaN.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub not_finite_in_one: usize,
    /// Largest absolute difference.
    #[serde(with = "number::or_null")]
    pub max_abs: f64,
    /// Largest difference relative to the element or, where that is larger, to the root mean square
    /// of all of them: an element near zero must not decide.
    #[serde(with = "number::or_null")]
    pub max_rel: f64,
    /// Euclidean norm of the differences relative to that of the reference.
    #[serde(with = "number::or_null")]
    pub rel_l2: f64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "what serde calls")]
fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// Both NaN, or the same infinity.
fn agree_without_a_number(a: f64, b: f64) -> bool {
    (a.is_nan() && b.is_nan()) || (a.is_infinite() && a == b)
}

impl Comparison {
    /// Compares all elements.
    #[must_use]
    pub fn of(found: &[f64], expected: &[f64]) -> Self {
        Self::filtered(found, expected, |_| true)
    }

    /// Compares the elements at the positions that `keep` accepts. Different lengths are as bad as
    /// a NaN.
    #[must_use]
    pub fn filtered(found: &[f64], expected: &[f64], keep: impl Fn(usize) -> bool) -> Self {
        let kept = || (0..expected.len()).filter(|&index| keep(index));
        let elements = kept().count();
        let left_out = expected.len() - elements;
        let squares = || kept().map(|index| expected[index].powi(2)).filter(|x| x.is_finite());
        let square_sum: f64 = squares().sum();
        let rms = (square_sum / squares().count().max(1) as f64).sqrt();
        let (mut max_abs, mut max_rel, mut error_sum) = (0.0f64, 0.0f64, 0.0f64);
        let (mut not_finite_in_both, mut not_finite_in_one) = (0, 0);
        let mut broken = found.len() != expected.len();
        for index in kept() {
            let Some(&result) = found.get(index) else { break };
            let wanted = expected[index];
            if agree_without_a_number(result, wanted) {
                not_finite_in_both += 1;
                continue;
            }
            let difference = (result - wanted).abs();
            if !difference.is_finite() {
                not_finite_in_one += 1;
                broken = true;
            }
            max_abs = max_abs.max(difference);
            if difference > 0.0 {
                max_rel = max_rel.max(difference / wanted.abs().max(rms));
            }
            error_sum += difference * difference;
        }
        // Where all should be zero, anything else is infinitely wrong.
        let mut rel_l2 = if error_sum == 0.0 { 0.0 } else { (error_sum / square_sum).sqrt() };
        if broken {
            (max_abs, max_rel, rel_l2) = (f64::NAN, f64::NAN, f64::NAN);
        }
        Self { elements, left_out, not_finite_in_both, not_finite_in_one, max_abs, max_rel, rel_l2 }
    }

    /// Whether the relative L2 error is at most `bound`; NaN is not.
    #[must_use]
    pub fn is_within(&self, bound: f64) -> bool {
        self.rel_l2 <= bound
    }
}

/// Distance from a cell border below which gradients of locations are not compared: they jump
/// there, and `f32` coordinates may fall on the other side. In pixels.
pub const BORDER_DISTANCE: f64 = 0.01;

/// The same for what is summed over many samples, of which a few are always near a border: ten times what `f32`
/// coordinates are off on the longest side, or on one of 200 pixels.
#[must_use]
pub fn border_distance_of_sums(problem: &Problem) -> f64 {
    let sides = problem.levels().iter().flat_map(|level| [level.width, level.height]);
    1e-6 * sides.max().unwrap_or(0).max(200) as f64
}

/// What is expected where a format has to hold it: what is larger than its largest number is infinite there. Within a
/// thousandth of that number both are right.
#[must_use]
pub fn as_stored(expected: f64, found: f64, dtype: DType) -> f64 {
    let largest = match dtype {
        DType::F16 => f16::MAX.to_f64(),
        DType::Bf16 => bf16::MAX.to_f64(),
        DType::F32 => f64::from(f32::MAX),
        DType::F64 => f64::MAX,
    };
    let overflows = found.is_infinite()
        && found.signum() == expected.signum()
        && expected.abs() >= 0.999 * largest;
    if overflows { found } else { expected }
}

/// For each sample, whether both coordinates keep a distance from every cell border.
/// Samples far outside of their level and locations that are not finite do: their gradient is zero.
#[must_use]
pub fn away_from_borders(problem: &Problem, locations: &[f64], distance: f64) -> Vec<bool> {
    let samples = problem.samples();
    let mut level_of_sample = Vec::with_capacity(samples);
    for (index, level) in problem.levels().iter().enumerate() {
        level_of_sample.extend(problem.level_samples(index).map(|_| *level));
    }
    let keeps_distance = |location: f64, size: usize| {
        let size = size as f64;
        let pixel = location * size - 0.5;
        let to_border = (pixel - pixel.round()).abs();
        !pixel.is_finite()
            || pixel < -1.0 - distance
            || pixel > size + distance
            || to_border > distance
    };
    locations
        .chunks_exact(2)
        .enumerate()
        .map(|(index, location)| {
            let level = level_of_sample[index % samples];
            keeps_distance(location[0], level.width) && keeps_distance(location[1], level.height)
        })
        .collect()
}

/// For each reference of a call from offsets, whether all samples that start from it keep a distance from every cell
/// border.
#[must_use]
pub fn references_away_from_borders(
    problem: &Problem,
    locations: &[f64],
    distance: f64,
) -> Vec<bool> {
    let Some(rule) = problem.offsets() else { return Vec::new() };
    let per_query = rule.references(problem.levels().len());
    let mut keeps = vec![true; problem.references_len() / rule.kind().components()];
    let mut reference_of_sample = Vec::with_capacity(problem.samples());
    for level in 0..problem.levels().len() {
        let points = 0..problem.level_samples(level).len();
        reference_of_sample.extend(points.map(|point| rule.reference(level, point)));
    }
    let per_row = problem.samples() * problem.heads();
    for (index, keeps_distance) in
        away_from_borders(problem, locations, distance).into_iter().enumerate()
    {
        let reference = reference_of_sample[index % problem.samples()];
        keeps[index / per_row * per_query + reference] &= keeps_distance;
    }
    keeps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_is_zero_and_known_errors_have_known_sizes() {
        let expected = [3.0, -4.0, 0.0];
        let same = Comparison::of(&expected, &expected);
        assert_eq!((same.max_abs, same.max_rel, same.rel_l2, same.elements), (0.0, 0.0, 0.0, 3));
        let off = Comparison::of(&[3.0, -4.5, 0.0], &expected);
        assert_eq!((off.max_abs, off.max_rel, off.rel_l2), (0.5, 0.125, 0.1));
        assert!(off.is_within(0.1) && !off.is_within(0.09));
    }

    #[test]
    fn whatever_is_not_a_number_fails() {
        for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            for place in 0..3 {
                let mut found = [1.0, 2.0, 3.0];
                found[place] = bad;
                let comparison = Comparison::of(&found, &[1.0, 2.0, 3.0]);
                assert!(comparison.rel_l2.is_nan() && comparison.max_abs.is_nan());
                assert!(!comparison.is_within(f64::INFINITY));
            }
        }
    }

    #[test]
    fn what_is_not_a_number_in_the_reference_too_is_agreement_and_only_there() {
        let (nan, inf) = (f64::NAN, f64::INFINITY);
        let expected = [nan, 3.0, inf, -4.0, -inf];
        let same = Comparison::of(&expected, &expected);
        assert_eq!((same.rel_l2, same.not_finite_in_both, same.not_finite_in_one), (0.0, 3, 0));
        // What is finite is held to the bound as ever.
        let off = Comparison::of(&[nan, 3.0, inf, -4.5, -inf], &expected);
        assert_eq!((off.max_abs, off.rel_l2), (0.5, 0.1));
        for wrong in [
            [nan, nan, inf, -4.0, -inf],
            [1.0, 3.0, inf, -4.0, -inf],
            [nan, 3.0, nan, -4.0, -inf],
            [nan, 3.0, -inf, -4.0, -inf],
            [inf, 3.0, inf, -4.0, -inf],
        ] {
            let comparison = Comparison::of(&wrong, &expected);
            assert!(!comparison.is_within(f64::INFINITY), "{wrong:?}");
            assert_eq!(comparison.not_finite_in_one, 1, "{wrong:?}");
        }
    }

    #[test]
    fn what_a_format_cannot_hold_is_infinite_there_and_only_that() {
        let inf = f64::INFINITY;
        for (expected, found, dtype, stored) in [
            (8e4, inf, DType::F16, inf),
            (-8e4, -inf, DType::F16, -inf),
            (6.55e4, inf, DType::F16, inf),
            (8e4, -inf, DType::F16, 8e4),
            (6e4, inf, DType::F16, 6e4),
            (8e4, 65504.0, DType::F16, 8e4),
            (8e4, inf, DType::Bf16, 8e4),
            (1e39, inf, DType::F32, inf),
        ] {
            assert_eq!(as_stored(expected, found, dtype), stored, "{expected} {found} {dtype}");
        }
        assert!(as_stored(8e4, f64::NAN, DType::F16).is_finite());
    }

    #[test]
    fn long_sides_keep_sums_farther_from_borders() {
        let distance = |levels: [(i64, i64); 2]| {
            let problem = Problem::builder().levels(levels).points(1).queries(1).build().unwrap();
            border_distance_of_sums(&problem)
        };
        for (levels, wanted) in [([(100, 167), (2, 3)], 2e-4), ([(2, 3), (2, 7000)], 7e-3)] {
            assert!((distance(levels) / wanted - 1.0).abs() < 1e-9, "{levels:?}");
        }
    }

    #[test]
    fn missing_and_surplus_elements_fail() {
        assert!(!Comparison::of(&[1.0], &[1.0, 2.0]).is_within(1.0));
        assert!(!Comparison::of(&[1.0, 2.0], &[1.0]).is_within(1.0));
        assert!(Comparison::of(&[], &[]).is_within(0.0));
    }

    #[test]
    fn where_all_is_zero_anything_else_fails() {
        assert!(Comparison::of(&[0.0, 0.0], &[0.0, 0.0]).is_within(0.0));
        assert!(!Comparison::of(&[0.0, 1e-30], &[0.0, 0.0]).is_within(1.0));
    }

    #[test]
    fn left_out_elements_are_counted_and_may_be_anything() {
        let comparison = Comparison::filtered(&[f64::NAN, 1.0], &[0.0, 1.0], |index| index == 1);
        assert_eq!((comparison.elements, comparison.left_out), (1, 1));
        assert!(comparison.is_within(0.0));
    }

    #[test]
    fn samples_on_cell_borders_are_found() {
        let problem = Problem::builder().levels([(4, 8)]).points(1).queries(6).build().unwrap();
        let x = |pixel: f64| (pixel + 0.5) / 8.0;
        let y = |pixel: f64| (pixel + 0.5) / 4.0;
        let locations = [
            [x(2.5), y(1.5)],
            [x(2.005), y(1.5)],
            [x(2.5), y(0.995)],
            [x(8.005), y(1.5)],
            [x(9.0), y(1.5)],
            [f64::NAN, y(1.5)],
        ];
        let kept = away_from_borders(&problem, &locations.concat(), BORDER_DISTANCE);
        assert_eq!(kept, [true, false, false, false, true, true]);
    }
}
