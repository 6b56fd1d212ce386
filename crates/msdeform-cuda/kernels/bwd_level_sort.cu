// Few queries (decoders): one block sorts all samples of an image, head and level by the tile of pixels they
// fall on, then every tile sums its list.
//
// Steps, of which only those are launched whose gradients are asked for:
//   pack     the output's gradient, where its rows are not packed (grad_output_rows.cuh)
//   sort     counts, scans and writes the lists of one level of one (image, head) in one block
//   samples  gradients of locations and weights (sample_gradients.cuh)
//   sort_and_samples  both of them in one launch, side by side: neither needs the other
//   gather   every tile: short lists several tiles at a time, others on the tensor cores (tile_gather.cuh)
//
// Who owns what. A block of `sort` owns a level of an (image, head): a few thousand samples. The lists of
// different levels have room of their own, so blocks never wait for each other and one launch is enough.
// Where lists must be ORDERED every warp has counters of its own for its run of queries.
//
// Why that is fast. With few samples launches count: two instead of the seven of bwd_tile_sort, and the sort,
// which waits most of the time, shares the GPU with the gradients of locations and weights. Pixels that no
// sample touches are written as zeros by the tile that owns them, so nothing is zeroed beforehand.
//
// When it loses: many queries, since only levels x heads x images blocks sort, and a list is not cut.
//
// Requires: what tile_lists.cuh and sample_gradients.cuh do; the counters of a level in shared memory.
#include "sample_gradients.cuh"
#include "tile_gather.cuh"

using namespace msda;

namespace {

static_assert(PIECE_ENTRIES == 0, "lists are short");
constexpr int SORT_AHEAD = MSDA_KNOB_SORT_AHEAD;  // samples of a lane that are on their way together

// Over the threads before this one; `total` over all of them. `warp_sums` has a word per warp.
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

// Sorts level blockIdx.x of the slabs blockIdx.y, + gridDim.y, ...
MSDA_DEVICE void sort_level(const BackwardParams& params) {
    const TileLists lists = tile_lists(params);
    const int warp = threadIdx.x / 32, warps = blockDim.x / 32;
    const int level = blockIdx.x;
    const int first_tile = first_tile_of_level(params, level);
    const int tiles = tiles_of_level(params.level[level]);
    const int copies = ORDERED ? warps : 1;  // of the counters
    unsigned* warp_sums = reinterpret_cast<unsigned*>(shared_memory());
    unsigned* counters = warp_sums + 32;
    // Counters are addressed by the tile's number in the slab.
    const unsigned own =
        shared_address(counters) + static_cast<unsigned>((ORDERED ? warp * tiles : 0) - first_tile) * 4u;
    const int first = first_query_of_part(params.queries, warp, warps);
    const int end = first_query_of_part(params.queries, warp + 1, warps);
    for (int slab = blockIdx.y; slab < lists.slabs; slab += gridDim.y) {
        for (int i = threadIdx.x; i < copies * tiles; i += blockDim.x) counters[i] = 0;
        __syncthreads();
        count_samples<SORT_AHEAD>(params, slab, level, first, end, own);
        __syncthreads();
        // Four entries for every sample of the levels before.
        unsigned before = 4u * params.queries * params.level[level].first_sample;
        for (int chunk = 0; chunk < tiles; chunk += blockDim.x) {
            const int tile = chunk + threadIdx.x;
            unsigned entries = 0, all;
            for (int copy = 0; copy < copies && tile < tiles; ++copy) {
                entries += counters[copy * tiles + tile];
            }
            unsigned start = before + block_scan(entries, warp_sums, all);
            before += all;
            if (tile < tiles) {
                lists.pieces[slab * lists.max_pieces + first_tile + tile] = {
                    static_cast<unsigned>(first_tile + tile), start, entries, NO_SLOT};
            }
            for (int copy = 0; copy < copies && tile < tiles; ++copy) {
                const unsigned count = counters[copy * tiles + tile];
                counters[copy * tiles + tile] = start;
                start += count;
            }
        }
        __syncthreads();
        scatter_samples<SORT_AHEAD>(params, slab, level, first, end, own, entries_of_slab(lists, slab));
        __syncthreads();
    }
}

}  // namespace

extern "C" __global__ void bwd_level_sort_pack(const __grid_constant__ BackwardParams params) {
    pack_rows(params);
}

extern "C" __global__ void bwd_level_sort_sort(const __grid_constant__ BackwardParams params) {
    let_next_launch_start();
    sort_level(params);
}

extern "C" __global__ void __launch_bounds__(sample_gradients::WARPS * 32, sample_gradients::MIN_BLOCKS)
    bwd_level_sort_sort_and_samples(const __grid_constant__ BackwardParams params) {
    let_next_launch_start();
    // The grid is as wide as the wider of the two needs it.
    if (blockIdx.z == 0) {
        if (blockIdx.x < LEVELS) sort_level(params);
    } else {
        sample_gradients::walk_queries(params);
    }
}

extern "C" __global__ void __launch_bounds__(GATHER_WARPS * 32, GATHER_BLOCKS)
    bwd_level_sort_gather(const __grid_constant__ BackwardParams params) {
    let_next_launch_start();
    gather_groups(params);
}

extern "C" __global__ void __launch_bounds__(sample_gradients::WARPS * 32, sample_gradients::MIN_BLOCKS)
    bwd_level_sort_samples(const __grid_constant__ BackwardParams params) {
    sample_gradients::walk_queries(params);
    wait_for_launch_before();  // needs nothing of it, but who waits for this waits for that
}
