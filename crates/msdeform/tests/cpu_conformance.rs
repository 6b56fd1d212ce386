//! One suite for every CPU variant: the named settings of `msdeform-cases` in every format and layout, held to the
//! accuracy contract against the `f64` reference.

#![allow(clippy::unwrap_used, reason = "a step that fails is a failed test")]

use msdeform::cpu::{self, CpuVariant};
use msdeform::{Direction, ValueLayout};
use msdeform_cases::conformance::{Backend, FORMATS, check, settings};
use msdeform_cases::{CpuRunner, Runner};
use rayon::prelude::*;

/// Whether a combination is run. Miri, thousands of times slower, takes every setting once, every format and layout
/// with some of them, and of the two variants of an instruction set, whose runs are the same, one; the rest is
/// counted.
fn is_run(variant: &CpuVariant, setting: usize, combination: usize) -> bool {
    let in_turn = setting % (FORMATS.len() * ValueLayout::ALL.len()) == combination;
    !cfg!(miri) || variant.spec.direction == Direction::Forward && in_turn
}

/// How many cases ran and how many were left out, and what is wrong.
fn failures_of(variant: &CpuVariant) -> (usize, usize, Vec<String>) {
    let backend = if cfg!(miri) { Backend::Emulator } else { Backend::Cpu };
    let (spec, runner) = (&variant.spec, CpuRunner::default());
    let mut worker = runner.worker().unwrap();
    let layouts = ValueLayout::ALL.into_iter();
    let combinations = layouts.flat_map(|layout| FORMATS.map(|formats| (layout, formats)));
    let (mut run, mut left_out, mut failures) = (0, 0, Vec::new());
    for (combination, (layout, formats)) in combinations.enumerate() {
        for (index, setting) in settings(backend, spec.direction).iter().enumerate() {
            let case = setting.case(spec.direction, formats, layout).unwrap();
            // The processor's plans take contiguous tensors.
            if !is_run(variant, index, combination) || !case.is_contiguous() {
                left_out += 1;
                continue;
            }
            run += 1;
            let case = case.by(spec.id, Vec::new());
            if let Err(fault) = check(worker.as_mut(), &case, &|dtype| spec.rel_l2_bound(dtype)) {
                failures.push(format!("{}: {case}: {fault}", setting.name()));
            }
        }
    }
    (run, left_out, failures)
}

#[test]
fn every_variant_keeps_the_contract() {
    let (available, missing): (Vec<_>, Vec<_>) =
        cpu::variants().iter().partition(|variant| variant.is_available());
    let found: Vec<_> = available.par_iter().map(|variant| failures_of(variant)).collect();
    let run: usize = found.iter().map(|(run, ..)| run).sum();
    let left_out: usize = found.iter().map(|(_, left_out, _)| left_out).sum();
    let failures: Vec<&str> =
        found.iter().flat_map(|(.., failures)| failures).map(String::as_str).collect();
    let missing: Vec<&str> = missing.iter().map(|variant| variant.spec.id).collect();
    println!(
        "conformance: {run} run, {left_out} left out (strided, or under Miri), {} failed; not here: {missing:?}",
        failures.len()
    );
    assert!(failures.is_empty(), "{} of {run} failed:\n{}", failures.len(), failures.join("\n"));
    assert!(run > 0);
}
