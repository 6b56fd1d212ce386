// Two kernels of one launch: the first writes the order in which its blocks got their turns, the second reads
// that.
#include "test_params.inc"

// output[block] = the block's ticket; the counter follows the blocks and must start at zero.
extern "C" __global__ void two_steps_draw(const __grid_constant__ TestParams params) {
    auto* output = static_cast<unsigned*>(params.output);
    const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    if (threadIdx.x == 0) output[block] = atomicAdd(output + params.count, 1u);
}

// After the counter: the tickets doubled.
extern "C" __global__ void two_steps_double(const __grid_constant__ TestParams params) {
    auto* output = static_cast<unsigned*>(params.output);
    const unsigned count = static_cast<unsigned>(params.count);
    const unsigned index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index < count) output[count + 1 + index] = 2 * output[index];
}
