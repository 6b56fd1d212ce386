// L2 policy: fwd_vector_loads, launched with a persisting access window over the values.
//
// Who owns what. As in fwd_vector_loads: four lanes an item. The difference is in the launch (the
// configuration's `persisting_value`): part of L2 is set aside, and lines of the value tensor stay there when
// the streams of locations, weights and outputs pass through. The window is a property of the launch, not of
// an instruction.
//
// Why. The values are read again and again, the streams once, and values that the streams push out of L2 come
// back from DRAM.
//
// When it loses. If values and streams fit L2 together, there is nothing to protect. If the values are much
// larger than the set-aside part, the window protects a random share of them. And the set-aside part is
// missing for all other work of the context.
#include "ladder/lane_groups.cuh"

using namespace msda;

extern "C" __global__ void __launch_bounds__(MSDA_THREADS)
    fwd_l2_policy(const __grid_constant__ ForwardParams params) {
    const long long index = own_group_in_grid();
    if (index >= item_count(params)) return;
    const Item item = item_at(params, index);
    const unsigned char* pixels = item.pixels + own_chunk() * 16;

    float sums[CHUNK_ELEMENTS];
    clear(sums);
#pragma unroll 1
    for (int s = 0; s < SAMPLES; ++s) {
        const Sample sample = sample_of_pair(params, item.row, s);
        const unsigned below = row_below(params.level[level_of_sample(s)]);
        add_corners(load_corners(pixels, sample.offset, below), sample.weight, sums);
    }
    store_chunk(params, item, own_chunk(), sums);
}
