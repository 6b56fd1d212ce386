// Metadata once per warp, exchanged by shuffles.
//
// Who owns what. A warp owns an item. Lane s places sample s: one pass for the seeds' 32 samples. Then, in
// rounds of eight samples, four lanes load and sum each, and get its offset and weights from the lane that
// placed it: five shuffles a round.
//
// Why. If the four lanes of a sample place it themselves, the same thirty instructions run four times: once
// per round instead of once per item. Shuffles replace three of four passes, and neither shared
// memory nor a barrier is involved.
//
// When it loses: a shuffle goes through the same pipe as shared memory. If more lanes than a warp
// has share metadata, or read it in wide packets, one 16-byte load from shared memory replaces four
// shuffles.
#include "ladder/shuffled_samples.cuh"

using namespace msda;

namespace {

constexpr int WARPS = 8;

}  // namespace

extern "C" __global__ void __launch_bounds__(WARPS * 32)
    fwd_shuffle_meta(const __grid_constant__ ForwardParams params) {
    const int lane = threadIdx.x % 32;
    const long long index = static_cast<long long>(blockIdx.x) * WARPS + threadIdx.x / 32;
    if (index >= item_count(params)) return;
    const Item item = item_at(params, index);
    const unsigned char* chunk = item.pixels + lane % CHUNKS * 16;

    float sums[CHUNK_ELEMENTS];
    clear(sums);
#pragma unroll 1
    for (int first = 0; first < SAMPLES; first += WARP_SAMPLES) {
        add_shuffled(params, chunk, load_inputs(params, item.row, first, lane), first, lane, sums);
    }
    store_item(params, item, lane, combine_samples(sums, lane));
}
