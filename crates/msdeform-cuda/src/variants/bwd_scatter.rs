//! f32 and few queries: one pass, atomics straight to a zeroed gradient.

use msdeform::{DType, DeviceKind, Direction, Numerics, Role, ValueLayout, VariantSpec};

use super::chunked_sample::{lanes_per_pixel, paired_sampling_alignment};
use super::grad_output_rows::{self, PACK, PackStep};
use super::{Call, Configuration, Knob, KnobChoices, Specialise, Variant};
use crate::driver::LaunchGeometry;
use crate::pipeline::{Pipeline, Region};
use crate::sources::{SourceFile, kernel_source};

/// See `kernels/bwd_scatter.cu`.
pub struct BwdScatter;

static SPEC: VariantSpec = VariantSpec {
    id: "bwd_scatter",
    direction: Direction::Backward,
    device: DeviceKind::Cuda,
    dtypes: &[DType::F32],
    layouts: &ValueLayout::ALL,
    source: "ours",
    idea: "a warp per (query, head) reads each corner once and adds to it by a vector atomic",
    why: "f32 decoders: samples that share few pixels need no sort, zeroing and one pass are enough",
    numerics: Numerics::Contract,
    rung: false,
};

const WARPS: Knob = Knob { name: "WARPS", values: &[4, 8], meaning: "warps of a block" };
const AHEAD: Knob = Knob {
    name: "AHEAD",
    values: &[2, 4],
    meaning: "samples whose pixels are on their way to a warp",
};
static KNOBS: &[Knob] = &[WARPS, AHEAD, PACK];

/// As in the kernel: where a lane's sample lies, and its four dot products.
const WARP_BYTES: usize = 32 * 32;
const CHUNK_BYTES: usize = 16;
/// Pixel numbers that leave four bits of an `i32` free.
const MAX_PIXELS: usize = 1 << 27;

impl Variant for BwdScatter {
    fn spec(&self) -> &'static VariantSpec {
        &SPEC
    }

    fn source(&self) -> SourceFile {
        kernel_source!("bwd_scatter.cu")
    }

    fn is_deterministic(&self) -> bool {
        false
    }

    fn knobs(&self) -> &'static [Knob] {
        KNOBS
    }

    fn supports(&self, call: &Call<'_>) -> Result<(), String> {
        lanes_per_pixel(call, 1)?;
        grad_output_rows::check(call)?;
        let pixels = call.problem.spatial();
        if pixels >= MAX_PIXELS {
            return Err(format!("{pixels} pixels of an image, fewer than {MAX_PIXELS}"));
        }
        Ok(())
    }

    fn configure(&self, call: &Call<'_>, knobs: &KnobChoices) -> Result<Configuration, String> {
        let problem = call.problem;
        let pack = PackStep::of(call, knobs)?;
        let warps = knobs.get(WARPS.name).unwrap_or(4);
        let ahead = knobs.get(AHEAD.name).unwrap_or(2);
        let mut pipeline = Pipeline::default();
        pack.queue(problem, &mut pipeline);
        if call.gradients().value {
            pipeline.zero(Region::Tensor(Role::GradValue));
        }
        // The kernel strides over what a grid cannot hold.
        let blocks = call.rows().div_ceil(warps.unsigned_abs()).min(1 << 30);
        pipeline.launch(
            "",
            LaunchGeometry {
                shared_bytes: (warps.unsigned_abs() as usize * WARP_BYTES) as u32,
                ..LaunchGeometry::linear(blocks as u32, 32 * warps.unsigned_abs() as u32)
            },
        );
        Ok(Configuration {
            specialise: Specialise::ModelAndHeads,
            knobs: vec![(WARPS.name, warps), (AHEAD.name, ahead), pack.knob()],
            pipeline,
            value_alignment: CHUNK_BYTES,
            sampling_alignment: paired_sampling_alignment(call),
            ..Configuration::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use msdeform::{Mode, Problem, ProblemBuilder};

    use super::*;
    use crate::driver::DeviceProps;
    use crate::gradients::Gradients;
    use crate::pipeline::Step;
    use crate::variants::BackwardCall;

    fn decoder() -> ProblemBuilder {
        Problem::builder()
            .batch(2)
            .heads(8)
            .channels(32)
            .queries(300)
            .levels([(100, 167), (50, 84), (25, 42), (13, 21)])
            .points(4)
    }

    fn pipeline(gradients: Gradients) -> Pipeline {
        let (problem, device) = (decoder().build().unwrap(), DeviceProps::h200());
        let backward = Some(BackwardCall { gradients, ..BackwardCall::new(&problem) });
        let call = Call { backward, ..Call::new(&problem, &device) };
        let variant: &dyn Variant = &BwdScatter;
        variant.check(&call).unwrap();
        variant.configure(&call, &KnobChoices::default()).unwrap().pipeline
    }

    #[test]
    fn a_decoder_is_zeroed_and_takes_one_launch_without_workspace() {
        let all = pipeline(Gradients::ALL);
        assert_eq!(
            (all.steps[0], all.workspace_bytes),
            (Step::Zero(Region::Tensor(Role::GradValue)), 0)
        );
        let launches: Vec<_> = all.launches().collect();
        assert_eq!(launches.len(), 1);
        assert_eq!((launches[0].0, launches[0].1.grid), ("", [2 * 300 * 8 / 4, 1, 1]));
    }

    #[test]
    fn without_the_gradient_of_the_values_nothing_is_zeroed() {
        assert_eq!(pipeline(Gradients { value: false, ..Gradients::ALL }).steps.len(), 1);
    }

    #[test]
    fn half_precision_and_deterministic_mode_are_refused() {
        let device = DeviceProps::h200();
        let variant: &dyn Variant = &BwdScatter;
        let problem = decoder().dtype(DType::F16).build().unwrap();
        let call = Call::in_direction(Direction::Backward, &problem, &device);
        assert!(variant.check(&call).is_err());
        let problem = decoder().build().unwrap();
        let backward = BackwardCall { mode: Mode::Deterministic, ..BackwardCall::new(&problem) };
        let call = Call { backward: Some(backward), ..Call::new(&problem, &device) };
        assert!(variant.check(&call).unwrap_err().to_string().contains("run to run"));
    }
}
