//! The gradients: by hand inside, on cell borders and outside, then by finite differences.

use msdeform::{Problem, ValueLayout};
use msdeform_lab::Random;
use proptest::prelude::*;

use crate::pyramid::{
    Call, INF, LEVEL, NAN, PIXELS, for_each_pixel, numbers, one_sample, random_call, value_offset,
};

/// Gradients of a single sample with weight 3 and an upstream gradient of 2.
fn gradients_at(x: f64, y: f64) -> (Vec<f64>, [f64; 2], f64) {
    let grads = one_sample(LEVEL, &PIXELS, (x, y), 3.0).backward(&[2.0]);
    (grads.value, [grads.locations[0], grads.locations[1]], grads.weights[0])
}

#[test]
fn inside_a_cell_all_three_gradients_are_those_of_the_bilinear_mean() {
    // x = 1.25, y = 0.5: pixels 2, 4 above and 32, 64 below.
    let (value, location, weight) = gradients_at(1.25, 0.5);
    let share = [0.75 * 0.5, 0.25 * 0.5];
    let each = |share: f64| 2.0 * 3.0 * share;
    #[rustfmt::skip]
    assert_eq!(value, [
        0.0, each(share[0]), each(share[1]), 0.0,
        0.0, each(share[0]), each(share[1]), 0.0,
    ]);
    // d/dx: right minus left column, mean of the rows; d/dy: lower minus upper row. A location
    // moves the pixel by the size of its level: 4 in x, 2 in y.
    let slope_x = 0.5 * (4.0 - 2.0) + 0.5 * (64.0 - 32.0);
    let slope_y = 0.75 * (32.0 - 2.0) + 0.25 * (64.0 - 4.0);
    assert_eq!(location, [2.0 * 3.0 * slope_x * 4.0, 2.0 * 3.0 * slope_y * 2.0]);
    assert_eq!(weight, 2.0 * (0.375 * 2.0 + 0.125 * 4.0 + 0.375 * 32.0 + 0.125 * 64.0));
}

