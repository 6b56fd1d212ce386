// A warp per item, in rounds of eight samples: four lanes per sample, 16 bytes of each corner per lane. With
// the seeds' eight points per level a round is a level. At the end eight groups of lanes hold partial sums of
// the same 32 channels, and a tree of shuffles leaves one channel with each lane.
#pragma once

#include "ladder/rung.cuh"

namespace msda {

constexpr int ROUND_SAMPLES = 8;
constexpr int ROUNDS = (SAMPLES + ROUND_SAMPLES - 1) / ROUND_SAMPLES;
// Unrolled if there are few rounds, so that the compiler knows the level of each.
constexpr int UNROLL_ROUNDS = ROUNDS <= 8 ? ROUNDS : 1;

// Samples of a round: eight, but for the last.
MSDA_DEVICE int samples_of_round(int round) {
    return at_most(ROUND_SAMPLES, SAMPLES - round * ROUND_SAMPLES);
}

// ---- reading a sample ---------------------------------------------------------------------------

// Both coordinates in one load: `locations` must be a multiple of two elements.
MSDA_DEVICE Location load_location(const ForwardParams& params, long long sample) {
    Packet<2 * SamplingStorage::BYTES> pair;
    load_readonly(pair, element_address<SamplingStorage>(params.locations, 2 * sample));
    float xy[2];
    unpack<SamplingStorage, 2>(pair, xy);
    return {xy[0], xy[1]};
}
MSDA_DEVICE float load_attention(const ForwardParams& params, long long sample) {
    return load_element<SamplingStorage>(params.weights, sample);
}

// One sample, as stored.
struct SampleInputs {
    Location location;
    float attention;
};
MSDA_DEVICE SampleInputs load_sample(const ForwardParams& params, long long sample) {
    return {load_location(params, sample), load_attention(params, sample)};
}

// ---- from eight partial sums to one channel per lane ---------------------------------------------

// A lane sends half of its sums to its partner and adds the partner's to the other half: 4 + 2 + 1 exchanges.
template <int HELD>
MSDA_DEVICE void exchange_half(float (&sums)[CHUNK_ELEMENTS], int lane) {
    constexpr int HALF = HELD / 2, PARTNER = 4 * HALF;
    const bool upper = (lane & PARTNER) != 0;
#pragma unroll
    for (int i = 0; i < HALF; ++i) {
        const float sent = upper ? sums[i] : sums[HALF + i];
        const float kept = upper ? sums[HALF + i] : sums[i];
        sums[i] = kept + shuffle_xor(sent, PARTNER);
    }
}
MSDA_DEVICE float combine_samples(float (&sums)[CHUNK_ELEMENTS], int lane) {
    static_assert(CHUNK_ELEMENTS == 8 && CHUNKS == 4, "eight groups of four lanes");
    exchange_half<8>(sums, lane);
    exchange_half<4>(sums, lane);
    exchange_half<2>(sums, lane);
    return sums[0];
}
// The channel that combine_samples leaves with a lane.
MSDA_DEVICE int combined_channel(int lane) { return lane % 4 * CHUNK_ELEMENTS + lane / 4; }

// Writes an item's output, a channel per lane. For cells that were clamped into their level: a sum that is
// not finite may have met a pixel that is no corner (chunked_sample.cuh) and is computed again.
MSDA_DEVICE void store_item(const ForwardParams& params, const Item& item, int lane, float sum) {
    if (any_lane(!(sum * 0.0f == 0.0f))) {
        if (lane < CHUNKS) {
            float sums[CHUNK_ELEMENTS];
            recompute_exactly(params, item.pixels + lane * 16, item.row, sums);
            store_chunk(params, item, lane, sums);
        }
        return;
    }
    store_element<ValueStorage>(params.output, item.row * CHANNELS + combined_channel(lane), sum);
}

}  // namespace msda
