//! The output: by hand at every kind of place, then against the definition in another form.

use msdeform::{Level, Problem, ValueLayout};
use proptest::prelude::*;

use crate::pyramid::{Call, INF, LEVEL, NAN, PIXELS, one_sample, random_call, value_offset};

fn output_at(x: f64, y: f64) -> f64 {
    one_sample(LEVEL, &PIXELS, (x, y), 1.0).forward()[0]
}

/// Exact: every coordinate below is a short binary fraction.
#[track_caller]
fn assert_output_at(x: f64, y: f64, expected: f64) {
    assert_eq!(output_at(x, y), expected, "at pixel ({x}, {y})");
}

#[test]
fn a_sample_on_a_pixel_is_that_pixel() {
    for (index, &pixel) in PIXELS.iter().enumerate() {
        assert_output_at((index % 4) as f64, (index / 4) as f64, pixel);
    }
}

#[test]
fn a_sample_inside_is_the_bilinear_mean_of_four_pixels() {
    assert_output_at(0.5, 0.5, (1.0 + 2.0 + 16.0 + 32.0) / 4.0);
    assert_output_at(
        1.25,
        0.5,
        0.5 * (0.75 * 2.0 + 0.25 * 4.0) + 0.5 * (0.75 * 32.0 + 0.25 * 64.0),
    );
    assert_output_at(
        2.125,
        0.75,
        0.25 * (0.875 * 4.0 + 0.125 * 8.0) + 0.75 * (0.875 * 64.0 + 0.125 * 128.0),
    );
}

#[test]
fn a_sample_half_outside_loses_the_corners_outside() {
    assert_output_at(-0.5, 0.0, 0.5 * 1.0);
    assert_output_at(-0.25, 0.5, 0.75 * (0.5 * 1.0 + 0.5 * 16.0));
    assert_output_at(3.5, 1.0, 0.5 * 128.0);
    assert_output_at(3.25, 0.5, 0.75 * (0.5 * 8.0 + 0.5 * 128.0));
    assert_output_at(0.0, -0.25, 0.75 * 1.0);
    assert_output_at(1.5, -0.5, 0.5 * (0.5 * 2.0 + 0.5 * 4.0));
    assert_output_at(0.0, 1.75, 0.25 * 16.0);
    assert_output_at(2.5, 1.5, 0.5 * (0.5 * 64.0 + 0.5 * 128.0));
    // Three corners outside.
    assert_output_at(-0.5, -0.5, 0.25 * 1.0);
    assert_output_at(3.5, -0.75, 0.5 * 0.25 * 8.0);
    assert_output_at(-0.75, 1.5, 0.25 * 0.5 * 16.0);
    assert_output_at(3.75, 1.25, 0.25 * 0.75 * 128.0);
}

#[test]
fn the_ends_of_the_range_count_for_nothing_and_just_inside_for_almost_nothing() {
    for y in [0.0, 0.5, 1.0] {
        assert_output_at(-1.0, y, 0.0);
        assert_output_at(4.0, y, 0.0);
    }
    for x in [0.0, 1.5, 3.0] {
        assert_output_at(x, -1.0, 0.0);
        assert_output_at(x, 2.0, 0.0);
    }
    // Not `powi`, whose last bit Rust does not promise.
    let tiny = 1.0 / f64::from(1 << 20);
    assert_output_at(-1.0 + tiny, 0.0, tiny * 1.0);
    assert_output_at(4.0 - tiny, 1.0, tiny * 128.0);
    assert_output_at(0.0, -1.0 + tiny, tiny * 1.0);
    assert_output_at(3.0, 2.0 - tiny, tiny * 128.0);
}

#[test]
fn a_sample_outside_counts_for_nothing() {
    for (x, y) in [(-1.5, 0.0), (4.5, 1.0), (1.0, -1.5), (1.0, 2.5), (-7.0, -7.0), (1e300, 0.0)] {
        assert_output_at(x, y, 0.0);
    }
}

#[test]
fn nan_and_infinite_locations_count_for_nothing_in_either_coordinate() {
    for odd in [NAN, INF, -INF] {
        for (x, y) in [(odd, 0.0), (1.0, odd), (odd, odd)] {
            assert_output_at(x, y, 0.0);
        }
    }
}

