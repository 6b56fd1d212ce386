//! Many queries: 2-D tiles of them, neighbouring heads or pixels in one wavefront.

use msdeform::{DType, Direction, VariantSpec};

use super::chunked_sample::{
    heads_of_a_line, lanes_per_pixel, queries_are_pixels, sampling_alignment,
};
use super::query_walk::QueryWalk;
use super::{Call, Configuration, Knob, KnobChoices, OURS, Specialise, Variant, offset_source};
use crate::derived::Derived;
use crate::driver::LaunchGeometry;
use crate::kernel_source;

/// See `kernels/fwd_tile_gather.cu`.
pub(crate) static FWD_TILE_GATHER: Variant = Variant {
    takes_offsets: true,
    knobs: KNOBS,
    ..Variant::new(&SPEC, kernel_source!("fwd_tile_gather.cu"), supports, configure)
};

static SPEC: VariantSpec = VariantSpec {
    id: "fwd_tile_gather",
    direction: Direction::Forward,
    idea: "strips of neighbouring queries; two heads (or two pixels) fill every 128-byte wavefront of L1",
    why: "the L1 data path is the wall: no bank conflicts, neighbours share lines, little metadata",
    ..OURS
};

static KNOBS: &[Knob] = &[
    Knob {
        name: "WARPS",
        values: &[1, 2, 4, 8, 12, 16, 20, 32],
        meaning: "warps of a block, at most",
    },
    Knob {
        name: "MIN_BLOCKS",
        values: &[1, 2, 3, 4, 5, 8, 16],
        meaning: "blocks of that size that must fit an SM: caps the registers",
    },
    Knob {
        name: "STRIP_ITEMS",
        values: &[1, 2, 4, 8],
        meaning: "items (neighbouring queries of one warp) side by side in a strip",
    },
    Knob { name: "ROUNDS", values: &[1, 2, 4, 8], meaning: "items per warp of a long block" },
    Knob { name: "UNROLL", values: &[1, 2, 4], meaning: "quads of samples per loop iteration" },
];

/// How the kernel divides a warp.
struct WarpShape {
    walk: QueryWalk,
    /// A group of lanes reads a pixel and its neighbour at once, which are one line.
    pairs_pixels: bool,
}

impl WarpShape {
    fn of(call: &Call<'_>) -> Result<Self, String> {
        let problem = call.problem;
        let lanes = lanes_per_pixel(call, 2)?;
        let packed = problem.dtype() != DType::F32;
        let exact = lanes * 16 == problem.channels() * problem.dtype().size_bytes();
        let pairs_pixels = packed && problem.layout().is_head_major() && exact && lanes <= 4;
        let group_lanes = if pairs_pixels { 2 * lanes } else { lanes };
        // The offsets of a quad, then its weights.
        let group_packets = if packed { 3 } else { 5 };
        let heads = heads_of_a_line(call, lanes);
        let walk = QueryWalk::of(call, group_lanes, heads, group_packets, 0);
        Ok(Self { walk, pairs_pixels })
    }
}

/// Rounds of every SM that are left to short blocks, so that all SMs end together.
const SHORT_ROUNDS: usize = 2;
/// Most warps of a block where one block per SM is all there is: 96 registers each, more loads in flight.
const FEW_WARPS: usize = 20;

/// Block and order for a call, chosen by measurement (see `docs/kernels/fwd_tile_gather.md`).
struct Tiling {
    /// Compiled in.
    warps: usize,
    min_blocks: usize,
    strip_items: usize,
    rounds: usize,
    unroll: usize,
    /// Warps that a block is launched with.
    launched: usize,
    /// The queries have no order worth knowing.
    one_row: bool,
}

impl Tiling {
    fn choose(call: &Call<'_>, shape: &WarpShape) -> Self {
        let multiprocessors = call.device.multiprocessors as usize;
        let item = shape.walk.item_queries();
        let group_items = call.problem.queries().div_ceil(item);
        let head_groups = shape.walk.head_groups(call);
        let items = group_items * head_groups;
        let fills_twice = items >= 64 * multiprocessors;
        let one_row = !fills_twice && !queries_are_pixels(call);
        let one_block_per_sm =
            |&warps: &usize| head_groups * group_items.div_ceil(warps) <= multiprocessors;
        if one_row && let Some(launched) = (1..=FEW_WARPS).find(one_block_per_sm) {
            // A block is one head group's alone, so its coarse levels meet in L1.
            let (warps, min_blocks) = (FEW_WARPS, 1);
            return Self {
                warps,
                min_blocks,
                strip_items: 1,
                rounds: 1,
                unroll: 1,
                launched,
                one_row,
            };
        }
        let (warps, min_blocks, unroll) = match call.problem.dtype() {
            // Metadata of f32 is large: 24 warps leave L1 32 KiB more than 32 do, and more registers to
            // each. Not where the streams weigh as much as the gather (four samples).
            DType::F32 if shape.walk.runs <= 2 => (12, 2, 4),
            // bf16, and samples that have to be worked out first, spend their time on arithmetic: blocks that
            // start and end at different times gain more than what a larger block finds in L1.
            DType::Bf16 if !shape.pairs_pixels => (8, 4, 1),
            DType::F16 if !shape.pairs_pixels && call.problem.offsets().is_some() => (8, 4, 1),
            DType::F32 => (16, 2, 2),
            _ => (16, 2, if shape.pairs_pixels { 2 } else { 1 }),
        };
        let strip_items = if item >= 16 { 1 } else { 2 };
        let launched = if fills_twice { warps } else { (items / multiprocessors).clamp(1, 4) };
        Self { warps, min_blocks, strip_items, rounds: 4, unroll, launched, one_row }
    }

