//! What the variants that include `tile_lists.cuh` and `tile_gather.cuh` have in common.

use msdeform::{DType, Mode, Problem};

use super::chunked_sample::lanes_per_pixel;
use super::grad_output_rows;
use super::{Call, Constant, Knob, KnobChoices};
use crate::derived::Derived;
use crate::driver::LaunchGeometry;
use crate::pipeline::Pipeline;

/// Channels that a warp sums.
const SLICE_CHANNELS: usize = 32;
const LIST_WORD_BYTES: usize = 8;
const LONG_TILE_BYTES: usize = 16;
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
pub(super) const CELLS: &str = "CELLS";
pub(super) const PIECE: &str = "PIECE";
pub(super) const FEW: &str = "FEW";

/// Refuses what the lists and the two gathers cannot do.
pub(super) fn check(call: &Call<'_>) -> Result<(), String> {
    lanes_per_pixel(call, 1)?;
    grad_output_rows::check(call)?;
    let problem = call.problem;
    let samples = slab_samples(problem);
    if samples >= 1 << 30 {
        return Err(format!("a head of an image has {samples} samples; it takes fewer than 2^30"));
    }
    Ok(())
}

fn slab_samples(problem: &Problem) -> usize {
    problem.queries() * problem.samples()
}

/// What tiles are made of: see `tile_lists.cuh`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Tiles {
    /// 4 x 4 pixels.
    OfPixels,
    /// 3 x 3 cells between pixels, in groups of 2 x 2 tiles.
    OfCells,
}

impl Tiles {
    const fn side(self) -> usize {
        match self {
            Self::OfPixels => 4,
            Self::OfCells => 3,
        }
    }

    const fn of_group(self) -> usize {
        match self {
            Self::OfPixels => 1,
            Self::OfCells => 4,
        }
    }

    const fn group_side(self) -> usize {
        match self {
            Self::OfPixels => self.side(),
            Self::OfCells => 2 * self.side(),
        }
    }

    /// Pixels along an axis that the samples of a group touch.
    const fn sum_side(self) -> usize {
        match self {
            Self::OfPixels => self.group_side(),
            Self::OfCells => self.group_side() + 1,
        }
    }

    /// Sums of a group in 32 channels.
    const fn sums(self) -> usize {
        self.sum_side() * self.sum_side() * SLICE_CHANNELS
    }

    /// Those of them in pixels that several groups touch.
    const fn seam_sums(self) -> usize {
        match self {
            Self::OfPixels => 0,
            Self::OfCells => 4 * self.group_side() * SLICE_CHANNELS,
        }
    }

    /// Tiles that a sample belongs to, at most.
    const fn of_sample(self) -> usize {
        match self {
            Self::OfPixels => 4,
            Self::OfCells => 1,
        }
    }

    const fn piece_bytes(self) -> usize {
        match self {
            Self::OfPixels => 16,
            Self::OfCells => 48,
        }
    }

    /// Tiles of every level.
    pub(super) fn of_levels(self, problem: &Problem) -> impl Iterator<Item = usize> + '_ {
        // As many groups along an axis as cover its pixels, or its cells, one more than pixels.
        let across = move |size: usize| (size + self.sum_side() - 1) / self.group_side();
        let groups = move |height: usize, width: usize| across(height) * across(width);
        problem
            .levels()
            .iter()
            .map(move |level| self.of_group() * groups(level.height, level.width))
    }

    /// How often the step plan may double the length of pieces if their sums find no slot. The slot of a group of cells is
    /// 6 KiB, and the worst locations would need eight times the slots that ordinary ones do.
    const fn doublings(self) -> usize {
        match self {
            Self::OfPixels => 0,
            Self::OfCells => 3,
        }
    }

    /// Slots for the sums of a slab's pieces: as many as pieces of the greatest length may need.
    const fn slots(self, entries: usize, piece: usize) -> usize {
        match self {
            // A list that is cut fills at least half of its pieces.
            Self::OfPixels => 2 * (entries / piece),
            // All of them.
            Self::OfCells => entries / (piece << self.doublings()),
        }
    }
}

