use half::f16;

use super::*;
use crate::Numbers;
use crate::case::{Samples, Values};

const INF: f64 = f64::INFINITY;
const NAN: f64 = f64::NAN;

/// A tensor of which every element is compared with the bound alone.
fn strict(dtype: DType, numbers: &[f64]) -> Expected {
    let (tensor, numbers) = (Role::Output, numbers.to_vec());
    Expected { tensor, dtype, numbers, compared: Vec::new(), allowance: None, may_overflow: true }
}

fn with_allowance(dtype: DType, numbers: &[f64], magnitude: f64) -> Expected {
    let magnitude = vec![magnitude; numbers.len()];
    let allowance =
        Allowance { magnitude, floor: floor(dtype, FEW_ROUNDINGS), ..Allowance::default() };
    Expected { allowance: Some(allowance), ..strict(dtype, numbers) }
}

fn figures(found: &[f64], expected: &[f64]) -> Comparison {
    strict(DType::F64, expected).compare_numbers(found, 1.0).comparison
}

fn passes(found: &[f64], expected: &[f64], bound: f64) -> bool {
    strict(DType::F64, expected).compare_numbers(found, bound).fault.is_none()
}

fn f16_bytes(numbers: &[f64]) -> Vec<u8> {
    numbers.iter().flat_map(|&x| f16::from_f64(x).to_le_bytes()).collect()
}

#[test]
fn equal_is_zero_and_known_errors_have_known_sizes() {
    let expected = [3.0, -4.0, 0.0];
    let same = figures(&expected, &expected);
    assert_eq!((same.max_abs, same.max_rel, same.rel_l2, same.elements), (0.0, 0.0, 0.0, 3));
    let off = figures(&[3.0, -4.5, 0.0], &expected);
    assert_eq!((off.max_abs, off.max_rel, off.rel_l2), (0.5, 0.125, 0.1));
    let within = |bound| passes(&[3.0, -4.5, 0.0], &expected, bound);
    assert!(within(0.1) && !within(0.09));
}

#[test]
fn an_element_that_is_not_finite_fails() {
    for bad in [NAN, INF, -INF] {
        for place in 0..3 {
            let mut found = [1.0, 2.0, 3.0];
            found[place] = bad;
            let figures = figures(&found, &[1.0, 2.0, 3.0]);
            assert!(figures.rel_l2.is_nan() && figures.max_abs.is_nan());
            assert!(!passes(&found, &[1.0, 2.0, 3.0], INF));
        }
    }
}

#[test]
fn what_is_not_finite_in_the_reference_too_agrees_and_only_there() {
    let expected = [NAN, 3.0, INF, -4.0, -INF];
    let same = figures(&expected, &expected);
    assert_eq!((same.rel_l2, same.not_finite_in_both, same.not_finite_in_one), (0.0, 3, 0));
    // Finite elements are still held to the bound.
    let off = figures(&[NAN, 3.0, INF, -4.5, -INF], &expected);
    assert_eq!((off.max_abs, off.rel_l2), (0.5, 0.1));
    for wrong in [
        [NAN, NAN, INF, -4.0, -INF],
        [1.0, 3.0, INF, -4.0, -INF],
        [NAN, 3.0, NAN, -4.0, -INF],
        [NAN, 3.0, -INF, -4.0, -INF],
        [INF, 3.0, INF, -4.0, -INF],
    ] {
        assert!(!passes(&wrong, &expected, INF), "{wrong:?}");
        assert_eq!(figures(&wrong, &expected).not_finite_in_one, 1, "{wrong:?}");
    }
}

#[test]
fn a_number_that_a_dtype_cannot_hold_must_be_infinite() {
    for (expected, found, dtype, is_right) in [
        (8e4, INF, DType::F16, true),
        (-8e4, -INF, DType::F16, true),
        (6.55e4, INF, DType::F16, true),
        (6.55e4, 65504.0, DType::F16, true),
        (6.55e4, NAN, DType::F16, false),
        (8e4, -INF, DType::F16, false),
        (6e4, INF, DType::F16, false),
        (8e4, 65504.0, DType::F16, false),
        (8e4, INF, DType::Bf16, false),
        (1e39, INF, DType::F32, true),
    ] {
        let verdict = strict(dtype, &[expected, 1.0]).compare_numbers(&[found, 1.0], 1e-3);
        assert_eq!(verdict.fault.is_none(), is_right, "{expected} {found} {dtype}");
        let told = Expected { may_overflow: false, ..strict(dtype, &[expected, 1.0]) };
        let passes = told.compare_numbers(&[found, 1.0], 1e-3).fault.is_none();
        assert_eq!(passes, is_right && found.is_finite(), "{expected} {found} {dtype}");
    }
}

#[test]
fn missing_and_surplus_elements_fail() {
    assert!(!passes(&[1.0], &[1.0, 2.0], 1.0) && !passes(&[1.0, 2.0], &[1.0], 1.0));
    assert!(passes(&[], &[], 0.0));
}

