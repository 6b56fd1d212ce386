// Warp shuffle: the samples of an item spread over the lanes of a warp, their sums exchanged at the end.
//
// Who owns what. A warp owns an item. Lane s owns sample s (and s + 32, ...): it places it alone, loads all
// 64 bytes of its four corners and sums 32 channels in registers. Then the lanes exchange: after 31 shuffles
// lane c holds the total of channel c and writes it.
//
// Why. No coordinate is computed twice, locations and weights are read by one coalesced load each, and 16
// loads of 16 bytes are in flight in every lane at once: the latency of an item is one round trip.
//
// When it loses. The loads. The eight lanes that share a wavefront of the L1 data path now read one chunk
// each of eight unrelated pixels, all the same chunk. Pixels are 64 bytes, so for these eight there are two
// places in the banks, and five of them on average need the fuller one. Lanes idle if samples are no
// multiple of 32.
#include "ladder/shuffle_sums.cuh"

using namespace msda;

extern "C" __global__ void __launch_bounds__(MSDA_THREADS, 768 / MSDA_THREADS)
    fwd_warp_shuffle(const __grid_constant__ ForwardParams params) {
    const int lane = threadIdx.x % 32;
    const long long index = static_cast<long long>(blockIdx.x) * (MSDA_THREADS / 32) + threadIdx.x / 32;
    if (index >= item_count(params)) return;
    const Item item = item_at(params, index);

    float sums[CHANNELS];
    clear(sums);
#pragma unroll 1
    for (int s = lane; s < SAMPLES; s += 32) {
        const Sample sample = sample_of(params, item.row, s);
        const unsigned below = row_below(params.level[level_of_sample(s)]);
        Corners corners[CHUNKS];
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) {
            corners[c] = load_corners(item.pixels + c * 16, sample.offset, below);
        }
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) {
            float part[CHUNK_ELEMENTS];
            clear(part);
            add_corners(corners[c], sample.weight, part);
#pragma unroll
            for (int w = 0; w < CHUNK_ELEMENTS; ++w) sums[c * CHUNK_ELEMENTS + w] += part[w];
        }
    }
    sum_over_lanes<1>(sums);
    store_channel(params, item, lane, sums[0]);
}
