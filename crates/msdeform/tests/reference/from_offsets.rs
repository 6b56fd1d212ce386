//! The operator from offsets and logits, against its definition by hand and finite differences.

use msdeform::{Offsets, Problem, ReferenceKind, reference};
use msdeform_lab::Random;
use proptest::prelude::*;

use crate::pyramid::{Call, numbers, random_call};

/// Random references and logits, and the offsets that lead from there to the samples of `call`.
fn towards(call: &Call, rule: Offsets, random: &mut Random) -> Call {
    let problem = call.problem.to_builder().offsets(rule).build().unwrap();
    let references = numbers(random, problem.references_len(), 0.2, 0.8);
    let weights = numbers(random, problem.weights_len(), -2.0, 2.0);
    let mut offsets = vec![0.0; problem.locations_len()];
    let (levels, components) = (problem.levels().len(), rule.kind().components());
    for row in 0..problem.batch() * problem.queries() * problem.heads() {
        let query = row / problem.heads();
        for (l, level) in problem.levels().iter().enumerate() {
            for (point, sample) in problem.level_samples(l).enumerate() {
                let first = query * rule.references(levels) + rule.reference(l, point);
                let reference = &references[first * components..][..components];
                let index = row * problem.samples() + sample;
                for (axis, size) in [level.width, level.height].into_iter().enumerate() {
                    let distance = call.locations[2 * index + axis] - reference[axis];
                    offsets[2 * index + axis] = match rule.kind() {
                        ReferenceKind::Point => distance * size as f64,
                        ReferenceKind::Box => {
                            let points = problem.points()[l] as f64;
                            distance / (reference[2 + axis] * f64::from(rule.scale())) * points
                        }
                    };
                }
            }
        }
    }
    Call { problem, value: call.value.clone(), references, locations: offsets, weights }
}

/// Every rule that models use, and some that only the formula covers.
fn rules() -> impl Strategy<Value = Offsets> {
    let kind = prop_oneof![Just(Offsets::from_points()), Just(Offsets::from_boxes())];
    (kind, 0usize..=4, prop_oneof![Just(0.5f32), Just(2.0)], any::<bool>()).prop_map(
        |(rule, references, scale, softmax)| {
            let rule = match references {
                0 => rule,
                1 => rule.one_for_all_levels(),
                count => rule.anchors(count - 1),
            };
            let rule = rule.offset_scale(scale);
            if softmax { rule } else { rule.raw_weights() }
        },
    )
}

/// One query of one head on a level of 2 x 4 pixels, which are numbered.
fn one_level(rule: Offsets, references: &[f64], offsets: &[f64], logits: &[f64]) -> Call {
    let builder = Problem::builder().queries(1).levels([(2, 4)]).points(logits.len());
    let problem = builder.offsets(rule).build().unwrap();
    let [references, locations, weights] = [references, offsets, logits].map(<[f64]>::to_vec);
    Call { problem, value: (0..8).map(f64::from).collect(), references, locations, weights }
}

#[test]
fn an_offset_from_a_point_is_in_pixels_and_one_from_a_box_in_parts_of_it() {
    let rule = Offsets::from_points().raw_weights();
    let samples = one_level(rule, &[0.5, 0.25], &[1.0, -1.0], &[3.0]).samples();
    assert_eq!(samples.locations, [0.75, -0.25]);
    assert_eq!(samples.weights, [3.0]);
    // Two points share a box of 0.8 x 0.4: an offset of one is a quarter of it.
    let rule = Offsets::from_boxes().one_for_all_levels();
    let offsets = [1.0, 1.0, -2.0, 0.0];
    let samples = one_level(rule, &[0.5, 0.5, 0.8, 0.4], &offsets, &[0.0, 0.0]).samples();
    let expected = [0.7, 0.6, 0.1, 0.5];
    assert!(samples.locations.iter().zip(expected).all(|(x, y)| (x - y).abs() < 1e-7));
    assert_eq!(samples.weights, [0.5, 0.5]);
}

#[test]
fn anchors_take_turns() {
    let rule = Offsets::from_points().anchors(2);
    let samples = one_level(rule, &[0.1, 0.2, 0.3, 0.4], &[0.0; 8], &[0.0; 4]).samples();
    assert_eq!(samples.locations, [0.1, 0.2, 0.3, 0.4, 0.1, 0.2, 0.3, 0.4]);
}