#[test]
fn where_all_is_zero_anything_else_fails() {
    assert!(passes(&[0.0, 0.0], &[0.0, 0.0], 0.0));
    assert!(!passes(&[0.0, 1e-30], &[0.0, 0.0], 1.0));
}

#[test]
fn left_out_elements_are_counted_and_may_be_anything() {
    let expected = Expected { compared: vec![false, true], ..strict(DType::F32, &[0.0, 1.0]) };
    let verdict = expected.compare_numbers(&[NAN, 1.0], 0.0);
    assert_eq!((verdict.comparison.elements, verdict.comparison.left_out), (1, 1));
    assert_eq!(verdict.fault, None);
}

#[test]
fn errors_are_relative_to_the_result_its_terms_or_the_dtype() {
    let bound = DType::F16.rel_l2_bound();
    let compare = |wanted: f64, found: f64, magnitude: f64| {
        let expected = with_allowance(DType::F16, &[wanted; 4], magnitude);
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
fn roundings_of_halves_add_up_as_squares_do() {
    let step = f16::from_bits(1).to_f64();
    assert_eq!(floor(DType::F16, FEW_ROUNDINGS), 2.0 * step);
    assert_eq!(floor(DType::F16, 100), 5.0 * step);
    assert_eq!(floor(DType::F32, 100), f64::from(f32::MIN_POSITIVE));
}

#[test]
fn nan_fails_unless_expected_and_infinity_unless_it_overflows() {
    let bound = DType::F16.rel_l2_bound();
    let compare = |wanted: f64, found: f64| {
        let expected = with_allowance(DType::F16, &[wanted, 1.0], 1.0);
        expected.compare(&f16_bytes(&[found, 1.0]), bound).fault.is_none()
    };
    assert!(compare(NAN, NAN));
    assert!(!compare(1.0, NAN) && !compare(NAN, 1.0));
    assert!(compare(1e6, INF) && compare(-1e6, -INF));
    assert!(!compare(1e6, -INF) && !compare(1e6, 6e4));
    assert!(!compare(1.0, INF));
}

/// One query with one point on a level of this many pixels in a line.
fn line(pixels: i64, wants: Option<Gradients>) -> (Case, HostTensors) {
    let builder = Problem::builder().queries(1).levels([(1, pixels)]).channels(1).points(1);
    let mut case = Case::plain(builder.build().unwrap(), wants);
    case.numbers = Numbers { samples: Samples::Inside, ..Numbers::default() };
    let mut inputs = case.inputs();
    inputs.set(Role::Value, &vec![1.0; pixels as usize]);
    inputs.set(Role::Weights, &[1.0]);
    (case, inputs)
}

/// A hair inside of the level a sample's share is a few roundings of its coordinate.
#[test]
fn errors_by_rounded_coordinates_are_allowed_and_no_more() {
    let (case, mut inputs) = line(64, None);
    let compare = |inputs: &HostTensors, off: f64| {
        let expected = &expect_with_allowances(&case, inputs)[0];
        let found = (expected.numbers[0] + off) as f32;
        expected.compare(&found.to_le_bytes(), DType::F32.rel_l2_bound()).fault.is_none()
    };
    // Almost one pixel past the last: 1e-5 of it is left.
    inputs.set(Role::Locations, &[(64.5 - 1e-5) / 64.0, 0.5]);
    assert!(compare(&inputs, 5e-6));
    assert!(!compare(&inputs, 2e-5));
    // In the middle a millionth is as much as ever.
    inputs.set(Role::Locations, &[0.505, 0.5]);
    assert!(compare(&inputs, 5e-6) && !compare(&inputs, 3e-5));
}

/// Corners with a share of zero count: NaN reaches the neighbour of a pixel that is hit exactly.
#[test]
fn nan_spreads_by_corners_and_doubtful_cells_are_left_out() {
    let (mut case, _) = line(3, Some(Gradients::ALL));
    case.numbers.upstream = Values::OneNan;
    let mut inputs = case.inputs();
    inputs.set(Role::Value, &[1.0; 3]);
    let mut grad_value = |at: f64| {
        inputs.set(Role::Locations, &[at, 0.5]);
        expect(&case, &inputs).remove(0)
    };
    // The centre of the middle pixel, exactly: the one after it is a corner too.
    let Expected { numbers, compared, .. } = grad_value(0.5);
    assert!(numbers[1].is_nan() && numbers[2].is_nan() && numbers[0] == 0.0);
    assert_eq!(compared, [true; 3]);
    // Next to it, which pixel is the other corner is up to rounding: an odd multiple of the last bit has no exact product.
    assert_eq!(grad_value(0.5 + 169.0 / f64::from(1 << 24)).compared, [false; 3]);
    assert_eq!(grad_value(0.501).compared, [true; 3]);
}
