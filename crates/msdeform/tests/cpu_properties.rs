//! Random small problems: whatever the sizes, the fast paths agree with the reference.

#![allow(clippy::unwrap_used, reason = "a step that fails is a failed test")]

mod cpu_support;

use cpu_support::Case;
use msdeform::cpu::{CpuOptions, CpuPlan, Isa};
use msdeform::{DType, Problem, ProblemBuilder, ValueLayout};
use proptest::prelude::*;

/// Miri takes seconds for each.
const CASES: u32 = if cfg!(miri) { 4 } else { 300 };

fn problems() -> impl Strategy<Value = ProblemBuilder> {
    let (most_channels, most_queries) = if cfg!(miri) { (20, 8) } else { (70, 40) };
    let sizes = (0usize..3, 0usize..4, 0usize..most_channels, 0usize..most_queries);
    let level = ((1i64..12, 1i64..12), 0usize..7);
    let levels = prop::collection::vec(level, 0..5);
    let formats = prop::sample::select(vec![
        (DType::F32, DType::F32),
        (DType::F16, DType::F16),
        (DType::F16, DType::F32),
        (DType::Bf16, DType::Bf16),
        (DType::Bf16, DType::F32),
    ]);
    let layout = prop::sample::select(ValueLayout::ALL.to_vec());
    (sizes, levels, formats, layout).prop_map(
        |((batch, heads, channels, queries), levels, (dtype, sampling), layout)| {
            let (sizes, points): (Vec<_>, Vec<_>) = levels.into_iter().unzip();
            Problem::builder()
                .batch(batch)
                .heads(heads)
                .channels(channels)
                .queries(queries)
                .levels(sizes)
                .points_per_level(points)
                .layout(layout)
                .dtype(dtype)
                .sampling_dtype(sampling)
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: CASES, ..ProptestConfig::default() })]

    #[test]
    fn random_problems_keep_the_contract(
        builder in problems(),
        seed: u64,
        threads in 1usize..4,
        isa in prop::sample::select(Isa::ALL.to_vec()),
    ) {
        let isa = if isa.is_available() { isa } else { Isa::Scalar };
        let case = Case::random(builder.build().unwrap(), seed);
        let options = CpuOptions { threads: Some(threads), isa: Some(isa) };
        let mut plan = CpuPlan::new(&case.problem, &options).unwrap();
        let results = case.run(&mut plan);
        prop_assert_eq!(case.check(&results), Ok(()));
    }
}
