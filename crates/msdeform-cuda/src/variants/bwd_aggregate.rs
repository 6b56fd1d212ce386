//! Atomics, after neighbouring queries have added up in shared memory what falls on the same pixels.

use msdeform::{DType, DeviceKind, Direction, Numerics, Role, ValueLayout, VariantSpec};

use super::chunked_sample::{lanes_per_pixel, paired_sampling_alignment};
use super::grad_output_rows::{self, PACK, PackStep};
use super::sample_gradients::{SampleStep, THIN};
use super::{Call, Configuration, Knob, KnobChoices, Specialise, Variant};
use crate::driver::LaunchGeometry;
use crate::pipeline::{Pipeline, Region};
use crate::sources::{SourceFile, kernel_source};

/// See `kernels/bwd_aggregate.cu`.
pub struct BwdAggregate;

static SPEC: VariantSpec = VariantSpec {
    id: "bwd_aggregate",
    direction: Direction::Backward,
    device: DeviceKind::Cuda,
    dtypes: &DType::FAST,
    layouts: &ValueLayout::ALL,
    source: "ours",
    idea: "32 neighbouring queries sum into a window of pixels in shared memory, then one atomic per pixel",
    why: "the best that atomics can do: nothing is sorted, and L2 sees a pixel once per tile of queries",
    numerics: Numerics::Contract,
    rung: false,
};

const WINDOW_HEIGHT: Knob = Knob {
    name: "WINDOW_HEIGHT",
    values: &[8, 12],
    meaning: "rows of the window in shared memory",
};
static KNOBS: &[Knob] = &[WINDOW_HEIGHT, THIN, PACK];

/// As in the kernel.
const VALUE_WARPS: usize = 4;
const TILE_QUERIES: usize = 32;
const WINDOW_WIDTH: usize = 16;
const SLICE_CHANNELS: usize = 32;
const CHUNK_BYTES: usize = 16;
/// Shares of four corners, and where they lie.
const RECORD_BYTES: usize = 24;
const CONVERT_THREADS: u32 = 256;

