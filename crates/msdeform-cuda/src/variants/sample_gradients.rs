//! How `kernels/sample_gradients.cuh` is launched.

use msdeform::{DType, Mode, ValueLayout};

use super::chunked_sample::queries_are_pixels;
use super::query_walk::QueryWalk;
use super::{Call, Constant, Knob, KnobChoices};
use crate::derived::Derived;
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

/// The launch of the step, and what the kernel is compiled and told for it.
pub(super) struct SampleStep {
    pub(super) geometry: LaunchGeometry,
    pub(super) knobs: [(&'static str, i64); 5],
    walk: QueryWalk,
    thin: bool,
    tiles: QueryTiles,
}

impl SampleStep {
    /// `shared_launch` has the warps of a block where the step shares its launch with another one.
    pub(super) fn of(
        call: &Call<'_>,
        knobs: &KnobChoices,
        shared_launch: Option<usize>,
    ) -> Result<Self, String> {
        let spread = spread(call, knobs, shared_launch.is_some());
        let walk = walk_of(call, spread);
        let pixels = queries_are_pixels(call);
        let block = QueryBlock::choose(call, &walk, pixels, shared_launch).with(knobs);
        let QueryBlock { warps, min_blocks, width, height } = block;
        let item = walk.item_queries();
        if !width.is_multiple_of(item) {
            return Err(format!("TILE_WIDTH={width}, but it must be a multiple of {item} here"));
        }
        let tiles = QueryTiles::of(call, pixels, width, height);
        let grid_x = u32::try_from(tiles.count).ok().filter(|&tiles| tiles < 1 << 31);
        let head_groups = walk.head_groups(call).min(65_535) as u32;
        Ok(Self {
            geometry: LaunchGeometry {
                grid: [grid_x.ok_or("more tiles than a grid holds")?, head_groups, 1],
                block: [32 * warps as u32, 1, 1],
                shared_bytes: (warps * walk.warp_bytes()) as u32,
                cluster: 1,
                overlaps: false,
            },
            knobs: [
                (SAMPLE_WARPS.name, warps as i64),
                (SAMPLE_BLOCKS.name, min_blocks as i64),
                (TILE_WIDTH.name, width as i64),
                (TILE_HEIGHT.name, height as i64),
                (SPREAD.name, spread),
            ],
            walk,
            thin: thin(call, knobs)?,
            tiles,
        })
    }

    /// Whether a stage of the walk has all samples of its rows.
    pub(super) const fn has_whole_rows(&self) -> bool {
        self.walk.has_whole_rows()
    }

    /// What the kernel is compiled with, in addition to the knobs.
    pub(super) fn constants(&self) -> impl Iterator<Item = (&'static str, i64)> {
        self.walk.constants().chain([(THIN.name, i64::from(self.thin))])
    }

    /// What it is told.
    pub(super) fn derive(&self, derived: &mut Derived) -> Result<(), String> {
        let QueryTiles { pixels, width, raster, first, across, .. } = &self.tiles;
        derived.count("queries_are_pixels", usize::from(*pixels))?;
        derived.count("raster_width", raster.0)?;
        derived.count("raster_height", raster.1)?;
        derived.count("tile_width", *width)?;
        derived.count("tile_row_items", width / self.walk.item_queries())?;
        derived.levels("first_query_tile", first.iter().copied())?;
        derived.levels("query_tiles_x", across.iter().copied())
    }
}

/// How a warp is divided: two heads that lie side by side are one line.
fn walk_of(call: &Call<'_>, spread: i64) -> QueryWalk {
    let problem = call.problem;
    let packed = problem.dtype() != DType::F32;
    let shares_lines = packed && problem.layout() == ValueLayout::Interleaved;
    let warp_heads = if shares_lines && problem.heads().is_multiple_of(2) { 2 } else { 1 };
    // The offsets of a quad, then the dot products of its four samples.
    QueryWalk::of(call, if packed { 4 } else { 8 }, warp_heads, 5, spread)
}

/// A warp waits for every pair of samples of its rows: where rows are few, two warps share one.
fn spread(call: &Call<'_>, knobs: &KnobChoices, shares_launch: bool) -> i64 {
    let is_tiny = shares_launch && call.rows() <= rows_per_device(call, 64);
    let is_single = call.problem.dtype() == DType::F32;
    // Behind a softmax the halves of a row would have to be finished together, in another launch.
    let thinnest = if call.problem.offsets().is_some() { 1 } else { 2 };
    knobs.get(SPREAD.name).unwrap_or(if is_tiny && is_single { thinnest } else { 0 })
}

/// Whether a level is one pixel high or wide, or a test wants the kernel for such levels.
fn thin(call: &Call<'_>, knobs: &KnobChoices) -> Result<bool, String> {
    let is_thin = call.problem.levels().iter().any(|level| level.height < 2 || level.width < 2);
    let thin = knobs.get(THIN.name).map_or(is_thin, |value| value == 1);
    if is_thin && !thin {
        return Err("THIN=0, but a level is one pixel high or wide; leave THIN out".to_owned());
    }
    Ok(thin)
}

/// A block and its tile of queries.
struct QueryBlock {
    warps: usize,
    min_blocks: usize,
    width: usize,
    height: usize,
}

impl QueryBlock {
    fn choose(
        call: &Call<'_>,
        walk: &QueryWalk,
        pixels: bool,
        shared_launch: Option<usize>,
    ) -> Self {
        let item = walk.item_queries();
        let warps_in_all = (call.rows() as usize).div_ceil(walk.item_rows()) * walk.item_parts;
        // Too few to fill the GPU twice: small blocks, and unordered queries need no second dimension.
        let few = !pixels && warps_in_all < 64 * call.device.multiprocessors as usize;
        let (warps, min_blocks) = match shared_launch {
            Some(warps) => (warps, 2),
            None if few => (4, 4),
            None => (8, 4),
        };
        let full = (warps / walk.item_parts).max(1) * item;
        // A sort that ranks its samples is what takes longest: other blocks should leave it alone.
        let is_fast = call.backward.is_none_or(|backward| backward.mode == Mode::Fast);
        let (width, height) = match shared_launch {
            // One of a few, so that no number of queries compiles a kernel of its own.
            Some(_) if call.problem.dtype() == DType::F32 && is_fast => {
                let widths = [full / 4, full / 2, full * 5 / 8, full];
                let needed = one_wave(call, walk.head_groups(call));
                let width = widths.into_iter().find(|&width| width >= needed).unwrap_or(full);
                (width.next_multiple_of(item), 1)
            }
            _ if few || shared_launch.is_some() => (full, 1),
            _ => (item.max(8), (full / item.max(8)).max(1)),
        };
        Self { warps, min_blocks, width, height }
    }

    fn with(self, knobs: &KnobChoices) -> Self {
        let knob = |knob: Knob, default: usize| {
            knobs.get(knob.name).and_then(|value| usize::try_from(value).ok()).unwrap_or(default)
        };
        Self {
            warps: knob(SAMPLE_WARPS, self.warps),
            min_blocks: knob(SAMPLE_BLOCKS, self.min_blocks),
            width: knob(TILE_WIDTH, self.width),
            height: knob(TILE_HEIGHT, self.height),
        }
    }
}

/// Queries of a block that overlaps another step's blocks, one for each level of each image and head. All blocks of both
/// steps run at once, two on an SM. In f32 idle warps cost less than idle SMs: `dino_dec` takes 49.4 us with 80 queries, 51.4 with
/// the 128 that keep every warp busy. In half precision it is the other way round.
fn one_wave(call: &Call<'_>, head_groups: usize) -> usize {
    let problem = call.problem;
    let others = problem.levels().len() * problem.batch() * problem.heads();
    let blocks =
        (2 * call.device.multiprocessors as usize).saturating_sub(others) / head_groups.max(1);
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

/// The queries cut into tiles, a block's each.
struct QueryTiles {
    /// Every level is a raster of queries, one after another; otherwise all queries form one.
    pixels: bool,
    width: usize,
    /// Width and height of that one.
    raster: (usize, usize),
    /// Number of a level's first tile.
    first: Vec<usize>,
    /// Tiles along x of a level, or of the raster.
    across: Vec<usize>,
    count: usize,
}

impl QueryTiles {
    fn of(call: &Call<'_>, pixels: bool, width: usize, height: usize) -> Self {
        let problem = call.problem;
        let raster_width = raster_width(call, width, height);
        let raster = (raster_width, problem.queries().div_ceil(raster_width));
        let (mut first, mut across, mut count) = (Vec::new(), Vec::new(), 0);
        for (index, level) in problem.levels().iter().enumerate() {
            let (x, y) = if pixels { (level.width, level.height) } else { raster };
            first.push(if pixels { count } else { 0 });
            across.push(x.div_ceil(width));
            if pixels || index == 0 {
                count += x.div_ceil(width) * y.div_ceil(height);
            }
        }
        Self { pixels, width, raster, first, across, count }
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
