//! One suite for every CPU variant: the named settings of `msdeform-cases` in every format and layout, held to the
//! accuracy contract against the `f64` reference.

#![allow(clippy::unwrap_used, reason = "a step that fails is a failed test")]

use msdeform::cpu::{self, CpuVariant};
use msdeform::{Direction, ValueLayout};
use msdeform_cases::conformance::{Backend, FORMATS, check, settings};
use msdeform_cases::{CpuRunner, Runner};

/// Whether a combination is run. Miri, thousands of times slower, takes every setting once, every format and layout
/// with some of them, and of the two variants of an instruction set, whose runs are the same, one; the rest is
/// counted.
fn is_run(variant: &CpuVariant, setting: usize, format: usize, layout: usize) -> bool {
    let layouts = ValueLayout::ALL.len();
    let in_turn = setting % (FORMATS.len() * layouts) == format * layouts + layout;
    !cfg!(miri) || variant.spec.direction == Direction::Forward && in_turn
}

#[test]
fn every_variant_keeps_the_contract() {
    let backend = if cfg!(miri) { Backend::Emulator } else { Backend::Cpu };
    let (mut run, mut unavailable, mut left_out, mut failures) = (0, 0, 0, Vec::new());
    let runner = CpuRunner::default();
    let mut worker = runner.worker().unwrap();
    for variant in cpu::variants() {
        let spec = &variant.spec;
        for (format, formats) in FORMATS.into_iter().enumerate() {
            for (position, layout) in ValueLayout::ALL.into_iter().enumerate() {
                for (index, setting) in settings(backend, spec.direction).iter().enumerate() {
                    if !variant.is_available() {
                        unavailable += 1;
                        continue;
                    }
                    // The processor's plans take contiguous tensors.
                    let case = setting.case(spec.direction, formats, layout).unwrap();
                    if !is_run(variant, index, format, position) || !case.is_contiguous() {
                        left_out += 1;
                        continue;
                    }
                    run += 1;
                    let case = case.by(spec.id, Vec::new());
                    let bound = |dtype| spec.rel_l2_bound(dtype);
                    if let Err(fault) = check(worker.as_mut(), &case, &bound) {
                        failures.push(format!("{}: {case}: {fault}", setting.name()));
                    }
                }
            }
        }
    }
    println!(
        "conformance: {run} run, {unavailable} skipped (instruction set missing here), {left_out} left out (strided, \
         or under Miri), {} failed",
        failures.len()
    );
    assert!(failures.is_empty(), "{} of {run} failed:\n{}", failures.len(), failures.join("\n"));
    assert!(run > 0);
}
