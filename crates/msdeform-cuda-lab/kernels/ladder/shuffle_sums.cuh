// Sums over lanes by shuffles, each lane keeping a share of the results.
#pragma once

#include "ladder/rung.cuh"

namespace msda {

// N sums in each of N lanes (SPACING lanes apart) become one total per lane: lane i * SPACING gets the total
// of entry i, in sums[0]. Each step halves what a lane holds: it gives away the half that its partner keeps
// and adds what the partner gives. N - 1 shuffles, where a tree per entry would take N log2(N).
//
//   lane        0      1      2      3          N = 4, SPACING = 1
//   holds     abcd   abcd   abcd   abcd
//   xor 2     ab..   ab..   ..cd   ..cd
//   xor 1     a...   .b..   ..c.   ...d
template <int SPACING, int N, int HALF = N / 2>
MSDA_DEVICE void sum_over_lanes(float (&sums)[N]) {
    static_assert(N * SPACING <= 32 && (N & (N - 1)) == 0, "a power of two within the warp");
    const bool keeps_upper = (threadIdx.x & (HALF * SPACING)) != 0;
#pragma unroll
    for (int i = 0; i < HALF; ++i) {
        const float given = keeps_upper ? sums[i] : sums[i + HALF];
        const float kept = keeps_upper ? sums[i + HALF] : sums[i];
        sums[i] = kept + shuffle_xor(given, HALF * SPACING);
    }
    // An instance for each step: a loop over HALF would index the sums and put them into memory.
    if constexpr (HALF > 1) sum_over_lanes<SPACING, N, HALF / 2>(sums);
}

// Writes one channel per lane of a warp that owns an item. All lanes take part; if a sum is not finite, the
// first ones compute the item again (chunked_sample.cuh).
MSDA_DEVICE void store_channel(const ForwardParams& params, const Item& item, int channel, float sum) {
    if (any_lane(!(sum * 0.0f == 0.0f))) {
        const int chunk = threadIdx.x % 32;
        if (chunk < CHUNKS) {
            float sums[CHUNK_ELEMENTS];
            recompute_exactly(params, item.pixels + chunk * 16, item.row, sums);
            store_chunk(params, item, chunk, sums);
        }
        return;
    }
    store_element<ValueStorage>(params.output, item.row * CHANNELS + channel, sum);
}

}  // namespace msda