#[test]
fn half_outside_the_missing_corners_are_zeros_with_a_slope_towards_them() {
    // Left: only column 0, share 0.75, rows in halves.
    let (value, location, weight) = gradients_at(-0.25, 0.5);
    #[rustfmt::skip]
    assert_eq!(value, [
        6.0 * 0.375, 0.0, 0.0, 0.0,
        6.0 * 0.375, 0.0, 0.0, 0.0,
    ]);
    assert_eq!(location, [6.0 * (0.5 * 1.0 + 0.5 * 16.0) * 4.0, 6.0 * 0.75 * (16.0 - 1.0) * 2.0]);
    assert_eq!(weight, 2.0 * 0.375 * (1.0 + 16.0));
    // Right: only column 3; moving right loses it.
    let (_, location, weight) = gradients_at(3.25, 0.5);
    assert_eq!(
        location,
        [-6.0 * (0.5 * 8.0 + 0.5 * 128.0) * 4.0, 6.0 * 0.75 * (128.0 - 8.0) * 2.0]
    );
    assert_eq!(weight, 2.0 * 0.375 * (8.0 + 128.0));
    // Above: only row 0.
    let (_, location, weight) = gradients_at(0.5, -0.25);
    assert_eq!(location, [6.0 * 0.75 * (2.0 - 1.0) * 4.0, 6.0 * (0.5 * 1.0 + 0.5 * 2.0) * 2.0]);
    assert_eq!(weight, 2.0 * 0.375 * (1.0 + 2.0));
    // Below: only row 1.
    let (_, location, weight) = gradients_at(0.5, 1.25);
    assert_eq!(
        location,
        [6.0 * 0.75 * (32.0 - 16.0) * 4.0, -6.0 * (0.5 * 16.0 + 0.5 * 32.0) * 2.0]
    );
    assert_eq!(weight, 2.0 * 0.375 * (16.0 + 32.0));
    // A corner: one pixel is left.
    let (value, location, weight) = gradients_at(-0.5, -0.5);
    assert_eq!(value, [6.0 * 0.25, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
    assert_eq!(location, [6.0 * 0.5 * 1.0 * 4.0, 6.0 * 0.5 * 1.0 * 2.0]);
    assert_eq!(weight, 2.0 * 0.25 * 1.0);
}

#[test]
fn on_a_cell_border_the_slope_is_that_of_the_cell_to_the_right_and_below() {
    // Exactly on pixel 2 (column 1, row 0): right neighbour 4, lower neighbour 32.
    let (value, location, weight) = gradients_at(1.0, 0.0);
    assert_eq!(location, [6.0 * (4.0 - 2.0) * 4.0, 6.0 * (32.0 - 2.0) * 2.0]);
    assert_eq!(value, [0.0, 6.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
    assert_eq!(weight, 2.0 * 2.0);
    // On column 0 the cell is 0..1, not -1..0: the slope does not see the outside.
    assert_eq!(gradients_at(0.0, 0.5).1[0], 6.0 * (0.5 * (2.0 - 1.0) + 0.5 * (32.0 - 16.0)) * 4.0);
    assert_eq!(gradients_at(0.5, 0.0).1[1], 6.0 * (0.5 * (16.0 - 1.0) + 0.5 * (32.0 - 2.0)) * 2.0);
    // On the last column and row the cell reaches outside: zero minus the pixel.
    let (_, location, weight) = gradients_at(3.0, 1.0);
    assert_eq!(location, [6.0 * (0.0 - 128.0) * 4.0, 6.0 * (0.0 - 128.0) * 2.0]);
    assert_eq!(weight, 2.0 * 128.0);
}

#[test]
fn a_sample_that_does_not_count_has_no_gradient_at_all() {
    let outside = [
        (-1.0, 0.5),
        (4.0, 0.5),
        (1.0, -1.0),
        (1.0, 2.0),
        (-1.5, 0.0),
        (9.0, 9.0),
        (NAN, 0.0),
        (0.0, NAN),
        (INF, 0.0),
        (0.0, -INF),
        (NAN, INF),
    ];
    for (x, y) in outside {
        for weight in [3.0, NAN, INF] {
            for upstream in [2.0, NAN, INF] {
                let grads = one_sample(LEVEL, &PIXELS, (x, y), weight).backward(&[upstream]);
                let at = format!("({x}, {y}), weight {weight}, upstream {upstream}");
                assert_eq!(grads.value, [0.0; 8], "{at}");
                assert_eq!(grads.locations, [0.0; 2], "{at}");
                assert_eq!(grads.weights, [0.0; 1], "{at}");
            }
        }
    }
}

#[test]
fn just_inside_the_range_the_slope_is_already_whole() {
    // Not `powi`, whose last bit Rust does not promise.
    let tiny = 1.0 / f64::from(1 << 20);
    let (value, location, weight) = gradients_at(-1.0 + tiny, 0.0);
    assert_eq!(value[0], 6.0 * tiny);
    assert_eq!(location[0], 6.0 * 1.0 * 4.0);
    assert_eq!(weight, 2.0 * tiny);
}

#[test]
fn a_level_of_one_pixel_pulls_towards_it_from_both_sides() {
    let grads = |x| one_sample((1, 1), &[5.0], (x, 0.0), 3.0).backward(&[2.0]);
    assert_eq!(grads(-0.25).locations[0], 6.0 * 5.0);
    assert_eq!(grads(0.25).locations[0], -6.0 * 5.0);
    assert_eq!(grads(0.25).value, [6.0 * 0.75]);
    assert_eq!(grads(0.25).weights, [2.0 * 0.75 * 5.0]);
}

#[test]
fn samples_on_one_pixel_add_up_and_other_heads_and_images_stay_out_of_it() {
    for layout in ValueLayout::ALL {
        let problem = Problem::builder()
            .batch(2)
            .heads(2)
            .channels(3)
            .queries(2)
            .levels([(2, 2), (4, 4)])
            .points_per_level([1, 2])
            .layout(layout)
            .build()
            .unwrap();
        let mut call = Call::new(problem.clone(), |_| 1.0);
        // Both points of level 1, of both queries, of image 1 and head 0: pixel (row 3, column 2).
        for (q, s, weight) in [(0, 1, 1.0), (0, 2, 10.0), (1, 1, 100.0), (1, 2, 1000.0)] {
            let sample = call.sample(1, q, 0, s);
            call.aim(sample, 1, (2.0, 3.0));
            call.weights[sample] = weight;
        }
        // The upstream gradient of channel c of query q is 2 + c + 10 q, in this head only.
        let mut grad_output = vec![NAN; problem.output_len()];
        for q in 0..2 {
            for c in 0..3 {
                grad_output[((2 + q) * 2) * 3 + c] = (2 + c + 10 * q) as f64;
            }
        }
        let grads = call.backward(&grad_output);
        for_each_pixel(&problem, |[n, m, l, row, column, c], offset| {
            let hit = [n, m, l, row, column] == [1, 0, 1, 3, 2];
            let sum = 11.0 * (2 + c) as f64 + 1100.0 * (12 + c) as f64;
            assert_eq!(grads.value[offset], if hit { sum } else { 0.0 }, "{layout}");
        });
        let at = value_offset(&problem, (1, 0, 1), (3, 2), 1);
        assert_eq!(grads.value[at], 11.0 * 3.0 + 1100.0 * 13.0, "{layout}");
        // Sum over channels of upstream times a value of one.
        assert_eq!(grads.weights[call.sample(1, 0, 0, 2)], 2.0 + 3.0 + 4.0, "{layout}");
        assert_eq!(grads.weights[call.sample(1, 1, 0, 1)], 12.0 + 13.0 + 14.0, "{layout}");
    }
}

#[test]
fn borders_and_gaps_get_zero_gradients() {
    for layout in ValueLayout::ALL {
        let problem = Problem::builder()
            .queries(1)
            .levels([(2, 2)])
            .level_starts([3])
            .spatial(25)
            .points(2)
            .layout(layout)
            .build()
            .unwrap();
        let mut call = Call::new(problem, |_| 1.0);
        call.aim(0, 0, (-0.5, -0.5));
        call.aim(1, 0, (1.5, 1.5));
        let grads = call.backward(&[4.0]);
        // A quarter of each sample falls on a pixel; three quarters fall outside and are lost.
        let mut expected = vec![0.0; 25];
        expected[value_offset(&call.problem, (0, 0, 0), (0, 0), 0)] = 1.0;
        expected[value_offset(&call.problem, (0, 0, 0), (1, 1), 0)] = 1.0;
        assert_eq!(grads.value, expected, "{layout}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 1 } else { 60 }))]

    /// The objective is linear in every value and weight, and in each coordinate within a cell, so
    /// the differences are exact up to rounding with steps as large as the cell allows. Borders and gaps have no slope.
    #[test]
    fn all_three_gradients_are_the_slopes_of_the_output(call in random_call(), seed in any::<u64>()) {
        let problem = &call.problem;
        let upstream = numbers(&mut Random::new(seed), problem.output_len(), -1.0, 1.0);
        let grads = call.backward(&upstream);
        let (half, bound) = (|_| 0.5, |_| 1e-9);
        call.check_slopes(&upstream, &grads.value, |call| &mut call.value, half, bound);
        call.check_slopes(&upstream, &grads.weights, |call| &mut call.weights, half, bound);
        // A hundredth of a pixel; samples keep twice that distance from cell borders.
        let step = |index: usize| {
            let sample = index / 2 % problem.samples();
            let mut levels = problem.levels().iter().enumerate();
            let (_, level) =
                levels.find(|&(l, _)| problem.level_samples(l).contains(&sample)).unwrap();
            0.01 / [level.width, level.height][index % 2] as f64
        };
        call.check_slopes(&upstream, &grads.locations, |call| &mut call.locations, step, bound);
    }
}
