// Counters in shared memory that hand out places in lists.
#pragma once

#include "numeric.cuh"

namespace msda {

constexpr bool ORDERED = MSDA_ORDERED != 0;  // the order of a list depends on the call alone

// Up to COUNT counters of a sample, by address in shared memory.
template <int COUNT>
struct Counters {
    unsigned address[COUNT];
    bool present[COUNT];
};

// Adds a sample of every lane to its counters. `taken` gets their values before, which are the sample's
// places.
//
// Lanes that meet in a counter take their places by shared atomics, in an unspecified order. Where lists are
// ORDERED, the lowest of these lanes takes room for all of them, and the counters belong to one warp.
template <int COUNT>
MSDA_DEVICE void take_places(const Counters<COUNT>& counters, unsigned (&taken)[COUNT]) {
    const int lane = threadIdx.x % 32;
    const unsigned lanes_before = (1u << lane) - 1;
    unsigned peers[COUNT];
#pragma unroll
    for (int c = 0; c < COUNT; ++c) {
        // Lanes without a counter get words that differ from every address and from each other.
        if constexpr (ORDERED) {
            peers[c] = match_lanes(counters.present[c] ? counters.address[c] : 0x80000000u | lane);
        }
    }
#pragma unroll
    for (int c = 0; c < COUNT; ++c) {
        if constexpr (ORDERED) {
            // A counter may be one lane's first and another's second: first ones go first.
            sync_warp();
            const bool lowest = counters.present[c] && (peers[c] & lanes_before) == 0;
            taken[c] = shared_add(counters.address[c], count_bits(peers[c]), lowest);
        } else {
            taken[c] = shared_add(counters.address[c], 1, counters.present[c]);
        }
    }
#pragma unroll
    for (int c = 0; c < COUNT; ++c) {
        if constexpr (ORDERED) {
            taken[c] = shuffle(taken[c], first_bit(peers[c])) + count_bits(peers[c] & lanes_before);
        }
    }
}

}  // namespace msda
