// The gradient of the values, tile by tile, from the lists of tile_lists.cuh.
//
// A warp owns a tile's list or a piece of it, or a group of tiles with short lists, and 32 channels. Long lists are summed
// on the tensor cores (tile_products.cuh), those of groups entry by entry (tile_few.cuh).
//
// Why that is fast. No atomics, no zeroing, every pixel is written once and in its own format.
#pragma once

#include "tile_few.cuh"

namespace msda {

constexpr int GATHER_WARPS = 4;
constexpr int GATHER_BLOCKS = MSDA_KNOB_GATHER_BLOCKS;  // per SM: caps the registers
constexpr unsigned FEW_ENTRIES = MSDA_KNOB_FEW;  // of a group of tiles: summed without tensor cores
static_assert(FEW_ENTRIES <= CHUNK, "a lane holds an entry");
constexpr int PAIRED_SAMPLES = MSDA_KNOB_PAIRED;  // of a tile, up to which two of them are a group

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

// Tiles of a group: several where few entries are expected, by the samples and tiles of a level alone.
constexpr int MAX_GROUP_TILES = 4;
MSDA_DEVICE int group_tiles(int samples, int tiles) {
    if (FEW_ENTRIES == 0) return 1;
    if (samples <= 4 * tiles) return 4;
    return samples <= PAIRED_SAMPLES * tiles ? 2 : 1;
}

// Where lists are not cut: a warp per group of neighbouring tiles of a slab (blockIdx.y). blockIdx.z is a slice of a level, the
// last level first: its lists are the longest, of all slabs they should start first. The grid is as wide as the level with most
// groups needs it. The same arithmetic as in src/variants/tile_lists.rs.
MSDA_DEVICE void gather_groups(const BackwardParams& params) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int level = LEVELS - 1 - static_cast<int>(blockIdx.z) / SLICES, slice = blockIdx.z % SLICES;
    const int level_tiles = tiles_of_level(params.level[level]);
    const int level_end = level + 1 < LEVELS ? params.level[level + 1].first_sample : SAMPLES;
    // Fits: lists.max_entries below 2^32 is checked.
    const int samples = params.queries * (level_end - params.level[level].first_sample);
    const int group = group_tiles(samples, level_tiles);
    const int first = (static_cast<int>(blockIdx.x) * GATHER_WARPS + warp) * group;  // tile of the level
    const int tiles = at_most(group, level_tiles - first);
    if (tiles <= 0) return;  // the same for the whole warp
    const TileLists lists = tile_lists(params);
    const int first_tile = first_tile_of_level(params, level) + first;
    wait_for_launch_before();  // the lists
    for (int slab = blockIdx.y; slab < lists.slabs; slab += gridDim.y) {
        const Piece* pieces = lists.pieces + slab * lists.max_pieces + first_tile;
        if (tiles > 1) {
            const Piece own = lane < tiles ? pieces[lane] : Piece{};
            unsigned count = own.entries;
#pragma unroll
            for (int mask = 1; mask < MAX_GROUP_TILES; mask *= 2) count += shuffle_xor(count, mask);
            count = shuffle(count, 0);
            if (count <= FEW_ENTRIES) {
                sum_few(params, slab, slice, place_in_level(params, level, first), tiles, own.entries,
                        static_cast<int>(count),
                        entries_of_slab(lists, slab) + shuffle(own.first_entry, 0),
                        *reinterpret_cast<FewMemory*>(shared_memory() + warp * WARP_BYTES));
                sync_warp();  // the next slab's rows come to the same place
                continue;
            }
        }
#pragma unroll 1
        for (int tile = 0; tile < tiles; ++tile) {
            gather_piece(params, lists, slab, slice, pieces[tile],
                         [&] { return place_in_level(params, level, first + tile); });
        }
    }
}

}  // namespace msda
