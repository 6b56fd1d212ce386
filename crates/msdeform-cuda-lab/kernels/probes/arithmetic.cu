// Rates of the units that compute, and of shared memory: long chains of one instruction, enough of them
// side by side to hide its latency.
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

}  // namespace

extern "C" __global__ void __launch_bounds__(512, 2)
    arithmetic(const __grid_constant__ ArithmeticParams params) {
    const unsigned seed = params.seed + threadIdx.x;
    unsigned result = 0;
    if constexpr (UNIT == FMA_F32) {
        float sums[CHAINS];
        const float factor = 1.0f + static_cast<float>(seed & 7u) * 1e-6f;
#pragma unroll
        for (int c = 0; c < CHAINS; ++c) sums[c] = static_cast<float>(c);
#pragma unroll 1
        for (int round = 0; round < params.rounds; ++round) {
#pragma unroll
            for (int i = 0; i < UNROLL * CHAINS; ++i) {
                sums[i % CHAINS] = fmaf(sums[i % CHAINS], factor, factor);
            }
        }
#pragma unroll
        for (int c = 0; c < CHAINS; ++c) result ^= float_to_bits(sums[c]);
    } else if constexpr (UNIT == FMA_HALF2) {
        unsigned sums[CHAINS];
#pragma unroll
        for (int c = 0; c < CHAINS; ++c) sums[c] = seed + c;
#pragma unroll 1
        for (int round = 0; round < params.rounds; ++round) {
#pragma unroll
            for (int i = 0; i < UNROLL * CHAINS; ++i) {
                sums[i % CHAINS] = fma_half2(sums[i % CHAINS], seed, seed);
            }
        }
#pragma unroll
        for (int c = 0; c < CHAINS; ++c) result ^= sums[c];
    } else if constexpr (UNIT == MMA_F16) {
        float sums[CHAINS][4] = {};
        const unsigned a[4] = {seed, seed, seed, seed};
        const unsigned b[2] = {seed, seed};
#pragma unroll 1
        for (int round = 0; round < params.rounds; ++round) {
#pragma unroll
            for (int i = 0; i < UNROLL * CHAINS; ++i) mma_f16_16x8x16(sums[i % CHAINS], a, b);
        }
#pragma unroll
        for (int c = 0; c < CHAINS; ++c) result ^= float_to_bits(sums[c][0]);
    } else if constexpr (UNIT == LOAD_SHARED_WORD) {
        // 4 bytes a lane: every load of a warp is one pass of 128 bytes.
        constexpr unsigned WORDS = UNROLL * CHAINS * 32;
        unsigned* words = reinterpret_cast<unsigned*>(shared_memory());
        for (unsigned w = threadIdx.x; w < WORDS; w += blockDim.x) words[w] = params.seed;
        __syncthreads();
        unsigned index = threadIdx.x;
#pragma unroll 1
        for (int round = 0; round < params.rounds; ++round) {
#pragma unroll
            for (int i = 0; i < UNROLL * CHAINS; ++i) result ^= words[(index + i * 32) % WORDS];
            index += result;  // zero, as below
        }
    } else {
        // 16 bytes a lane, neighbouring lanes neighbouring bytes: no bank is asked twice.
        constexpr unsigned PACKETS = UNROLL * CHAINS * 32;
        Packet<16>* packets = reinterpret_cast<Packet<16>*>(shared_memory());
        for (unsigned p = threadIdx.x; p < PACKETS; p += blockDim.x) {
            packets[p] = {{params.seed, params.seed, params.seed, params.seed}};
        }
        __syncthreads();
        unsigned index = threadIdx.x;
#pragma unroll 1
        for (int round = 0; round < params.rounds; ++round) {
#pragma unroll
            for (int i = 0; i < UNROLL * CHAINS; ++i) {
                const Packet<16> packet = packets[(index + i * 32) % PACKETS];
                result ^= packet.word[0] ^ packet.word[1] ^ packet.word[2] ^ packet.word[3];
            }
            index += result;  // zero, but the compiler cannot keep a round's loads for the next
        }
    }
    if (result == 0x5eed5eedu) params.sink[0] = result;
}
