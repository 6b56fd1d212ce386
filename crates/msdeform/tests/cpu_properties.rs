//! Random small problems, others in every run: whatever the sizes, the fast paths agree with the reference.

#![allow(clippy::unwrap_used, reason = "a step that fails is a failed test")]

use std::hash::{BuildHasher, RandomState};

use msdeform_cases::{Bounds, CpuRunner, Generator, Runner, check};

/// Miri takes seconds for each.
const MODELS: u64 = if cfg!(miri) { 2 } else { 300 };

#[test]
fn random_problems_keep_the_contract() {
    let runner = CpuRunner::default();
    let seed = RandomState::new().hash_one(std::process::id()) >> 32;
    let work = if cfg!(miri) { 2_000 } else { 200_000 };
    let bounds = Bounds { strided: false, from_offsets: true, work, ..Bounds::default() };
    let generator = Generator::new(runner.rules(), bounds, seed);
    let mut worker = runner.worker().unwrap();
    for case in (0..MODELS).flat_map(|number| generator.cases(number, 2)) {
        let checked = check(runner.rules(), worker.as_mut(), &case, &mut |_| ());
        assert_eq!(checked.unwrap().fault(), None, "{case}");
    }
}
