// Lists of samples per tile of pixels, the intermediate result of the backward kernels that sort.
//
// A slab is one image and head. Its levels are cut into tiles of 4 x 4 pixels, numbered through, the last
// level first: models put their coarse levels last, whose tiles have the longest lists and should start
// first. A sample belongs to every tile that one of its corners lies in, so to one, two or four of them,
// 1.56 on average. The gradient of a tile's pixels is then a sum over its list alone.
//
// Or tiles are made of cells (CELLS), the squares between four pixels. Then a sample belongs to one tile,
// that of its cell, so a slab has no more entries than samples. 3 x 3 cells touch 4 x 4 pixels; cells stick
// out of the level by one pixel on every side. Four tiles are a group, whose lists follow each other. The
// pixels between two groups, the seams, get a sum from each.
//
// Requires: chunked_sample.cuh's limits, except that levels may be one pixel thin; fewer than 2^32 entries in
// a slab's lists; with 8-byte entries at most 2^18 queries. Checked by src/variants/tile_lists.rs.
#pragma once

#include "chunked_sample.cuh"

namespace msda {

static_assert(HEADS > 0, "heads are compiled in");

constexpr bool CELLS = MSDA_CELLS != 0;        // tiles are made of cells, not of pixels
constexpr int TILE_SIDE = MSDA_TILE_SIDE;      // in pixels or in cells
constexpr int PIXEL_SIDE = TILE_SIDE + CELLS;  // pixels along an axis that a tile's samples touch
constexpr int TILE_PIXELS = PIXEL_SIDE * PIXEL_SIDE;
constexpr int SAMPLE_TILES = CELLS ? 1 : 4;  // that a sample belongs to, at most
constexpr int GROUP_TILES = CELLS ? 4 : 1;
constexpr int GROUP_SIDE = CELLS ? 2 * TILE_SIDE : TILE_SIDE;
constexpr int SUM_SIDE = GROUP_SIDE + CELLS;         // pixels along an axis that a group's samples touch
constexpr int SEAM_PIXELS = 4 * GROUP_SIDE;          // the outer ones of them
constexpr int PIECE_ENTRIES = MSDA_PIECE;            // of a list, at least; 0: lists are not cut
constexpr int SLICE_CHANNELS = MSDA_SLICE_CHANNELS;  // summed by one warp
constexpr int SLICES = (CHANNELS + SLICE_CHANNELS - 1) / SLICE_CHANNELS;
constexpr int SLICE_SUMS = SUM_SIDE * SUM_SIDE * SLICE_CHANNELS;

// Groups along an axis of `size` pixels, which has size + 1 cells.
MSDA_DEVICE int groups_across(int size) {
    return static_cast<int>((static_cast<unsigned>(size) + SUM_SIDE - 1) / GROUP_SIDE);
}
MSDA_DEVICE int tiles_of_level(const LevelGeometry& level) {
    return GROUP_TILES * groups_across(level.width) * groups_across(level.height);
}

// What is summed at a time. The sum goes to the gradient, or to a slot if there are several pieces.
template <bool OF_CELLS>
struct PieceOf;
// By a warp: a whole list, or PIECE_ENTRIES of a longer one. Its last piece may be shorter.
template <>
struct alignas(16) PieceOf<false> {
    unsigned tile;
    unsigned slot;
    unsigned first;
    unsigned count;
};
// By a block: the lists of a group, or a run of each. The step plan decides how long (piece_length).
template <>
struct alignas(16) PieceOf<true> {
    unsigned tile;  // the group's first
    unsigned slot;
    unsigned first[4];
    unsigned count[4];
};
using Piece = PieceOf<CELLS>;
constexpr unsigned NO_SLOT = 0xffffffffu;
static_assert(sizeof(Piece) == MSDA_PIECE_BYTES, "as the host reserves");

// A tile's list, if lists are not cut, in one word that is written and read at once. Zero: the list is not
// complete yet.
using ListWord = unsigned long long;
static_assert(sizeof(ListWord) == MSDA_LIST_WORD_BYTES, "as the host reserves");
MSDA_DEVICE ListWord list_word(unsigned first_entry, unsigned entries) {
    return static_cast<ListWord>(entries + 1) << 32 | first_entry;
}
MSDA_DEVICE unsigned first_entry_of(ListWord word) { return static_cast<unsigned>(word); }
MSDA_DEVICE unsigned entries_of(ListWord word) { return static_cast<unsigned>(word >> 32) - 1; }

// A tile whose list was cut, or a group of tiles of cells: the sums of its pieces are still to be added up.
struct alignas(16) LongTile {
    unsigned tile;  // of a group: its first
    unsigned first_slot;
    unsigned pieces;
};
static_assert(sizeof(LongTile) == MSDA_LONG_TILE_BYTES, "as the host reserves");

// The layout of the workspace, as src/variants/tile_lists.rs reserves it. Lists that are not cut have
// `list_words` and `entries` alone. Lists that are cut have everything except `list_words`; what the step
// gather writes, `sums` and `seams`, takes the place of `counts`, which the step scatter has read by then.
//
// A workspace with a limit has room for some of the slabs, and a call takes several rounds. Slabs of the
// workspace are counted from the first one of the round, slabs of tensors from the first one of the call.
struct TileLists {
    int slabs;              // of the round
    int first_slab;         // of the round, among those of the call
    int parts;              // runs of queries that a slab is divided into
    int tiles;              // of a slab
    long long max_entries;  // of a slab
    long long max_pieces;
    long long max_slots;
    Piece* pieces;           // [slabs][max_pieces]
    ListWord* list_words;    // [slabs][tiles]
    unsigned char* entries;  // [slabs][max_entries]
    unsigned* piece_counts;  // [slabs]
    unsigned* long_counts;   // [slabs]: lengths of long_tiles
    LongTile* long_tiles;    // [slabs][max_slots]
    unsigned* totals;        // [slabs][tiles]: lengths of the lists
    unsigned* starts;        // [slabs][tiles]: where the lists start
    float* sums;             // [slabs][max_slots][SLICES][SLICE_SUMS]
    float* seams;            // [slabs][SLICES][groups][SEAM_PIXELS][SLICE_CHANNELS], of cells
    unsigned* counts;        // [slabs][parts][tiles]; then where the part starts in the tile's list
};

MSDA_DEVICE TileLists tile_lists(const BackwardParams& params) {
    TileLists lists;
    lists.slabs = params.batch * HEADS;
    // Lists that are not cut have one round.
    if constexpr (PIECE_ENTRIES > 0) {
        lists.slabs = at_most(params.round_slabs, lists.slabs - params.first_slab);
    }
    lists.first_slab = params.first_slab;
    lists.parts = params.slab_parts;
    lists.tiles = params.slab_tiles;
    lists.max_entries = params.max_entries;
    lists.max_pieces = params.max_pieces;
    lists.max_slots = params.max_slots;
    lists.pieces = workspace_part<Piece>(params, params.pieces_at);
    lists.list_words = workspace_part<ListWord>(params, params.list_words_at);
    lists.entries = workspace_part<unsigned char>(params, params.entries_at);
    lists.piece_counts = workspace_part<unsigned>(params, params.piece_counts_at);
    lists.long_counts = workspace_part<unsigned>(params, params.long_counts_at);
    lists.long_tiles = workspace_part<LongTile>(params, params.long_tiles_at);
    lists.totals = workspace_part<unsigned>(params, params.totals_at);
    lists.starts = workspace_part<unsigned>(params, params.starts_at);
    lists.sums = workspace_part<float>(params, params.sums_at);
    lists.seams = workspace_part<float>(params, params.seams_at);
    lists.counts = workspace_part<unsigned>(params, params.counts_at);
    return lists;
}

}  // namespace msda
