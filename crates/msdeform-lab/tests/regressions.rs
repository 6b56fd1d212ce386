//! Cases that random runs once found wrong, fixed since in the code or in the accuracy contract.

#![allow(clippy::unwrap_used, reason = "a step that fails is a failed test")]

use msdeform_lab::Case;
use msdeform_lab::case::VariantChoice;
use msdeform_lab::runner::{CpuRunner, Runner, check};

/// From an hour on a CPU: samples a hair inside of the limits, where a share is a few roundings of a coordinate.
const HAIR: &[&str] = &[
    "batch=1 heads=1 channels=234 queries=1 levels=1x1@0,1x9@1 spatial=10 points=6,2 dtype=f32 locations=local values=unit weights=softmax seed=1274092971",
    "batch=1 heads=2 channels=1 queries=1 levels=3x1@0 spatial=3 points=8 dtype=f32 gradients=value mode=fast locations=borders values=unit weights=peaked upstream=unit seed=266219078",
    "batch=1 heads=1 channels=10 queries=1 levels=10x7@0,2x5@70,13x3@80,12x2@119,2x15@143 spatial=173 points=2,2,2,2,2 dtype=f32 gradients=weights mode=fast locations=mixed values=unit weights=peaked upstream=unit seed=3046507826",
    "batch=1 heads=4 channels=104 queries=1 levels=6x5@0 spatial=30 points=1 dtype=f32 gradients=weights mode=fast locations=borders values=unit weights=peaked upstream=unit seed=3546666574",
    "batch=2 heads=1 channels=110 queries=2 levels=2x2@0,2x2@4,12x3@8,17x2@44 spatial=78 points=2,2,2,2 dtype=f32 layout=head_major locations=borders values=large weights=peaked seed=695912866",
];

/// From a GPU: levels one pixel thin (a zero that the compiler read too early), and counters that it read four at a time.
const GPU: &[&str] = &[
    "batch=1 heads=8 channels=160 queries=1 levels=1x2@0,1x31@2 spatial=33 points=5,5 dtype=bf16 gradients=value+locations+weights seed=1",
    "batch=1 heads=8 channels=64 queries=7 levels=3x64@0,1x2@192,3x4@194,3x64@206 spatial=398 points=5,5,5,5 dtype=f16 gradients=value+locations+weights seed=2",
    "batch=1 heads=8 channels=32 queries=3 levels=1x9@0 spatial=9 points=4 dtype=f16 gradients=value+locations+weights seed=3",
    "batch=1 heads=2 channels=32 queries=21 levels=1x2@0,1x3@2,1x1@5,1x1@6 spatial=7 points=4,4,4,4 dtype=f16 sampling=f32 gradients=value locations=tiny values=zero weights=peaked seed=3328484733",
    "batch=1 heads=1 channels=10 queries=1 levels=56x8@0 spatial=448 points=1 dtype=f16 gradients=locations locations=local values=large upstream=large seed=116891460",
];

#[test]
fn former_failures_pass_on_the_cpu() {
    let runner = CpuRunner;
    for line in HAIR.iter().chain(GPU) {
        let mut case: Case = line.parse().unwrap();
        // Wherever it was found: this machine may lack that instruction set.
        let own = Case { choice: VariantChoice::Own, ..case.clone() };
        if runner.rules().resolve(&case).is_err() {
            case = own.clone();
        }
        for case in [&case, &own] {
            match check(&runner, case) {
                Ok(checked) => assert_eq!(checked.fault(), None, "{case}"),
                Err(fault) => assert!(fault.to_string().contains("lacks"), "{case}: {fault}"),
            }
        }
    }
}
