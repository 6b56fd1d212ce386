// Many queries: the samples are sorted by the tile of pixels they fall on, then every tile sums its list.
//
// Steps; a call launches only those that its gradients need:
//   pack     the output's gradient, where its rows are not packed (grad_output_rows.cuh)
//   count    how many entries each part of the queries puts into each tile
//   offsets  where each part's entries start in a tile's list
//   plan     where the lists start, and the pieces that are summed by themselves
//   scatter  every sample into the list of its tile
//   samples  overlaps scatter, which waits most of the time: gradients of locations and weights
//            (sample_gradients.cuh)
//   gather_cells   every piece summed on the tensor cores, a block for four tiles (cell_gather.cuh)
//   combine_cells  tiles whose lists were cut: the sums of their pieces, in order
//   seams          pixels that several groups of tiles touch: their sums, in order (cell_sums.cuh)
// instead of these three, where tiles are made of pixels (CELLS=0)
//   gather   every piece summed on the tensor cores, a warp for each (tile_gather.cuh)
//   combine  as combine_cells
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
// A counting sort moves 8 bytes per sample once (16 in f32), where atomics move 4 x 32 floats. Sums are
// formed next to each other in registers and every pixel is written once, so there is nothing to zero. A tile
// of cells has each of its samples for itself, so a sample is written, read and multiplied once; tiles of
// pixels share samples, 1.56 tiles each on average, and their lists need room for four entries of each.
//
// Rounds. A workspace with a limit has room for some of the slabs. The steps from count to seams then run
// several times, for the slabs from params.first_slab on (tile_lists.cuh).
//
// When it loses: few queries, where eight launches cost more than the work (bwd_level_sort). Locations
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
#if MSDA_STEP_SEAMS
#include "cell_sums.cuh"
#endif
#if MSDA_STEP_SAMPLES
#include "sample_gradients.cuh"
#endif
#if MSDA_STEP_GATHER
#include "tile_gather.cuh"
#endif
#if MSDA_STEP_COMBINE
#include "tile_products.cuh"
#endif
#if MSDA_STEP_GATHER_CELLS || MSDA_STEP_COMBINE_CELLS
#include "cell_gather.cuh"
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
constexpr int DOUBLINGS = MSDA_PIECE_DOUBLINGS;
static_assert(PIECE_ENTRIES > 0, "long lists are cut");
static_assert(PLAN_TILES % GROUP_TILES == 0, "whole groups");
static_assert(CELLS || DOUBLINGS == 0, "a list of pixels needs at most as many slots as there are");

