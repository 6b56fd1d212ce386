//! What the variants that include `tile_lists.cuh` and `tile_gather.cuh` have in common.

use msdeform::{DType, Mode, Problem};

use super::chunked_sample::lanes_per_pixel;
use super::grad_output_rows;
use super::{Call, Constant, Knob, KnobChoices};
use crate::derived::Derived;
use crate::driver::LaunchGeometry;
use crate::pipeline::Pipeline;

/// Pixels of a tile along an axis.
const TILE_SIDE: usize = 4;
/// Channels that a warp sums.
const SLICE_CHANNELS: usize = 32;
const SLICE_SUMS: usize = TILE_SIDE * TILE_SIDE * SLICE_CHANNELS;
const PIECE_BYTES: usize = 16;
const LIST_WORD_BYTES: usize = 8;
/// Warps of a block in the step gather.
const GATHER_WARPS: usize = 4;
/// Rows of an SM up to which entries are long. Not only for speed: short ones round coordinates, which a tensor of few
/// samples shows (1.2 times the contract, once in 40,000 random problems), and a NaN of `grad_output` near a pixel's edge.
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

/// Refuses what the lists and the two gathers cannot do.
pub(super) fn check(call: &Call<'_>) -> Result<(), String> {
    lanes_per_pixel(call, 1)?;
    grad_output_rows::check(call)?;
    let problem = call.problem;
    if max_entries(problem) >= 1 << 32 {
        return Err(format!(
            "a head of an image has {} samples; it takes fewer than 2^30",
            max_entries(problem) / 4
        ));
    }
    Ok(())
}

/// Tiles of pixels of every level.
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
    pub(super) slices: usize,
    max_pieces: usize,
    /// Blocks of the step gather where lists are not cut.
    group_blocks: usize,
    gather_warp_bytes: usize,
}

impl ListSizes {
    /// Reserves the parts and tells the kernels where they are. Lists are cut into pieces of `piece` entries, or not if that
    /// is 0; where few entries are expected of a tile a warp sums several at a time, if there are `groups`.
    pub(super) fn reserve(
        problem: &Problem,
        pipeline: &mut Pipeline,
        derived: &mut Derived,
        ListCut { piece, parts, entry_bytes, groups }: ListCut,
    ) -> Result<Self, String> {
        let slabs = problem.batch() * problem.heads();
        let tiles: usize = level_tiles(problem).sum();
        let cuts = max_entries(problem).checked_div(piece).unwrap_or(0);
        let max_pieces = if piece > 0 { tiles + cuts } else { 0 };
        // A list that is cut fills at least half of its pieces.
        let max_slots = 2 * cuts;
        let slices = problem.channels().div_ceil(SLICE_CHANNELS);
        let (cut_slabs, uncut_slabs) = if piece > 0 { (slabs, 0) } else { (0, slabs) };
        derived.count("slab_parts", parts)?;
        derived.count("slab_tiles", tiles)?;
        derived.size("max_entries", max_entries(problem));
        derived.size("max_pieces", max_pieces);
        derived.size("max_slots", max_slots);
        for (name, bytes) in [
            ("pieces_at", slabs * max_pieces * PIECE_BYTES),
            ("list_words_at", uncut_slabs * tiles * LIST_WORD_BYTES),
            ("entries_at", slabs * max_entries(problem) * entry_bytes),
            ("piece_counts_at", cut_slabs * 4),
            ("long_counts_at", cut_slabs * 4),
            ("long_tiles_at", slabs * max_slots * 4),
            ("slots_at", cut_slabs * tiles * 4),
            ("totals_at", cut_slabs * tiles * 4),
            ("starts_at", cut_slabs * tiles * 4),
            ("sums_at", slabs * max_slots * slices * SLICE_SUMS * 4),
            ("counts_at", slabs * parts * tiles * 4),
        ] {
            derived.size(name, pipeline.reserve(bytes));
        }
        let group_blocks = number_levels(problem, groups, derived)?;
        // In f32 lists that are not cut have one stage, and room for the sums of a long one.
        let stage = stage_bytes(problem.dtype());
        let spares = problem.dtype() == DType::F32 && piece == 0;
        let gather_warp_bytes = if spares { stage + SLICE_SUMS * 4 } else { 2 * stage };
        Ok(Self { slabs, tiles, slices, max_pieces, group_blocks, gather_warp_bytes })
    }

