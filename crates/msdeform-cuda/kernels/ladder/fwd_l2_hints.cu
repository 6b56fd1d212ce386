// L2 hints: fwd_vector_loads, each access with its own word about how long L2 should keep the line.
//
// Who owns what. As in fwd_vector_loads. Values are loaded with an evict_last policy (the last to leave),
// locations with evict_first, weights past L1 (a 2-byte load takes no policy), outputs are stored as streaming.
//
// Why. Same aim as fwd_l2_policy, per instruction instead of per launch: nothing is set aside, nothing needs the
// host, and any kernel of a larger program can do it.
//
// When it loses. A policy is a 64-bit operand: two registers held through the loop. And there is nothing to
// gain where the streams do not push values out: at any moment the GPU works on a few slabs of 1.25 MB.
#include "ladder/lane_groups.cuh"

using namespace msda;

namespace {

struct Policies {
    CachePolicy keep;
    CachePolicy pass;
};

MSDA_DEVICE Sample hinted_sample(const ForwardParams& params, long long row, int s, CachePolicy policy) {
    const long long index = row * SAMPLES + s;
    Packet<2 * SamplingStorage::BYTES> location;
    load_hinted(location, element_address<SamplingStorage>(params.locations, 2 * index), policy);
    float xy[2];
    unpack<SamplingStorage, 2>(location, xy);
    Packet<SamplingStorage::BYTES> attention;
    load_streaming(attention, element_address<SamplingStorage>(params.weights, index));
    using Bits = SamplingStorage::Bits;
    return place_sample(params.level[level_of_sample(s)], xy[0], xy[1],
                        SamplingStorage::to_float(static_cast<Bits>(attention.word[0])));
}

MSDA_DEVICE Corners hinted_corners(const unsigned char* chunk, unsigned offset, unsigned below,
                                   CachePolicy policy) {
    Corners corners;
    const unsigned char* top = chunk_at(chunk, offset);
    const unsigned char* bottom = chunk_at(chunk, offset + below);
    load_hinted(corners.packet[0], top, policy);
    load_hinted(corners.packet[1], top + PIXEL_BYTES, policy);
    load_hinted(corners.packet[2], bottom, policy);
    load_hinted(corners.packet[3], bottom + PIXEL_BYTES, policy);
    return corners;
}

// store_chunk, for a result that nobody on this GPU reads soon.
MSDA_DEVICE void stream_chunk(const ForwardParams& params, const Item& item, int chunk,
                              float (&sums)[CHUNK_ELEMENTS]) {
    float zero = 0.0f;  // NaN if any sum is not finite
#pragma unroll
    for (int w = 0; w < CHUNK_ELEMENTS; ++w) zero = fmaf(sums[w], 0.0f, zero);
    if (!(zero == 0.0f)) recompute_exactly(params, item.pixels + chunk * 16, item.row, sums);
    Packet16 packet;
    pack<ValueStorage, CHUNK_ELEMENTS>(sums, packet);
    store_streaming(element_address<ValueStorage>(params.output, item.row * CHANNELS) + chunk * 16, packet);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(MSDA_KNOB_THREADS)
    fwd_l2_hints(const __grid_constant__ ForwardParams params) {
    const long long index = own_group_in_grid();
    if (index >= item_count(params)) return;
    const Item item = item_at(params, index);
    const unsigned char* pixels = item.pixels + own_chunk() * 16;
    const Policies policy = {policy_evict_last(), policy_evict_first()};

    float sums[CHUNK_ELEMENTS];
    clear(sums);
#pragma unroll 1
    for (int s = 0; s < SAMPLES; ++s) {
        const Sample sample = hinted_sample(params, item.row, s, policy.pass);
        const unsigned below = row_below(params.level[level_of_sample(s)]);
        add_corners(hinted_corners(pixels, sample.offset, below, policy.keep), sample.weight, sums);
    }
    stream_chunk(params, item, own_chunk(), sums);
}