#[test]
fn a_weight_scales_its_sample_and_is_not_looked_at_outside() {
    let weighted = |at, weight| one_sample(LEVEL, &PIXELS, at, weight).forward()[0];
    assert_eq!(weighted((0.5, 0.5), 0.25), 0.25 * 12.75);
    assert_eq!(weighted((0.5, 0.5), -2.0), -25.5);
    assert!(weighted((0.5, 0.5), NAN).is_nan());
    for outside in [(-1.0, 0.0), (4.0, 0.0), (NAN, 0.0), (0.0, INF), (9.0, 9.0)] {
        for weight in [NAN, INF, -INF] {
            assert_eq!(weighted(outside, weight), 0.0, "weight {weight} at {outside:?}");
        }
    }
}

#[test]
fn a_level_of_one_pixel_is_a_tent_around_it() {
    let output = |x, y| one_sample((1, 1), &[6.0], (x, y), 1.0).forward()[0];
    assert_eq!(output(0.0, 0.0), 6.0);
    assert_eq!(output(-0.25, 0.0), 0.75 * 6.0);
    assert_eq!(output(0.25, 0.5), 0.75 * 0.5 * 6.0);
    assert_eq!(output(-0.5, -0.5), 0.25 * 6.0);
    assert_eq!(output(1.0, 0.0), 0.0);
    assert_eq!(output(0.0, -1.0), 0.0);
}

#[test]
fn levels_of_one_row_or_one_column_interpolate_along_the_other_axis() {
    let row = |x, y| one_sample((1, 4), &PIXELS[..4], (x, y), 1.0).forward()[0];
    assert_eq!(row(1.5, 0.0), 0.5 * 2.0 + 0.5 * 4.0);
    assert_eq!(row(1.5, 0.5), 0.5 * (0.5 * 2.0 + 0.5 * 4.0));
    let column = |x, y| one_sample((4, 1), &PIXELS[..4], (x, y), 1.0).forward()[0];
    assert_eq!(column(0.0, 2.25), 0.75 * 4.0 + 0.25 * 8.0);
    assert_eq!(column(-0.5, 2.25), 0.5 * (0.75 * 4.0 + 0.25 * 8.0));
}

/// `n m l y x c` as decimal digits: every element of the pyramid is a different number.
fn digits([n, m, l, row, column, c]: [usize; 6]) -> f64 {
    [n, m, l, row, column, c].into_iter().fold(0, |number, digit| 10 * number + digit + 1) as f64
}

/// Two images, three heads, two channels, a 2x4 level behind a 4x2 one, gaps around both; three
/// points on the first level and one on the second.
fn gapped(layout: ValueLayout) -> Problem {
    let (starts, spatial) = match layout {
        ValueLayout::Interleaved | ValueLayout::HeadMajor => ([12, 1], 23),
        // (4 + 2) * (2 + 2) = 24 pixels from 1, (2 + 2) * (4 + 2) = 24 from 28.
        ValueLayout::HeadMajorPadded => ([28, 1], 55),
    };
    Problem::builder()
        .batch(2)
        .heads(3)
        .channels(2)
        .queries(2)
        .levels([(2, 4), (4, 2)])
        .level_starts(starts)
        .spatial(spatial)
        .points_per_level([3, 1])
        .layout(layout)
        .build()
        .unwrap()
}

#[test]
fn each_layout_puts_pixels_where_its_definition_says() {
    // Image 1, head 2, level 0, row 1, column 3, channel 1, counted by hand from `gapped`.
    for (layout, expected) in [
        // [2, 23, 3, 2]: pixel 12 + 1 * 4 + 3 = 19.
        (ValueLayout::Interleaved, 23 * 6 + 19 * 6 + 2 * 2 + 1),
        // [2, 3, 23, 2]: the sixth plane of 46.
        (ValueLayout::HeadMajor, 5 * 46 + 19 * 2 + 1),
        // [2, 3, 55, 2]: pixel 28 + (1 + 1) * 6 + (3 + 1) = 44 of the sixth plane of 110.
        (ValueLayout::HeadMajorPadded, 5 * 110 + 44 * 2 + 1),
    ] {
        let problem = gapped(layout);
        assert_eq!(value_offset(&problem, (1, 2, 0), (1, 3), 1), expected, "{layout}");
        let mut call = Call::new(problem, |_| 0.0);
        call.value.fill(NAN);
        call.value[expected] = 7.0;
        call.value[expected - 1] = 5.0;
        // Exactly on the last pixel of the level: the corners beyond lie outside, NaN or not.
        let sample = call.sample(1, 0, 2, 0);
        call.aim(sample, 0, (3.0, 1.0));
        let row = (2 * 3 + 2) * 2; // image 1, query 0, head 2 of [2, 2, 3, 2]
        assert_eq!(call.forward()[row..row + 2], [5.0, 7.0], "{layout}");
    }
}

