// A persistent loop over items, a warp for each, with a barrier in it that counts every thread of the block.
// LEAVES_ALONE: a warp without another item leaves the loop, and the others wait for it forever. Otherwise
// the block decides how many turns there are, and warps without an item arrive too.
#include "test_params.inc"

extern "C" __global__ void tail_barrier(const __grid_constant__ TestParams params) {
    auto* barrier = reinterpret_cast<Mbarrier*>(shared_memory());
    if (threadIdx.x == 0) mbarrier_init(barrier, static_cast<int>(blockDim.x));
    __syncthreads();

    const auto* input = static_cast<const float*>(params.input);
    auto* output = static_cast<float*>(params.output);
    const int warps = static_cast<int>(blockDim.x) / 32, warp = static_cast<int>(threadIdx.x) / 32;
    unsigned parity = 0;
    for (int first = static_cast<int>(blockIdx.x) * warps; first < params.count;
         first += static_cast<int>(gridDim.x) * warps, parity ^= 1u) {
        const int item = first + warp;
        if (LEAVES_ALONE && item >= params.count) return;
        mbarrier_arrive(barrier);
        mbarrier_wait(barrier, parity);
        if (item < params.count && threadIdx.x % 32 == 0) output[item] = 2.0f * input[item];
    }
}
