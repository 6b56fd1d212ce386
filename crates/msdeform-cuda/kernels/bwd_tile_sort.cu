// Many queries: the samples are sorted by the tile of pixels they fall on, then every tile sums its list.
//
// Steps, of which only those are launched whose gradients are asked for:
//   pack     the output's gradient, where its rows are not packed (grad_output_rows.cuh)
//   count    how many entries each part of the queries puts into each tile
//   offsets  where each part's entries start in a tile's list
//   plan     where the lists start, and the pieces that warps will sum
//   scatter  every sample into the lists of its tiles
//   gather   every piece summed on the tensor cores (tile_gather.cuh)
//   combine  tiles whose list was cut: the sums of their pieces, in order
//   samples  beside scatter, which waits most of the time: gradients of locations and weights
//            (sample_gradients.cuh)
// and where samples follow from offsets and logits
//   rows     beside plan: the weights of every row (row_softmax.cuh)
//   finish   last: what `samples` could not finish (row_gradients.cuh)
//
// Who owns what. In count and scatter a warp walks a part, a run of queries of one (image, head), with a
// counter of its own for every tile in shared memory: nothing is shared with other warps, so the order of a
// list depends on the parts and on nothing else. The number of parts follows from the call's sizes.
//
// Why that is fast. Atomics to L2 are the wall of the usual backward; here no value is ever added in memory.
// A counting sort moves 8 bytes per entry once (16 in f32), where atomics move 4 x 32 floats per sample. Sums
// are formed next to each other in registers and every pixel is written once, so there is nothing to zero.
//
// When it loses: few queries, where seven launches cost more than the work (bwd_level_sort). Locations
// without any neighbourhood scatter their entries one by one.
//
// Requires: what tile_lists.cuh and sample_gradients.cuh do; a counter per tile in shared memory.
//
// Every step is compiled by itself, with what it reads.
#include "grad_output_rows.cuh"
#if MSDA_STEP_COUNT || MSDA_STEP_OFFSETS || MSDA_STEP_PLAN || MSDA_STEP_SCATTER || MSDA_STEP_COMBINE
#include "tile_lists.cuh"
#endif
#if MSDA_STEP_SCATTER
#include "list_entries.cuh"
#endif
#if MSDA_STEP_COMBINE
#include "tile_products.cuh"
#endif
#if MSDA_STEP_SAMPLES
#include "sample_gradients.cuh"
#endif
#if MSDA_STEP_GATHER
#include "tile_gather.cuh"
#endif
#if MSDA_FROM_OFFSETS && MSDA_STEP_ROWS
#include "row_softmax.cuh"
#endif
#if MSDA_FROM_OFFSETS && MSDA_STEP_FINISH
#include "row_gradients.cuh"
#endif

using namespace msda;

#if MSDA_STEP_COUNT || MSDA_STEP_OFFSETS || MSDA_STEP_PLAN || MSDA_STEP_SCATTER || MSDA_STEP_COMBINE
namespace {

constexpr int MAX_PARTS = MSDA_MAX_PARTS;
constexpr int SEGMENT_PARTS = MSDA_SEGMENT_PARTS;  // parts of one thread in `offsets`
constexpr int SEGMENTS = MAX_PARTS / SEGMENT_PARTS;
constexpr int UNROLL = 4;      // steps of samples in flight
constexpr int PLAN_TILES = 4;  // of one thread in `plan`
constexpr int COMBINE_WARPS = MSDA_COMBINE_WARPS;
static_assert(PIECE_ENTRIES > 0, "long lists are cut");

// What tiles need, and by scanning, where they start.
struct TileNeeds {
    unsigned entries;
    unsigned pieces;
    unsigned long_tiles;
    unsigned slots;
};
MSDA_DEVICE TileNeeds operator+(const TileNeeds& a, const TileNeeds& b) {
    return {a.entries + b.entries, a.pieces + b.pieces, a.long_tiles + b.long_tiles, a.slots + b.slots};
}
MSDA_DEVICE TileNeeds operator-(const TileNeeds& a, const TileNeeds& b) {
    return {a.entries - b.entries, a.pieces - b.pieces, a.long_tiles - b.long_tiles, a.slots - b.slots};
}
MSDA_DEVICE TileNeeds needs_of_tile(unsigned entries) {
    const unsigned pieces = (entries + PIECE_ENTRIES - 1) / PIECE_ENTRIES;
    const bool is_long = pieces > 1;
    // A tile without entries has a piece too: somebody must write its zeros.
    return {entries, is_long ? pieces : 1, is_long, is_long ? pieces : 0};
}
MSDA_DEVICE TileNeeds needs_if(bool wanted, const TileNeeds& needs) {
    return {value_if(wanted, needs.entries), value_if(wanted, needs.pieces),
            value_if(wanted, needs.long_tiles), value_if(wanted, needs.slots)};
}
MSDA_DEVICE TileNeeds from_lane(const TileNeeds& needs, int lane) {
    return {shuffle(needs.entries, lane), shuffle(needs.pieces, lane), shuffle(needs.long_tiles, lane),
            shuffle(needs.slots, lane)};
}
// Over this lane and those before it.
MSDA_DEVICE TileNeeds warp_scan(TileNeeds needs) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
        const TileNeeds other = {shuffle_up(needs.entries, distance), shuffle_up(needs.pieces, distance),
                                 shuffle_up(needs.long_tiles, distance), shuffle_up(needs.slots, distance)};
        if (lane >= distance) needs = needs + other;
    }
    return needs;
}