impl Variant for BwdAggregate {
    fn spec(&self) -> &'static VariantSpec {
        &SPEC
    }

    fn source(&self) -> SourceFile {
        kernel_source!("bwd_aggregate.cu")
    }

    fn is_deterministic(&self) -> bool {
        false
    }

    fn knobs(&self) -> &'static [Knob] {
        KNOBS
    }

    fn supports(&self, call: &Call<'_>) -> Result<(), String> {
        lanes_per_pixel(call, 1)?;
        grad_output_rows::check(call)
    }

    fn configure(&self, call: &Call<'_>, knobs: &KnobChoices) -> Result<Configuration, String> {
        let problem = call.problem;
        let pack = PackStep::of(call, knobs)?;
        let samples = SampleStep::of(call, knobs, None)?;
        let window_height = knobs.get(WINDOW_HEIGHT.name).unwrap_or(8);
        // Queries without a second dimension are taken as they come.
        let run = if samples.raster_width as usize >= problem.queries() && !samples.pixels {
            TILE_QUERIES
        } else {
            8
        };
        let mut pipeline = Pipeline::default();
        pack.queue(problem, &mut pipeline);
        if call.gradients().value {
            let sums_in_place = problem.dtype() == DType::F32;
            let sums = if sums_in_place {
                Region::Tensor(Role::GradValue)
            } else {
                let bytes = problem.value_len() * size_of::<f32>();
                Region::Workspace { offset: pipeline.reserve(bytes), bytes }
            };
            pipeline.zero(sums);
            let tiles = samples.query_tiles(problem, run, TILE_QUERIES / run);
            let grid_x = u32::try_from(tiles).ok().filter(|&tiles| tiles < 1 << 31);
            let slabs = (problem.batch() * problem.heads()).min(65_535);
            let window_bytes =
                WINDOW_WIDTH * window_height.unsigned_abs() as usize * SLICE_CHANNELS * 4;
            pipeline.launch(
                "values",
                LaunchGeometry {
                    grid: [
                        grid_x.ok_or("more tiles than a grid holds")?,
                        slabs as u32,
                        problem.channels().div_ceil(SLICE_CHANNELS) as u32,
                    ],
                    block: [32 * VALUE_WARPS as u32, 1, 1],
                    shared_bytes: (VALUE_WARPS * (window_bytes + TILE_QUERIES * RECORD_BYTES))
                        as u32,
                    cluster: 1,
                    overlaps: false,
                },
            );
            if !sums_in_place {
                let chunks = problem.value_len() * problem.dtype().size_bytes() / CHUNK_BYTES;
                let blocks = chunks.div_ceil(CONVERT_THREADS as usize).min(1 << 20);
                let geometry = LaunchGeometry::linear(blocks as u32, CONVERT_THREADS);
                pipeline.launch("convert", geometry);
            }
        }
        if call.gradients().of_samples() {
            pipeline.launch("samples", samples.geometry);
        }
        let mut chosen =
            vec![("RUN", run as i64), (WINDOW_HEIGHT.name, window_height), pack.knob()];
        chosen.extend(samples.knobs);
        Ok(Configuration {
            specialise: Specialise::ModelAndHeads,
            knobs: chosen,
            pipeline,
            value_alignment: CHUNK_BYTES,
            sampling_alignment: paired_sampling_alignment(call),
            query_raster_width: samples.raster_width,
            grid_aux: i32::from(samples.pixels),
            ..Configuration::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use msdeform::{Mode, Problem, ProblemBuilder};

    use super::*;
    use crate::driver::DeviceProps;
    use crate::pipeline::Step;
    use crate::variants::BackwardCall;

    fn encoder() -> ProblemBuilder {
        Problem::builder()
            .batch(2)
            .heads(8)
            .channels(32)
            .queries(22223)
            .levels([(100, 167), (50, 84), (25, 42), (13, 21)])
            .points(4)
            .dtype(DType::F16)
    }

    fn configured(problem: ProblemBuilder) -> Configuration {
        let (problem, device) = (problem.build().unwrap(), DeviceProps::h200());
        let call = Call::in_direction(Direction::Backward, &problem, &device);
        let variant: &dyn Variant = &BwdAggregate;
        variant.check(&call).unwrap();
        variant.configure(&call, &KnobChoices::default()).unwrap()
    }

    #[test]
    fn half_precision_sums_in_the_workspace_and_f32_in_place() {
        let half = configured(encoder()).pipeline;
        let names: Vec<&str> = half.launches().map(|(name, _)| name).collect();
        assert_eq!(names, ["values", "convert", "samples"]);
        assert_eq!(half.workspace_bytes, 2 * 22223 * 8 * 32 * 4);
        assert!(matches!(half.steps[0], Step::Zero(Region::Workspace { .. })));
        let single = configured(encoder().dtype(DType::F32)).pipeline;
        assert_eq!(
            (single.workspace_bytes, single.steps[0]),
            (0, Step::Zero(Region::Tensor(Role::GradValue)))
        );
    }

    #[test]
    fn pixels_are_walked_in_squares_and_other_few_queries_in_order() {
        let geometry = |pipeline: &Pipeline| pipeline.launches().next().unwrap().1;
        let pixels = configured(encoder());
        assert!(pixels.knobs.contains(&("RUN", 8)));
        // Tiles of 8 x 4 pixels of every level.
        assert_eq!(geometry(&pixels.pipeline).grid, [21 * 25 + 11 * 13 + 6 * 7 + 3 * 4, 16, 1]);
        let few = configured(encoder().queries(300));
        assert!(few.knobs.contains(&("RUN", 32)));
        assert_eq!(geometry(&few.pipeline).grid, [10, 16, 1]);
    }

    #[test]
    fn deterministic_mode_is_refused() {
        let (problem, device) = (encoder().build().unwrap(), DeviceProps::h200());
        let backward = BackwardCall { mode: Mode::Deterministic, ..BackwardCall::new(&problem) };
        let call = Call { backward: Some(backward), ..Call::new(&problem, &device) };
        let variant: &dyn Variant = &BwdAggregate;
        assert!(variant.check(&call).unwrap_err().to_string().contains("run to run"));
    }
}