#[test]
fn every_layout_reads_its_own_pixels_and_never_a_border_or_a_gap() {
    for layout in ValueLayout::ALL {
        let mut call = Call::new(gapped(layout), digits);
        let on_pixel =
            [(0, 0, (3.0, 1.0)), (0, 1, (0.0, 0.0)), (0, 2, (2.0, 0.0)), (1, 3, (1.0, 3.0))];
        for n in 0..2 {
            for q in 0..2 {
                for m in 0..3 {
                    // Query 0 takes samples 0 and 3 only, query 1 all four.
                    for &(l, s, at) in on_pixel.iter().filter(|sample| q == 1 || sample.1 % 3 == 0)
                    {
                        let sample = call.sample(n, q, m, s);
                        call.aim(sample, l, at);
                        call.weights[sample] = (s + 1) as f64;
                    }
                }
            }
        }
        let output = call.forward();
        for n in 0..2 {
            for m in 0..3 {
                for c in 0..2 {
                    let at = |l, row, column| digits([n, m, l, row, column, c]);
                    let few = 1.0 * at(0, 1, 3) + 4.0 * at(1, 3, 1);
                    let all = few + 2.0 * at(0, 0, 0) + 3.0 * at(0, 0, 2);
                    let found = |q| output[((n * 2 + q) * 3 + m) * 2 + c];
                    assert_eq!([found(0), found(1)], [few, all], "{layout} n={n} m={m} c={c}");
                }
            }
        }
    }
}

#[test]
fn samples_across_the_border_see_zeros_in_every_layout() {
    for layout in ValueLayout::ALL {
        let mut call = Call::new(gapped(layout), digits);
        let sample = call.sample(0, 0, 0, 3);
        call.aim(sample, 1, (-0.5, 3.5));
        // One corner is inside: row 3, column 0 of level 1.
        assert_eq!(call.forward()[0], 0.25 * digits([0, 0, 1, 3, 0, 0]), "{layout}");
    }
}

#[test]
fn a_level_without_points_and_a_call_without_queries_are_no_special_case() {
    let problem = Problem::builder()
        .queries(1)
        .levels([(2, 2), (1, 2), (2, 1)])
        .points_per_level([0, 2, 0])
        .build()
        .unwrap();
    let mut call = Call::new(problem, digits);
    call.aim(0, 1, (0.0, 0.0));
    call.aim(1, 1, (1.0, 0.0));
    let at = |column| digits([0, 0, 1, 0, column, 0]);
    assert_eq!(call.forward(), [at(0) + at(1)]);
    let nothing = call.problem.to_builder().queries(0).build().unwrap();
    assert!(Call::new(nothing, digits).forward().is_empty());
}

/// The operator as a sum over *all* pixels, each seen through a tent of radius one: no cells, no
/// corners, no tests for inside. `f64::max` turns the NaN of an odd location into zero.
fn forward_by_tents(call: &Call) -> Vec<f64> {
    let problem = &call.problem;
    let tent = |distance: f64| (1.0 - distance.abs()).max(0.0);
    let mut output = Vec::new();
    for n in 0..problem.batch() {
        for q in 0..problem.queries() {
            for m in 0..problem.heads() {
                for c in 0..problem.channels() {
                    let mut sum = 0.0;
                    for (l, &Level { height, width, .. }) in problem.levels().iter().enumerate() {
                        for s in problem.level_samples(l) {
                            let sample = call.sample(n, q, m, s);
                            let x = call.locations[2 * sample] * width as f64 - 0.5;
                            let y = call.locations[2 * sample + 1] * height as f64 - 0.5;
                            for row in 0..height {
                                for column in 0..width {
                                    let pixel = value_offset(problem, (n, m, l), (row, column), c);
                                    let share = tent(x - column as f64) * tent(y - row as f64);
                                    sum += call.weights[sample] * share * call.value[pixel];
                                }
                            }
                        }
                    }
                    output.push(sum);
                }
            }
        }
    }
    output
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 200 }))]

    #[test]
    fn the_output_is_the_sum_of_all_pixels_seen_through_tents(
        mut call in random_call(),
        odd in proptest::collection::vec((any::<proptest::sample::Index>(), 0usize..4), 0..4),
    ) {
        for (place, kind) in odd {
            if !call.locations.is_empty() {
                let place = place.index(call.locations.len());
                // 0.5 / size aims exactly at pixel 0, a cell border.
                call.locations[place] = [NAN, INF, -INF, 0.5][kind];
            }
        }
        let (found, expected) = (call.forward(), forward_by_tents(&call));
        prop_assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(&expected) {
            prop_assert!((found - expected).abs() <= 1e-12, "{found} for {expected}");
        }
    }
}
