//! Many queries: samples sorted by the tile of pixels they fall on, tiles summed on tensor cores.

use msdeform::{DType, Direction, Problem, Role, VariantSpec};

use super::chunked_sample::paired_sampling_alignment;
use super::grad_output_rows::{PACK, PackStep};
use super::offset_source::{self, KeptGradients, KeptRows};
use super::sample_gradients::{
    SAMPLE_BLOCKS, SAMPLE_WARPS, SPREAD, SampleStep, THIN, TILE_HEIGHT, TILE_WIDTH,
};
use super::tile_lists::{
    self, ENTRY_BYTES, FEW, GATHER_BLOCKS, ListCut, ListKnobs, ListSizes, ORDERED, check,
    has_unowned_pixels, level_tiles,
};
use super::{Call, Configuration, Constant, Knob, KnobChoices, OURS, Specialise, Variant};
use crate::derived::Derived;
use crate::driver::LaunchGeometry;
use crate::kernel_source;
use crate::pipeline::{Pipeline, Region};

/// See `kernels/bwd_tile_sort.cu`.
pub(crate) static BWD_TILE_SORT: Variant = Variant {
    takes_offsets: true,
    knobs: KNOBS,
    constants: CONSTANTS,
    ..Variant::new(&SPEC, kernel_source!("bwd_tile_sort.cu"), supports, configure)
};

static SPEC: VariantSpec = VariantSpec {
    id: "bwd_tile_sort",
    direction: Direction::Backward,
    idea: "a counting sort of the samples by tile of pixels; every tile sums its list on tensor cores",
    why: "no atomics, no zeroing: 8 bytes are moved per sample and tile instead of 4 x 32 sums in L2",
    ..OURS
};

const PIECE: Knob = Knob {
    name: tile_lists::PIECE,
    values: &[64, 1024],
    meaning: "entries of a list that one warp sums; longer lists are cut",
};
/// Lists are long.
const NOT_FEW: Constant =
    Constant { name: FEW, values: &[0], meaning: "every list is summed on tensor cores" };
static KNOBS: &[Knob] = &[
    PIECE,
    ENTRY_BYTES,
    GATHER_BLOCKS,
    SAMPLE_WARPS,
    SAMPLE_BLOCKS,
    TILE_WIDTH,
    TILE_HEIGHT,
    SPREAD,
];
static CONSTANTS: &[Constant] = &[NOT_FEW, ORDERED, THIN, PACK];

/// Parts of a slab's queries, at most.
const MAX_PARTS: usize = 128;
/// Of them, those of one thread in the step offsets.
const SEGMENT_PARTS: usize = 16;
const PLAN_THREADS: u32 = 512;
const COMBINE_WARPS: u32 = 4;
/// What the steps of the sort are compiled with.
const SIZES: [(&str, i64); 4] = [
    ("MAX_PARTS", MAX_PARTS as i64),
    ("BLOCK_PARTS", BLOCK_PARTS as i64),
    ("SEGMENT_PARTS", SEGMENT_PARTS as i64),
    ("COMBINE_WARPS", COMBINE_WARPS as i64),
];

/// Parts over all slabs: enough for a large GPU. A constant, because the order of the lists depends on it,
/// which must not depend on the device.
const ALL_PARTS: usize = 2048;
/// Parts of a block in count and scatter, where their counters fit and nothing is left over.
const BLOCK_PARTS: usize = 2;

/// Blocks of scatter on an SM while samples overlaps it and takes the other half of the registers. Slabs
/// then come one after another, and less of L2 is written at a time. Where launches do not overlap, scatter
/// has the whole GPU.
const SCATTER_BLOCKS_WITH_SAMPLES: u32 = 2;

/// Warps that walk a part in count and scatter, which wait for memory and for counters most of the time: a
/// few for each part hide that, without more counters to write and add up.
#[derive(Clone, Copy)]
struct PartWarps {
    /// That divide the levels.
    of_levels: usize,
    /// That divide the queries of a level.
    of_queries: usize,
}

impl PartWarps {
    /// Most warps for the levels; with those of [`BLOCK_PARTS`] parts the registers of an SM suffice.
    const MOST: usize = 6;
    /// As many as there should be.
    const ENOUGH: usize = 4;

    fn of(problem: &Problem, ordered: bool) -> Self {
        let levels = problem.levels().len().max(1);
        let of_levels = levels.div_ceil(levels.div_ceil(Self::MOST));
        // Warps that divide queries share counters, and take their places in any order.
        let of_queries = if ordered { 1 } else { (Self::ENOUGH / of_levels).max(1) };
        Self { of_levels, of_queries }
    }

