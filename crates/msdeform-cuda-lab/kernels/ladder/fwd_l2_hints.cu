// L2 hints: fwd_vector_loads, with a hint in each access how long L2 should keep the line.
//
// Who owns what. As in fwd_vector_loads. Values are loaded with an evict_last policy (the last to leave),
// locations and weights with evict_first, outputs are stored as streaming.
//
// Why. The aim of fwd_l2_policy, per instruction instead of per launch: no part of L2 is set aside, the host
// has nothing to do, and any kernel of a larger program can use it.
//
// When it loses. There is nothing to gain if the streams do not push values out, and at any moment the GPU
// works on a few slabs of 1.25 MB. But evict_last outlives its use: lines of finished slabs stay, and
// lines of the running slab leave before them. A policy is also a 64-bit operand, held through the loop.
#include "ladder/lane_groups.cuh"

using namespace msda;

namespace {

struct Policies {
    CachePolicy keep;
    CachePolicy pass;
};

// A load with a policy has four bytes or more: the word that contains the half, if rows are whole words.
MSDA_DEVICE float hinted_weight(const ForwardParams& params, long long index, CachePolicy policy) {
    if constexpr (SamplingStorage::BYTES == 4 || SAMPLES % 2 == 0) {
        const long long byte = index * SamplingStorage::BYTES;
        Packet<4> word;
        load_hinted(word, static_cast<const unsigned char*>(params.weights) + byte / 4 * 4, policy);
        const unsigned bits = byte % 4 == 0 ? word.word[0] : word.word[0] >> 16;
        return SamplingStorage::to_float(static_cast<SamplingStorage::Bits>(bits));
    } else {
        return load_element<SamplingStorage>(params.weights, index);
    }
}

MSDA_DEVICE Sample hinted_sample(const ForwardParams& params, long long row, int s, CachePolicy policy) {
    const long long index = row * SAMPLES + s;
    Packet<2 * SamplingStorage::BYTES> location;
    load_hinted(location, element_address<SamplingStorage>(params.locations, 2 * index), policy);
    float xy[2];
    unpack<SamplingStorage, 2>(location, xy);
    return place_sample(params.level[level_of_sample(s)], xy[0], xy[1], hinted_weight(params, index, policy));
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

// store_chunk, for a result that this GPU does not read soon.
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

extern "C" __global__ void __launch_bounds__(MSDA_THREADS)
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
