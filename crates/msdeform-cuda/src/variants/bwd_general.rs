//! Accepts everything, deterministic; what the dispatcher falls back to.

use msdeform::{Direction, Problem, Role, VariantSpec};

use super::offset_source::{self, KeptGradients, KeptRows};
use super::tile_lists::has_unowned_pixels;
use super::{Call, Configuration, KnobChoices, OURS, Specialise, Variant, output_dtype};
use crate::derived::Derived;
use crate::driver::LaunchGeometry;
use crate::kernel_source;
use crate::pipeline::{Pipeline, Region};

/// See `kernels/bwd_general.cu`.
pub(crate) static BWD_GENERAL: Variant = Variant {
    takes_offsets: true,
    takes_other_outputs: true,
    ..Variant::new(&SPEC, kernel_source!("bwd_general.cu"), |_| Ok(()), configure)
};

static SPEC: VariantSpec = VariantSpec {
    id: "bwd_general",
    direction: Direction::Backward,
    idea: "a counting sort with counters in global memory; a warp owns a tile of pixels, sums in order",
    why: "any shape, strides and alignment, the same bits on every run: nothing is ever refused",
    ..OURS
};

/// Of a block, but in the step starts.
const THREADS: u32 = 128;
const LANES: usize = 32;
const WARPS: u64 = THREADS as u64 / LANES as u64;
const TILE_SIDE: usize = 4;
const SCAN_THREADS: u32 = 1024;
const ENTRY_BYTES: usize = 8;
const COUNT_BYTES: usize = 8;

/// What the kernels are compiled with.
const SIZES: [(&str, i64); 4] = [
    ("THREADS", THREADS as i64),
    ("SCAN_THREADS", SCAN_THREADS as i64),
    ("TILE_SIDE", TILE_SIDE as i64),
    ("LIST_ENTRY_BYTES", ENTRY_BYTES as i64),
];
/// Two floats for every pixel and channel of a warp's tile.
const VALUES_SHARED_BYTES: u32 = THREADS * (TILE_SIDE * TILE_SIDE * 2 * size_of::<f32>()) as u32;
/// The sum of every warp.
const STARTS_SHARED_BYTES: u32 = SCAN_THREADS / LANES as u32 * COUNT_BYTES as u32;

/// Warps that sort, over all images and heads: enough for a large GPU.
const SORTING_WARPS: usize = 2048;
const MAX_PARTS: usize = 128;
/// Counters of an (image, head), at most, for each of its samples, as long as there is one for each tile.
const COUNTERS_PER_SAMPLE: usize = 4;

/// What the sort is divided into.
struct Sort {
    slabs: usize,
    tiles: usize,
    parts: usize,
}

impl Sort {
    fn of(problem: &Problem) -> Self {
        let across = |size: usize| size.div_ceil(TILE_SIDE);
        let of_level = |level: &msdeform::Level| across(level.height) * across(level.width);
        let tiles: usize = problem.levels().iter().map(of_level).sum();
        let slabs = problem.batch() * problem.heads();
        let samples = problem.queries() * problem.samples();
        let affordable = COUNTERS_PER_SAMPLE.saturating_mul(samples) / tiles.max(1);
        let wanted = SORTING_WARPS.div_ceil(slabs.max(1)).min(MAX_PARTS).min(problem.queries());
        Self { slabs, tiles, parts: wanted.min(affordable).max(1) }
    }

    /// Reserves `SortedSamples`.
    fn reserve(&self, problem: &Problem, pipeline: &mut Pipeline) -> Result<Derived, String> {
        let mut derived = Derived::default();
        derived.count("slab_parts", self.parts)?;
        derived.count("slab_tiles", self.tiles)?;
        for (name, bytes) in [
            ("places_at", self.slabs * self.parts * self.tiles * COUNT_BYTES),
            ("starts_at", self.slabs * (self.tiles + 1) * COUNT_BYTES),
            ("entries_at", self.slabs * problem.queries() * problem.samples() * ENTRY_BYTES),
        ] {
            derived.size(name, pipeline.reserve(bytes));
        }
        Ok(derived)
    }
}