    fn count(self) -> usize {
        self.of_levels * self.of_queries
    }

    fn constants(self) -> [(&'static str, i64); 2] {
        [("LEVEL_WARPS", self.of_levels as i64), ("QUERY_WARPS", self.of_queries as i64)]
    }
}

fn supports(call: &Call<'_>) -> Result<(), String> {
    check(call)?;
    offset_source::check_fast(call)?;
    let tiles: usize = level_tiles(call.problem).sum();
    let shared = call.device.shared_bytes_per_block;
    if tiles * 4 > shared {
        return Err(format!(
            "{tiles} tiles of pixels; their counters must fit {shared} bytes of shared memory"
        ));
    }
    Ok(())
}

fn configure(call: &Call<'_>, knobs: &KnobChoices) -> Result<Configuration, String> {
    let problem = call.problem;
    let list_knobs = ListKnobs::of(call, knobs, if problem.dtype() == DType::F32 { 5 } else { 7 })?;
    let samples = SampleStep::of(call, knobs, None)?;
    let pack = PackStep::of(call, knobs)?;
    let piece = knobs.get(PIECE.name).unwrap_or(1024);
    let slabs = problem.batch() * problem.heads();
    let parts = ALL_PARTS.div_ceil(slabs.max(1)).min(MAX_PARTS).min(problem.queries());
    let part_warps = PartWarps::of(problem, list_knobs.ordered);

    let (mut pipeline, mut unused) = (Pipeline::default(), Pipeline::default());
    let mut derived = Derived::default();
    let wants_value = call.gradients().value;
    pack.queue(problem, &mut pipeline, &mut derived);
    let workspace = if wants_value { &mut pipeline } else { &mut unused };
    let (entry_bytes, piece_entries) = (list_knobs.entry_bytes, piece.unsigned_abs() as usize);
    let cut = ListCut { piece: piece_entries, parts, entry_bytes, groups: false };
    let lists = ListSizes::reserve(problem, workspace, &mut derived, cut)?;
    samples.derive(&mut derived)?;
    let kept = KeptGradients::of(
        call,
        samples.has_whole_rows(),
        if wants_value { KeptRows::Weights } else { KeptRows::Nothing },
    );
    kept.reserve(call, &mut pipeline, &mut derived);
    offset_source::derive(call, true, &mut derived)?;
    if wants_value {
        if has_unowned_pixels(problem) {
            pipeline.zero(Region::Tensor(Role::GradValue));
        }
        let rows = lists.grid_slabs();
        let launch =
            |blocks: usize, threads: u32, shared_bytes: usize, slices: usize| LaunchGeometry {
                grid: [blocks as u32, rows, slices as u32],
                block: [threads, 1, 1],
                shared_bytes: shared_bytes as u32,
                cluster: 1,
                overlaps: false,
            };
        let counters = lists.tiles * 4;
        let fits = BLOCK_PARTS * counters <= call.device.shared_bytes_per_block;
        let block_parts = if fits && parts.is_multiple_of(BLOCK_PARTS) { BLOCK_PARTS } else { 1 };
        let sort_threads = (32 * block_parts * part_warps.count()) as u32;
        let sort = launch(parts / block_parts, sort_threads, block_parts * counters, 1);
        let segments = MAX_PARTS / SEGMENT_PARTS;
        let offsets = launch(lists.tiles.div_ceil(32), 32 * segments as u32, 32 * segments * 4, 1);
        let plan = launch(1, PLAN_THREADS, PLAN_THREADS as usize / 32 * 16, 1);
        let gather = lists.gather_pieces()?;
        let combine =
            launch(64, 32 * COMBINE_WARPS, COMBINE_WARPS as usize * 16 * 32 * 4, lists.slices);
        pipeline.launch("count", sort);
        pipeline.launch("offsets", offsets);
        pipeline.launch("plan", plan);
        // Needs nothing of the sort, and `plan` leaves most of the GPU to it.
        kept.queue_rows(call, &mut pipeline);
        let mut scatter = sort;
        if call.gradients().of_samples() && call.device.overlaps_launches {
            let room =
                SCATTER_BLOCKS_WITH_SAMPLES * call.device.multiprocessors / scatter.grid[0].max(1);
            scatter.grid[1] = rows.min(room.max(1));
        }
        pipeline.launch("scatter", scatter);
        if call.gradients().of_samples() {
            // Needs nothing of the sort either; `scatter` waits for memory most of the time.
            pipeline.launch("samples", samples.geometry);
        }
        pipeline.launch("gather", gather);
        pipeline.launch("combine", combine);
    }
    if call.gradients().of_samples() && !wants_value {
        pipeline.launch("samples", samples.geometry);
    }
    kept.queue_finish(call, &mut pipeline);
    // The step samples waits when it is done: enough behind the others, not alone.
    if call.device.overlaps_launches && wants_value {
        pipeline.overlap_launches();
    }
    let mut chosen = vec![(PIECE.name, piece)];
    chosen.extend(list_knobs.knobs());
    chosen.extend(samples.knobs);
    let mut constants = vec![(NOT_FEW.name, 0), list_knobs.ordered(), pack.constant()];
    constants.extend(SIZES);
    constants.extend(part_warps.constants());
    constants.extend(lists.constants());
    constants.extend(samples.constants());
    constants.extend(kept.constants(call));
    constants.extend(offset_source::constants(call));
    Ok(Configuration {
        specialise: Specialise::ModelAndHeads,
        knobs: chosen,
        constants,
        pipeline,
        derived,
        ..offset_source::aligned(call, paired_sampling_alignment(call))
    })
}

#[cfg(test)]
mod tests {
    use msdeform::{BackwardCall, Gradients, Mode, OutputStrides, ProblemBuilder, ValueLayout};