#[test]
fn a_row_without_any_weight_gives_zeros_and_one_with_nan_gives_nan() {
    let of = |logits: [f64; 2]| one_level(Offsets::from_points(), &[0.5, 0.5], &[0.0; 4], &logits);
    let at = |logits| of(logits).samples().weights;
    let none = f64::NEG_INFINITY;
    assert_eq!(at([none, none]), [0.0, 0.0]);
    assert_eq!(at([none, 1e300]), [0.0, 1.0]);
    for bad in [[f64::NAN, 0.0], [none, f64::NAN], [f64::INFINITY, 0.0]] {
        assert!(at(bad).iter().all(|weight| weight.is_nan()), "{bad:?}");
    }
    let grads = of([none, none]).backward(&[1.0]);
    let all = [&grads.value, &grads.references, &grads.locations, &grads.weights];
    assert!(all.into_iter().flatten().all(|&grad| grad == 0.0), "{grads:?}");
}

#[test]
fn the_nearest_pixel_is_that_of_the_published_function_and_has_no_slope() {
    let rule = Offsets::from_points().raw_weights().nearest();
    // The pixel of `trunc(location * size + 0.5)` within the level: column and line are rounded up from the half on.
    for (x, y, expected) in [
        (0.0, 0.0, 0.0),
        (0.24, 0.0, 1.0),
        (0.26, 0.0, 1.0),
        (0.5, 0.5, 6.0),
        (0.9, 0.2, 3.0),
        (7.0, -7.0, 3.0),
        (f64::INFINITY, f64::NEG_INFINITY, 3.0),
        (f64::NAN, 0.0, 0.0),
    ] {
        let call = one_level(rule, &[x, y], &[0.0; 2], &[1.0]);
        assert_eq!(call.forward(), [expected], "({x}, {y})");
        let grads = call.backward(&[1.0]);
        assert_eq!(grads.locations, [0.0, 0.0]);
        assert_eq!(grads.references, [0.0, 0.0]);
        assert_eq!(grads.value.iter().sum::<f64>(), if x.is_nan() { 0.0 } else { 1.0 });
    }
}

#[test]
fn rules_that_cannot_be_followed_are_refused() {
    for rule in [Offsets::from_points().anchors(0), Offsets::from_boxes().offset_scale(f32::NAN)] {
        let error = Problem::builder().queries(1).levels([(1, 1)]).offsets(rule).build();
        assert!(matches!(error, Err(msdeform::Error::OffsetRule { .. })), "{error:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 1 } else { 60 }))]

    #[test]
    fn offsets_lead_to_the_samples_that_they_were_made_for(
        call in random_call(), rule in rules(), seed in any::<u64>(),
    ) {
        let from = towards(&call, rule, &mut Random::new(seed));
        let samples = from.samples();
        for (found, expected) in samples.locations.iter().zip(&call.locations) {
            prop_assert!((found - expected).abs() < 1e-6 * expected.abs().max(1.0));
        }
        if rule.has_softmax() {
            for row in samples.weights.chunks(call.problem.samples().max(1)) {
                prop_assert!((row.iter().sum::<f64>() - 1.0).abs() < 1e-12);
            }
        } else {
            prop_assert_eq!(&samples.weights, &from.weights);
        }
        let given = call.problem.to_builder().given_samples().build().unwrap();
        let output = reference::forward(&given, &from.value, &samples.locations, &samples.weights);
        prop_assert_eq!(output, from.forward());
    }

    /// Steps of a thousandth of a pixel: samples keep more distance than that from the borders of cells, where slopes jump.
    #[test]
    fn all_gradients_are_the_slopes_of_the_output(
        call in random_call(), rule in rules(), seed in any::<u64>(),
    ) {
        let mut random = Random::new(seed);
        let call = towards(&call, rule, &mut random);
        let upstream = numbers(&mut random, call.problem.output_len(), -1.0, 1.0);
        let grads = call.backward(&upstream);
        let (step, bound) = (|_| 1e-5, |expected: f64| 1e-5 * expected.abs().max(1.0));
        call.check_slopes(&upstream, &grads.references, |call| &mut call.references, step, bound);
        call.check_slopes(&upstream, &grads.locations, |call| &mut call.locations, step, bound);
        call.check_slopes(&upstream, &grads.weights, |call| &mut call.weights, step, bound);
    }
}
