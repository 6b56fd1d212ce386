// Sums tiles that arrive by cp.async, two in flight; the last tile is filled up with zeros.
#include "test_params.inc"

constexpr int TILE = 128 * 4;  // floats

MSDA_DEVICE void fetch(const TestParams& params, int tile, float* stage) {
    const int first = tile * TILE + static_cast<int>(threadIdx.x) * 4;
    const bool valid = first < params.count;
    const auto* input = static_cast<const float*>(params.input);
    copy_async_or_zero<16>(stage + threadIdx.x * 4, input + (valid ? first : 0), valid);
    copy_async_commit();
}

extern "C" __global__ void copy_pipeline(const __grid_constant__ TestParams params) {
    auto* stages = reinterpret_cast<float*>(shared_memory());
    const int tiles = (params.count + TILE - 1) / TILE;
    float sum = 0.0f;
    fetch(params, 0, stages);
    for (int tile = 0; tile < tiles; ++tile) {
        float* stage = stages + tile % 2 * TILE;
        // Past the end this fetches zeros, so that the number of groups is always the same.
        fetch(params, tile + 1, stages + (tile + 1) % 2 * TILE);
        copy_async_wait<1>();
        __syncthreads();
        // Of another thread, to need the barrier.
        const unsigned other = (threadIdx.x + 37) % 128;
        for (int i = 0; i < 4; ++i) sum += stage[other * 4 + i];
        __syncthreads();
    }
    copy_async_wait_all();
    static_cast<float*>(params.output)[threadIdx.x] = sum;
}
