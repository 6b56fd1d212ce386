//! How `kernels/sample_gradients.cuh` is launched; the same arithmetic as at its top.

use msdeform::{DType, Mode, Problem, ValueLayout};

use super::chunked_sample::queries_are_pixels;
use super::{Call, Constant, GRADIENTS, Knob, KnobChoices};
use crate::driver::LaunchGeometry;

/// The knobs of this step, for the lists of its variants.
pub(super) const SAMPLE_WARPS: Knob =
    Knob { name: "SAMPLE_WARPS", values: &[4, 8], meaning: "warps of a block in the step samples" };
pub(super) const SAMPLE_BLOCKS: Knob = Knob {
    name: "SAMPLE_BLOCKS",
    values: &[2, 4],
    meaning: "blocks of the step samples that must fit an SM: caps the registers",
};
pub(super) const TILE_WIDTH: Knob = Knob {
    name: "TILE_WIDTH",
    values: &[16, 32, 64],
    meaning: "queries of a tile along x, in the step samples",
};
pub(super) const TILE_HEIGHT: Knob = Knob {
    name: "TILE_HEIGHT",
    values: &[1, 4],
    meaning: "queries of a tile along y, in the step samples",
};

pub(super) const THIN: Constant = Constant {
    name: "THIN",
    values: &[0, 1],
    meaning: "levels may be one pixel high or wide, in the step samples",
};

pub(super) const SPREAD: Knob = Knob {
    name: "SPREAD",
    values: &[0, 1, 2],
    meaning: "how thinly rows are spread over warps in the step samples: 2, samples of a row are two warps'",
};

/// What whoever includes the header reads.
pub(super) const SAMPLES_READ: &[&str] = &[
    GRADIENTS,
    SAMPLE_WARPS.name,
    SAMPLE_BLOCKS.name,
    TILE_WIDTH.name,
    TILE_HEIGHT.name,
    SPREAD.name,
    THIN.name,
];

