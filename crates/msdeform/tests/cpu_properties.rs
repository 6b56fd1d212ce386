//! Random small problems, others in every run: the fast paths agree with the reference in all sizes.

#![allow(clippy::unwrap_used, reason = "a step that fails is a failed test")]

use std::hash::{BuildHasher, RandomState};

use msdeform::Operator;
use msdeform_lab::Case;
use msdeform_lab::runner::{CpuRunner, Runner, check};
use msdeform_lab::soak::{Bounds, Generator};

const MODELS: u64 = 300;

/// Miri takes seconds for each of the smallest, and minutes for a large tensor of values.
const UNDER_MIRI: usize = 4;
const SMALL: usize = 400;

#[test]
fn random_problems_keep_the_contract() {
    let runner = CpuRunner;
    let seed = RandomState::new().hash_one(std::process::id()) >> 32;
    let work = if cfg!(miri) { 300 } else { 200_000 };
    let bounds =
        Bounds { strided: false, operators: Operator::ALL.to_vec(), work, ..Bounds::default() };
    let generator = Generator::new(runner.rules(), bounds, seed);
    let all = (0..MODELS).flat_map(|number| generator.cases(number, 2));
    let is_meant = |case: &Case| !cfg!(miri) || case.problem.value_len() <= SMALL;
    let most = if cfg!(miri) { UNDER_MIRI } else { usize::MAX };
    let mut count = 0;
    for case in all.filter(is_meant).take(most) {
        let checked = check(&runner, &case);
        assert_eq!(checked.unwrap().fault(), None, "{case}");
        count += 1;
    }
    assert!(count >= UNDER_MIRI);
}
