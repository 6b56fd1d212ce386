// A sum over the block in shared memory, then a hand-over from the first warp to the second through a
// named barrier (the first only arrives), then a counter that all blocks share.
#include "test_params.inc"

extern "C" __global__ void block_sum(const __grid_constant__ TestParams params) {
    auto* partial = reinterpret_cast<float*>(shared_memory());
    const unsigned thread = threadIdx.x;
    const auto* input = static_cast<const float*>(params.input);
    partial[thread] = input[blockIdx.x * blockDim.x + thread];
    __syncthreads();
    for (unsigned stride = blockDim.x / 2; stride > 0; stride /= 2) {
        if (thread < stride) partial[thread] += partial[thread + stride];
        __syncthreads();
    }
    auto* output = static_cast<float*>(params.output);
    if (thread < 32) {
        if (thread == 0) partial[1] = 2.0f * partial[0];
        barrier_arrive(3, 64);
    } else if (thread < 64) {
        barrier_sync(3, 64);
        if (thread == 32) output[blockIdx.x] = partial[1];
    }
    atomicAdd(reinterpret_cast<unsigned*>(output + gridDim.x), 1u);
    reduce_add(output + gridDim.x + 1, 0.5f);
}
