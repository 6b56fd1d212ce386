// Lanes of a warp and warps of a block that exchange words and wait for each other. Part of intrinsics.cuh.
#pragma once

namespace msda {

// ---- warps -------------------------------------------------------------------------------------
// All 32 lanes take part in every exchange; `width` (a power of two) splits the warp into groups that
// number their lanes from 0.

constexpr unsigned ALL_LANES = 0xffffffffu;

MSDA_DEVICE unsigned shuffle(unsigned word, int source_lane, int width = 32) {
    return __shfl_sync(ALL_LANES, word, source_lane, width);
}
MSDA_DEVICE int shuffle(int word, int source_lane, int width = 32) {
    return __shfl_sync(ALL_LANES, word, source_lane, width);
}
MSDA_DEVICE float shuffle(float word, int source_lane, int width = 32) {
    return __shfl_sync(ALL_LANES, word, source_lane, width);
}
// Two exchanges.
MSDA_DEVICE long long shuffle(long long word, int source_lane, int width = 32) {
    return __shfl_sync(ALL_LANES, word, source_lane, width);
}
MSDA_DEVICE float shuffle_xor(float word, int lane_mask, int width = 32) {
    return __shfl_xor_sync(ALL_LANES, word, lane_mask, width);
}
MSDA_DEVICE unsigned shuffle_xor(unsigned word, int lane_mask, int width = 32) {
    return __shfl_xor_sync(ALL_LANES, word, lane_mask, width);
}

// ---- warps: more exchanges ---------------------------------------------------------------------

MSDA_DEVICE int shuffle_xor(int word, int lane_mask, int width = 32) {
    return __shfl_xor_sync(ALL_LANES, word, lane_mask, width);
}
MSDA_DEVICE long long shuffle_xor(long long word, int lane_mask, int width = 32) {
    return __shfl_xor_sync(ALL_LANES, word, lane_mask, width);
}
// From the lane `distance` above (down) or below (up); a lane whose source is outside of the group
// keeps its own word.
#define MSDA_SHUFFLE(TYPE)                                                   \
    MSDA_DEVICE TYPE shuffle_down(TYPE word, int distance, int width = 32) { \
        return __shfl_down_sync(ALL_LANES, word, distance, width);           \
    }                                                                        \
    MSDA_DEVICE TYPE shuffle_up(TYPE word, int distance, int width = 32) {   \
        return __shfl_up_sync(ALL_LANES, word, distance, width);             \
    }
MSDA_SHUFFLE(unsigned)
MSDA_SHUFFLE(int)
MSDA_SHUFFLE(float)
MSDA_SHUFFLE(long long)
#undef MSDA_SHUFFLE

// Bit i is lane i's vote.
MSDA_DEVICE unsigned ballot_lanes(bool vote) { return __ballot_sync(ALL_LANES, vote); }
MSDA_DEVICE bool any_lane(bool vote) { return __any_sync(ALL_LANES, vote); }
MSDA_DEVICE bool all_lanes(bool vote) { return __all_sync(ALL_LANES, vote); }
// Bit i: lane i has the same word. Slow, because the hardware takes one pass per different word.
MSDA_DEVICE unsigned match_lanes(unsigned word) { return __match_any_sync(ALL_LANES, word); }
MSDA_DEVICE int count_bits(unsigned word) { return __popc(word); }
// The lowest bit that is set; -1 if no bit is set.
MSDA_DEVICE int first_bit(unsigned word) { return __ffs(static_cast<int>(word)) - 1; }
// Only these lanes wait for each other, and see each other's writes to shared memory afterwards.
MSDA_DEVICE void sync_warp(unsigned mask = ALL_LANES) { __syncwarp(mask); }

// ---- named barriers ----------------------------------------------------------------------------
// Barrier 0 is __syncthreads; 1 to 15 are free. `threads`, a multiple of 32, counts those that wait
// and those that only arrive; each of them must come exactly once per use.

MSDA_DEVICE void barrier_sync(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
MSDA_DEVICE void barrier_arrive(int id, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

}  // namespace msda
