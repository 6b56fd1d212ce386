//! The description of a call: it is refused, or all later arithmetic can rely on it.

#![allow(clippy::panic, reason = "this is how a fuzz target reports a fault")]

use msdeform::{CpuOptions, CpuPlan, DType, Problem, ValueLayout};
use msdeform_lab::Case;
use msdeform_lab::oracle::expect_with_allowances;
use msdeform_lab::runner::run_plan;

use crate::Reader;

/// Elements up to which a call is computed too.
const TINY: usize = 1 << 10;

pub(crate) fn problem(bytes: &[u8]) {
    let mut reader = Reader(bytes);
    let mut builder =
        Problem::builder().dtype(reader.pick(&DType::ALL)).layout(reader.pick(&ValueLayout::ALL));
    if reader.chance() {
        builder = builder.sampling_dtype(reader.pick(&DType::ALL));
    }
    if reader.chance() {
        builder = builder.output_dtype(reader.pick(&DType::ALL));
    }
    if reader.chance() {
        builder = builder.batch(reader.size());
    }
    builder = builder.heads(reader.size()).channels(reader.size());
    if !reader.byte().is_multiple_of(16) {
        builder = builder.queries(reader.size());
    }
    let levels = usize::from(reader.byte() % 6);
    if !reader.byte().is_multiple_of(16) {
        builder = builder
            .levels((0..levels).map(|_| (reader.number(), reader.number())).collect::<Vec<_>>());
    }
    if reader.chance() {
        builder = builder.level_starts((0..levels).map(|_| reader.number()).collect::<Vec<_>>());
    }
    if reader.chance() {
        builder = builder.spatial(reader.size());
    }
    builder = if reader.chance() {
        builder.points_per_level((0..levels).map(|_| reader.size()).collect::<Vec<_>>())
    } else {
        builder.points(reader.size())
    };
    let Ok(problem) = builder.build() else { return };

    assert_eq!(problem.to_builder().build().as_ref(), Ok(&problem), "a description of itself");
    let lengths =
        [problem.value_len(), problem.locations_len(), problem.weights_len(), problem.output_len()];
    for length in lengths {
        assert!(length.checked_mul(8).is_some_and(|bytes| isize::try_from(bytes).is_ok()));
    }
    for level in problem.levels() {
        assert!(level.start + level.footprint(problem.layout()) <= problem.spatial());
    }
    let _ = problem.to_string();
    let is_tiny = lengths.into_iter().chain(loops(&problem)).all(|length| length <= TINY);
    if is_tiny && problem.queries() <= TINY {
        compute(&problem);
    }
}

/// How often inputs and the reference loop over pixels and samples. Tensors without elements may have any number of heads.
fn loops(problem: &Problem) -> [usize; 2] {
    let product = |sizes: [usize; 4]| {
        sizes.into_iter().fold(1usize, |product, size| product.saturating_mul(size.max(1)))
    };
    let (batch, heads) = (problem.batch(), problem.heads());
    [
        product([batch, heads, problem.spatial(), 1]),
        product([batch, heads, problem.queries(), problem.samples()]),
    ]
}

/// Computes the output on the CPU, unless its plan refuses the call, and compares it with the reference.
fn compute(problem: &Problem) {
    let options = CpuOptions { threads: Some(1), ..CpuOptions::default() };
    let Ok(mut plan) = CpuPlan::new(problem, &options) else { return };
    let case = Case::plain(problem.clone(), None);
    let inputs = case.inputs();
    let written = run_plan(&mut plan, &case, &inputs);
    let written = written.unwrap_or_else(|fault| panic!("{fault}: {case}"));
    for (expected, (_, found)) in expect_with_allowances(&case, &inputs).iter().zip(written.iter())
    {
        let verdict = expected.compare(found.bytes(), expected.dtype.rel_l2_bound());
        assert_eq!(verdict.fault, None, "{case}");
    }
}
