//! One suite for every CPU variant: the named settings of `msdeform-lab` in every format and layout, held to the
//! accuracy contract against the `f64` reference.

#![allow(clippy::unwrap_used, reason = "a step that fails is a failed test")]

use msdeform::{DType, Direction, ValueLayout, VariantSpec, cpu};
use msdeform_lab::Case;
use msdeform_lab::conformance::{Backend, FORMATS, check_variants, settings};
use msdeform_lab::runner::CpuRunner;
use rayon::prelude::*;

/// A layout with the formats of values and samples.
type Combination = (ValueLayout, (DType, DType));

/// The variants that compute a case. Miri, thousands of times slower, takes small cases of the forward, each in one format
/// and layout and by one variant.
fn takers<'a>(
    variants: &[&'a VariantSpec],
    case: &Case,
    setting: usize,
    turn: usize,
) -> Vec<&'a VariantSpec> {
    const MOST_WORK: u64 = 10_000;
    let mut variants = variants.to_vec();
    variants.retain(|variant| variant.direction == case.direction());
    if cfg!(miri) {
        let combinations = FORMATS.len() * ValueLayout::ALL.len();
        let is_taken = case.direction() == Direction::Forward
            && setting % combinations == turn
            && case.work() <= MOST_WORK;
        let nth = setting / combinations % variants.len().max(1);
        variants = variants.into_iter().skip(nth).take(usize::from(is_taken)).collect();
    }
    variants
}

/// How many cases ran and how many were left out, and what is wrong.
fn failures_of(
    variants: &[&VariantSpec],
    (turn, (layout, formats)): (usize, Combination),
) -> (usize, usize, Vec<String>) {
    let backend = if cfg!(miri) { Backend::Emulator } else { Backend::Cpu };
    let (mut run, mut left_out, mut failures) = (0, 0, Vec::new());
    for direction in Direction::ALL {
        for (index, setting) in settings(backend, direction).iter().enumerate() {
            let case = setting.case(direction, formats, layout).unwrap();
            let takers = takers(variants, &case, index, turn);
            // CPU plans take contiguous tensors.
            if takers.is_empty() || !case.is_contiguous() {
                left_out += 1;
                continue;
            }
            run += takers.len();
            for (id, fault) in check_variants(&CpuRunner, &case, &takers) {
                failures.push(format!("{}: {case} variant={id}: {fault}", setting.name()));
            }
        }
    }
    (run, left_out, failures)
}

#[test]
fn every_variant_keeps_the_contract() {
    let (available, missing): (Vec<_>, Vec<_>) =
        cpu::variants().iter().partition(|variant| variant.is_available());
    let available: Vec<&VariantSpec> = available.iter().map(|variant| &variant.spec).collect();
    let missing: Vec<&str> = missing.iter().map(|variant| variant.spec.id).collect();
    let layouts = ValueLayout::ALL.into_iter();
    let combinations = layouts.flat_map(|layout| FORMATS.map(|formats| (layout, formats)));
    let combinations: Vec<_> = combinations.enumerate().collect();
    let found = combinations.into_par_iter().map(|turn| failures_of(&available, turn));
    let nothing = || (0, 0, Vec::new());
    let (run, left_out, failures) = found.reduce(nothing, |one, other| {
        (one.0 + other.0, one.1 + other.1, [one.2, other.2].concat())
    });
    println!(
        "conformance: {run} run, {left_out} left out (strided, or under Miri), {} failed; not here: {missing:?}",
        failures.len()
    );
    assert!(failures.is_empty(), "{} of {run} failed:\n{}", failures.len(), failures.join("\n"));
    assert!(run > 0);
}