    fn with(self, knobs: &KnobChoices) -> Result<Self, String> {
        let knob = |name, default: usize| {
            knobs.get(name).and_then(|value| usize::try_from(value).ok()).unwrap_or(default)
        };
        let warps = knob("WARPS", self.warps);
        let min_blocks = knob("MIN_BLOCKS", self.min_blocks);
        if warps * min_blocks > 64 {
            return Err(format!(
                "MIN_BLOCKS={min_blocks} and WARPS={warps} need {} warps; an SM has 64",
                min_blocks * warps
            ));
        }
        Ok(Self {
            warps,
            min_blocks,
            strip_items: knob("STRIP_ITEMS", self.strip_items),
            rounds: knob("ROUNDS", self.rounds),
            unroll: knob("UNROLL", self.unroll),
            launched: if knobs.get("WARPS").is_some() { warps } else { self.launched },
            one_row: self.one_row,
        })
    }
}

fn supports(call: &Call<'_>) -> Result<(), String> {
    WarpShape::of(call)?;
    offset_source::check_fast(call)?;
    if call.problem.queries() > MAX_QUERIES {
        return Err(format!(
            "there are {} queries; it takes at most {MAX_QUERIES}",
            call.problem.queries()
        ));
    }
    Ok(())
}

fn configure(call: &Call<'_>, knobs: &KnobChoices) -> Result<Configuration, String> {
    let shape = WarpShape::of(call)?;
    let walk = shape.walk;
    let tiling = Tiling::choose(call, &shape).with(knobs)?;
    let Tiling { warps, min_blocks, strip_items, rounds, unroll, launched, one_row } = tiling;
    let problem = call.problem;
    let strip_width = strip_items * walk.item_queries();
    let raster_width = raster_width(call, strip_width, one_row);
    let items_of = |width: usize, height: usize| {
        if height == 1 && raster_width > 0 {
            width.div_ceil(walk.item_queries())
        } else {
            width.div_ceil(strip_width) * strip_items * height
        }
    };
    let group_items: usize = if raster_width == 0 {
        problem.levels().iter().map(|level| items_of(level.width, level.height)).sum()
    } else {
        items_of(raster_width, problem.queries().div_ceil(raster_width))
    };

    let head_groups = walk.head_groups(call);
    let blocks = group_items.div_ceil(rounds * launched);
    let slots = call.device.multiprocessors as usize * min_blocks * warps / launched;
    let short_groups = (SHORT_ROUNDS * slots).div_ceil(blocks * rounds).min(head_groups);
    let long_groups = if rounds == 1 { 0 } else { head_groups - short_groups };
    // A row of the grid for a long head group, a row per round for a short one.
    let rows = long_groups + (head_groups - long_groups) * rounds;
    let grid_x = i32::try_from(blocks * rounds * launched).ok().and(u32::try_from(blocks).ok());
    let grid_x =
        grid_x.ok_or_else(|| format!("an image has {group_items} items, more than a grid"))?;
    let too_many =
        || format!("images and heads make {head_groups} groups, more than a grid has rows");
    i32::try_from(rows).map_err(|_| too_many())?;
    let planes = rows.div_ceil(MAX_GRID_ROWS);
    let mut derived = Derived::of_count("long_groups", long_groups)?;
    derived.count("raster_width", raster_width)?;
    offset_source::derive(call, true, &mut derived)?;
    Ok(Configuration {
        specialise: Specialise::ModelAndHeads,
        knobs: vec![
            ("WARPS", warps as i64),
            ("MIN_BLOCKS", min_blocks as i64),
            ("STRIP_ITEMS", strip_items as i64),
            ("ROUNDS", rounds as i64),
            ("UNROLL", unroll as i64),
        ],
        pipeline: LaunchGeometry {
            grid: [grid_x, rows.min(MAX_GRID_ROWS) as u32, planes as u32],
            block: [32 * launched as u32, 1, 1],
            shared_bytes: (launched * walk.warp_bytes()) as u32,
            cluster: 1,
            overlaps: call.device.overlaps_launches,
        }
        .into(),
        constants: walk.constants().chain(offset_source::constants(call)).collect(),
        derived,
        ..offset_source::aligned(call, sampling_alignment(call))
    })
}