// The pieces of what a thread plans at a time: of a list of pixels, or of the lists of a group of cells.
// Without entries there is one too, whose warps write the zeros.
MSDA_DEVICE unsigned pieces_of_list(unsigned entries) {
    return entries == 0 ? 1 : (entries + PIECE_ENTRIES - 1) / PIECE_ENTRIES;
}
// A group's lists are cut into equally many runs. Those of the longest list have `length` entries or more, up
// to twice as many. So all groups together need at most one slot for `length` entries of a slab.
MSDA_DEVICE unsigned pieces_of_group(const unsigned (&entries)[PLAN_TILES], unsigned length) {
    unsigned longest = 0;
#pragma unroll
    for (int i = 0; i < PLAN_TILES; ++i) longest = entries[i] > longest ? entries[i] : longest;
    return longest < 2 * length ? 1 : longest / length;
}

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
// Of tile `tile` of a thread's. A group's first tile counts the pieces of all.
MSDA_DEVICE TileNeeds needs_of_tile(const unsigned (&entries)[PLAN_TILES], int tile, unsigned length) {
    if (tile % GROUP_TILES != 0) return {entries[tile], 0, 0, 0};
    const unsigned pieces = CELLS ? pieces_of_group(entries, length) : pieces_of_list(entries[tile]);
    const bool is_long = pieces > 1;
    return {entries[tile], pieces, is_long, is_long ? pieces : 0};
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

// The lengths of a thread's lists. Past a slab's last tile they repeat that tile's, and are not used.
MSDA_DEVICE void load_totals(const TileLists& lists, int slab, int first, unsigned (&entries)[PLAN_TILES]) {
    const unsigned* totals = lists.totals + static_cast<long long>(slab) * lists.tiles;
#pragma unroll
    for (int i = 0; i < PLAN_TILES; ++i) entries[i] = totals[at_most(first + i, lists.tiles - 1)];
}

// The length of a slab's pieces: the least of PIECE_ENTRIES, twice as many, and so on, with which the sums of
// all pieces find a slot. The longest always does, because the host reserves a slot for as many entries
// (tile_lists.rs). Usual locations need few slots and keep the least. Only locations that crowd everywhere
// need longer pieces, of which there are still enough to fill the GPU. All threads get the same.
MSDA_DEVICE unsigned piece_length(const TileLists& lists, int slab, unsigned* block_slots) {
    unsigned length = PIECE_ENTRIES;
    if constexpr (DOUBLINGS > 0) {
        if (static_cast<int>(threadIdx.x) < DOUBLINGS) block_slots[threadIdx.x] = 0;
        __syncthreads();
        unsigned slots[DOUBLINGS + 1] = {};  // and no array without elements
        for (int first = PLAN_TILES * threadIdx.x; first < lists.tiles; first += PLAN_TILES * blockDim.x) {
            unsigned entries[PLAN_TILES];
            load_totals(lists, slab, first, entries);
#pragma unroll
            for (int i = 0; i < DOUBLINGS; ++i) {
                slots[i] += needs_of_tile(entries, 0, PIECE_ENTRIES << i).slots;
            }
        }
        sync_warp();
#pragma unroll
        for (int i = 0; i < DOUBLINGS; ++i) {
#pragma unroll
            for (int mask = 1; mask < 32; mask *= 2) slots[i] += shuffle_xor(slots[i], mask);
            shared_add(shared_address(block_slots + i), slots[i], threadIdx.x % 32 == 0);
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < DOUBLINGS; ++i) {
            if (length == static_cast<unsigned>(PIECE_ENTRIES) << i && block_slots[i] > lists.max_slots) {
                length *= 2;
            }
        }
    }
    return length;
}

// Which piece of a list or group, and of how many.
struct PieceNumber {
    unsigned number;
    unsigned of;
};
// Cuts a piece out of the first list, which starts at `start`.
MSDA_DEVICE void cut(PieceOf<false>& piece, const unsigned* entries, unsigned start, const PieceNumber& p) {
    const unsigned left = entries[0] - p.number * PIECE_ENTRIES;
    piece.first = start + p.number * PIECE_ENTRIES;
    piece.count = left < PIECE_ENTRIES ? left : PIECE_ENTRIES;
}
// Cuts a piece out of the lists of a group, which follow each other.
MSDA_DEVICE void cut(PieceOf<true>& piece, const unsigned* entries, unsigned start, const PieceNumber& p) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        unsigned first = 0, end = entries[i];
        if (p.of > 1) {
            const unsigned long long all = entries[i];
            first = static_cast<unsigned>(all * p.number / p.of);
            end = static_cast<unsigned>(all * (p.number + 1) / p.of);
        }
        piece.first[i] = start + first;
        piece.count[i] = end - first;
        start += entries[i];
    }
}

// Writes a tile's list start and pieces; `at` is the room that the tiles before it need, `entries` begins
// with the tile's.
MSDA_DEVICE void plan_tile(const TileLists& lists, int slab, unsigned tile, const unsigned* entries,
                           const TileNeeds& needs, const TileNeeds& at) {
    lists.starts[static_cast<long long>(slab) * lists.tiles + tile] = at.entries;
    if (needs.long_tiles > 0) {
        lists.long_tiles[slab * lists.max_slots + at.long_tiles] = {tile, at.slots, needs.pieces};
    }
#pragma unroll 1
    for (unsigned p = 0; p < needs.pieces; ++p) {
        // Not zeroed first, because code for sm_100 and sm_120 then stores some of the zeros too early.
        Piece piece;
        piece.tile = tile;
        piece.slot = needs.slots > 0 ? at.slots + p : NO_SLOT;
        cut(piece, entries, at.entries, {p, needs.pieces});
        lists.pieces[slab * lists.max_pieces + at.pieces + p] = piece;
    }
}
#endif

#if MSDA_STEP_COMBINE
constexpr int COMBINE_WARPS = MSDA_COMBINE_WARPS;
#endif

#if MSDA_STEP_COMBINE || MSDA_STEP_COMBINE_CELLS
// Calls visit(slab, tile) for the long tiles of this block, one after another.
template <typename Visit>
MSDA_DEVICE void for_each_long_tile(const TileLists& lists, Visit visit) {
    for (int slab = blockIdx.y; slab < lists.slabs; slab += gridDim.y) {
        const unsigned long_tiles = lists.long_counts[slab];
        for (unsigned at = blockIdx.x; at < long_tiles; at += gridDim.x) {
            visit(slab, lists.long_tiles[slab * lists.max_slots + at]);
        }
    }
}
#endif

