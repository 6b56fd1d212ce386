// Work redistribution: fwd_vector_loads with the samples of one item, not of eight items, in a warp.
//
// Who owns what. A warp owns an item. Its eight groups of four lanes take samples g, g + 8, ...; a lane keeps
// its chunk of the channels, as in the base. At the end the groups' partial sums meet by seven shuffles, each
// lane keeping one channel.
//
// Why. Eight times as many warps for the same work: a call of a few hundred queries fills the GPU, and no
// warp is longer than a handful of samples. The samples of a level lie near each other, so the loads of one
// warp touch few lines.
//
// When it loses. The work of a warp once per item (finding it, the exchange, the store of 64 bytes) is no
// longer shared by eight items.
#include "ladder/lane_groups.cuh"
#include "ladder/shuffle_sums.cuh"

using namespace msda;

extern "C" __global__ void __launch_bounds__(MSDA_THREADS)
    fwd_work_redistribution(const __grid_constant__ ForwardParams params) {
    const int group = threadIdx.x % 32 / GROUP_LANES;
    const long long index = static_cast<long long>(blockIdx.x) * (MSDA_THREADS / 32) + threadIdx.x / 32;
    if (index >= item_count(params)) return;
    const Item item = item_at(params, index);
    const unsigned char* pixels = item.pixels + own_chunk() * 16;

    float sums[CHUNK_ELEMENTS];
    clear(sums);
#pragma unroll 1
    for (int s = group; s < SAMPLES; s += GROUPS) {
        const Sample sample = sample_of_pair(params, item.row, s);
        const unsigned below = row_below(params.level[level_of_sample(s)]);
        add_corners(load_corners(pixels, sample.offset, below), sample.weight, sums);
    }
    static_assert(GROUPS == CHUNK_ELEMENTS, "a channel for every group");
    sum_over_lanes<GROUP_LANES>(sums);
    store_channel(params, item, own_chunk() * CHUNK_ELEMENTS + group, sums[0]);
}
