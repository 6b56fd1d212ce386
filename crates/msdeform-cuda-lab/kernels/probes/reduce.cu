// How fast fp32 updates reach L2: the limit of a backward pass with plain atomics.
//
// A warp adds 32 neighbouring floats, one 128-byte line, at a time, to lines drawn at random.
#include "intrinsics.cuh"

using namespace msda;

namespace {

constexpr int UNROLL = 8;

struct ReduceParams {
    float* slab;
    unsigned line_mask;  // lines of 32 floats, a power of two, minus one
    int rounds;          // of UNROLL updates
};

}  // namespace

extern "C" __global__ void __launch_bounds__(1024, 2) reduce(const __grid_constant__ ReduceParams params) {
    const unsigned warp = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    unsigned state = warp * 2654435769u + 12345u;
    float* own = params.slab + threadIdx.x % 32;
#pragma unroll 1
    for (int round = 0; round < params.rounds; ++round) {
#pragma unroll
        for (int i = 0; i < UNROLL; ++i) {
            state = state * 1664525u + 1013904223u;
            reduce_add(own + ((state >> 9) & params.line_mask) * 32u, 1.0f);
        }
    }
}
