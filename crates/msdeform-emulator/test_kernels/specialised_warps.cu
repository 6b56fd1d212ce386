// Warp 0 produces, warps 1 to 3 consume, over a ring of stages guarded by full and empty mbarriers. The
// ring wraps several times, so that both parities of every phase are used.
#include "test_params.inc"

constexpr int STAGES = 2;
constexpr int TILE = 64;  // floats
constexpr int CONSUMERS = 96;

extern "C" __global__ void specialised_warps(const __grid_constant__ TestParams params) {
    unsigned char* memory = shared_memory();
    auto* stages = reinterpret_cast<float*>(memory);
    auto* full = reinterpret_cast<Mbarrier*>(memory + STAGES * TILE * sizeof(float));
    Mbarrier* empty = full + STAGES;
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; ++stage) {
            mbarrier_init(full + stage, 1);
            mbarrier_init(empty + stage, CONSUMERS);
        }
        mbarrier_init_fence();
    }
    __syncthreads();

    const int tiles = params.count / TILE;
    const auto* input = static_cast<const float*>(params.input);
    if (threadIdx.x < 32) {
        if (threadIdx.x == 0) {
            for (int tile = 0; tile < tiles; ++tile) {
                const int stage = tile % STAGES;
                // Parity 1 first: a fresh stage is empty.
                mbarrier_wait(empty + stage, tile / STAGES % 2 == 0);
                mbarrier_arrive_expect_bytes(full + stage, TILE * sizeof(float));
                copy_bulk(stages + stage * TILE, input + tile * TILE, TILE * sizeof(float), full + stage);
            }
        }
    } else {
        const unsigned consumer = threadIdx.x - 32;
        float sum = 0.0f;
        for (int tile = 0; tile < tiles; ++tile) {
            const int stage = tile % STAGES;
            mbarrier_wait(full + stage, tile / STAGES % 2);
            sum += stages[stage * TILE + consumer % TILE];
            mbarrier_arrive(empty + stage);
        }
        static_cast<float*>(params.output)[consumer] = sum;
    }
}
