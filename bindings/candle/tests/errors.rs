//! Calls that cannot be: an error that says which tensor, and nothing runs.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "tests may fail, and helpers of tests too"
)]

mod support;

use candle_core::{DType, Tensor};
use msdeform_candle::{
    Error, Levels, Offsets, Result, ms_deform_attn, ms_deform_attn_from_offsets,
};
use support::random;

const LEVELS: [(usize, usize); 2] = [(4, 5), (2, 3)];

fn tensor(shape: &[usize]) -> Tensor {
    random(1, shape, 1.0, 0.0, DType::F32).unwrap()
}

/// A call of `[2, 26, 3, 8]` with 7 queries and 2 points, after changes to its tensors.
fn call(change: impl FnOnce(&mut [Tensor; 3], &mut Levels)) -> Result<Tensor> {
    let mut tensors =
        [tensor(&[2, 26, 3, 8]), tensor(&[2, 7, 3, 2, 2, 2]), tensor(&[2, 7, 3, 2, 2])];
    let mut levels = Levels::new(LEVELS);
    change(&mut tensors, &mut levels);
    ms_deform_attn(&tensors[0], levels, &tensors[1], &tensors[2])
}

fn is_of_shape(result: &Result<Tensor>) -> bool {
    matches!(result, Err(Error::Call(msdeform::Error::ShapeMismatch { .. })))
}

fn words(result: Result<Tensor>) -> String {
    result.expect_err("there is something wrong").to_string()
}

#[test]
fn the_call_that_is_changed_is_right() {
    assert_eq!(call(|_, _| ()).unwrap().dims(), [2, 7, 24]);
}

/// The core's tests of signatures have the other shapes.
#[test]
fn wrong_shapes_are_named_with_what_was_expected() {
    for (at, shape, expected) in [
        (
            0,
            &[2, 26, 24][..],
            "`value` has shape [2, 26, 24], expected [batch, pixels, heads, channels]",
        ),
        (
            1,
            &[3, 7, 3, 2, 2, 2],
            "`sampling_locations` has shape [3, 7, 3, 2, 2, 2], expected [2, queries, 3, 2, points, 2] or [2, queries, 3, samples, 2]",
        ),
        (
            2,
            &[2, 8, 3, 2, 2],
            "`attention_weights` has shape [2, 8, 3, 2, 2], expected [2, 7, 3, 2, 2] or [2, 7, 3, 4]",
        ),
    ] {
        let result = call(|tensors, _| tensors[at] = tensor(shape));
        assert!(is_of_shape(&result), "{shape:?}");
        let words = words(result);
        assert!(words.contains(expected), "{words}");
    }
}

#[test]
fn levels_that_are_not_those_of_the_values_are_refused() {
    let with = |levels: Levels| call(|_, given| *given = levels);
    let pixels = with(Levels::new([(4, 5), (3, 3)]));
    assert!(matches!(pixels, Err(Error::Pixels { levels: 29, found: 26 })));
    assert!(words(pixels).contains("`Levels::starts`"));
    let points = with(Levels::new(LEVELS).points([2]));
    assert!(matches!(points, Err(Error::Call(msdeform::Error::LevelCount { .. }))));
    let huge = with(Levels::new([(usize::MAX, 2), (2, 3)]));
    assert!(matches!(huge, Err(Error::Pixels { .. })));
    let uneven = call(|tensors, _| {
        tensors[1] = tensor(&[2, 7, 3, 5, 2]);
        tensors[2] = tensor(&[2, 7, 3, 5]);
    });
    assert!(matches!(uneven, Err(Error::Points { samples: 5, levels: 2 })));
}

#[test]
fn formats_that_are_not_computed_in_are_refused() {
    for (at, dtype, expected) in [
        (0, DType::I64, "`value` is I64, expected F32 or F16 or BF16 or F64"),
        (0, DType::F64, "`sampling_locations` is F32, expected F64"),
        (1, DType::F16, "`sampling_locations` is F16, expected F32; convert it with `to_dtype`"),
        (1, DType::F64, "`sampling_locations` is F64, expected F32"),
        (2, DType::BF16, "`attention_weights` is BF16, expected F32"),
    ] {
        let result = call(|tensors, _| tensors[at] = tensors[at].to_dtype(dtype).unwrap());
        assert!(matches!(result, Err(Error::Format { .. })));
        let words = words(result);
        assert!(words.contains(expected), "{words}");
    }
}

#[test]
fn references_that_fit_no_rule_are_refused() {
    let from_offsets = |references: &[usize], rule: Offsets| {
        let (value, offsets) = (tensor(&[2, 26, 3, 8]), tensor(&[2, 7, 3, 2, 2, 2]));
        let (references, logits) = (tensor(references), tensor(&[2, 7, 3, 2, 2]));
        ms_deform_attn_from_offsets(&value, LEVELS, &references, &offsets, &logits, rule)
    };
    let points = Offsets::from_points();
    assert_eq!(from_offsets(&[2, 7, 2, 2], points).unwrap().dims(), [2, 7, 24]);
    assert_eq!(from_offsets(&[1, 7, 3, 2], points.anchors(3)).unwrap().dims(), [2, 7, 24]);
    for (shape, rule, expected) in [
        (
            &[2, 7, 2, 4][..],
            points,
            "`reference_points` has shape [2, 7, 2, 4], expected [2 or 1, 7 or 1, 2, 2]",
        ),
        (&[2, 7, 2, 2], points.one_for_all_levels(), "expected [2 or 1, 7 or 1, 1, 2]"),
    ] {
        let result = from_offsets(shape, rule);
        assert!(is_of_shape(&result), "{shape:?}");
        let words = words(result);
        assert!(words.contains(expected), "{words}");
    }
    let none = from_offsets(&[2, 7, 0, 2], points.anchors(0));
    assert!(matches!(none, Err(Error::Call(msdeform::Error::OffsetRule { .. }))));
}

#[test]
fn an_error_becomes_one_of_candle_with_its_words() {
    fn in_a_model() -> candle_core::Result<Tensor> {
        Ok(call(|tensors, _| tensors[0] = tensor(&[2, 26, 24]))?)
    }
    let words = in_a_model().expect_err("a wrong shape").to_string();
    assert!(words.starts_with("`value` has shape [2, 26, 24]"), "{words}");
    // And candle's own stay what they are.
    let missing = || candle_core::Error::CannotFindTensor { path: "a.b".into() };
    let back = candle_core::Error::from(Error::from(missing()));
    assert!(matches!(back, candle_core::Error::CannotFindTensor { .. }));
}
