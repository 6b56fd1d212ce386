// The gradient of the values from lists of cells (tile_lists.cuh).
//
// Who owns what. A block takes a group of four tiles, or a piece of their lists, and 32 channels; a warp
// takes one of the tiles and sums its list on the tensor cores (tile_products.cuh). Then the sums meet in
// shared memory, where a lane owns a channel, and the right or lower tile adds what its neighbours have for
// the same pixel.
//
// Why that is fast. A sample is summed once; tiles of pixels sum it 1.56 times. What is shared between groups
// is two thirds of a pixel per cell, written and read once.
#pragma once

#include "cell_sums.cuh"
#include "tile_products.cuh"

namespace msda {

constexpr int GATHER_WARPS = MSDA_GATHER_WARPS;
constexpr int GATHER_BLOCKS = MSDA_GATHER_BLOCKS;  // per SM: caps the registers
static_assert(GATHER_WARPS == GROUP_TILES, "a warp for each tile of a group");
static_assert(GATHER_WARPS * WARP_BYTES == MSDA_GATHER_BLOCK_BYTES, "as the host launches it");

// A tile's sums in shared memory, [TILE_PIXELS][SUMS_PITCH].
constexpr int SUMS_PITCH = SLICE_CHANNELS + 4;
constexpr int SUMS_OF_TILE = TILE_PIXELS * SUMS_PITCH;
static_assert(SUMS_OF_TILE * 4 <= WARP_BYTES, "they take the place of the stages");

MSDA_DEVICE void keep_sums(const TileSums& sums, float* memory) {
    const int lane = threadIdx.x % 32;
    const int g = lane / 4, t = lane % 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        float* pixel = memory + (g + 8 * half) * SUMS_PITCH;
        if constexpr (HALF) {
#pragma unroll
            for (int n = 0; n < 4; ++n) {
                const Packet<8> pair = {float_to_bits(sums[n][2 * half]),
                                        float_to_bits(sums[n][2 * half + 1])};
                *reinterpret_cast<Packet<8>*>(pixel + channel_of_sum(n, 0, t)) = pair;
            }
        } else {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                Packet16 four;
#pragma unroll
                for (int n = 0; n < 4; ++n) four.word[n] = float_to_bits(sums[n][2 * half + i]);
                *reinterpret_cast<Packet16*>(pixel + channel_of_sum(0, i, t)) = four;
            }
        }
    }
}

// Calls store(x, y, sum) for the pixels of a tile of the group that belong to no tile on its right or below.
// `tiles` are the sums of all four tiles, this lane's channel.
template <bool RIGHT, bool LOWER, typename Store>
MSDA_DEVICE void for_each_sum_of_tile(const float* tiles, Store store) {
    constexpr int TILE = 2 * LOWER + RIGHT;
    const auto sum_of = [&](int tile, int x, int y) {
        return tiles[tile * SUMS_OF_TILE + (y * PIXEL_SIDE + x) * SUMS_PITCH];
    };
#pragma unroll
    for (int y = 0; y < TILE_SIDE + LOWER; ++y) {
#pragma unroll
        for (int x = 0; x < TILE_SIDE + RIGHT; ++x) {
            float sum = sum_of(TILE, x, y);
            if (x == 0 && RIGHT) sum += sum_of(TILE - 1, TILE_SIDE, y);
            if (y == 0 && LOWER) sum += sum_of(TILE - 2, x, TILE_SIDE);
            if (x == 0 && y == 0 && RIGHT && LOWER) sum += sum_of(0, TILE_SIDE, TILE_SIDE);
            store(x + TILE_SIDE * RIGHT, y + TILE_SIDE * LOWER, sum);
        }
    }
}
// A warp for each tile.
template <typename Store>
MSDA_DEVICE void for_each_sum(const float* tiles, Store store) {
    switch (threadIdx.x / 32) {
        case 0: for_each_sum_of_tile<false, false>(tiles, store); break;
        case 1: for_each_sum_of_tile<true, false>(tiles, store); break;
        case 2: for_each_sum_of_tile<false, true>(tiles, store); break;
        default: for_each_sum_of_tile<true, true>(tiles, store); break;
    }
}

MSDA_DEVICE float* sums_of_slot(const TileLists& lists, long long slot, int slice) {
    return lists.sums + (slot * SLICES + slice) * SLICE_SUMS + threadIdx.x % 32;
}

// A block per piece of a slab (blockIdx.y) and slice (blockIdx.z).
MSDA_DEVICE void gather_cells(const BackwardParams& params) {
    const TileLists lists = tile_lists(params);
    const int warp = threadIdx.x / 32;
    const int slice = blockIdx.z;
    float* memory = reinterpret_cast<float*>(shared_memory());
    for (int slab = blockIdx.y; slab < lists.slabs; slab += gridDim.y) {
        if (blockIdx.x >= lists.piece_counts[slab]) continue;
        // Read where it is used and not in advance, because registers are scarce.
        const Piece& piece = lists.pieces[slab * lists.max_pieces + blockIdx.x];
        const unsigned first = piece.first[warp];
        const int count = static_cast<int>(piece.count[warp]);
        TileSums sums = {};
        if (count > 0) {
            sum_entries(entries_of_slab(lists, slab) + first, count,
                        grad_rows(params, lists.first_slab + slab, slice),
                        shared_memory() + warp * WARP_BYTES, sums);
        }
        __syncthreads();  // all stages have been read
        keep_sums(sums, memory + warp * SUMS_OF_TILE);
        __syncthreads();
        const float* tiles = memory + threadIdx.x % 32;
        const unsigned slot = piece.slot;
        if (slot == NO_SLOT) {
            const int tile = static_cast<int>(piece.tile);
            const GroupPixels pixels = group_pixels(params, lists, slab, slice, tile);
            for_each_sum(tiles, [&](int x, int y, float sum) { pixels.store_sum(x, y, sum); });
        } else {
            float* kept = sums_of_slot(lists, slab * lists.max_slots + slot, slice);
            for_each_sum(tiles,
                         [&](int x, int y, float sum) { kept[(y * SUM_SIDE + x) * SLICE_CHANNELS] = sum; });
        }
        __syncthreads();  // the next slab's stages take the place of the sums
    }
}

// A group whose lists were cut: the sums of its pieces, a warp per pixel.
MSDA_DEVICE void combine_cells(const TileLists& lists, const GroupPixels& pixels, long long first_slot,
                               unsigned pieces, int slice) {
    for (int pixel = threadIdx.x / 32; pixel < SUM_SIDE * SUM_SIDE; pixel += blockDim.x / 32) {
        float sum = 0.0f;
#pragma unroll 4
        for (unsigned p = 0; p < pieces; ++p) {
            sum += sums_of_slot(lists, first_slot + p, slice)[pixel * SLICE_CHANNELS];
        }
        pixels.store_sum(pixel % SUM_SIDE, pixel / SUM_SIDE, sum);
    }
}

}  // namespace msda