/// The launch of the step, and what the kernel is compiled and told for it.
pub(super) struct SampleStep {
    pub(super) geometry: LaunchGeometry,
    pub(super) knobs: [(&'static str, i64); 5],
    pub(super) thin: (&'static str, i64),
    pub(super) raster_width: i32,
    pub(super) pixels: bool,
}

impl SampleStep {
    /// `shared_launch` has the warps of a block where the step shares its launch with another one.
    pub(super) fn of(
        call: &Call<'_>,
        knobs: &KnobChoices,
        shared_launch: Option<usize>,
    ) -> Result<Self, String> {
        let problem = call.problem;
        let packed = problem.dtype() != DType::F32;
        let row_lanes = if packed { 4 } else { 8 };
        let groups = 32 / row_lanes;
        let shares_lines = packed && problem.layout() == ValueLayout::Interleaved;
        let warp_heads = if shares_lines && problem.heads().is_multiple_of(2) { 2 } else { 1 };
        let quads = problem.samples().div_ceil(4);
        // A warp waits for every pair of samples of its rows: where rows are few, two warps share one.
        let is_tiny = shared_launch.is_some() && call.rows() <= rows_per_device(call, 64);
        let spread = knobs.get(SPREAD.name).unwrap_or(if is_tiny && !packed { 2 } else { 0 });
        let full_stage = quads.min(row_lanes);
        let stage_quads = if spread > 1 { full_stage.div_ceil(2) } else { full_stage };
        let item_parts = if spread > 1 { quads.div_ceil(stage_quads) } else { 1 };
        let runs = if spread > 0 { 1 } else { row_lanes / stage_quads.next_power_of_two() };
        let item = runs * groups / warp_heads;

        let pixels = queries_are_pixels(call);
        let warps_in_all = (call.rows() as usize).div_ceil(runs * groups) * item_parts;
        // Too few to fill the GPU twice: small blocks, and unordered queries need no second dimension.
        let few = !pixels && warps_in_all < 64 * call.device.multiprocessors as usize;
        let (warps, blocks) = match shared_launch {
            Some(warps) => (warps, 2),
            None if few => (4, 4),
            None => (8, 4),
        };
        let slabs = problem.batch() * (problem.heads() / warp_heads);
        let busy_items = (warps / item_parts).max(1);
        let full = busy_items * item;
        // A sort that ranks its samples is what takes longest: other blocks should leave it alone.
        let is_fast = call.backward.is_none_or(|backward| backward.mode == Mode::Fast);
        let (width, height) = match shared_launch {
            // One of a few, so that no number of queries compiles a kernel of its own.
            Some(_) if !packed && is_fast => {
                let widths = [full / 4, full / 2, full * 5 / 8, full];
                let needed = one_wave(call, slabs);
                let width = widths.into_iter().find(|&width| width >= needed).unwrap_or(full);
                (width.next_multiple_of(item), 1)
            }
            _ if few || shared_launch.is_some() => (full, 1),
            _ => (item.max(8), (full / item.max(8)).max(1)),
        };
        let knob = |knob: Knob, default: usize| {
            knobs.get(knob.name).and_then(|value| usize::try_from(value).ok()).unwrap_or(default)
        };
        let (warps, blocks) = (knob(SAMPLE_WARPS, warps), knob(SAMPLE_BLOCKS, blocks));
        let (width, height) = (knob(TILE_WIDTH, width), knob(TILE_HEIGHT, height));
        if !width.is_multiple_of(item) {
            return Err(format!("TILE_WIDTH={width}; here it must be a multiple of {item}"));
        }

        let is_thin = problem.levels().iter().any(|level| level.height < 2 || level.width < 2);
        let thin = knobs.get(THIN.name).map_or(is_thin, |value| value == 1);
        if is_thin && !thin {
            return Err("THIN=0; there is a level one pixel high or wide".to_owned());
        }
        let raster_width = raster_width(call, width, height);
        let tiles = query_tiles(problem, pixels, raster_width, width, height);
        let grid_x = u32::try_from(tiles).ok().filter(|&tiles| tiles < 1 << 31);
        let packets = runs * stage_quads * 5 * groups;
        Ok(Self {
            geometry: LaunchGeometry {
                grid: [grid_x.ok_or("more tiles than a grid holds")?, slabs.min(65_535) as u32, 1],
                block: [32 * warps as u32, 1, 1],
                shared_bytes: (warps * packets * 16) as u32,
                cluster: 1,
                overlaps: false,
            },
            knobs: [
                (SAMPLE_WARPS.name, warps as i64),
                (SAMPLE_BLOCKS.name, blocks as i64),
                (TILE_WIDTH.name, width as i64),
                (TILE_HEIGHT.name, height as i64),
                (SPREAD.name, spread),
            ],
            thin: (THIN.name, i64::from(thin)),
            raster_width: i32::try_from(raster_width).map_err(|_| "too many queries")?,
            pixels,
        })
    }
}

/// Queries of a block beside another step's blocks, one for each level of each image and head: as many as it takes for all
/// blocks to run at once, two on an SM. In f32 idle warps cost less than idle SMs: `dino_dec` takes 49.4 us with 80 queries, 51.4 with
/// the 128 that keep every warp busy. In half precision it is the other way round.
fn one_wave(call: &Call<'_>, slabs: usize) -> usize {
    let problem = call.problem;
    let others = problem.levels().len() * problem.batch() * problem.heads();
    let blocks = (2 * call.device.multiprocessors as usize).saturating_sub(others) / slabs.max(1);
    problem.queries().div_ceil(blocks.max(1)).max(1)
}

/// Whether the step is small enough to share a launch with another one. Beyond, blocks that suit neither of
/// them cost more than a launch: on an H200 109 rows per SM gain (`dino_dec`), 145 lose (`rtdetr_dec`).
pub(super) fn is_small(call: &Call<'_>) -> bool {
    call.rows() <= rows_per_device(call, 120)
}

fn rows_per_device(call: &Call<'_>, per_multiprocessor: u64) -> u64 {
    per_multiprocessor * u64::from(call.device.multiprocessors)
}

/// Tiles of a size that cover the queries, as `query_rasters.cuh` numbers them.
fn query_tiles(
    problem: &Problem,
    pixels: bool,
    raster_width: usize,
    width: usize,
    height: usize,
) -> usize {
    if pixels {
        let of_level =
            |level: &msdeform::Level| level.width.div_ceil(width) * level.height.div_ceil(height);
        problem.levels().iter().map(of_level).sum()
    } else {
        let raster_height = problem.queries().div_ceil(raster_width);
        raster_width.div_ceil(width) * raster_height.div_ceil(height)
    }
}

/// Width of the raster that the queries are taken to form. A guess that is wrong costs some cache hits,
/// never a result.
fn raster_width(call: &Call<'_>, tile_width: usize, tile_height: usize) -> usize {
    let queries = call.problem.queries().max(1);
    if tile_height == 1 {
        return queries;
    }
    let guess = match (call.query_raster_width as usize, call.problem.levels().first()) {
        (known, _) if known > 0 => return known.min(queries),
        (_, Some(level)) => (queries as f64 * level.width as f64 / level.height as f64).sqrt(),
        (_, None) => (queries as f64).sqrt(),
    };
    // Whole tiles: the last column of a raster would otherwise be mostly empty.
    ((guess / tile_width as f64).round() as usize).max(1) * tile_width
}