// Notes a tile that needs `needs` where it has its place, at `at`.
MSDA_DEVICE void plan_tile(const TileLists& lists, int slab, unsigned tile, const TileNeeds& needs,
                           const TileNeeds& at) {
    const long long base = static_cast<long long>(slab) * lists.tiles;
    if (needs.pieces > 0) {
        lists.starts[base + tile] = at.entries;
        lists.slots[base + tile] = at.slots;
    }
    if (needs.long_tiles > 0) lists.long_tiles[slab * lists.max_slots + at.long_tiles] = tile;
#pragma unroll 1
    for (unsigned p = 0; p < needs.pieces; ++p) {
        const unsigned left = needs.entries - p * PIECE_ENTRIES;
        lists.pieces[slab * lists.max_pieces + at.pieces + p] = {tile, at.entries + p * PIECE_ENTRIES,
                                                                 left < PIECE_ENTRIES ? left : PIECE_ENTRIES,
                                                                 needs.slots > 0 ? at.slots + p : NO_SLOT};
    }
}

MSDA_DEVICE unsigned* counts_of_part(const TileLists& lists, int slab, int part) {
    return lists.counts + (static_cast<long long>(slab) * lists.parts + part) * lists.tiles;
}

}  // namespace
#endif

#if MSDA_STEP_PACK
extern "C" __global__ void bwd_tile_sort_pack(const __grid_constant__ BackwardParams params) {
    pack_rows(params);
}
#endif

#if MSDA_STEP_COUNT
extern "C" __global__ void bwd_tile_sort_count(const __grid_constant__ BackwardParams params) {
    const TileLists lists = tile_lists(params);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int part = blockIdx.x * (blockDim.x / 32) + warp;
    if (part >= lists.parts) return;
    unsigned* counters = reinterpret_cast<unsigned*>(shared_memory()) + warp * lists.tiles;
    const int first = first_query_of_part(params.queries, part, lists.parts);
    const int end = first_query_of_part(params.queries, part + 1, lists.parts);
    for (int slab = blockIdx.y; slab < lists.slabs; slab += gridDim.y) {
        for (int tile = lane; tile < lists.tiles; tile += 32) counters[tile] = 0;
        sync_warp();
#pragma unroll 1
        for (int level = 0; level < LEVELS; ++level) {
            count_samples<UNROLL>(params, slab, level, first, end, shared_address(counters));
        }
        sync_warp();
        unsigned* counts = counts_of_part(lists, slab, part);
        for (int tile = lane; tile < lists.tiles; tile += 32) counts[tile] = counters[tile];
        sync_warp();
    }
}
#endif