/// The workspace and what sizes it.
pub(super) struct ListSizes {
    /// Images and heads of a round.
    pub(super) slabs: usize,
    pub(super) tiles: usize,
    pub(super) slices: usize,
    pub(super) of: Tiles,
    max_pieces: usize,
    /// Blocks of the step gather where lists are not cut.
    group_blocks: usize,
    /// Shared memory of a block of the step gather.
    gather_bytes: usize,
    /// The number that says where a round starts.
    first_slab: usize,
}

impl ListSizes {
    /// Reserves the parts and tells the kernels where they are. Lists are cut into pieces of `piece` entries, or not if that
    /// is 0; where few entries are expected of a tile a warp sums several at a time, if there are `groups`.
    pub(super) fn reserve(
        problem: &Problem,
        pipeline: &mut Pipeline,
        derived: &mut Derived,
        ListCut { of, piece, parts, entry_bytes, groups, slabs }: ListCut,
    ) -> Result<Self, String> {
        let tiles: usize = of.of_levels(problem).sum();
        let max_entries = of.of_sample() * slab_samples(problem);
        let sum_groups = tiles / of.of_group();
        let max_slots = if piece > 0 { of.slots(max_entries, piece) } else { 0 };
        // Those of long lists have a slot each.
        let max_pieces = if piece > 0 { sum_groups + max_slots } else { 0 };
        let slices = problem.channels().div_ceil(SLICE_CHANNELS);
        let (cut_slabs, uncut_slabs) = if piece > 0 { (slabs, 0) } else { (0, slabs) };
        let first_slab = derived.next_place();
        derived.count("first_slab", 0)?;
        derived.count("round_slabs", slabs)?;
        derived.count("slab_parts", parts)?;
        derived.count("slab_tiles", tiles)?;
        derived.size("max_entries", max_entries);
        derived.size("max_pieces", max_pieces);
        derived.size("max_slots", max_slots);
        for (name, bytes) in [
            ("pieces_at", slabs * max_pieces * of.piece_bytes()),
            ("list_words_at", uncut_slabs * tiles * LIST_WORD_BYTES),
            ("entries_at", slabs * max_entries * entry_bytes),
            ("piece_counts_at", cut_slabs * 4),
            ("long_counts_at", cut_slabs * 4),
            ("long_tiles_at", slabs * max_slots * LONG_TILE_BYTES),
            ("totals_at", cut_slabs * tiles * 4),
            ("starts_at", cut_slabs * tiles * 4),
        ] {
            derived.size(name, pipeline.reserve(bytes));
        }
        // The step gather takes the room of the counters, which `scatter` has read.
        let counts = slabs * parts * tiles * 4;
        let sums = slabs * max_slots * slices * of.sums() * 4;
        let seams = slabs * sum_groups * slices * of.seam_sums() * 4;
        let shared = pipeline.reserve(counts.max(sums + seams));
        derived.size("counts_at", shared);
        derived.size("sums_at", shared);
        derived.size("seams_at", shared + sums);
        let group_blocks = number_levels(problem, of, groups, derived)?;
        let gather_bytes = GATHER_WARPS * gather_warp_bytes(problem.dtype(), piece);
        Ok(Self { slabs, tiles, slices, max_pieces, group_blocks, of, gather_bytes, first_slab })
    }

    /// What the kernels are compiled with.
    pub(super) fn constants(&self) -> [(&'static str, i64); 8] {
        [
            ("TILE_SIDE", self.of.side() as i64),
            ("SLICE_CHANNELS", SLICE_CHANNELS as i64),
            ("PIECE_BYTES", self.of.piece_bytes() as i64),
            ("PIECE_DOUBLINGS", self.of.doublings() as i64),
            ("LONG_TILE_BYTES", LONG_TILE_BYTES as i64),
            ("LIST_WORD_BYTES", LIST_WORD_BYTES as i64),
            ("GATHER_WARPS", GATHER_WARPS as i64),
            ("GATHER_BLOCK_BYTES", self.gather_bytes as i64),
        ]
    }

    /// Groups of tiles that are summed together.
    pub(super) fn groups(&self) -> usize {
        self.tiles / self.of.of_group()
    }

    /// Shared memory of the step plan for the slots that pieces of different lengths need.
    pub(super) const fn slot_counts(&self) -> usize {
        4 * self.of.doublings()
    }

    /// Lets the launches that follow start at this slab.
    pub(super) fn begin_round(&self, first_slab: usize, pipeline: &mut Pipeline) {
        pipeline.set_number(self.first_slab, first_slab as u64);
    }

    /// The grid's second axis: blocks beyond it are walked by a loop.
    pub(super) fn grid_slabs(&self) -> u32 {
        self.slabs.min(65_535) as u32
    }

    /// The step gather where lists are cut: a warp per piece, or a block per piece of cells.
    pub(super) fn gather_pieces(&self) -> Result<LaunchGeometry, String> {
        let pieces = if self.of == Tiles::OfCells { 1 } else { GATHER_WARPS };
        let blocks = u32::try_from(self.max_pieces.div_ceil(pieces)).ok();
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
            shared_bytes: self.gather_bytes as u32,
            cluster: 1,
            overlaps: false,
        }
    }
}