fn configure(call: &Call<'_>, _: &KnobChoices) -> Result<Configuration, String> {
    let problem = call.problem;
    let gradients = call.gradients();
    // The kernels stride over what a grid cannot hold.
    let launch = |items: u64, per_block: u64, threads: u32, shared_bytes: u32| {
        let blocks = items.div_ceil(per_block).min(i32::MAX as u64) as u32;
        LaunchGeometry { shared_bytes, ..LaunchGeometry::linear(blocks, threads) }
    };
    let (mut pipeline, mut unused) = (Pipeline::default(), Pipeline::default());
    let lanes = problem.channels().next_power_of_two().min(LANES);
    let sort = Sort::of(problem);
    let workspace = if gradients.value { &mut pipeline } else { &mut unused };
    let mut derived = sort.reserve(problem, workspace)?;
    derived.count("lanes", lanes)?;
    let kept = KeptGradients::of(call, false, KeptRows::Sums);
    kept.reserve(call, &mut pipeline, &mut derived);
    offset_source::derive(call, false, &mut derived)?;
    kept.queue_rows(call, &mut pipeline);
    if gradients.of_samples() {
        let groups = u64::from(THREADS) / lanes as u64;
        pipeline.launch("samples", launch(call.rows(), groups, THREADS, 0));
    }
    if gradients.value {
        if has_unowned_pixels(problem) {
            pipeline.zero(Region::Tensor(Role::GradValue));
        }
        // Products fit: there are more elements of the workspace or of the values.
        let walks = launch((sort.slabs * sort.parts) as u64, WARPS, THREADS, 0);
        let tiles = (sort.slabs * sort.tiles) as u64;
        let slices = problem.channels().div_ceil(LANES) as u64;
        pipeline.launch("count", walks);
        pipeline.launch("offsets", launch(tiles, u64::from(THREADS), THREADS, 0));
        let starts = launch(sort.slabs as u64, 1, SCAN_THREADS, STARTS_SHARED_BYTES);
        pipeline.launch("starts", starts);
        pipeline.launch("scatter", walks);
        let values = launch(tiles * slices, WARPS, THREADS, VALUES_SHARED_BYTES);
        pipeline.launch("values", values);
    }
    kept.queue_finish(call, &mut pipeline);
    Ok(Configuration {
        specialise: Specialise::Formats,
        pipeline,
        value_alignment: problem.dtype().size_bytes(),
        output_alignment: Some(problem.output_dtype().size_bytes()),
        sampling_alignment: problem.sampling_dtype().size_bytes(),
        constants: SIZES
            .iter()
            .copied()
            .chain([output_dtype(call)])
            .chain(kept.constants(call))
            .collect(),
        derived,
        ..Configuration::default()
    })
}

#[cfg(test)]
mod tests {
    use msdeform::{BackwardCall, DType, Gradients, ProblemBuilder, ValueLayout};

    use super::*;
    use crate::pipeline::Step;
    use crate::variants::tests::{configured, deformable_detr};

    fn pipeline(problem: ProblemBuilder, gradients: Gradients) -> Pipeline {
        let problem = problem.batch(2).heads(3).queries(7).points(2);
        configured(&BWD_GENERAL, problem, |backward| BackwardCall { gradients, ..backward })
            .unwrap()
            .pipeline
    }

    #[test]
    fn only_what_is_asked_for_is_launched() {
        let problem = || Problem::builder().channels(33).queries(0).levels([(4, 6)]);
        for gradients in Gradients::subsets() {
            let pipeline = pipeline(problem(), gradients);
            let names: Vec<&str> = pipeline.launches().map(|(name, _)| name).collect();
            assert_eq!(names.contains(&"values"), gradients.value, "{gradients}");
            assert_eq!(names.contains(&"samples"), gradients.of_samples(), "{gradients}");
            assert_eq!(pipeline.workspace_bytes > 0, gradients.value, "{gradients}");
            assert!(
                !pipeline.steps.contains(&Step::Zero(Region::Tensor(Role::GradValue))),
                "no gaps to zero"
            );
        }
        let padded = problem().layout(ValueLayout::HeadMajorPadded);
        assert_eq!(
            pipeline(padded, Gradients::ALL).steps[1],
            Step::Zero(Region::Tensor(Role::GradValue))
        );
    }

    #[test]
    fn the_workspace_stays_near_the_size_of_the_samples() {
        // 1424 tiles, 128 parts: 8 bytes for each of both, and for each of 5.7 million samples.
        let bytes = |queries| {
            let encoder = deformable_detr(queries).channels(20).dtype(DType::F32);
            let configured = configured(&BWD_GENERAL, encoder, |backward| backward).unwrap();
            (configured.pipeline.workspace_bytes, configured.derived.get("slab_parts").unwrap())
        };
        assert_eq!(bytes(22223), (69_026_048, 128));
        // One query: a counter for every tile, though there are fewer samples.
        assert_eq!(bytes(1).1, 1);
    }

    #[test]
    fn every_tile_of_every_slice_head_and_image_has_a_warp() {
        // 1 x 2 tiles and 25 x 42, two slices of channels, six slabs, four warps to a block.
        let problem = Problem::builder().channels(33).queries(0).levels([(4, 6), (100, 167)]);
        let pipeline = pipeline(problem, Gradients::ALL);
        let (_, values) = pipeline.launches().last().unwrap();
        assert_eq!(values.grid[0], (2 + 25 * 42) * 2 * 6 / 4);
    }
}
