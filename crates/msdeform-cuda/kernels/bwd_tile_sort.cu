// Many queries: the samples are sorted by the tile of pixels they fall on, then every tile sums its list.
//
// Steps; a call launches only those that its gradients need:
//   pack     the output's gradient, where its rows are not packed (grad_output_rows.cuh)
//   count    how many entries each part of the queries puts into each tile
//   offsets  where each part's entries start in a tile's list
//   plan     where the lists start, and the pieces that warps will sum
//   scatter  every sample into the lists of its tiles
//   gather   every piece summed on the tensor cores (tile_gather.cuh)
//   combine  tiles whose list was cut: the sums of their pieces, in order
//   samples  overlaps scatter, which waits most of the time: gradients of locations and weights
//            (sample_gradients.cuh)
// and for the fused operator
//   rows     overlaps plan: the weights of every row (row_softmax.cuh)
//   finish   last: what `samples` could not finish (row_gradients.cuh)
//
// Who owns what. In count and scatter a part, a run of queries of one (image, head), has a counter of its own
// for every tile in shared memory. Its warps divide the levels among them. Levels share no tile, so warps
// share no counter, and the order of a list depends on the parts alone. If any order is allowed and levels
// are few, warps also divide the queries of a part, and share its counters. The number of parts follows from
// the call's sizes.
//
// Why that is fast. Atomics to L2 are the wall of the usual backward; here no value is ever added in memory.
// A counting sort moves 8 bytes per entry once (16 in f32), where atomics move 4 x 32 floats per sample. Sums
// are formed next to each other in registers and every pixel is written once, so there is nothing to zero.
//
// When it loses: few queries, where seven launches cost more than the work (bwd_level_sort). Locations
// without any neighbourhood scatter their entries one by one.
//
// Requires: what tile_lists.cuh and sample_gradients.cuh require; a counter per tile in shared memory.
//
// Every step is compiled by itself, with the headers that it needs.
#if MSDA_STEP_PACK
#include "grad_output_rows.cuh"
#endif
#if MSDA_STEP_COUNT
#include "sample_tiles.cuh"
#endif
#if MSDA_STEP_OFFSETS || MSDA_STEP_PLAN
#include "tile_lists.cuh"
#endif
#if MSDA_STEP_SCATTER
#include "list_writes.cuh"
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
#if MSDA_STEP_ROWS
#include "row_softmax.cuh"
#endif
#if MSDA_STEP_FINISH
#include "row_gradients.cuh"
#endif

using namespace msda;

namespace {

#if MSDA_STEP_COUNT || MSDA_STEP_OFFSETS || MSDA_STEP_SCATTER
MSDA_DEVICE unsigned* counts_of_part(const TileLists& lists, int slab, int part) {
    return lists.counts + (static_cast<long long>(slab) * lists.parts + part) * lists.tiles;
}
#endif

#if MSDA_STEP_COUNT || MSDA_STEP_SCATTER
// Warps of a part: LEVEL_WARPS divide its levels, and QUERY_WARPS the queries of each level.
constexpr int LEVEL_WARPS = MSDA_LEVEL_WARPS;
constexpr int QUERY_WARPS = MSDA_QUERY_WARPS;
constexpr int PART_WARPS = LEVEL_WARPS * QUERY_WARPS;
constexpr int SORT_THREADS = MSDA_BLOCK_PARTS * PART_WARPS * 32;  // of a block, at most
constexpr int UNROLL = 4;                                         // steps of samples in flight
static_assert(QUERY_WARPS == 1 || !ORDERED, "warps that share counters take places in any order");
static_assert(QUERY_WARPS == 1 || LEVEL_WARPS == LEVELS, "and wait for each other once");

// The share of a warp in `count` or `scatter`: queries of a part, in every LEVEL_WARPS-th level. A block has
// whole parts, and every part exists.
struct PartOfWarp {
    int part;
    int first_level;
    int first_query;
    int end_query;
    unsigned* counters;  // [tiles] of the part, in shared memory
};
MSDA_DEVICE PartOfWarp part_of_warp(const BackwardParams& params, const TileLists& lists) {
    const int warp = threadIdx.x / 32, block_part = warp / PART_WARPS;
    PartOfWarp own;
    own.part = blockIdx.x * (blockDim.x / (32 * PART_WARPS)) + block_part;
    own.first_level = warp / QUERY_WARPS % LEVEL_WARPS;
    const int first = first_query_of_part(params.queries, own.part, lists.parts);
    const int queries = first_query_of_part(params.queries, own.part + 1, lists.parts) - first;
    own.first_query = first + first_query_of_part(queries, warp % QUERY_WARPS, QUERY_WARPS);
    own.end_query = first + first_query_of_part(queries, warp % QUERY_WARPS + 1, QUERY_WARPS);
    own.counters = reinterpret_cast<unsigned*>(shared_memory()) + block_part * lists.tiles;
    return own;
}

// A barrier for the warps that share counters.
MSDA_DEVICE void sync_sharers() {
    if constexpr (QUERY_WARPS > 1) {
        __syncthreads();
    } else {
        sync_warp();
    }
}

// Calls visit(tile) for the tiles of a level, dividing them among the warps that share their counters.
template <typename Visit>
MSDA_DEVICE void for_each_tile(const CallShape& shape, int level, Visit visit) {
    const int first = shape.first_tile[level], end = first + tiles_of_level(shape.level[level]);
    const int thread = threadIdx.x % (32 * QUERY_WARPS);
    for (int tile = first + thread; tile < end; tile += 32 * QUERY_WARPS) visit(tile);
}
#endif

#if MSDA_STEP_OFFSETS
constexpr int SEGMENT_PARTS = MSDA_SEGMENT_PARTS;  // parts of one thread
constexpr int SEGMENTS = MSDA_MAX_PARTS / SEGMENT_PARTS;
#endif

#if MSDA_STEP_PLAN
constexpr int PLAN_TILES = 4;  // of one thread
static_assert(PIECE_ENTRIES > 0, "long lists are cut");

// The room that tiles need; a scan turns it into where each tile starts.
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
    // A tile without entries has a piece too, whose warp writes the zeros.
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
// The sum over this lane and all lanes before it.
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

// Writes a tile's list start and pieces; `at` is the room that the tiles before it need.
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
#endif

#if MSDA_STEP_COMBINE
constexpr int COMBINE_WARPS = MSDA_COMBINE_WARPS;
#endif

}  // namespace

