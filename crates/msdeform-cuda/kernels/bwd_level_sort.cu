// Few queries (decoders): one block sorts all samples of an image, head and level by the tile of pixels they
// fall on, then every tile sums its list.
//
// Steps; a call launches only those that its gradients need:
//   pack     the output's gradient, where its rows are not packed (grad_output_rows.cuh)
//   sort     counts, scans and writes the lists of a level of an (image, head) in one block (level_sort.cuh)
//   samples  gradients of locations and weights (sample_gradients.cuh)
//   sort_and_samples  `sort` and `samples` side by side in one launch: neither needs the other
//   gather   every tile: short lists several tiles at a time, others on the tensor cores (tile_gather.cuh)
//
// Who owns what. A block of `sort` owns a level of an (image, head): a few thousand samples. The lists of
// different levels have room of their own, so blocks never wait for each other and one launch is enough.
//
// Why that is fast. With few samples launches count: two instead of the seven of bwd_tile_sort, and the sort,
// which waits most of the time, shares the GPU with the gradients of locations and weights. The gather does
// not wait for these: it starts list by list, as soon as a level is sorted. Pixels that no sample touches are
// written as zeros by the tile that owns them, so nothing is zeroed beforehand.
//
// When it loses: many queries, since only levels x heads x images blocks sort, and a list is not cut.
//
// Requires: what tile_lists.cuh and sample_gradients.cuh require; the counters of a level in shared memory.
//
// Every step is compiled by itself, with the headers that it needs.
#if MSDA_STEP_PACK
#include "grad_output_rows.cuh"
#endif
#if MSDA_STEP_SORT || MSDA_STEP_SORT_AND_SAMPLES
#include "level_sort.cuh"
#endif
#if MSDA_STEP_SAMPLES || MSDA_STEP_SORT_AND_SAMPLES
#include "sample_gradients.cuh"
#endif
#if MSDA_STEP_GATHER
#include "tile_gather.cuh"
#endif
#if MSDA_STEP_FINISH
#include "row_gradients.cuh"
#endif

using namespace msda;

#if MSDA_STEP_PACK
extern "C" __global__ void bwd_level_sort_pack(const __grid_constant__ BackwardParams params) {
    wait_for_launch_before();
    pack_rows(params);
}
#endif

#if MSDA_STEP_SORT
extern "C" __global__ void __launch_bounds__(SORT_THREADS, 2)
    bwd_level_sort_sort(const __grid_constant__ BackwardParams params) {
    wait_for_launch_before();
    sort_level(params);
}
#endif

#if MSDA_STEP_SORT_AND_SAMPLES
extern "C" __global__ void __launch_bounds__(sample_gradients::WARPS * 32, sample_gradients::MIN_BLOCKS)
    bwd_level_sort_sort_and_samples(const __grid_constant__ BackwardParams params) {
    wait_for_launch_before();
    // The grid is as wide as the wider of the two steps needs.
    if (blockIdx.z == 0) {
        if (blockIdx.x < LEVELS) sort_level(params);
    } else {
        let_next_launch_start();
        sample_gradients::walk_queries(params);
    }
}
#endif

#if MSDA_STEP_GATHER
extern "C" __global__ void __launch_bounds__(GATHER_WARPS * 32, GATHER_BLOCKS)
    bwd_level_sort_gather(const __grid_constant__ BackwardParams params) {
    if (params.samples_behind) let_next_launch_start();  // `samples` then shares the GPU
    gather_groups(params);
    // A launch that waits for this one must also wait for the one before, so one block waits for it. The last
    // block does, because a waiting block keeps other blocks from starting.
    if (blockIdx.x + 1 == gridDim.x && blockIdx.y + 1 == gridDim.y) wait_for_launch_before();
}
#endif

#if MSDA_STEP_FINISH
extern "C" __global__ void bwd_level_sort_finish(const __grid_constant__ BackwardParams params) {
    wait_for_launch_before();
    finish_queries(params);
}
#endif

#if MSDA_STEP_SAMPLES
extern "C" __global__ void __launch_bounds__(sample_gradients::WARPS * 32, sample_gradients::MIN_BLOCKS)
    bwd_level_sort_samples(const __grid_constant__ BackwardParams params) {
    sample_gradients::walk_queries(params);
    wait_for_launch_before();  // reads nothing of that launch, but the next launch relies on this wait
}
#endif