    use super::*;
    use crate::driver::DeviceProps;
    use crate::pipeline::Step;
    use crate::variants::tests::{self, deformable_detr};

    fn encoder() -> ProblemBuilder {
        deformable_detr(22_223)
    }

    fn configured_as(
        problem: ProblemBuilder,
        change: impl Fn(BackwardCall) -> BackwardCall,
    ) -> Result<Configuration, String> {
        tests::configured(&BWD_TILE_SORT, problem, change)
    }

    fn configured(problem: ProblemBuilder) -> Result<Configuration, String> {
        configured_as(problem, |backward| backward)
    }

    #[test]
    fn only_what_is_asked_for_is_launched_and_gets_a_workspace() {
        for gradients in Gradients::subsets() {
            let configuration =
                configured_as(encoder(), |backward| BackwardCall { gradients, ..backward })
                    .unwrap();
            let pipeline = configuration.pipeline;
            let names: Vec<&str> = pipeline.launches().map(|(name, _)| name).collect();
            assert_eq!(names.contains(&"scatter"), gradients.value, "{gradients}");
            assert_eq!(names.contains(&"samples"), gradients.of_samples(), "{gradients}");
            assert_eq!(pipeline.workspace_bytes > 0, gradients.value, "{gradients}");
        }
        let padded = configured(encoder().layout(ValueLayout::HeadMajorPadded)).unwrap();
        assert_eq!(padded.pipeline.steps[0], Step::Zero(Region::Tensor(Role::GradValue)));
    }

    #[test]
    fn an_encoder_fills_the_gpu_and_its_workspace_is_what_the_page_says() {
        let configuration = configured(encoder()).unwrap();
        let launches: Vec<_> = configuration.pipeline.launches().collect();
        let tiles = 25 * 42 + 13 * 21 + 7 * 11 + 4 * 6;
        let (_, count) = launches[0];
        assert_eq!(count.grid, [64, 16, 1], "128 parts in pairs of warps, 2 images x 8 heads");
        assert_eq!(count.shared_bytes, 2 * 4 * tiles);
        assert_eq!(configuration.derived.get("slab_parts"), Some(128));
        let megabytes = |bytes: usize| (bytes + 500_000) / 1_000_000;
        assert_eq!(megabytes(configuration.pipeline.workspace_bytes), 286);
        let single = configured(encoder().dtype(DType::F32)).unwrap();
        assert_eq!(megabytes(single.pipeline.workspace_bytes), 468);
    }

    #[test]
    fn deterministic_mode_orders_the_lists_on_any_device_alike() {
        let deterministic = |backward| BackwardCall { mode: Mode::Deterministic, ..backward };
        let configuration = configured_as(encoder(), deterministic).unwrap();
        assert!(configuration.constants.contains(&("ORDERED", 1)));
        assert!(configured(encoder()).unwrap().constants.contains(&("ORDERED", 0)));
        let (problem, large) = (encoder().build().unwrap(), DeviceProps::h200());
        let small = DeviceProps { multiprocessors: 2, ..DeviceProps::h200() };
        let [large, small] = [&large, &small].map(|device| {
            let call = Call::in_direction(Direction::Backward, &problem, device);
            BWD_TILE_SORT
                .configure(&call, &KnobChoices::default())
                .unwrap()
                .derived
                .get("slab_parts")
        });
        assert_eq!(large, small, "the parts decide about the order");
    }

