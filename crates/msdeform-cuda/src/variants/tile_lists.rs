//! What the variants that include `tile_lists.cuh` and `tile_gather.cuh` have in common.

use msdeform::{DType, Mode, Problem};

use super::chunked_sample::lanes_per_pixel;
use super::grad_output_rows;
use super::{Call, Constant, Knob, KnobChoices};
use crate::driver::LaunchGeometry;
use crate::pipeline::Pipeline;

/// As in the kernels.
const TILE_SIDE: usize = 4;
const SLICE_CHANNELS: usize = 32;
const SLICE_SUMS: usize = TILE_SIDE * TILE_SIDE * SLICE_CHANNELS;
const GATHER_WARPS: usize = 4;
const PIECE_BYTES: usize = 16;
const LIST_WORD_BYTES: usize = 8;
/// Rows of an SM up to which entries are long. Not only for speed: short ones round coordinates, which a tensor of few
/// samples shows (1.2 times the contract, once in 40,000 random problems), and a NaN of `grad_output` beside a pixel's edge.
const FEW_ROWS: u64 = 64;
/// Queries that the 18 bits of an 8-byte entry tell apart.
const SHORT_ENTRY_QUERIES: usize = 1 << 18;

pub(super) const ORDERED: Constant = Constant {
    name: "ORDERED",
    values: &[0, 1],
    meaning: "lists in an order that depends on the call alone, as deterministic mode wants it",
};
pub(super) const ENTRY_BYTES: Knob = Knob {
    name: "ENTRY_BYTES",
    values: &[8, 16],
    meaning: "size of a list's entry; 8 rounds coordinates to 2^-12 pixel",
};
pub(super) const GATHER_BLOCKS: Knob = Knob {
    name: "GATHER_BLOCKS",
    values: &[5, 6, 7],
    meaning: "blocks of the step gather that must fit an SM: caps the registers",
};

/// Knobs of one of the two variants, fixed in the other.
pub(super) const PIECE: &str = "PIECE";
pub(super) const FEW: &str = "FEW";

/// What whoever includes `tile_lists.cuh` reads, and `tile_gather.cuh`.
pub(super) const LISTS_READ: &[&str] = &[PIECE, ENTRY_BYTES.name, ORDERED.name];
pub(super) const GATHER_READS: &[&str] = &[GATHER_BLOCKS.name, FEW];

/// Refuses what the lists and the two gathers cannot do.
pub(super) fn check(call: &Call<'_>) -> Result<(), String> {
    lanes_per_pixel(call, 1)?;
    grad_output_rows::check(call)?;
    let problem = call.problem;
    if max_entries(problem) >= 1 << 32 {
        return Err(format!("{} samples of an image and head", max_entries(problem) / 4));
    }
    Ok(())
}

/// Tiles of every level.
pub(super) fn level_tiles(problem: &Problem) -> impl Iterator<Item = usize> + '_ {
    let across = |size: usize| size.div_ceil(TILE_SIDE);
    problem.levels().iter().map(move |level| across(level.height) * across(level.width))
}

/// Entries of a slab's lists if every sample lies where four tiles meet.
fn max_entries(problem: &Problem) -> usize {
    4 * problem.queries() * problem.samples()
}

/// The workspace and what sizes it.
pub(super) struct ListSizes {
    pub(super) slabs: usize,
    pub(super) tiles: usize,
    pub(super) max_pieces: usize,
    pub(super) slices: usize,
}

impl ListSizes {
    /// Reserves the parts in the order of `TileLists`. `piece` is 0 where lists are not cut.
    pub(super) fn reserve(
        problem: &Problem,
        pipeline: &mut Pipeline,
        piece: usize,
        parts: usize,
        entry_bytes: usize,
    ) -> Self {
        let slabs = problem.batch() * problem.heads();
        let tiles = level_tiles(problem).sum();
        let cuts = max_entries(problem).checked_div(piece).unwrap_or(0);
        let max_pieces = if piece > 0 { tiles + cuts } else { 0 };
        let max_slots = 2 * cuts;
        let slices = problem.channels().div_ceil(SLICE_CHANNELS);
        let (cut_slabs, uncut_slabs) = if piece > 0 { (slabs, 0) } else { (0, slabs) };
        for bytes in [
            slabs * max_pieces * PIECE_BYTES,
            uncut_slabs * tiles * LIST_WORD_BYTES,
            slabs * max_entries(problem) * entry_bytes,
            cut_slabs * 4,
            cut_slabs * 4,
            slabs * max_slots * 4,
            cut_slabs * tiles * 4,
            cut_slabs * tiles * 4,
            cut_slabs * tiles * 4,
            slabs * max_slots * slices * SLICE_SUMS * 4,
            slabs * parts * tiles * 4,
        ] {
            pipeline.reserve(bytes);
        }
        Self { slabs, tiles, max_pieces, slices }
    }

    /// The grid's second axis: blocks beyond it are walked by a loop.
    pub(super) fn grid_slabs(&self) -> u32 {
        self.slabs.min(65_535) as u32
    }

