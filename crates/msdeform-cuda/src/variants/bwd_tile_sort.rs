//! Many queries: samples sorted by the tile of pixels they fall on, tiles summed on tensor cores.

use msdeform::{DType, DeviceKind, Direction, Numerics, ValueLayout, VariantSpec};

use super::chunked_sample::sampling_alignment;
use super::sample_gradients::{SAMPLE_BLOCKS, SAMPLE_WARPS, SampleStep, TILE_HEIGHT, TILE_WIDTH};
use super::tile_lists::{
    ENTRY_BYTES, GATHER_BLOCKS, ListKnobs, ListSizes, ORDERED, check, has_unowned_pixels,
    level_tiles,
};
use super::{Call, Configuration, Knob, KnobChoices, Specialise, Variant};
use crate::driver::LaunchGeometry;
use crate::pipeline::{Pipeline, Region};
use crate::sources::{SourceFile, kernel_source};

/// See `kernels/bwd_tile_sort.cu`.
pub struct BwdTileSort;

static SPEC: VariantSpec = VariantSpec {
    id: "bwd_tile_sort",
    direction: Direction::Backward,
    device: DeviceKind::Cuda,
    dtypes: &DType::FAST,
    layouts: &ValueLayout::ALL,
    source: "ours",
    idea: "a counting sort of the samples by tile of pixels; every tile sums its list on tensor cores",
    why: "no atomics, no zeroing: 8 bytes are moved per sample and tile instead of 4 x 32 sums in L2",
    numerics: Numerics::Contract,
};

const PIECE: Knob = Knob {
    name: "PIECE",
    values: &[256, 512, 1024, 2048],
    meaning: "entries of a list that one warp sums; longer lists are cut",
};
static KNOBS: &[Knob] = &[
    PIECE,
    ORDERED,
    ENTRY_BYTES,
    GATHER_BLOCKS,
    SAMPLE_WARPS,
    SAMPLE_BLOCKS,
    TILE_WIDTH,
    TILE_HEIGHT,
];

/// As in the kernel.
const MAX_PARTS: usize = 128;
const PLAN_THREADS: u32 = 512;
const COMBINE_WARPS: u32 = 4;

/// Warps of count and scatter over all slabs: enough for a large GPU. A constant, because the order of
/// the lists depends on it, which must not depend on the device.
const SORTING_WARPS: usize = 2048;
/// Warps of a block in count and scatter, where their counters fit.
const SORT_WARPS: usize = 2;

impl Variant for BwdTileSort {
    fn spec(&self) -> &'static VariantSpec {
        &SPEC
    }

    fn source(&self) -> SourceFile {
        kernel_source!("bwd_tile_sort.cu")
    }

    fn knobs(&self) -> &'static [Knob] {
        KNOBS
    }

    fn supports(&self, call: &Call<'_>) -> Result<(), String> {
        check(call)?;
        let tiles: usize = level_tiles(call.problem).sum();
        let shared = call.device.shared_bytes_per_block;
        if tiles * 4 > shared {
            return Err(format!(
                "{tiles} tiles of pixels; their counters must fit {shared} bytes of shared memory"
            ));
        }
        Ok(())
    }

    fn configure(&self, call: &Call<'_>, knobs: &KnobChoices) -> Result<Configuration, String> {
        let problem = call.problem;
        let list_knobs = ListKnobs::of(call, knobs)?;
        let samples = SampleStep::of(call, knobs)?;
        let piece = knobs.get(PIECE.name).unwrap_or(1024);
        let slabs = problem.batch() * problem.heads();
        let parts = SORTING_WARPS.div_ceil(slabs.max(1)).min(MAX_PARTS).min(problem.queries());

        let mut pipeline = Pipeline::default();
        if call.gradients().value {
            let lists = ListSizes::reserve(
                problem,
                &mut pipeline,
                piece.unsigned_abs() as usize,
                parts,
                list_knobs.entry_bytes,
            );
            if has_unowned_pixels(problem) {
                pipeline.zero(Region::GradValue);
            }
            let rows = lists.grid_slabs();
            let launch =
                |blocks: usize, threads: u32, shared_bytes: usize, slices: usize| LaunchGeometry {
                    grid: [blocks as u32, rows, slices as u32],
                    block: [threads, 1, 1],
                    shared_bytes: shared_bytes as u32,
                    cluster: 1,
                };
            let counters = lists.tiles * 4;
            let fits = SORT_WARPS * counters <= call.device.shared_bytes_per_block;
            let warps = if fits { SORT_WARPS } else { 1 };
            let sort = launch(parts.div_ceil(warps), 32 * warps as u32, warps * counters, 1);
            let segments = MAX_PARTS / 16;
            pipeline.launch("count", sort);
            pipeline.launch(
                "offsets",
                launch(lists.tiles.div_ceil(32), 32 * segments as u32, 32 * segments * 4, 1),
            );
            pipeline.launch("plan", launch(1, PLAN_THREADS, PLAN_THREADS as usize / 32 * 16, 1));
            pipeline.launch("scatter", sort);
            pipeline.launch("gather", lists.gather(problem.dtype())?);
            pipeline.launch(
                "combine",
                launch(64, 32 * COMBINE_WARPS, COMBINE_WARPS as usize * 16 * 32 * 4, lists.slices),
            );
        }
        if call.gradients().of_samples() {
            pipeline.launch("samples", samples.geometry);
        }
        let mut chosen = vec![(PIECE.name, piece)];
        chosen.extend(list_knobs.values());
        chosen.extend(samples.knobs);
        Ok(Configuration {
            specialise: Specialise::ModelAndHeads,
            knobs: chosen,
            pipeline,
            value_alignment: 16,
            sampling_alignment: sampling_alignment(call).max(4),
            query_raster_width: samples.raster_width,
            grid_aux: (parts << 1) as i32 | i32::from(samples.pixels),
        })
    }
}
