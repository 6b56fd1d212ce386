// Lists of samples per tile of pixels, the intermediate result of the backward kernels that sort.
//
// A slab is one image and head. Its levels are cut into tiles of 4 x 4 pixels, numbered through, the last
// level first: models put their coarse levels last, whose tiles have the longest lists and should start
// first. A sample belongs to every tile that one of its corners lies in, so to one, two or four of them,
// 1.56 on average. The gradient of a tile's pixels is then a sum over its list alone.
//
// Requires: chunked_sample.cuh's limits, except that levels may be one pixel thin; fewer than 2^32 entries in
// a slab's lists; with 8-byte entries at most 2^18 queries. Checked by src/variants/tile_lists.rs.
#pragma once

#include "chunked_sample.cuh"

namespace msda {

static_assert(HEADS > 0, "heads are compiled in");

constexpr int TILE_SIDE = MSDA_TILE_SIDE;
constexpr int TILE_PIXELS = TILE_SIDE * TILE_SIDE;
constexpr int PIECE_ENTRIES = MSDA_PIECE;            // of a list, summed by one warp; 0: lists are not cut
constexpr int SLICE_CHANNELS = MSDA_SLICE_CHANNELS;  // summed by one warp
constexpr int SLICES = (CHANNELS + SLICE_CHANNELS - 1) / SLICE_CHANNELS;
constexpr int SLICE_SUMS = TILE_PIXELS * SLICE_CHANNELS;

MSDA_DEVICE int tiles_across(int size) {
    return static_cast<int>((static_cast<unsigned>(size) + TILE_SIDE - 1) / TILE_SIDE);
}
MSDA_DEVICE int tiles_of_level(const LevelGeometry& level) {
    return tiles_across(level.width) * tiles_across(level.height);
}

// The entries that one warp sums: a whole list, or PIECE_ENTRIES of a longer one. The sum goes to the
// gradient, or to a slot if the list has several pieces.
struct alignas(16) Piece {
    unsigned tile;
    unsigned first_entry;
    unsigned entries;
    unsigned slot;
};
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

// The layout of the workspace, as src/variants/tile_lists.rs reserves it. Lists that are not cut have
// `list_words` and `entries` alone. Lists that are cut have everything except `list_words`.
struct TileLists {
    int slabs;
    int parts;              // runs of queries that a slab is divided into
    int tiles;              // of a slab
    long long max_entries;  // of a slab
    long long max_pieces;
    long long max_slots;
    Piece* pieces;           // [slabs][max_pieces]
    ListWord* list_words;    // [slabs][tiles]
    unsigned char* entries;  // [slabs][max_entries]
    unsigned* piece_counts;  // [slabs]
    unsigned* long_counts;   // [slabs]: tiles with several pieces
    unsigned* long_tiles;    // [slabs][max_slots]
    unsigned* slots;         // [slabs][tiles]: the first slot of a tile with several pieces
    unsigned* totals;        // [slabs][tiles]: lengths of the lists
    unsigned* starts;        // [slabs][tiles]: where the lists start
    float* sums;             // [slabs][max_slots][SLICES][SLICE_SUMS]
    unsigned* counts;        // [slabs][parts][tiles]; then where the part starts in the tile's list
};

MSDA_DEVICE TileLists tile_lists(const BackwardParams& params) {
    TileLists lists;
    lists.slabs = params.batch * HEADS;
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
    lists.long_tiles = workspace_part<unsigned>(params, params.long_tiles_at);
    lists.slots = workspace_part<unsigned>(params, params.slots_at);
    lists.totals = workspace_part<unsigned>(params, params.totals_at);
    lists.starts = workspace_part<unsigned>(params, params.starts_at);
    lists.sums = workspace_part<float>(params, params.sums_at);
    lists.counts = workspace_part<unsigned>(params, params.counts_at);
    return lists;
}

}  // namespace msda
