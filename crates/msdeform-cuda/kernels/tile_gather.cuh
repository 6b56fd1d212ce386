// The gradient of the values, tile by tile, from the lists of tile_lists.cuh.
//
// A warp owns a tile's list or a piece of it, or a group of tiles with short lists, and 32 channels. Long lists are summed
// on the tensor cores (tile_products.cuh), those of groups entry by entry (tile_few.cuh).
//
// Why that is fast. No atomics, no zeroing, every pixel is written once and in its own format.
#pragma once

#include "tile_few.cuh"

namespace msda {

constexpr int WARP_BITS = 2;
constexpr int GATHER_WARPS = 1 << WARP_BITS;
constexpr int GATHER_BLOCKS = MSDA_KNOB_GATHER_BLOCKS;  // per SM: caps the registers
constexpr unsigned FEW_ENTRIES = MSDA_KNOB_FEW;         // of a group of tiles: summed without tensor cores

// Sums one piece and puts the result where it belongs; place() says where its tile lies.
template <typename Place>
MSDA_DEVICE void gather_piece(const BackwardParams& params, const TileLists& lists, int slab, int slice,
                              const Piece& piece, Place place) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (piece.entries == 0) {
        const TilePlace at = place();
        tile_stores(params, slab, slice, at.level).clear_tile(at);
        return;
    }
    TileSums sums = {};
    sum_entries(entries_of_slab(lists, slab) + piece.first_entry, static_cast<int>(piece.entries),
                grad_rows(params, slab, slice), shared_memory() + warp * WARP_BYTES, sums);
    if (PIECE_ENTRIES == 0 || piece.slot == NO_SLOT) {
        store_tile(params, slab, slice, place(), sums);
    } else {
        float* slot = lists.sums + lane +
                      ((slab * lists.max_slots + piece.slot) * SLICES + slice) * SLICE_SUMS;
#pragma unroll
        for (int k = 0; k < LANE_SUMS; ++k) slot[k * 32] = sums[k / 4][k % 4];
    }
}

// A warp per piece of a slab (blockIdx.y) and slice (blockIdx.z).
MSDA_DEVICE void gather_pieces(const BackwardParams& params) {
    const TileLists lists = tile_lists(params);
    const unsigned index = blockIdx.x * GATHER_WARPS + threadIdx.x / 32;
    for (int slab = blockIdx.y; slab < lists.slabs; slab += gridDim.y) {
        if (index >= lists.piece_counts[slab]) continue;
        const Piece piece = lists.pieces[slab * lists.max_pieces + index];
        gather_piece(params, lists, slab, blockIdx.z, piece,
                     [&] { return place_of_tile(params, static_cast<int>(piece.tile)); });
    }
}

// Tiles of a group, as a power of two: several where few entries are expected, by the samples and tiles of a level alone.
constexpr int MAX_GROUP_TILES = 4;
MSDA_DEVICE int group_bits(int samples, int tiles) {
    if (FEW_ENTRIES == 0) return 0;
    if (samples <= 4 * tiles) return 2;
    return samples <= 8 * tiles ? 1 : 0;
}

// Ends: whoever writes the word is running, since this launch started only after that (level_sort.cuh).
MSDA_DEVICE ListWord wait_for_list(const ListWord* word) {
    ListWord seen = load_acquire(word);
    while (seen == 0) {
        pause(50);
        seen = load_acquire(word);
    }
    return seen;
}

// The level of a block. Blocks of the last level come first: its lists are the longest.
struct GroupBlock {
    int level;
    int first_tile;  // of the level, numbered in the slab
    int level_tiles;
    int group_bits;
    int block;  // of the level
};
MSDA_DEVICE GroupBlock group_block(const CallShape& shape, int block) {
    GroupBlock at = {};
    at.block = block;
    int first_tile = 0;
    bool found = false;
#pragma unroll
    for (int l = LEVELS - 1; l >= 0; --l) {
        const int tiles = tiles_of_level(shape.level[l]);
        const int level_end = l + 1 < LEVELS ? shape.level[l + 1].first_sample : SAMPLES;
        // Fits: lists.max_entries below 2^32 is checked.
        const int bits = group_bits(shape.queries * (level_end - shape.level[l].first_sample), tiles);
        const int blocks = (tiles + (GATHER_WARPS << bits) - 1) >> (WARP_BITS + bits);
        if (!found) {
            at.level = l;
            at.first_tile = first_tile;
            at.level_tiles = tiles;
            at.group_bits = bits;
            found = at.block < blocks;
            if (!found) at.block -= blocks;
        }
        first_tile += tiles;
    }
    return at;
}

// Where lists are not cut: a warp per group of neighbouring tiles. blockIdx.x is a slice of a slab: blocks that start together
// write the same pixels of different heads. blockIdx.y counts the blocks of all levels. The same arithmetic as in
// src/variants/tile_lists.rs.
MSDA_DEVICE void gather_groups(const BackwardParams& params) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int slab = static_cast<int>(blockIdx.x) / SLICES, slice = static_cast<int>(blockIdx.x) % SLICES;
    const GroupBlock at = group_block(params, static_cast<int>(blockIdx.y));
    const int first = (at.block * GATHER_WARPS + warp) << at.group_bits;  // tile of the level
    const int tiles = at_most(1 << at.group_bits, at.level_tiles - first);
    if (tiles <= 0) return;  // the same for the whole warp
    const TileLists lists = tile_lists(params);
    const ListWord* words = lists.list_words + static_cast<long long>(slab) * lists.tiles + at.first_tile + first;
    unsigned char* memory = shared_memory() + warp * WARP_BYTES;
    if (tiles > 1) {
        ListWord own = lane < tiles ? load_acquire(words + lane) : list_word(0, 0);
        const FewLane few = few_lane(params, slab, slice, at.level);  // while that is on its way
        if (own == 0) own = wait_for_list(words + lane);
        unsigned count = entries_of(own);
#pragma unroll
        for (int mask = 1; mask < MAX_GROUP_TILES; mask *= 2) count += shuffle_xor(count, mask);
        count = shuffle(count, 0);
        if (count <= FEW_ENTRIES) {
            const TileGroup group = {place_in_level(params, at.level, first), tiles, entries_of(own),
                                     static_cast<int>(count),
                                     entries_of_slab(lists, slab) + shuffle(first_entry_of(own), 0)};
            sum_few(few, group, *reinterpret_cast<FewMemory*>(memory));
            return;
        }
    }
#pragma unroll 1
    for (int tile = 0; tile < tiles; ++tile) {
        const ListWord word = wait_for_list(words + tile);
        const unsigned tile_of_slab = at.first_tile + first + tile;
        const Piece piece = {tile_of_slab, first_entry_of(word), entries_of(word), NO_SLOT};
        gather_piece(params, lists, slab, slice, piece,
                     [&] { return place_in_level(params, at.level, first + tile); });
    }
}

}  // namespace msda
