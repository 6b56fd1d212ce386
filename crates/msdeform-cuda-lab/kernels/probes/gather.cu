// How fast rows can be fetched from L1 or L2 without any other work.
//
// Every lane loads 16 bytes at a time from a slab; which lanes read neighbouring bytes is the pattern.
// A slab of some KB stays in L1, one of some MB in L2 only. Rows are drawn by a linear congruential
// generator, four instructions a load, so that the loads and not their addresses set the pace.
#include "intrinsics.cuh"

using namespace msda;

namespace {

constexpr int PATTERN = MSDA_PROBE_PATTERN;
constexpr int UNROLL = 8;

enum Pattern : int {
    ALIGNED_PAIR = 0,  // 8 lanes read a 128-byte line: both heads of an interleaved pixel
    PAIR = 1,          // 8 lanes read 128 bytes from any 64-byte row on: two pixels of one head
    ROWS = 2,          // 4 lanes read a 64-byte row: two unrelated pixels in a quarter of a warp
    FRAGMENT = 3,      // 8 lanes read two 16-byte pieces of four rows: a tensor core's operand order
};

struct GatherParams {
    const unsigned char* slab;
    unsigned* sink;
    unsigned row_mask;  // rows of 64 bytes in the slab, a power of two, minus one
    int rounds;         // of UNROLL loads
};

// Lanes of equal stream read the same row.
MSDA_DEVICE int stream_of_lane(int lane) {
    switch (PATTERN) {
        case ROWS: return lane / 4;
        case FRAGMENT: return lane % 4 + lane / 16 * 4;
        default: return lane / 8;
    }
}

MSDA_DEVICE unsigned byte_in_row(int lane) {
    switch (PATTERN) {
        case ROWS: return lane % 4 * 16;
        case FRAGMENT: return lane / 4 % 4 * 16;
        default: return lane % 8 * 16;
    }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(1024, 2) gather(const __grid_constant__ GatherParams params) {
    const int lane = threadIdx.x % 32;
    const unsigned char* own = params.slab + byte_in_row(lane);
    const unsigned warp = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    unsigned state = (warp * 8 + stream_of_lane(lane)) * 2654435769u + 12345u;
    const unsigned mask = PATTERN == ALIGNED_PAIR ? params.row_mask & ~1u : params.row_mask;
    unsigned folded = 0;
#pragma unroll 1
    for (int round = 0; round < params.rounds; ++round) {
#pragma unroll
        for (int i = 0; i < UNROLL; ++i) {
            state = state * 1664525u + 1013904223u;
            Packet<16> packet;
            load_readonly(packet, own + ((state >> 9) & mask) * 64u);
            folded ^= packet.word[0] ^ packet.word[1] ^ packet.word[2] ^ packet.word[3];
        }
    }
    // Never true, because the slab holds equal words, which fold to zero. The compiler cannot know that.
    if (folded == 0x5eed5eedu) params.sink[0] = folded;
}
