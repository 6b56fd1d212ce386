//! Accepts everything, deterministic; what the dispatcher falls back to.

use msdeform::{DType, DeviceKind, Direction, Numerics, Problem, ValueLayout, VariantSpec};

use super::{Call, Configuration, KnobChoices, Specialise, Variant};
use crate::driver::LaunchGeometry;
use crate::pipeline::{Pipeline, Region};
use crate::sources::{SourceFile, kernel_source};

/// See `kernels/bwd_general.cu`.
pub struct BwdGeneral;

static SPEC: VariantSpec = VariantSpec {
    id: "bwd_general",
    direction: Direction::Backward,
    device: DeviceKind::Cuda,
    dtypes: &DType::FAST,
    layouts: &ValueLayout::ALL,
    source: "ours",
    idea: "a warp owns a run of pixels and walks all samples of the level in order; no atomics",
    why: "any shape, strides and alignment, the same bits on every run: nothing is ever refused",
    numerics: Numerics::Contract,
    rung: false,
};

/// As in the kernel.
const THREADS: u32 = 128;
const LANES: usize = 32;
const CAPACITY: usize = 48;
const SMALLEST_RUN: usize = 8;
const RUNS_OF_A_SMALL_LEVEL: usize = 64;

/// Two floats for every pixel and channel of a warp's run.
const SHARED_BYTES: u32 = THREADS * CAPACITY as u32 * 2 * size_of::<f32>() as u32;

impl Variant for BwdGeneral {
    fn spec(&self) -> &'static VariantSpec {
        &SPEC
    }

    fn source(&self) -> SourceFile {
        kernel_source!("bwd_general.cu")
    }

    fn supports(&self, _: &Call<'_>) -> Result<(), String> {
        Ok(())
    }

    fn configure(&self, call: &Call<'_>, _: &KnobChoices) -> Result<Configuration, String> {
        let problem = call.problem;
        let gradients = call.gradients();
        // The kernels stride over what a grid cannot hold.
        let blocks = |items: u64, per_block: u64| items.div_ceil(per_block).min(i32::MAX as u64);
        let mut pipeline = Pipeline::default();
        let lanes = problem.channels().next_power_of_two().min(LANES);
        if gradients.of_samples() {
            let blocks = blocks(call.rows(), u64::from(THREADS) / lanes as u64);
            pipeline.launch("samples", LaunchGeometry::linear(blocks as u32, THREADS));
        }
        if gradients.value {
            if has_unowned_pixels(problem) {
                pipeline.zero(Region::GradValue);
            }
            let blocks = blocks(runs(problem), u64::from(THREADS) / LANES as u64);
            let geometry = LaunchGeometry {
                shared_bytes: SHARED_BYTES,
                ..LaunchGeometry::linear(blocks as u32, THREADS)
            };
            pipeline.launch("values", geometry);
        }
        Ok(Configuration {
            specialise: Specialise::Formats,
            knobs: Vec::new(),
            pipeline,
            value_alignment: problem.dtype().size_bytes(),
            sampling_alignment: problem.sampling_dtype().size_bytes(),
            query_raster_width: 0,
            grid_aux: lanes as i32,
            ..Configuration::default()
        })
    }
}

/// Borders and gaps: no run covers them, so they must be zeroed.
fn has_unowned_pixels(problem: &Problem) -> bool {
    let owned: usize = problem.levels().iter().map(|level| level.height * level.width).sum();
    owned < problem.spatial()
}

/// Warps' worth of work in the step `values`.
fn runs(problem: &Problem) -> u64 {
    let of_level = |pixels: usize| {
        let length = pixels.div_ceil(RUNS_OF_A_SMALL_LEVEL).clamp(SMALLEST_RUN, CAPACITY);
        pixels.div_ceil(length)
    };
    let of_head: usize =
        problem.levels().iter().map(|level| of_level(level.height * level.width)).sum();
    let slices = problem.channels().div_ceil(LANES);
    // Fits: there is at least one element of the value tensor for each.
    (of_head * slices * problem.heads() * problem.batch()) as u64
}

#[cfg(test)]
mod tests {
    use msdeform::ProblemBuilder;

    use super::*;
    use crate::driver::DeviceProps;
    use crate::gradients::Gradients;
    use crate::pipeline::Step;
    use crate::variants::BackwardCall;

    fn pipeline(problem: ProblemBuilder, gradients: Gradients) -> Pipeline {
        let problem = problem.batch(2).heads(3).queries(7).points(2).build().unwrap();
        let device = DeviceProps::h200();
        let backward = Some(BackwardCall { gradients, ..BackwardCall::new(&problem) });
        let call = Call { backward, ..Call::new(&problem, &device) };
        BwdGeneral.configure(&call, &KnobChoices::default()).unwrap().pipeline
    }

    #[test]
    fn only_what_is_asked_for_is_launched_and_nothing_needs_a_workspace() {
        let problem = || Problem::builder().channels(33).levels([(4, 6)]);
        for gradients in Gradients::subsets() {
            let pipeline = pipeline(problem(), gradients);
            let names: Vec<&str> = pipeline.launches().map(|(name, _)| name).collect();
            assert_eq!(names.contains(&"values"), gradients.value, "{gradients}");
            assert_eq!(names.contains(&"samples"), gradients.of_samples(), "{gradients}");
            assert_eq!(pipeline.workspace_bytes, 0);
            assert!(!pipeline.steps.contains(&Step::Zero(Region::GradValue)), "no gaps to zero");
        }
        let padded = problem().layout(ValueLayout::HeadMajorPadded);
        assert_eq!(pipeline(padded, Gradients::ALL).steps[1], Step::Zero(Region::GradValue));
    }

    #[test]
    fn runs_cover_every_level_channel_slice_head_and_image() {
        // 24 pixels in runs of 8, and 16700 in runs of 48; two slices of channels.
        let problem = Problem::builder()
            .batch(2)
            .heads(3)
            .channels(33)
            .queries(1)
            .levels([(4, 6), (100, 167)])
            .build()
            .unwrap();
        assert_eq!(runs(&problem), (3 + 348) * 2 * 3 * 2);
    }
}
