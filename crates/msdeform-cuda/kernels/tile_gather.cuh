// The gradient of the values, tile by tile, from the lists of tile_lists.cuh.
//
// A warp owns a tile's list, a piece or a run of it, or a group of tiles with short lists, and 32 channels.
// Long lists are summed on the tensor cores (tile_products.cuh), those of groups entry by entry
// (tile_few.cuh).
//
// Why that is fast. No atomics, no zeroing, every pixel is written once and in its own dtype.
#pragma once

#include "tile_few.cuh"

namespace msda {

constexpr int GATHER_WARPS = MSDA_GATHER_WARPS;
constexpr int GATHER_BLOCKS = MSDA_GATHER_BLOCKS;  // per SM: caps the registers
constexpr unsigned FEW_ENTRIES = MSDA_FEW;         // of a group of tiles: summed without tensor cores
constexpr unsigned SHARED_ENTRIES = 512;           // of a list: more are summed by all warps of a block
static_assert(SHARED_ENTRIES >= GATHER_WARPS * STAGE_ENTRIES, "every warp has some");
static_assert(WARP_BYTES == MSDA_GATHER_WARP_BYTES, "as the host launches it");

// A warp per piece of a slab (blockIdx.y) and slice (blockIdx.z).
MSDA_DEVICE void gather_pieces(const BackwardParams& params) {
    const TileLists lists = tile_lists(params);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int slice = blockIdx.z;
    const unsigned index = blockIdx.x * GATHER_WARPS + warp;
    for (int slab = blockIdx.y; slab < lists.slabs; slab += gridDim.y) {
        if (index >= lists.piece_counts[slab]) continue;
        const Piece piece = lists.pieces[slab * lists.max_pieces + index];
        const auto place = [&] { return place_of_tile(params, static_cast<int>(piece.tile)); };
        if (piece.entries == 0) {
            clear_tile(params, slab, slice, place());
            continue;
        }
        TileSums sums = {};
        sum_entries(entries_of_slab(lists, slab) + piece.first_entry, static_cast<int>(piece.entries),
                    grad_rows(params, slab, slice), shared_memory() + warp * WARP_BYTES, sums);
        if (piece.slot == NO_SLOT) {
            store_tile(params, slab, slice, place(), sums);
            continue;
        }
        float* slot =
            lists.sums + lane + ((slab * lists.max_slots + piece.slot) * SLICES + slice) * SLICE_SUMS;
#pragma unroll
        for (int k = 0; k < LANE_SUMS; ++k) slot[k * 32] = sums[k / 4][k % 4];
    }
}

// Tiles of a group: several where few entries are expected.
constexpr int MAX_GROUP_TILES = 4;

// The wait always ends, because this launch starts only when the blocks that write the word are running
// (level_sort.cuh).
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
    int group_bits;  // tiles of a group, as a power of two
    int block;       // of the level
};
MSDA_DEVICE GroupBlock group_block(const CallShape& shape, int block) {
    constexpr int LAST = LEVELS - 1;
    int first_block = 0;
    GroupBlock at = {LAST, 0, 0, shape.group_bits[LAST], 0};
#pragma unroll
    for (int l = LAST - 1; l >= 0; --l) {
        if (block >= shape.first_block[l]) {
            at.level = l;
            at.first_tile = shape.first_tile[l];
            at.group_bits = shape.group_bits[l];
            first_block = shape.first_block[l];
        }
    }
    at.level_tiles = tiles_of_level(shape.level[at.level]);
    at.block = block - first_block;
    return at;
}

// The entries of a list that this warp sums: all, or its run of a list that the warps of a block share.
struct ListRun {
    int first;
    int entries;
};
MSDA_DEVICE ListRun run_of_warp(int entries, bool shared) {
    if (!shared) return {0, entries};
    const int warp = threadIdx.x / 32;
    const int rounds = (entries + STAGE_ENTRIES - 1) / STAGE_ENTRIES;
    const int first = rounds * warp / GATHER_WARPS * STAGE_ENTRIES;
    return {first, at_most(rounds * (warp + 1) / GATHER_WARPS * STAGE_ENTRIES, entries) - first};
}

