//! What the generator draws: valid, repeatable, and everything that the rules of dispatch know.

#![allow(clippy::unwrap_used, reason = "a step that fails is a failed test")]

use msdeform::Operator;
use msdeform_cuda::DeviceProps;
use msdeform_cuda_lab::REGISTRY;
use msdeform_lab::Case;
use msdeform_lab::case::VariantChoice;
use msdeform_lab::runner::{CudaRules, Rules};
use msdeform_lab::soak::{Bounds, Generator};

fn rules() -> CudaRules {
    CudaRules::new(DeviceProps::h200(), REGISTRY)
}

#[test]
fn a_seed_draws_the_same_cases_and_their_lines_make_them_again() {
    let rules = rules();
    let draw = || -> Vec<Case> {
        let generator = Generator::new(&rules, Bounds::default(), 11);
        (0..300).flat_map(|number| generator.cases(number, 4)).collect()
    };
    let cases = draw();
    assert_eq!(cases, draw());
    for case in &cases {
        let again: Case = case.to_string().parse().unwrap();
        assert_eq!(again, *case, "{case}");
    }
}

/// A seed in a report or a regression file stands for these cases. Choices are left out, because they follow the registry.
#[test]
fn the_cases_of_a_seed_stay_the_same() {
    let rules = rules();
    let bounds = Bounds { operators: Operator::ALL.to_vec(), ..Bounds::default() };
    let generator = Generator::new(&rules, bounds, 11);
    let mut hasher = blake3::Hasher::new();
    for case in (0..600).flat_map(|number| generator.cases(number, 1)) {
        let case = Case { choice: VariantChoice::Own, ..case };
        hasher.update(case.to_string().as_bytes());
    }
    assert_eq!(hasher.finalize().to_hex()[..16], *"c7f7be77112c6acc");
}

#[test]
fn lines_that_are_no_cases_are_refused_by_what_is_wrong() {
    let line = "batch=1 heads=1 channels=1 queries=1 levels=1x1@0 spatial=1 points=1 dtype=f32";
    line.parse::<Case>().unwrap();
    for (from, to, words) in [
        ("heads=1", "heads=x", "heads=x"),
        ("levels=1x1@0", "levels=1x1", "levels=1x1"),
        ("points=1", "", "points= is missing"),
        ("dtype=f32", "dtype=f32 colour=red", "unknown key `colour`"),
        ("spatial=1", "spatial=0", "level"),
        ("dtype=f32", "dtype=f32 gradients=bias", "gradients=bias"),
    ] {
        let error = line.replace(from, to).parse::<Case>().unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}

/// Every variant that is no rung, with every value of every knob, every kernel, format, layout, subset of
/// gradients and mode that dispatch or a tuning file can choose.
#[test]
fn everything_that_can_be_chosen_is_reached() {
    let rules = rules();
    let bounds = Bounds { operators: Operator::ALL.to_vec(), ..Bounds::default() };
    let generator = Generator::new(&rules, bounds, 5);
    let mut coverage = rules.universe();
    let mut refused = 0;
    for number in 0..12_000 {
        for case in generator.cases(number, 8) {
            match rules.resolve(&case) {
                Ok(resolved) => coverage.meet(&case, &resolved),
                Err(_) => refused += 1,
            }
        }
    }
    let missed: Vec<&str> = coverage.missed().collect();
    println!("{coverage}; {refused} refused");
    assert!(missed.is_empty(), "never reached: {missed:#?}");
}
