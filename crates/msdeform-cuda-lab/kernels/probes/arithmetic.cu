// Rates of the arithmetic units and of shared memory: long chains of one instruction, enough independent
// chains to hide its latency.
#include "intrinsics.cuh"

using namespace msda;

namespace {

constexpr int UNIT = MSDA_PROBE_UNIT;
constexpr int CHAINS = 8;
constexpr int UNROLL = 8;

enum Unit : int { FMA_F32 = 0, FMA_HALF2 = 1, MMA_F16 = 2, LOAD_SHARED = 3, LOAD_SHARED_WORD = 4 };

struct ArithmeticParams {
    unsigned* sink;
    unsigned seed;  // any bits; known at run time only
    int rounds;     // of UNROLL instructions on each chain
};

// Calls step(chain) UNROLL times for every chain, round after round.
template <typename Step>
MSDA_DEVICE void run_chains(int rounds, Step step) {
#pragma unroll 1
    for (int round = 0; round < rounds; ++round) {
#pragma unroll
        for (int i = 0; i < UNROLL * CHAINS; ++i) step(i % CHAINS);
    }
}

MSDA_DEVICE unsigned fma_f32_chains(unsigned seed, int rounds) {
    float sums[CHAINS];
    const float factor = 1.0f + static_cast<float>(seed & 7u) * 1e-6f;
#pragma unroll
    for (int c = 0; c < CHAINS; ++c) sums[c] = static_cast<float>(c);
    run_chains(rounds, [&](int c) { sums[c] = fmaf(sums[c], factor, factor); });
    unsigned result = 0;
#pragma unroll
    for (int c = 0; c < CHAINS; ++c) result ^= float_to_bits(sums[c]);
    return result;
}

MSDA_DEVICE unsigned fma_half2_chains(unsigned seed, int rounds) {
    unsigned sums[CHAINS];
#pragma unroll
    for (int c = 0; c < CHAINS; ++c) sums[c] = seed + c;
    run_chains(rounds, [&](int c) { sums[c] = fma_half2(sums[c], seed, seed); });
    unsigned result = 0;
#pragma unroll
    for (int c = 0; c < CHAINS; ++c) result ^= sums[c];
    return result;
}

MSDA_DEVICE unsigned mma_f16_chains(unsigned seed, int rounds) {
    float sums[CHAINS][4] = {};
    const unsigned a[4] = {seed, seed, seed, seed};
    const unsigned b[2] = {seed, seed};
    run_chains(rounds, [&](int c) { mma_f16_16x8x16(sums[c], a, b); });
    unsigned result = 0;
#pragma unroll
    for (int c = 0; c < CHAINS; ++c) result ^= float_to_bits(sums[c][0]);
    return result;
}

// Neighbouring lanes read neighbouring packets, so no bank serves two lanes. With 4 bytes every load of a
// warp is one pass of 128 bytes.
template <int BYTES>
MSDA_DEVICE unsigned shared_loads(unsigned seed, int rounds) {
    constexpr unsigned PACKETS = UNROLL * CHAINS * 32;
    Packet<BYTES>* packets = reinterpret_cast<Packet<BYTES>*>(shared_memory());
    for (unsigned p = threadIdx.x; p < PACKETS; p += blockDim.x) {
#pragma unroll
        for (int w = 0; w < BYTES / 4; ++w) packets[p].word[w] = seed;
    }
    __syncthreads();
    unsigned index = threadIdx.x, result = 0;
#pragma unroll 1
    for (int round = 0; round < rounds; ++round) {
#pragma unroll
        for (int i = 0; i < UNROLL * CHAINS; ++i) {
            const Packet<BYTES> packet = packets[(index + i * 32) % PACKETS];
#pragma unroll
            for (int w = 0; w < BYTES / 4; ++w) result ^= packet.word[w];
        }
        index += result;  // zero, but the compiler cannot keep a round's loads for the next
    }
    return result;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(512, 2)
    arithmetic(const __grid_constant__ ArithmeticParams params) {
    const unsigned seed = params.seed + threadIdx.x;
    unsigned result = 0;
    if constexpr (UNIT == FMA_F32) {
        result = fma_f32_chains(seed, params.rounds);
    } else if constexpr (UNIT == FMA_HALF2) {
        result = fma_half2_chains(seed, params.rounds);
    } else if constexpr (UNIT == MMA_F16) {
        result = mma_f16_chains(seed, params.rounds);
    } else if constexpr (UNIT == LOAD_SHARED_WORD) {
        result = shared_loads<4>(params.seed, params.rounds);
    } else {
        result = shared_loads<16>(params.seed, params.rounds);
    }
    if (result == 0x5eed5eedu) params.sink[0] = result;
}
