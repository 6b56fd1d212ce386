// The next query's locations and weights are loaded while this one computes.
//
// Who owns what. As in fwd_shuffle_meta, with persistent warps: a warp takes every (warps of the grid)-th
// item. Each lane keeps one sample of the current item and one of the next in registers, three floats each.
//
// Why. An item starts with a load of its locations, from DRAM, before it knows what else to load. In a loop
// the load can start one item earlier, and its wait then costs nothing.
//
// When it loses: other warps hide the same wait, if there are enough of them. The loop itself takes registers
// and gives up what launching blocks in order does for free: the hardware starts a new block wherever one
// ends.
#include "ladder/shuffled_samples.cuh"

using namespace msda;

namespace {

constexpr int WARPS = 8;
constexpr int BLOCKS_PER_SM = 4;
constexpr int BATCHES = (SAMPLES + WARP_SAMPLES - 1) / WARP_SAMPLES;

struct ItemInputs {
    SampleInputs batch[BATCHES];
};
MSDA_DEVICE ItemInputs load_item_inputs(const ForwardParams& params, long long row, int lane) {
    ItemInputs inputs;
#pragma unroll
    for (int b = 0; b < BATCHES; ++b) {
        inputs.batch[b] = load_inputs(params, row, b * WARP_SAMPLES, lane);
    }
    return inputs;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(WARPS * 32, BLOCKS_PER_SM)
    fwd_prefetch_query(const __grid_constant__ ForwardParams params) {
    const int lane = threadIdx.x % 32;
    const long long warps = static_cast<long long>(gridDim.x) * WARPS;
    long long index = static_cast<long long>(blockIdx.x) * WARPS + threadIdx.x / 32;
    if (index >= item_count(params)) return;
    Item item = item_at(params, index);
    ItemInputs inputs = load_item_inputs(params, item.row, lane);
    while (true) {
        index += warps;
        const bool has_next = index < item_count(params);
        Item next_item = item;
        ItemInputs next = inputs;
        if (has_next) {
            next_item = item_at(params, index);
            next = load_item_inputs(params, next_item.row, lane);
        }
        float sums[CHUNK_ELEMENTS];
        clear(sums);
#pragma unroll
        for (int b = 0; b < BATCHES; ++b) {
            add_shuffled(params, item.pixels + lane % CHUNKS * 16, inputs.batch[b], b * WARP_SAMPLES, lane,
                         sums);
        }
        store_item(params, item, lane, combine_samples(sums, lane));
        if (!has_next) return;
        item = next_item;
        inputs = next;
    }
}
