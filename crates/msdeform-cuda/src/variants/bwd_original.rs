//! The kernel that others are measured against.

use msdeform::{DType, Direction, OutputStrides, Role, VariantSpec};

use super::{
    Call, Configuration, KnobChoices, OURS, Specialise, Variant, check_32_bit_indices,
    check_inline_levels,
};
use crate::driver::LaunchGeometry;
use crate::kernel_source;
use crate::pipeline::{Pipeline, Region};

/// See `kernels/bwd_original.cu`.
pub(crate) static BWD_ORIGINAL: Variant = Variant {
    is_deterministic: false,
    ..Variant::new(&SPEC, kernel_source!("bwd_original.cu"), supports, configure)
};

static SPEC: VariantSpec = VariantSpec {
    id: "bwd_original",
    direction: Direction::Backward,
    origin: "guide (002): original",
    idea: "one thread per channel of a row, float atomics to grad_value, a block-wide sum per sample",
    why: "the kernel of 2018-2020 that every public implementation copies: the baseline",
    ..OURS
};

const CONVERT_THREADS: u32 = 256;

/// Floats that a thread brings to the sum of its block.
const FLOATS_PER_THREAD: u32 = 3;

fn supports(call: &Call<'_>) -> Result<(), String> {
    let problem = call.problem;
    check_inline_levels(problem)?;
    let packed = || OutputStrides::packed(problem);
    let grad_output = call.backward.map_or_else(packed, |backward| backward.grad_output);
    check_32_bit_indices(&[
        ("value", call.strides.extent(problem)),
        ("grad_value", problem.value_len()),
        ("sampling_locations", problem.locations_len()),
        ("output", problem.output_len()),
        ("grad_output", grad_output.extent(problem)),
    ])
}

fn configure(call: &Call<'_>, _: &KnobChoices) -> Result<Configuration, String> {
    let problem = call.problem;
    let gradients = call.gradients();
    let mut pipeline = Pipeline::default();
    let sums_in_place = problem.dtype() == DType::F32;
    if gradients.value {
        let sums = if sums_in_place {
            Region::Tensor(Role::GradValue)
        } else {
            let bytes = problem.value_len() * size_of::<f32>();
            Region::Workspace { offset: pipeline.reserve(bytes), bytes }
        };
        pipeline.zero(sums);
    }
    let threads = problem.channels().next_power_of_two().clamp(32, 1024) as u32;
    let geometry = LaunchGeometry {
        shared_bytes: threads * FLOATS_PER_THREAD * size_of::<f32>() as u32,
        // Below 2^31: `supports` has looked at the output.
        ..LaunchGeometry::linear(call.rows() as u32, threads)
    };
    pipeline.launch("", geometry);
    if gradients.value && !sums_in_place {
        let blocks = problem.value_len().div_ceil(CONVERT_THREADS as usize);
        let geometry = LaunchGeometry::linear(blocks as u32, CONVERT_THREADS);
        pipeline.launch("convert", geometry);
    }
    Ok(Configuration {
        specialise: Specialise::Formats,
        pipeline,
        value_alignment: problem.dtype().size_bytes(),
        sampling_alignment: problem.sampling_dtype().size_bytes(),
        ..Configuration::default()
    })
}

#[cfg(test)]
mod tests {
    use msdeform::{BackwardCall, Gradients, Problem};

    use super::*;
    use crate::pipeline::Step;
    use crate::variants::tests::configured;

    fn pipeline(dtype: DType, gradients: Gradients) -> Pipeline {
        let problem = Problem::builder().batch(2).heads(3).channels(5).queries(7).points(2);
        let problem = problem.levels([(4, 6)]).dtype(dtype);
        configured(&BWD_ORIGINAL, problem, |backward| BackwardCall { gradients, ..backward })
            .unwrap()
            .pipeline
    }

    #[test]
    fn half_precision_sums_in_a_workspace_of_one_float_per_value() {
        let in_place = pipeline(DType::F32, Gradients::ALL);
        assert_eq!(in_place.workspace_bytes, 0);
        assert_eq!(in_place.steps[0], Step::Zero(Region::Tensor(Role::GradValue)));
        let names = |pipeline: &Pipeline| pipeline.launches().map(|(n, _)| n).collect::<Vec<_>>();
        assert_eq!(names(&in_place), [""]);

        let half = pipeline(DType::F16, Gradients::ALL);
        let bytes = 2 * 3 * 5 * 24 * 4;
        assert_eq!(half.steps[0], Step::Zero(Region::Workspace { offset: 0, bytes }));
        assert_eq!(half.workspace_bytes, bytes.next_multiple_of(256));
        assert_eq!(names(&half), ["", "convert"]);
    }

    #[test]
    fn without_the_gradient_of_the_values_there_is_nothing_to_zero() {
        let of_samples = Gradients { value: false, ..Gradients::ALL };
        let pipeline = pipeline(DType::F16, of_samples);
        assert_eq!((pipeline.steps.len(), pipeline.workspace_bytes), (1, 0));
    }
}