#if MSDA_STEP_OFFSETS
// A tile is a lane, its parts are divided among the warps of the block.
extern "C" __global__ void __launch_bounds__(SEGMENTS * 32)
    bwd_tile_sort_offsets(const __grid_constant__ BackwardParams params) {
    const TileLists lists = tile_lists(params);
    const int lane = threadIdx.x % 32, segment = threadIdx.x / 32;
    const int tile = blockIdx.x * 32 + lane;
    const int each = (lists.parts + SEGMENTS - 1) / SEGMENTS;
    const int first = segment * each;
    const int parts = tile < lists.tiles ? at_most(each, lists.parts - first) : 0;
    unsigned* segment_sums = reinterpret_cast<unsigned*>(shared_memory());
    for (int slab = blockIdx.y; slab < lists.slabs; slab += gridDim.y) {
        unsigned* counts = counts_of_part(lists, slab, first) + tile;
        unsigned count[SEGMENT_PARTS];
        unsigned sum = 0;
#pragma unroll
        for (int i = 0; i < SEGMENT_PARTS; ++i) {
            count[i] = i < parts ? counts[static_cast<long long>(i) * lists.tiles] : 0;
        }
#pragma unroll
        for (int i = 0; i < SEGMENT_PARTS; ++i) sum += count[i];
        segment_sums[threadIdx.x] = sum;
        __syncthreads();
        unsigned before = 0;
        for (int s = 0; s < segment; ++s) before += segment_sums[s * 32 + lane];
        if (segment == SEGMENTS - 1 && tile < lists.tiles) {
            lists.totals[static_cast<long long>(slab) * lists.tiles + tile] = before + sum;
        }
#pragma unroll
        for (int i = 0; i < SEGMENT_PARTS; ++i) {
            if (i < parts) counts[static_cast<long long>(i) * lists.tiles] = before;
            before += count[i];
        }
        __syncthreads();
    }
}
#endif

#if MSDA_STEP_PLAN
// One block per slab.
extern "C" __global__ void bwd_tile_sort_plan(const __grid_constant__ BackwardParams params) {
#if MSDA_FROM_OFFSETS
    let_next_launch_start();  // `rows`, which waits for nothing
#endif
    const TileLists lists = tile_lists(params);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    TileNeeds* warp_needs = reinterpret_cast<TileNeeds*>(shared_memory());
    for (int slab = blockIdx.y; slab < lists.slabs; slab += gridDim.y) {
        const long long base = static_cast<long long>(slab) * lists.tiles;
        TileNeeds before = {};
        for (int chunk = 0; chunk < lists.tiles; chunk += PLAN_TILES * blockDim.x) {
            const int first = chunk + PLAN_TILES * threadIdx.x;
            TileNeeds needs[PLAN_TILES];
            TileNeeds own = {};
#pragma unroll
            for (int i = 0; i < PLAN_TILES; ++i) {
                const bool exists = first + i < lists.tiles;
                needs[i] = needs_if(exists, needs_of_tile(lists.totals[base + (exists ? first + i : 0)]));
            }
#pragma unroll
            for (int i = 0; i < PLAN_TILES; ++i) own = own + needs[i];
            const TileNeeds of_lanes = warp_scan(own);
            if (lane == 31) warp_needs[warp] = of_lanes;
            __syncthreads();
            const TileNeeds of_warps =
                warp_scan(needs_if(lane < warps, warp_needs[at_most(lane, warps - 1)]));
            const TileNeeds warps_before = from_lane(of_warps, warp > 0 ? warp - 1 : 0);
            TileNeeds at = before + of_lanes - own + needs_if(warp > 0, warps_before);
#pragma unroll
            for (int i = 0; i < PLAN_TILES; ++i) {
                plan_tile(lists, slab, first + i, needs[i], at);
                at = at + needs[i];
            }
            before = before + from_lane(of_warps, 31);
            __syncthreads();
        }
        if (threadIdx.x == 0) {
            lists.piece_counts[slab] = before.pieces;
            lists.long_counts[slab] = before.long_tiles;
        }
    }
}
#endif