    /// What the kernels are compiled with.
    pub(super) fn constants(&self) -> [(&'static str, i64); 6] {
        [
            ("TILE_SIDE", TILE_SIDE as i64),
            ("SLICE_CHANNELS", SLICE_CHANNELS as i64),
            ("PIECE_BYTES", PIECE_BYTES as i64),
            ("LIST_WORD_BYTES", LIST_WORD_BYTES as i64),
            ("GATHER_WARPS", GATHER_WARPS as i64),
            ("GATHER_WARP_BYTES", self.gather_warp_bytes as i64),
        ]
    }

    /// The grid's second axis: blocks beyond it are walked by a loop.
    pub(super) fn grid_slabs(&self) -> u32 {
        self.slabs.min(65_535) as u32
    }

    /// The step gather where lists are cut: a warp per piece.
    pub(super) fn gather_pieces(&self) -> Result<LaunchGeometry, String> {
        let blocks = u32::try_from(self.max_pieces.div_ceil(GATHER_WARPS)).ok();
        let blocks = blocks.filter(|&blocks| blocks < 1 << 31);
        let blocks = blocks.ok_or("more pieces than a grid holds")?;
        Ok(self.gather([blocks, self.grid_slabs(), self.slices as u32]))
    }

    /// The step gather where they are not: a warp per group of tiles, the blocks of all levels along y.
    pub(super) fn gather_groups(&self) -> Result<LaunchGeometry, String> {
        let blocks = u32::try_from(self.group_blocks).ok().filter(|&blocks| blocks <= 65_535);
        let slices =
            u32::try_from(self.slabs * self.slices).ok().filter(|&slices| slices < 1 << 31);
        let too_many = "more tiles than a grid holds";
        Ok(self.gather([slices.ok_or(too_many)?, blocks.ok_or(too_many)?, 1]))
    }

    fn gather(&self, grid: [u32; 3]) -> LaunchGeometry {
        LaunchGeometry {
            grid,
            block: [32 * GATHER_WARPS as u32, 1, 1],
            shared_bytes: (GATHER_WARPS * self.gather_warp_bytes) as u32,
            cluster: 1,
            overlaps: false,
        }
    }
}

/// How lists are divided.
pub(super) struct ListCut {
    /// Entries of a piece; 0 where lists are not cut.
    pub(super) piece: usize,
    /// Parts of a slab's queries that are sorted by themselves.
    pub(super) parts: usize,
    pub(super) entry_bytes: usize,
    /// Whether a warp of the step gather may sum several tiles.
    pub(super) groups: bool,
}

/// Numbers tiles and blocks of the step gather through the levels, the last first: models put their coarse levels last, whose
/// lists are the longest and should start first. Returns how many blocks there are.
fn number_levels(problem: &Problem, groups: bool, derived: &mut Derived) -> Result<usize, String> {
    let tiles: Vec<usize> = level_tiles(problem).collect();
    let levels = tiles.len();
    let (mut first_tile, mut first_block) = (vec![0; levels], vec![0; levels]);
    let mut group_bits = vec![0; levels];
    let (mut next_tile, mut next_block) = (0, 0);
    for level in (0..levels).rev() {
        let samples = problem.queries() * problem.level_samples(level).len();
        let bits = match samples {
            _ if !groups => 0,
            few if few <= 4 * tiles[level] => 2,
            few if few <= 8 * tiles[level] => 1,
            _ => 0,
        };
        (first_tile[level], first_block[level], group_bits[level]) = (next_tile, next_block, bits);
        next_tile += tiles[level];
        next_block += tiles[level].div_ceil(GATHER_WARPS << bits);
    }
    derived.levels("first_tile", first_tile)?;
    derived.levels("first_block", first_block)?;
    derived.levels("group_bits", group_bits)?;
    Ok(next_block)
}

/// Shared memory of 32 entries: their rows and tents.
fn stage_bytes(dtype: DType) -> usize {
    const TENT_BYTES: usize = 2 * TILE_SIDE * 36 * 4;
    32 * SLICE_CHANNELS * dtype.size_bytes() + TENT_BYTES
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
            return Err("ORDERED=0, but deterministic mode needs ordered lists; leave ORDERED out"
                .to_owned());
        }
        let fits_short =
            problem.sampling_dtype().size_bytes() == 2 && problem.queries() <= SHORT_ENTRY_QUERIES;
        let entry_bytes = match knobs.get(ENTRY_BYTES.name) {
            Some(8) if !fits_short => {
                return Err(
                    "ENTRY_BYTES=8, but entries of 8 bytes need locations in half precision and at most 2^18 \
                     queries; leave ENTRY_BYTES out"
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