#if MSDA_STEP_PACK
extern "C" __global__ void bwd_tile_sort_pack(const __grid_constant__ BackwardParams params) {
    wait_for_launch_before();
    pack_rows(params);
}
#endif

#if MSDA_STEP_COUNT
extern "C" __global__ void __launch_bounds__(SORT_THREADS)
    bwd_tile_sort_count(const __grid_constant__ BackwardParams params) {
    wait_for_launch_before();
    const TileLists lists = tile_lists(params);
    const PartOfWarp own = part_of_warp(params, lists);
    for (int slab = blockIdx.y; slab < lists.slabs; slab += gridDim.y) {
        unsigned* counts = counts_of_part(lists, slab, own.part);
#pragma unroll 1
        for (int level = own.first_level; level < LEVELS; level += LEVEL_WARPS) {
            for_each_tile(params, level, [&](int tile) { own.counters[tile] = 0; });
            sync_sharers();
            count_samples<UNROLL>(params, slab, level, own.first_query, own.end_query,
                                  shared_address(own.counters));
            sync_sharers();
            for_each_tile(params, level, [&](int tile) { counts[tile] = own.counters[tile]; });
        }
        sync_sharers();
    }
}
#endif

#if MSDA_STEP_OFFSETS
// A tile is a lane, its parts are divided among the warps of the block.
extern "C" __global__ void __launch_bounds__(SEGMENTS * 32)
    bwd_tile_sort_offsets(const __grid_constant__ BackwardParams params) {
    wait_for_launch_before();
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
    wait_for_launch_before();
    if constexpr (Operator::HAS_STEP_ROWS) let_next_launch_start();  // `rows` needs nothing of this step
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
extern "C" __global__ void __launch_bounds__(SORT_THREADS)
    bwd_tile_sort_scatter(const __grid_constant__ BackwardParams params) {
    wait_for_launch_before();
    let_next_launch_start();  // `samples`, which needs nothing of this step
    const TileLists lists = tile_lists(params);
    const PartOfWarp own = part_of_warp(params, lists);
    for (int slab = blockIdx.y; slab < lists.slabs; slab += gridDim.y) {
        const unsigned* counts = counts_of_part(lists, slab, own.part);
        const unsigned* starts = lists.starts + static_cast<long long>(slab) * lists.tiles;
#pragma unroll 1
        for (int level = own.first_level; level < LEVELS; level += LEVEL_WARPS) {
            for_each_tile(params, level, [&](int tile) { own.counters[tile] = starts[tile] + counts[tile]; });
            sync_sharers();
            scatter_samples<UNROLL>(params, slab, level, own.first_query, own.end_query,
                                    shared_address(own.counters), entries_of_slab(lists, slab));
        }
        sync_sharers();
    }
}
#endif

#if MSDA_STEP_GATHER
extern "C" __global__ void __launch_bounds__(GATHER_WARPS * 32, GATHER_BLOCKS)
    bwd_tile_sort_gather(const __grid_constant__ BackwardParams params) {
    wait_for_launch_before();
    gather_pieces(params);
}
#endif

#if MSDA_STEP_COMBINE
// A block per tile. Warp w adds pieces w, w + COMBINE_WARPS, ..., the first warp adds the warps' sums.
extern "C" __global__ void __launch_bounds__(COMBINE_WARPS * 32)
    bwd_tile_sort_combine(const __grid_constant__ BackwardParams params) {
    wait_for_launch_before();
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

#if MSDA_STEP_ROWS
extern "C" __global__ void bwd_tile_sort_rows(const __grid_constant__ BackwardParams params) {
    keep_row_weights(params);
    wait_for_launch_before();  // reads nothing of that launch, but the next launch relies on this wait
}
#endif

#if MSDA_STEP_FINISH
extern "C" __global__ void bwd_tile_sort_finish(const __grid_constant__ BackwardParams params) {
    wait_for_launch_before();
    finish_queries(params);
}
#endif

#if MSDA_STEP_SAMPLES
extern "C" __global__ void __launch_bounds__(sample_gradients::WARPS * 32, sample_gradients::MIN_BLOCKS)
    bwd_tile_sort_samples(const __grid_constant__ BackwardParams params) {
    sample_gradients::walk_queries(params);
    wait_for_launch_before();  // reads nothing of that launch, but the next launch relies on this wait
}
#endif
