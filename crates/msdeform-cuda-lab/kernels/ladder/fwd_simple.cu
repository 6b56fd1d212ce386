// Coalesced: a warp computes the 32 channels of one item, a lane each.
//
// Who owns what. Lane c of a warp owns channel c; the warp walks the samples of its item together, so that
// every load of a corner is one request for 64 neighbouring bytes. All 32 lanes compute the same sample.
//
// Why. In fwd_original threads have the same channels, but each finds its own item. Here the division by
// sizes is gone, the locations of a sample are read once per warp (one address, broadcast), and slabs are
// walked in order.
//
// When it loses: against every kernel that moves more than two bytes per lane and instruction. A warp that
// reads 64 bytes per request uses half of a 128-byte line's worth of the load path, 4 x 32 requests an item.
#include "ladder/rung.cuh"

using namespace msda;

namespace {

constexpr int WARPS = MSDA_WARPS;

MSDA_DEVICE float value_at(const unsigned char* channel, unsigned offset, unsigned pixels) {
    Packet<2> packet;
    load_readonly(packet, chunk_at(channel, offset) + pixels * PIXEL_BYTES);
    return half_to_float(packet.word[0]);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(WARPS * 32)
    fwd_simple(const __grid_constant__ ForwardParams params) {
    const int lane = threadIdx.x % 32;
    const long long index = static_cast<long long>(blockIdx.x) * WARPS + threadIdx.x / 32;
    if (index >= item_count(params)) return;
    const Item item = item_at(params, index);
    const unsigned char* channel = item.pixels + lane * ValueStorage::BYTES;

    float sum = 0.0f;
#pragma unroll 1
    for (int s = 0; s < SAMPLES; ++s) {
        const Sample sample = sample_of(params, item.row, s);
        const unsigned below = sample.offset + row_below(params.level[level_of_sample(s)]);
        sum = fmaf(sample.weight[0][0], value_at(channel, sample.offset, 0), sum);
        sum = fmaf(sample.weight[0][1], value_at(channel, sample.offset, 1), sum);
        sum = fmaf(sample.weight[1][0], value_at(channel, below, 0), sum);
        sum = fmaf(sample.weight[1][1], value_at(channel, below, 1), sum);
    }
    if (any_lane(!(sum * 0.0f == 0.0f))) {
        float sums[CHUNK_ELEMENTS];
        if (lane < CHUNKS) {
            recompute_exactly(params, item.pixels + lane * 16, item.row, sums);
            store_chunk(params, item, lane, sums);
        }
        return;
    }
    store_element<ValueStorage>(params.output, item.row * CHANNELS + lane, sum);
}
