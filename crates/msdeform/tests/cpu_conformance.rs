//! One suite for every CPU variant: the same problems in every format and layout, held to the
//! accuracy contract against the `f64` reference.

#![allow(clippy::unwrap_used, reason = "a step that fails is a failed test")]

mod cpu_support;

use cpu_support::Case;
use msdeform::cpu::{self, CpuOptions, CpuPlan, CpuVariant};
use msdeform::{DType, Direction, Problem, ProblemBuilder, ValueLayout};

/// The shapes that everything must handle, by name.
fn shapes() -> Vec<(&'static str, ProblemBuilder)> {
    let base = || {
        // Miri takes smaller ones: still several images, heads, vectors and a tail.
        if cfg!(miri) {
            let builder = Problem::builder().batch(2).heads(2).channels(9).queries(3).points(2);
            return builder.levels([(4, 5), (2, 3), (1, 1)]);
        }
        Problem::builder().batch(2).heads(3).channels(32).queries(11).points(4).levels([
            (7, 11),
            (4, 6),
            (1, 1),
        ])
    };
    // So many that the values are staged, also under Miri: six reads for each of 27 pixels.
    let many = |queries: usize| if cfg!(miri) { 8 } else { queries };
    vec![
        ("plain", base()),
        ("encoder", {
            // Lq = S with enough reuse for staging, and the tiled walk.
            let [first, second] = if cfg!(miri) { [(5, 4), (2, 3)] } else { [(17, 13), (5, 8)] };
            let queries = (first.0 * first.1 + second.0 * second.1) as usize;
            let builder = Problem::builder().heads(2).channels(32).queries(queries).points(4);
            builder.levels([first, second])
        }),
        ("no queries", base().queries(0)),
        ("no images", base().batch(0)),
        ("no heads", base().heads(0)),
        ("no channels", base().channels(0)),
        ("no points", base().points(0)),
        ("no levels", base().levels(Vec::<(i64, i64)>::new()).spatial(5)),
        ("no levels, no pixels", base().levels(Vec::<(i64, i64)>::new())),
        ("one of everything", {
            Problem::builder().channels(1).queries(1).points(1).levels([(1, 1)])
        }),
        ("one-pixel levels", base().levels([(1, 1), (1, 9), (9, 1)]).queries(many(200))),
        ("one channel", base().channels(1)),
        ("7 channels", base().channels(7)),
        ("8 channels", base().channels(8)),
        ("16 channels", base().channels(16)),
        ("33 channels", base().channels(33).queries(many(60))),
        ("48 channels", base().channels(48)),
        ("64 channels", base().channels(64).queries(many(60))),
        ("100 channels", base().channels(100)),
        ("200 channels", base().channels(200)),
        ("one point", base().points(1)),
        ("points differ", base().points_per_level([3, 0, 5])),
        (
            "many points",
            base().points_per_level([17, 70, 2]).queries(if cfg!(miri) { 1 } else { 5 }),
        ),
        ("gaps between levels", base().level_starts([40, 3, 30]).spatial(250)),
        ("coarse level first", base().levels([(3, 2), (6, 5), (12, 9)])),
        ("many levels", {
            let builder = Problem::builder().heads(2).channels(5).queries(9).points(2);
            let last = if cfg!(miri) { 8 } else { 20 };
            builder.levels((1..last).map(|i| (i, last + 1 - i)))
        }),
        ("reused values", base().queries(many(500))),
    ]
}

/// Storage of values, and of locations and weights.
const FORMATS: [(DType, DType); 5] = [
    (DType::F32, DType::F32),
    (DType::F16, DType::F16),
    (DType::F16, DType::F32),
    (DType::Bf16, DType::Bf16),
    (DType::Bf16, DType::F32),
];

/// Whether a combination is run. Miri, thousands of times slower, takes every shape once, every format and layout
/// with some of them, and of the two variants of an instruction set, whose runs are the same, one; the rest is
/// counted.
fn is_run(variant: &CpuVariant, shape: usize, format: usize, layout: usize) -> bool {
    let layouts = ValueLayout::ALL.len();
    let in_turn = shape % (FORMATS.len() * layouts) == format * layouts + layout;
    !cfg!(miri) || variant.spec.direction == Direction::Forward && in_turn
}

#[test]
fn every_variant_keeps_the_contract() {
    let (mut run, mut impossible, mut unavailable, mut failures) = (0, 0, 0, Vec::new());
    let mut left_out = 0;
    for variant in cpu::variants() {
        for (format, (dtype, sampling)) in FORMATS.into_iter().enumerate() {
            for (position, layout) in ValueLayout::ALL.into_iter().enumerate() {
                for (seed, (name, builder)) in shapes().into_iter().enumerate() {
                    if !is_run(variant, seed, format, position) {
                        left_out += 1;
                        continue;
                    }
                    let builder = builder.dtype(dtype).sampling_dtype(sampling).layout(layout);
                    let Ok(problem) = builder.build() else {
                        // Level starts chosen for tight levels do not fit bordered ones.
                        assert_eq!(name, "gaps between levels");
                        assert_eq!(layout, ValueLayout::HeadMajorPadded);
                        impossible += 1;
                        continue;
                    };
                    if !variant.is_available() {
                        unavailable += 1;
                        continue;
                    }
                    run += 1;
                    let options = CpuOptions { threads: Some(1), isa: Some(variant.isa) };
                    let mut plan = CpuPlan::new(&problem, &options).unwrap();
                    let case = Case::random(problem, seed as u64);
                    // Twice: what a call leaves in the plan must not reach the next one.
                    case.run(&mut plan);
                    if let Err(error) = case.check(&case.run(&mut plan)) {
                        failures.push(format!(
                            "{} {name} ({}): {error}",
                            variant.spec.id, case.problem
                        ));
                    }
                }
            }
        }
    }
    println!(
        "conformance: {run} run, {unavailable} skipped (instruction set missing here), {impossible} \
         skipped (shape and layout exclude each other), {left_out} left out under Miri, {} failed",
        failures.len()
    );
    assert!(failures.is_empty(), "{} of {run} failed:\n{}", failures.len(), failures.join("\n"));
    assert!(run > 0);
}