    /// The step gather where lists are cut: a warp per piece.
    pub(super) fn gather_pieces(&self, dtype: DType) -> Result<LaunchGeometry, String> {
        let blocks = u32::try_from(self.max_pieces.div_ceil(GATHER_WARPS)).ok();
        let blocks = blocks.filter(|&blocks| blocks < 1 << 31);
        let blocks = blocks.ok_or("more pieces than a grid holds")?;
        Ok(gather([blocks, self.grid_slabs(), self.slices as u32], 2 * stage_bytes(dtype)))
    }

    /// The step gather where they are not: a warp per group of tiles, the blocks of all levels along y. Where few entries
    /// are expected a group is several tiles, if there are `groups`.
    pub(super) fn gather_groups(
        &self,
        problem: &Problem,
        groups: bool,
    ) -> Result<LaunchGeometry, String> {
        let of_level = |(level, tiles): (usize, usize)| {
            let samples = problem.queries() * problem.level_samples(level).len();
            let group = match samples {
                _ if !groups => 1,
                few if few <= 4 * tiles => 4,
                few if few <= 8 * tiles => 2,
                _ => 1,
            };
            tiles.div_ceil(GATHER_WARPS * group)
        };
        let blocks: usize = level_tiles(problem).enumerate().map(of_level).sum();
        let blocks = u32::try_from(blocks).ok().filter(|&blocks| blocks <= 65_535);
        let slices =
            u32::try_from(self.slabs * self.slices).ok().filter(|&slices| slices < 1 << 31);
        let too_many = "more tiles than a grid holds";
        let grid = [slices.ok_or(too_many)?, blocks.ok_or(too_many)?, 1];
        let stage = stage_bytes(problem.dtype());
        // In f32 one stage, and the sums of a long list.
        let is_single = problem.dtype() == DType::F32;
        let warp_bytes = if is_single { stage + SLICE_SUMS * 4 } else { 2 * stage };
        Ok(gather(grid, warp_bytes))
    }
}

/// Shared memory of 32 entries: their rows and tents.
fn stage_bytes(dtype: DType) -> usize {
    const TENT_BYTES: usize = 2 * TILE_SIDE * 36 * 4;
    32 * SLICE_CHANNELS * dtype.size_bytes() + TENT_BYTES
}

fn gather(grid: [u32; 3], warp_bytes: usize) -> LaunchGeometry {
    LaunchGeometry {
        grid,
        block: [32 * GATHER_WARPS as u32, 1, 1],
        shared_bytes: (GATHER_WARPS * warp_bytes) as u32,
        cluster: 1,
        overlaps: false,
    }
}

/// The values of the knobs that both variants have.
pub(super) struct ListKnobs {
    pub(super) ordered: bool,
    pub(super) entry_bytes: usize,
    pub(super) gather_blocks: usize,
}

impl ListKnobs {
    /// `gather_blocks` unless the caller wants other ones.
    pub(super) fn of(
        call: &Call<'_>,
        knobs: &KnobChoices,
        gather_blocks: i64,
    ) -> Result<Self, String> {
        let problem = call.problem;
        let deterministic = call.backward.is_some_and(|call| call.mode == Mode::Deterministic);
        let ordered = knobs.get(ORDERED.name).map_or(deterministic, |value| value == 1);
        if deterministic && !ordered {
            return Err("ORDERED=0 in deterministic mode".to_owned());
        }
        let fits_short =
            problem.sampling_dtype().size_bytes() == 2 && problem.queries() <= SHORT_ENTRY_QUERIES;
        let entry_bytes = match knobs.get(ENTRY_BYTES.name) {
            Some(8) if !fits_short => {
                return Err(
                    "ENTRY_BYTES=8; that takes locations in half precision and at most 2^18 \
                            queries"
                        .to_owned(),
                );
            }
            Some(8) => 8,
            Some(_) => 16,
            // Packing entries is arithmetic: with few of them their bytes are no concern. ddetr_dec in f16 takes 25.2
            // us with 16 bytes and 27.5 with 8 (docs/kernels/bwd_level_sort.md).
            None if call.rows() <= FEW_ROWS * u64::from(call.device.multiprocessors) => 16,
            None if fits_short => 8,
            None => 16,
        };
        let gather_blocks = knobs.get(GATHER_BLOCKS.name).unwrap_or(gather_blocks);
        Ok(Self { ordered, entry_bytes, gather_blocks: gather_blocks.unsigned_abs() as usize })
    }

    pub(super) fn knobs(&self) -> [(&'static str, i64); 2] {
        [
            (ENTRY_BYTES.name, self.entry_bytes as i64),
            (GATHER_BLOCKS.name, self.gather_blocks as i64),
        ]
    }

    pub(super) fn ordered(&self) -> (&'static str, i64) {
        (ORDERED.name, i64::from(self.ordered))
    }
}

/// Borders and gaps: no tile covers them, so they must be zeroed.
pub(super) fn has_unowned_pixels(problem: &Problem) -> bool {
    let owned: usize = problem.levels().iter().map(|level| level.height * level.width).sum();
    owned < problem.spatial()
}