#if MSDA_STEP_SCATTER
extern "C" __global__ void bwd_tile_sort_scatter(const __grid_constant__ BackwardParams params) {
    let_next_launch_start();  // `samples`, which waits for nothing
    const TileLists lists = tile_lists(params);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int part = blockIdx.x * (blockDim.x / 32) + warp;
    if (part >= lists.parts) return;
    unsigned* cursors = reinterpret_cast<unsigned*>(shared_memory()) + warp * lists.tiles;
    const int first = first_query_of_part(params.queries, part, lists.parts);
    const int end = first_query_of_part(params.queries, part + 1, lists.parts);
    for (int slab = blockIdx.y; slab < lists.slabs; slab += gridDim.y) {
        const unsigned* counts = counts_of_part(lists, slab, part);
        const unsigned* starts = lists.starts + static_cast<long long>(slab) * lists.tiles;
        for (int tile = lane; tile < lists.tiles; tile += 32) {
            cursors[tile] = starts[tile] + counts[tile];
        }
        sync_warp();
#pragma unroll 1
        for (int level = 0; level < LEVELS; ++level) {
            scatter_samples<UNROLL>(params, slab, level, first, end, shared_address(cursors),
                                    entries_of_slab(lists, slab));
        }
        sync_warp();
    }
}
#endif

#if MSDA_STEP_GATHER
extern "C" __global__ void __launch_bounds__(GATHER_WARPS * 32, GATHER_BLOCKS)
    bwd_tile_sort_gather(const __grid_constant__ BackwardParams params) {
    gather_pieces(params);
}
#endif

#if MSDA_STEP_COMBINE
// A block per tile. Warp w adds pieces w, w + COMBINE_WARPS, ..., the first warp adds the warps' sums.
extern "C" __global__ void __launch_bounds__(COMBINE_WARPS * 32)
    bwd_tile_sort_combine(const __grid_constant__ BackwardParams params) {
    const TileLists lists = tile_lists(params);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int slice = blockIdx.z;
    float* warp_sums = reinterpret_cast<float*>(shared_memory()) + lane;
    for (int slab = blockIdx.y; slab < lists.slabs; slab += gridDim.y) {
        const unsigned long_tiles = lists.long_counts[slab];
        for (unsigned at = blockIdx.x; at < long_tiles; at += gridDim.x) {
            const unsigned tile = lists.long_tiles[slab * lists.max_slots + at];
            const long long index = static_cast<long long>(slab) * lists.tiles + tile;
            const unsigned pieces = (lists.totals[index] + PIECE_ENTRIES - 1) / PIECE_ENTRIES;
            const long long first_slot = slab * lists.max_slots + lists.slots[index];
            TileSums sums = {};
#pragma unroll 2
            for (unsigned p = warp; p < pieces; p += COMBINE_WARPS) {
                const float* slot = lists.sums + ((first_slot + p) * SLICES + slice) * SLICE_SUMS + lane;
#pragma unroll
                for (int k = 0; k < LANE_SUMS; ++k) sums[k / 4][k % 4] += slot[k * 32];
            }
#pragma unroll
            for (int k = 0; k < LANE_SUMS; ++k) {
                warp_sums[(warp * LANE_SUMS + k) * 32] = sums[k / 4][k % 4];
            }
            __syncthreads();
            if (warp == 0) {
#pragma unroll 1
                for (int w = 1; w < COMBINE_WARPS; ++w) {
#pragma unroll
                    for (int k = 0; k < LANE_SUMS; ++k) {
                        sums[k / 4][k % 4] += warp_sums[(w * LANE_SUMS + k) * 32];
                    }
                }
                store_tile(params, slab, slice, place_of_tile(params, static_cast<int>(tile)), sums);
            }
            __syncthreads();
        }
    }
}
#endif

#if MSDA_FROM_OFFSETS && MSDA_STEP_ROWS
extern "C" __global__ void bwd_tile_sort_rows(const __grid_constant__ BackwardParams params) {
    keep_row_weights(params);
    wait_for_launch_before();  // needs nothing of it, but who waits for this waits for that
}
#endif

#if MSDA_FROM_OFFSETS && MSDA_STEP_FINISH
extern "C" __global__ void bwd_tile_sort_finish(const __grid_constant__ BackwardParams params) {
    finish_queries(params);
}
#endif

#if MSDA_STEP_SAMPLES
extern "C" __global__ void __launch_bounds__(sample_gradients::WARPS * 32, sample_gradients::MIN_BLOCKS)
    bwd_tile_sort_samples(const __grid_constant__ BackwardParams params) {
    sample_gradients::walk_queries(params);
    wait_for_launch_before();  // needs nothing of it, but who waits for this waits for that
}
#endif