    #[test]
    fn only_unordered_parts_of_few_levels_share_counters() {
        let warps = |levels: usize, ordered| {
            let problem = encoder().levels(vec![(8, 8); levels]).build().unwrap();
            let warps = PartWarps::of(&problem, ordered);
            (warps.of_levels, warps.of_queries)
        };
        assert_eq!(
            [1, 2, 3, 4, 6].map(|levels| warps(levels, false)),
            [(1, 4), (2, 2), (3, 1), (4, 1), (6, 1)]
        );
        assert_eq!([1, 2, 4].map(|levels| warps(levels, true)), [(1, 1), (2, 1), (4, 1)]);
        for levels in 1..=16 {
            let (of_levels, of_queries) = warps(levels, false);
            assert!(of_levels * of_queries <= PartWarps::MOST, "{levels}");
            assert!(of_queries == 1 || of_levels == levels, "{levels}");
        }
    }

    #[test]
    fn blocks_have_whole_parts_and_scatter_leaves_room_to_samples() {
        let blocks = |queries: usize, name: &str, gradients: Gradients| {
            let asked = |backward| BackwardCall { gradients, ..backward };
            let configured = configured_as(encoder().queries(queries), asked).unwrap();
            let parts = configured.derived.get("slab_parts").unwrap();
            let (_, found) =
                configured.pipeline.launches().find(|launch| launch.0 == name).unwrap();
            assert_eq!(parts % u64::from(found.grid[0]), 0, "{queries}");
            (found.grid, found.block[0])
        };
        let all = Gradients::ALL;
        assert_eq!(blocks(22_223, "count", all), ([64, 16, 1], 2 * 4 * 32));
        assert_eq!(
            blocks(22_223, "scatter", all),
            ([64, 4, 1], 2 * 4 * 32),
            "2 blocks on each of 132 SMs"
        );
        assert_eq!(blocks(127, "count", all), ([127, 16, 1], 4 * 32));
        let value = Gradients { value: true, ..Gradients::NONE };
        assert_eq!(blocks(22_223, "scatter", value), ([64, 16, 1], 2 * 4 * 32));
    }

    #[test]
    fn scatter_has_the_whole_gpu_where_launches_do_not_overlap() {
        let device = DeviceProps { overlaps_launches: false, ..DeviceProps::h200() };
        let problem = encoder().build().unwrap();
        let call = Call::in_direction(Direction::Backward, &problem, &device);
        let configured = BWD_TILE_SORT.configure(&call, &KnobChoices::default()).unwrap();
        let grid =
            |name: &str| configured.pipeline.launches().find(|step| step.0 == name).unwrap().1.grid;
        assert_eq!(grid("scatter"), grid("count"));
    }

    #[test]
    fn entries_are_short_only_where_nothing_is_lost() {
        let entry = |problem| {
            let knobs = configured(problem).unwrap().knobs;
            knobs.into_iter().find(|(name, _)| *name == "ENTRY_BYTES").unwrap().1
        };
        assert_eq!(entry(encoder()), 8);
        assert_eq!(entry(encoder().dtype(DType::F32)), 16);
        assert_eq!(entry(encoder().sampling_dtype(DType::F32)), 16);
        assert_eq!(entry(encoder().queries((1 << 18) + 1)), 16);
    }

    #[test]
    fn only_levels_one_pixel_thin_compile_other_code() {
        let thin = |levels: &[(i64, i64)]| {
            let configured = configured(encoder().levels(levels.iter().copied())).unwrap();
            configured.constants.contains(&("THIN", 1))
        };
        assert!(thin(&[(1, 300)]) && thin(&[(50, 84), (20, 1)]));
        assert!(!thin(&[(2, 300)]));
    }

    #[test]
    fn what_it_cannot_do_is_refused_with_the_reason() {
        for (problem, reason) in [
            (encoder().channels(33), "33 channels"),
            (encoder().levels([(1200, 1200)]), "90000 tiles"),
            (encoder().points(0), "no points"),
        ] {
            let error = configured(problem).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
    }

    #[test]
    fn a_gradient_without_packed_rows_is_packed_first() {
        let expanded = OutputStrides { batch: 0, query: 0, head: 0, channel: 0 };
        let configured =
            configured_as(encoder(), |backward| BackwardCall { grad_output: expanded, ..backward })
                .unwrap();
        let first = configured.pipeline.launches().next().unwrap();
        // 16-byte chunks: 2 x 22223 rows of 8 heads and 32 channels in half precision.
        assert_eq!((first.0, first.1.grid), ("pack", [(2 * 22223 * 32_u32).div_ceil(256), 1, 1]));
        assert!(configured.constants.contains(&("PACK", 1)));
        let packed = configured_as(encoder(), |backward| backward).unwrap();
        assert!(packed.pipeline.launches().all(|(name, _)| name != "pack"));
    }
}