#if MSDA_STEP_COMBINE
// Warp w adds pieces w, w + COMBINE_WARPS, ..., the first warp adds the warps' sums.
MSDA_DEVICE void combine_tile(const BackwardParams& params, const TileLists& lists, int slab,
                              const LongTile& tile) {
    const int slice = blockIdx.z;
    const long long first_slot = slab * lists.max_slots + tile.first_slot;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float* warp_sums = reinterpret_cast<float*>(shared_memory()) + lane;
    TileSums sums = {};
#pragma unroll 2
    for (unsigned p = warp; p < tile.pieces; p += COMBINE_WARPS) {
        const float* slot = lists.sums + ((first_slot + p) * SLICES + slice) * SLICE_SUMS + lane;
#pragma unroll
        for (int k = 0; k < LANE_SUMS; ++k) sums[k / 4][k % 4] += slot[k * 32];
    }
#pragma unroll
    for (int k = 0; k < LANE_SUMS; ++k) warp_sums[(warp * LANE_SUMS + k) * 32] = sums[k / 4][k % 4];
    __syncthreads();
    if (warp == 0) {
#pragma unroll 1
        for (int w = 1; w < COMBINE_WARPS; ++w) {
#pragma unroll
            for (int k = 0; k < LANE_SUMS; ++k) sums[k / 4][k % 4] += warp_sums[(w * LANE_SUMS + k) * 32];
        }
        store_tile(params, lists.first_slab + slab, slice, place_of_tile(params, static_cast<int>(tile.tile)),
                   sums);
    }
    __syncthreads();
}
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
            count_samples<UNROLL>(params, lists.first_slab + slab, level, own.first_query, own.end_query,
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
    unsigned* block_slots = reinterpret_cast<unsigned*>(warp_needs + warps);
    for (int slab = blockIdx.y; slab < lists.slabs; slab += gridDim.y) {
        const unsigned length = piece_length(lists, slab, block_slots);
        TileNeeds before = {};
        for (int chunk = 0; chunk < lists.tiles; chunk += PLAN_TILES * blockDim.x) {
            const int first = chunk + PLAN_TILES * threadIdx.x;
            unsigned entries[PLAN_TILES];
            load_totals(lists, slab, first, entries);
            TileNeeds needs[PLAN_TILES];
            TileNeeds own = {};
#pragma unroll
            for (int i = 0; i < PLAN_TILES; ++i) {
                needs[i] = needs_if(first + i < lists.tiles, needs_of_tile(entries, i, length));
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
                if (first + i < lists.tiles) plan_tile(lists, slab, first + i, entries + i, needs[i], at);
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
            scatter_samples<UNROLL>(params, lists.first_slab + slab, level, own.first_query, own.end_query,
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
// A block per tile.
extern "C" __global__ void __launch_bounds__(COMBINE_WARPS * 32)
    bwd_tile_sort_combine(const __grid_constant__ BackwardParams params) {
    wait_for_launch_before();
    const TileLists lists = tile_lists(params);
    for_each_long_tile(lists,
                       [&](int slab, const LongTile& tile) { combine_tile(params, lists, slab, tile); });
}
#endif

#if MSDA_STEP_GATHER_CELLS
extern "C" __global__ void __launch_bounds__(GATHER_WARPS * 32, GATHER_BLOCKS)
    bwd_tile_sort_gather_cells(const __grid_constant__ BackwardParams params) {
    wait_for_launch_before();
    gather_cells(params);
}
#endif

#if MSDA_STEP_COMBINE_CELLS
// A block per group.
extern "C" __global__ void bwd_tile_sort_combine_cells(const __grid_constant__ BackwardParams params) {
    wait_for_launch_before();
    const TileLists lists = tile_lists(params);
    const int slice = blockIdx.z;
    for_each_long_tile(lists, [&](int slab, const LongTile& tile) {
        const GroupPixels pixels = group_pixels(params, lists, slab, slice, static_cast<int>(tile.tile));
        combine_cells(lists, pixels, slab * lists.max_slots + tile.first_slot, tile.pieces, slice);
    });
}
#endif

#if MSDA_STEP_SEAMS
// A warp per group of tiles.
extern "C" __global__ void bwd_tile_sort_seams(const __grid_constant__ BackwardParams params) {
    wait_for_launch_before();
    const TileLists lists = tile_lists(params);
    const int group = static_cast<int>(blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32);
    if (group >= lists.tiles / GROUP_TILES) return;
    for (int slab = blockIdx.y; slab < lists.slabs; slab += gridDim.y) {
        add_seams(params, lists, slab, blockIdx.z, group);
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