/// How lists are divided.
#[derive(Clone, Copy)]
pub(super) struct ListCut {
    pub(super) of: Tiles,
    /// Entries of a piece; 0 where lists are not cut.
    pub(super) piece: usize,
    /// Parts of a slab's queries that are sorted by themselves.
    pub(super) parts: usize,
    pub(super) entry_bytes: usize,
    /// Whether a warp of the step gather may sum several tiles.
    pub(super) groups: bool,
    /// Images and heads that the workspace has room for.
    pub(super) slabs: usize,
}

/// Numbers tiles and blocks of the step gather through the levels, the last first: models put their coarse levels last, whose
/// lists are the longest and should start first. Returns how many blocks there are.
fn number_levels(
    problem: &Problem,
    of: Tiles,
    groups: bool,
    derived: &mut Derived,
) -> Result<usize, String> {
    let tiles: Vec<usize> = of.of_levels(problem).collect();
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

/// Shared memory of a warp that sums on tensor cores. In f32 lists that are not cut have one stage, and room for the sums of a
/// long one.
fn gather_warp_bytes(dtype: DType, piece: usize) -> usize {
    const TENT_BYTES: usize = 2 * 4 * 36 * 4;
    // 32 entries: their rows and tents.
    let stage = 32 * SLICE_CHANNELS * dtype.size_bytes() + TENT_BYTES;
    if dtype == DType::F32 && piece == 0 { stage + Tiles::OfPixels.sums() * 4 } else { 2 * stage }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Pieces of a group whose longest list has `longest` entries, as the step plan cuts it.
    fn pieces(longest: usize, length: usize) -> usize {
        if longest < 2 * length { 1 } else { longest / length }
    }

    #[test]
    fn sums_of_the_longest_pieces_always_find_a_slot() {
        let of = Tiles::OfCells;
        let longest_pieces = 64 << of.doublings();
        // Groups of one list, which need the most slots for their entries.
        for lists in [vec![4096], vec![1023; 9], vec![1024; 9], vec![1025; 3], vec![700, 1, 5000]] {
            let slots = |length: usize| {
                let of_lists = lists.iter().map(|&entries| pieces(entries, length));
                of_lists.filter(|&pieces| pieces > 1).sum::<usize>()
            };
            let reserved = of.slots(lists.iter().sum(), 64);
            assert!(slots(longest_pieces) <= reserved, "{lists:?}");
            assert!(slots(64) > reserved, "{lists:?} needs longer pieces than 64");
        }
    }

    #[test]
    fn groups_of_cells_cover_one_cell_more_than_pixels() {
        let groups = |height: i64, width: i64| {
            let problem = Problem::builder().heads(1).channels(32).queries(1).points(1);
            let problem = problem.levels([(height, width)]).build().unwrap();
            Tiles::OfCells.of_levels(&problem).sum::<usize>() / Tiles::OfCells.of_group()
        };
        assert_eq!([groups(1, 1), groups(5, 5), groups(5, 6), groups(6, 6)], [1, 1, 2, 4]);
        assert_eq!(groups(11, 12), 2 * 3);
    }

    #[test]
    fn every_sum_of_a_group_is_a_pixel_of_its_own_or_of_a_seam() {
        let of = Tiles::OfCells;
        let inner = (of.sum_side() - 2) * (of.sum_side() - 2) * SLICE_CHANNELS;
        assert_eq!(of.sums(), inner + of.seam_sums());
        assert_eq!(Tiles::OfPixels.sums(), 16 * SLICE_CHANNELS);
    }
}
