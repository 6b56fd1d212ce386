// Sorts the samples of a level of one (image, head) by tile, in one block.
//
// Counters of the tiles lie in shared memory: samples are added to them, a scan turns them into where each
// list starts, and every sample's entries are written there. Where lists must be ORDERED every warp has
// counters of its own.
//
// If samples are few enough, the block keeps them from counting to writing (sort_samples.cuh), either in
// registers or in shared memory. Threads that keep samples in registers also keep the places of these samples
// in the lists. Otherwise a warp walks its run of queries twice.
//
// How lists are handed over. The launch that reads the lists may already be running. It waits for one word
// per tile, which holds the place of the tile's list (ListWord). The words are cleared before the next launch
// may start, and set when all entries are written.
#pragma once

#include "sort_samples.cuh"

namespace msda {

// The sum over the threads before this one; `total` is the sum over all. `warp_sums` has a word per warp.
MSDA_DEVICE unsigned block_scan(unsigned value, unsigned* warp_sums, unsigned& total) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    const auto warp_scan = [&](unsigned sum) {
#pragma unroll
        for (int distance = 1; distance < 32; distance *= 2) {
            const unsigned other = shuffle_up(sum, distance);
            if (lane >= distance) sum += other;
        }
        return sum;
    };
    const unsigned of_lanes = warp_scan(value);
    if (lane == 31) warp_sums[warp] = of_lanes;
    __syncthreads();
    const unsigned of_warps = warp_scan(lane < warps ? warp_sums[lane] : 0);
    const unsigned before = shuffle(of_warps, warp > 0 ? warp - 1 : 0);
    total = shuffle(of_warps, 31);
    __syncthreads();
    return of_lanes - value + (warp > 0 ? before : 0);
}

// The counters of a block, [copies][tiles of the level].
struct LevelCounters {
    unsigned* first;
    int tiles;
    int copies;    // one, or one for each warp
    unsigned own;  // this thread's, by address in shared memory, for span_counters

    MSDA_DEVICE void clear() const {
        for (int i = threadIdx.x; i < copies * tiles; i += blockDim.x) first[i] = 0;
    }

    // Turns counts into where their entries start, from `before` on; returns where the last end.
    MSDA_DEVICE unsigned scan(unsigned before, unsigned* warp_sums) const {
        constexpr int THREAD_TILES = ORDERED ? 1 : 4;  // the copies of a tile are enough for a thread
        for (int first_tile = 0; first_tile < tiles; first_tile += THREAD_TILES * blockDim.x) {
            const int start = first_tile + THREAD_TILES * threadIdx.x;
            const int end = at_most(start + THREAD_TILES, tiles);
            unsigned entries = 0, all;
            for (int tile = start; tile < end; ++tile) {
                for (int copy = 0; copy < copies; ++copy) entries += first[copy * tiles + tile];
            }
            unsigned at = before + block_scan(entries, warp_sums, all);
            before += all;
            for (int tile = start; tile < end; ++tile) {
                for (int copy = 0; copy < copies; ++copy) {
                    const unsigned count = first[copy * tiles + tile];
                    first[copy * tiles + tile] = at;
                    at += count;
                }
            }
        }
        return before;
    }

    // Where a tile's list starts, for tiles + 1 of them, after all entries were written. Samples in registers
    // took their places before the scan, so the counters still hold the starts. Other samples took their
    // places after the scan and moved every counter to the end of its list, where the next list starts.
    MSDA_DEVICE unsigned list_start(int tile, unsigned first_entry, unsigned last_end) const {
        if (REGISTER_SAMPLES > 0) return tile < tiles ? first[tile] : last_end;
        return tile > 0 ? first[(copies - 1) * tiles + tile - 1] : first_entry;
    }
};

MSDA_DEVICE LevelCounters level_counters(const LevelGeometry& level, const LevelTiles& tiles,
                                         unsigned* memory) {
    const int warp = threadIdx.x / 32, warps = blockDim.x / 32;
    LevelCounters counters = {memory, tiles_of_level(level), ORDERED ? warps : 1, 0};
    counters.own = shared_address(counters.first) +
                   static_cast<unsigned>((ORDERED ? warp * counters.tiles : 0) - tiles.first_tile) * 4u;
    return counters;
}

MSDA_DEVICE void clear(ListWord* words, int tiles) {
    for (int tile = threadIdx.x; tile < tiles; tile += blockDim.x) store_flag(words + tile, 0);
}

// Called when all words of an earlier call are cleared, by the last thread, which has the fewest samples.
MSDA_DEVICE void let_readers_start() {
    fence_device();
    let_next_launch_start();
}

// Sorts level blockIdx.x of the slabs blockIdx.y, + gridDim.y, ... and lets the next launch start.
MSDA_DEVICE void sort_level(const BackwardParams& params) {
    const TileLists lists = tile_lists(params);
    const int warp = threadIdx.x / 32, warps = blockDim.x / 32, level = blockIdx.x;
    const LevelGeometry& geometry = params.level[level];
    const LevelTiles tiles = level_tiles(params, level);
    unsigned* warp_sums = reinterpret_cast<unsigned*>(shared_memory());
    const LevelCounters counters = level_counters(geometry, tiles, warp_sums + 32);
    const SharedSamples in_shared = {counters.first + counters.copies * counters.tiles,
                                     params.queries * SharedSamples::POINTS};
    const auto words = [&](int slab) {
        return lists.list_words + static_cast<long long>(slab) * lists.tiles + tiles.first_tile;
    };
    for (int slab = blockIdx.y; slab < lists.slabs; slab += gridDim.y) clear(words(slab), counters.tiles);
    const unsigned first_entry = 4u * params.queries * geometry.first_sample;  // a sample has up to four
    const int first = first_query_of_part(params.queries, warp, warps);
    const int end = first_query_of_part(params.queries, warp + 1, warps);
    for (int slab = blockIdx.y; slab < lists.slabs; slab += gridDim.y) {
        EntryPacket* entries = entries_of_slab(lists, slab);
        RegisterSamples in_registers;
        in_registers.load(params, slab, level);
        counters.clear();
        __syncthreads();
        if (slab == static_cast<int>(blockIdx.y) && threadIdx.x + 1 == blockDim.x) let_readers_start();
        if constexpr (REGISTER_SAMPLES > 0) {
            in_registers.count(tiles, counters.own);
        } else if constexpr (SHARED_SAMPLES) {
            in_shared.count(params, slab, level, first, end, counters.own);
        } else {
            count_samples<SORT_AHEAD>(params, slab, level, first, end, counters.own);
        }
        __syncthreads();
        const unsigned last_end = counters.scan(first_entry, warp_sums);
        __syncthreads();
        if constexpr (REGISTER_SAMPLES > 0) {
            in_registers.write(tiles, counters.own, entries);
        } else if constexpr (SHARED_SAMPLES) {
            in_shared.write(tiles, first, end, counters.own, entries);
        } else {
            scatter_samples<SORT_AHEAD>(params, slab, level, first, end, counters.own, entries);
        }
        __syncthreads();
        fence_device();  // all entries before any word
        for (int tile = threadIdx.x; tile < counters.tiles; tile += blockDim.x) {
            const unsigned start = counters.list_start(tile, first_entry, last_end);
            store_flag(words(slab) + tile,
                       list_word(start, counters.list_start(tile + 1, first_entry, last_end) - start));
        }
        __syncthreads();
    }
}

}  // namespace msda