// Adds the sums of all warps of the block to those of the first, in their order.
MSDA_DEVICE void add_warps(TileSums& sums) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float* own = reinterpret_cast<float*>(shared_memory() + warp * WARP_BYTES) + lane;
#pragma unroll
    for (int k = 0; k < LANE_SUMS; ++k) own[k * 32] = sums[k / 4][k % 4];
    __syncthreads();
    if (warp == 0) {
#pragma unroll 1
        for (int other = 1; other < GATHER_WARPS; ++other) {
#pragma unroll
            for (int k = 0; k < LANE_SUMS; ++k) sums[k / 4][k % 4] += own[other * (WARP_BYTES / 4) + k * 32];
        }
    }
    __syncthreads();
}

// The tiles of a block, and those of this warp among them.
struct BlockTiles {
    int most;   // tiles of a full block: a power of two
    int first;  // of the level
    int count;
    int own_first;  // of the block
    int own_count;  // no tiles, if negative
};
MSDA_DEVICE BlockTiles block_tiles(const GroupBlock& at) {
    BlockTiles tiles;
    tiles.most = GATHER_WARPS << at.group_bits;
    tiles.first = at.block * tiles.most;
    tiles.count = at_most(tiles.most, at.level_tiles - tiles.first);
    tiles.own_first = static_cast<int>(threadIdx.x / 32) << at.group_bits;
    tiles.own_count = at_most(1 << at.group_bits, tiles.count - tiles.own_first);
    return tiles;
}

// For lists that are not cut: a warp owns a group of neighbouring tiles. All warps of a block share a long
// list, so that many samples in one place do not wait for one warp. All warps reach the barriers of a shared
// list, because every warp reads the words of all lists of the block, so `shares` is the same in each.
//
// blockIdx.x is a slice of a slab: blocks that start together write the same pixels of different heads.
// blockIdx.y counts the blocks of all levels.
MSDA_DEVICE void gather_groups(const BackwardParams& params) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int slab = static_cast<int>(blockIdx.x) / SLICES, slice = static_cast<int>(blockIdx.x) % SLICES;
    const GroupBlock at = group_block(params, static_cast<int>(blockIdx.y));
    const BlockTiles tiles = block_tiles(at);
    const TileLists lists = tile_lists(params);
    // The words of all lists of the block, those of this warp first: all warps must share the same lists.
    const int lane_tile = (tiles.own_first + lane) & (tiles.most - 1);
    const ListWord* word = lists.list_words + static_cast<long long>(slab) * lists.tiles + at.first_tile +
                           tiles.first + lane_tile;
    ListWord list = list_word(0, 0);
    if (lane < tiles.most && lane_tile < tiles.count) list = load_acquire(word);
    const GatherLane own = gather_lane(params, slab, slice, at.level);  // while the word is loading
    if (list == 0) list = wait_for_list(word);
    const bool shares = any_lane(entries_of(list) > SHARED_ENTRIES);
    unsigned char* memory = shared_memory() + warp * WARP_BYTES;
    if (tiles.own_count > 1 && !shares) {
        unsigned count = lane < tiles.own_count ? entries_of(list) : 0;
#pragma unroll
        for (int mask = 1; mask < MAX_GROUP_TILES; mask *= 2) count += shuffle_xor(count, mask);
        count = shuffle(count, 0);
        if (count <= FEW_ENTRIES) {
            const TilePlace place = place_in_level(params, at.level, tiles.first + tiles.own_first);
            const EntryPacket* entries = entries_of_slab(lists, slab) + shuffle(first_entry_of(list), 0);
            sum_few(own, {place, tiles.own_count, entries_of(list), static_cast<int>(count), entries},
                    *reinterpret_cast<FewMemory*>(memory));
            return;
        }
    }
    const int end = shares ? tiles.count : tiles.own_first + tiles.own_count;
#pragma unroll 1
    for (int tile = shares ? 0 : tiles.own_first; tile < end; ++tile) {
        const int holder = (tile - tiles.own_first) & (tiles.most - 1);
        const unsigned first_entry = shuffle(first_entry_of(list), holder);
        const int count = static_cast<int>(shuffle(entries_of(list), holder));
        const bool shared = count > static_cast<int>(SHARED_ENTRIES);
        if (!shared && tile >> at.group_bits != warp) continue;
        const auto place = [&] { return place_in_level(params, at.level, tiles.first + tile); };
        if (count == 0) {
            own.stores.clear_tile(place());
            continue;
        }
        const ListRun run = run_of_warp(count, shared);
        TileSums sums = {};
        sum_entries(entries_of_slab(lists, slab) + first_entry + run.first, run.entries, own.grad, memory,
                    sums);
        if (shared) add_warps(sums);
        if (!shared || warp == 0) store_tile(params, slab, slice, place(), sums);
    }
}

}  // namespace msda
