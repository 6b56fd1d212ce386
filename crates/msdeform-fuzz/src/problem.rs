//! The description of a call: whatever is said, it is refused, or all later arithmetic can rely on it.

use msdeform::cpu::{CpuOptions, CpuPlan};
use msdeform::{DType, Problem, ValueLayout, reference};

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
    if lengths.into_iter().all(|length| length <= TINY) && problem.queries() <= TINY {
        compute(&problem);
    }
}

/// What no backend takes is refused; what one takes is as the reference has it, for inputs that every format holds.
fn compute(problem: &Problem) {
    let options = CpuOptions { threads: Some(1), ..CpuOptions::default() };
    let Ok(mut plan) = CpuPlan::new(problem, &options) else { return };
    let formats = [problem.dtype(), problem.sampling_dtype(), problem.output_dtype()];
    if formats != [DType::F32; 3] {
        return;
    }
    let value: Vec<f32> = (0..problem.value_len()).map(|i| (i % 7) as f32 - 3.0).collect();
    let locations: Vec<f32> =
        (0..problem.locations_len()).map(|i| (i % 13) as f32 * 0.125 - 0.25).collect();
    let weights: Vec<f32> = (0..problem.weights_len()).map(|i| (i % 3) as f32 * 0.25).collect();
    let mut output = vec![f32::NAN; problem.output_len()];
    let done = plan.forward(&value, &locations, &weights, &mut output);
    assert_eq!(done, Ok(()));
    let wide = |x: &[f32]| x.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
    let expected = reference::forward(problem, &wide(&value), &wide(&locations), &wide(&weights));
    for (found, expected) in output.iter().zip(expected) {
        let difference = (f64::from(*found) - expected).abs();
        assert!(
            difference <= 1e-4 * expected.abs().max(1.0),
            "{found} is not {expected}: {problem}"
        );
    }
}