/// The kernel numbers queries in 31 bits and may number some past the last.
const MAX_QUERIES: usize = (1 << 31) - (1 << 20);
/// Of a launch, along y; the rest goes to z.
const MAX_GRID_ROWS: usize = 65_535;

/// Width of the raster that the queries are taken to form; 0 where they are the pixels of the levels. A guess
/// that is wrong costs some cache hits, never a result: strips of a skewed raster still hold neighbours.
fn raster_width(call: &Call<'_>, strip_width: usize, one_row: bool) -> usize {
    let queries = call.problem.queries();
    if queries_are_pixels(call) {
        return 0;
    }
    let guess = match (call.query_raster_width as usize, call.problem.levels().first()) {
        _ if one_row => return queries,
        (known, _) if known > 0 => return known.min(queries),
        (_, Some(level)) => (queries as f64 * level.width as f64 / level.height as f64).sqrt(),
        (_, None) => (queries as f64).sqrt(),
    };
    // Whole strips: the last one of a raster would otherwise be mostly empty.
    ((guess / strip_width as f64).round() as usize).max(1) * strip_width
}

#[cfg(test)]
mod tests {
    use msdeform::ProblemBuilder;

    use super::*;
    use crate::variants::tests::{self, deformable_detr};

    fn encoder() -> ProblemBuilder {
        deformable_detr(22_223)
    }

    fn configured(problem: ProblemBuilder) -> Result<Configuration, String> {
        tests::configured(&FWD_TILE_GATHER, problem, |backward| backward)
    }

    #[test]
    fn an_encoder_is_walked_in_strips_of_its_levels() {
        let configuration = configured(encoder()).unwrap();
        let items = 2 * (21 * 100 + 11 * 50 + 6 * 25 + 3 * 13);
        let blocks = u32::div_ceil(items, 4 * 16);
        let geometry = configuration.geometry().unwrap();
        // 2 images x 4 head pairs, of which the last two are left to blocks of one round.
        assert_eq!(configuration.derived.get("long_groups"), Some(6));
        assert_eq!(geometry.grid, [blocks, 6 + 2 * 4, 1]);
        assert_eq!((geometry.block, geometry.shared_bytes), ([16 * 32, 1, 1], 16 * 1536));
        assert_eq!(configuration.derived.get("raster_width"), Some(0), "the queries are pixels");
    }

    #[test]
    fn other_queries_are_walked_as_a_raster_of_whole_strips() {
        let seed = encoder().batch(6).queries(15_422).points(8).levels([(92, 160), (46, 80)]);
        let configuration = configured(seed).unwrap();
        assert_eq!(configuration.derived.get("raster_width"), Some(160));
        assert_eq!(configuration.geometry().unwrap().grid[0], u32::div_ceil(20 * 2 * 97, 4 * 16));
    }

    #[test]
    fn few_queries_get_one_block_per_multiprocessor() {
        let dino = configured(encoder().queries(900)).unwrap();
        assert_eq!(dino.derived.get("raster_width"), Some(900), "one row");
        let shape = |configuration: &Configuration| {
            let geometry = configuration.geometry().unwrap();
            (geometry.grid, geometry.block)
        };
        assert_eq!(shape(&dino), ([15, 8, 1], [15 * 32, 1, 1]));
        let one = configured(encoder().batch(1).queries(1)).unwrap();
        assert_eq!(shape(&one), ([1, 4, 1], [32, 1, 1]));
        assert_eq!(dino.knobs, one.knobs, "compiled once");
    }

    #[test]
    fn more_images_than_a_grid_has_rows_go_to_its_planes() {
        let many = configured(encoder().batch(100_000).queries(5)).unwrap();
        let [_, rows, planes] = many.geometry().unwrap().grid.map(u64::from);
        assert_eq!(rows, 65_535);
        assert!(rows * planes >= 400_000, "{planes} planes");
    }

    #[test]
    fn few_samples_share_a_stage_and_all_formats_fill_their_lanes() {
        let one_level = encoder().queries(40_000).levels([(200, 200)]);
        let configuration = configured(one_level).unwrap();
        assert!(configuration.knobs.contains(&("STRIP_ITEMS", 1)), "four runs of four queries");
        for (channels, dtype) in
            [(16, DType::F16), (64, DType::Bf16), (64, DType::F32), (24, DType::F16)]
        {
            configured(encoder().channels(channels).dtype(dtype)).unwrap();
        }
    }

    #[test]
    fn what_it_cannot_do_is_refused_with_the_reason() {
        for (problem, reason) in [
            (encoder().channels(33), "33 channels"),
            (encoder().channels(512), "512 channels"),
            (encoder().levels([(1, 300)]), "1 x 300"),
            (encoder().points(0), "no points"),
        ] {
            let error = configured(problem).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
    }
}
