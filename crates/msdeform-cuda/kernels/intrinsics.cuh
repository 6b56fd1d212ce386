// Every machine instruction that C++ has no word for, as an inline function. Kernels contain no asm.
//
// In emulation the same functions come from "intrinsics_emulated.hpp", written in plain C++; a function
// added here needs its twin there, or the kernels that use it do not run without a GPU.
#pragma once

namespace msda {

// The unit of a memory access: 2, 4, 8 or 16 bytes, moved by one instruction. The address must be a
// multiple of the size.
template <int BYTES>
struct Packet;
template <>
struct alignas(2) Packet<2> {
    unsigned short word[1];
};
template <>
struct alignas(4) Packet<4> {
    unsigned word[1];
};
template <>
struct alignas(8) Packet<8> {
    unsigned word[2];
};
template <>
struct alignas(16) Packet<16> {
    unsigned word[4];
};

}  // namespace msda

#ifdef MSDA_EMULATED
#include "intrinsics_emulated.hpp"
#else

#define MSDA_DEVICE __device__ __forceinline__

extern __shared__ __align__(128) unsigned char msda_shared_bytes[];

namespace msda {

// The block's dynamic shared memory, aligned to 128 bytes. There is no static shared memory.
MSDA_DEVICE unsigned char* shared_memory() { return msda_shared_bytes; }

// Shared memory by 32-bit address: where an address is kept in a register it costs one, not two.
MSDA_DEVICE unsigned shared_address(const void* shared) {
    return static_cast<unsigned>(__cvta_generic_to_shared(shared));
}
MSDA_DEVICE void store_shared(unsigned address, float value) {
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
}
MSDA_DEVICE void load_shared(Packet<16>& packet, unsigned address) {
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(packet.word[0]), "=r"(packet.word[1]), "=r"(packet.word[2]),
                   "=r"(packet.word[3])
                 : "r"(address)
                 : "memory");
}

// Counters that many threads add to. Adds where `wanted`, without a branch; returns what was there before,
// 0 where not wanted.
MSDA_DEVICE unsigned shared_add(unsigned address, unsigned amount, bool wanted) {
    unsigned old;
    asm volatile(
        "{\n.reg .pred wanted;\nsetp.ne.u32 wanted, %3, 0;\nmov.u32 %0, 0;\n"
        "@wanted atom.shared.add.u32 %0, [%1], %2;\n}"
        : "=r"(old)
        : "r"(address), "r"(amount), "r"(static_cast<unsigned>(wanted))
        : "memory");
    return old;
}
// Adds one, without an answer.
MSDA_DEVICE void shared_increment(unsigned address, bool wanted) {
    asm volatile(
        "{\n.reg .pred wanted;\nsetp.ne.u32 wanted, %1, 0;\n"
        "@wanted red.shared.add.u32 [%0], 1;\n}" ::"r"(address),
        "r"(static_cast<unsigned>(wanted))
        : "memory");
}

// What goes in comes out, but the compiler no longer knows what it is: it stays in registers instead of
// being computed again at every use.
MSDA_DEVICE unsigned kept(unsigned word) {
    asm volatile("" : "+r"(word));
    return word;
}
MSDA_DEVICE const unsigned char* kept(const unsigned char* pointer) {
    asm volatile("" : "+l"(pointer));
    return pointer;
}

// ---- number formats: half and bfloat16 are bits ------------------------------------------------

MSDA_DEVICE float bits_to_float(unsigned bits) { return __uint_as_float(bits); }
MSDA_DEVICE unsigned float_to_bits(float value) { return __float_as_uint(value); }

MSDA_DEVICE float half_to_float(unsigned short half) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(half));
    return value;
}

// Round to nearest even.
MSDA_DEVICE unsigned short float_to_half(float value) {
    unsigned short half;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(value));
    return half;
}

// Two at once, `low` in bits 0-15: one instruction since sm_80.
MSDA_DEVICE unsigned floats_to_half2(float low, float high) {
    unsigned pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

MSDA_DEVICE unsigned floats_to_bfloat2(float low, float high) {
    unsigned pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

// Exact: a bfloat16 is the upper half of a float.
MSDA_DEVICE float bfloat_to_float(unsigned short bfloat) {
    return bits_to_float(static_cast<unsigned>(bfloat) << 16);
}

// Round to nearest even.
MSDA_DEVICE unsigned short float_to_bfloat(float value) {
    unsigned short bfloat;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bfloat) : "f"(value));
    return bfloat;
}

// a * b + c on two halves, one rounding each.
MSDA_DEVICE unsigned fma_half2(unsigned a, unsigned b, unsigned c) {
    unsigned result;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(c));
    return result;
}

MSDA_DEVICE unsigned fma_bfloat2(unsigned a, unsigned b, unsigned c) {
    unsigned result;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(c));
    return result;
}

MSDA_DEVICE unsigned multiply_half2(unsigned a, unsigned b) {
    unsigned result;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
    return result;
}

// One half of a pair in both places. Costs nothing: packed arithmetic selects halves of its operands.
MSDA_DEVICE unsigned duplicate_low(unsigned pair) {
    unsigned result;
    asm("{.reg .b16 low, high; mov.b32 {low, high}, %1; mov.b32 %0, {low, low};}"
        : "=r"(result)
        : "r"(pair));
    return result;
}

MSDA_DEVICE unsigned duplicate_high(unsigned pair) {
    unsigned result;
    asm("{.reg .b16 low, high; mov.b32 {low, high}, %1; mov.b32 %0, {high, high};}"
        : "=r"(result)
        : "r"(pair));
    return result;
}

// Clamped to 0 .. 1, NaN becomes 0; free where it follows an addition or a product.
MSDA_DEVICE float saturate(float value) { return __saturatef(value); }

// floor(value) where |value| < 2^22, in two full-rate additions instead of one slow conversion. Larger
// values stay beyond 2^21 on their side, NaN stays NaN.
MSDA_DEVICE float floor_near(float value) {
    constexpr float THREE_22 = 12582912.0f;
    float shifted;
    asm("add.rm.f32 %0, %1, %2;" : "=f"(shifted) : "f"(value), "f"(THREE_22));
    return shifted - THREE_22;
}

// a + b within [0, 1]; NaN becomes 0. One instruction.
MSDA_DEVICE float add_saturating(float a, float b) {
    float sum;
    asm("add.sat.f32 %0, %1, %2;" : "=f"(sum) : "f"(a), "f"(b));
    return sum;
}

// The same address, with its origin hidden from the compiler. Left to itself it spreads the terms of an
// address over several sums and computes 64-bit pairs for each; behind this, neighbours are reached
// through the displacement that a load has anyway.
MSDA_DEVICE const unsigned char* opaque_address(const unsigned char* address) {
    asm("" : "+l"(address));
    return address;
}

// ---- global memory -----------------------------------------------------------------------------
// load_readonly: data that no thread writes during the kernel and that others will read again soon.
// load_streaming: data read once; does not push anything out of L1.
// store_streaming: results nobody on this GPU reads soon; first to leave L2.

#define MSDA_LOAD(NAME, QUALIFIER)                                                               \
    MSDA_DEVICE void NAME(Packet<2>& packet, const void* address) {                              \
        asm("ld.global.nc" QUALIFIER ".b16 %0, [%1];" : "=h"(packet.word[0]) : "l"(address));    \
    }                                                                                            \
    MSDA_DEVICE void NAME(Packet<4>& packet, const void* address) {                              \
        asm("ld.global.nc" QUALIFIER ".b32 %0, [%1];" : "=r"(packet.word[0]) : "l"(address));    \
    }                                                                                            \
    MSDA_DEVICE void NAME(Packet<8>& packet, const void* address) {                              \
        asm("ld.global.nc" QUALIFIER ".v2.b32 {%0, %1}, [%2];"                                   \
            : "=r"(packet.word[0]), "=r"(packet.word[1])                                         \
            : "l"(address));                                                                     \
    }                                                                                            \
    MSDA_DEVICE void NAME(Packet<16>& packet, const void* address) {                             \
        asm("ld.global.nc" QUALIFIER ".v4.b32 {%0, %1, %2, %3}, [%4];"                           \
            : "=r"(packet.word[0]), "=r"(packet.word[1]), "=r"(packet.word[2]),                  \
              "=r"(packet.word[3])                                                               \
            : "l"(address));                                                                     \
    }
MSDA_LOAD(load_readonly, "")
MSDA_LOAD(load_streaming, ".L1::no_allocate")
#undef MSDA_LOAD

#define MSDA_STORE(NAME, QUALIFIER)                                                              \
    MSDA_DEVICE void NAME(void* address, const Packet<2>& packet) {                              \
        asm volatile("st.global" QUALIFIER ".b16 [%0], %1;" ::"l"(address), "h"(packet.word[0])  \
                     : "memory");                                                                \
    }                                                                                            \
    MSDA_DEVICE void NAME(void* address, const Packet<4>& packet) {                              \
        asm volatile("st.global" QUALIFIER ".b32 [%0], %1;" ::"l"(address), "r"(packet.word[0])  \
                     : "memory");                                                                \
    }                                                                                            \
    MSDA_DEVICE void NAME(void* address, const Packet<8>& packet) {                              \
        asm volatile("st.global" QUALIFIER ".v2.b32 [%0], {%1, %2};" ::"l"(address),             \
                     "r"(packet.word[0]), "r"(packet.word[1])                                    \
                     : "memory");                                                                \
    }                                                                                            \
    MSDA_DEVICE void NAME(void* address, const Packet<16>& packet) {                             \
        asm volatile("st.global" QUALIFIER ".v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(address),     \
                     "r"(packet.word[0]), "r"(packet.word[1]), "r"(packet.word[2]),              \
                     "r"(packet.word[3])                                                         \
                     : "memory");                                                                \
    }
MSDA_STORE(store, "")
MSDA_STORE(store_streaming, ".cs")
#undef MSDA_STORE

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
#define MSDA_SHUFFLE(TYPE)                                                                       \
    MSDA_DEVICE TYPE shuffle_down(TYPE word, int distance, int width = 32) {                     \
        return __shfl_down_sync(ALL_LANES, word, distance, width);                               \
    }                                                                                            \
    MSDA_DEVICE TYPE shuffle_up(TYPE word, int distance, int width = 32) {                       \
        return __shfl_up_sync(ALL_LANES, word, distance, width);                                 \
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
// Bit i: lane i has the same word. Slow: it takes a turn for every different word.
MSDA_DEVICE unsigned match_lanes(unsigned word) { return __match_any_sync(ALL_LANES, word); }
MSDA_DEVICE int count_bits(unsigned word) { return __popc(word); }
// The lowest bit that is set; -1 if there is none.
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

// ---- flags, sums and giving up -----------------------------------------------------------------

// Whoever sees a value stored with store_release sees everything written before that store. Shared or
// global memory, within the GPU.
MSDA_DEVICE unsigned load_acquire(const unsigned* flag) {
    unsigned value;
    asm volatile("ld.acquire.gpu.b32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
    return value;
}
MSDA_DEVICE void store_release(unsigned* flag, unsigned value) {
    asm volatile("st.release.gpu.b32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}

// The same within a block: cheaper, enough for flags in shared memory.
MSDA_DEVICE unsigned load_acquire_block(const unsigned* flag) {
    unsigned value;
    asm volatile("ld.acquire.cta.b32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
    return value;
}
MSDA_DEVICE void store_release_block(unsigned* flag, unsigned value) {
    asm volatile("st.release.cta.b32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}

// Adds in global memory, without an answer. Pairs and quadruples are one request from sm_90 on.
MSDA_DEVICE void reduce_add(float* address, float value) {
    asm volatile("red.global.add.f32 [%0], %1;" ::"l"(address), "f"(value) : "memory");
}
MSDA_DEVICE void reduce_add(float* address, const float (&values)[2]) {
#if __CUDA_ARCH__ >= 900
    asm volatile("red.global.add.v2.f32 [%0], {%1, %2};" ::"l"(address), "f"(values[0]),
                 "f"(values[1])
                 : "memory");
#else
    for (int i = 0; i < 2; ++i) reduce_add(address + i, values[i]);
#endif
}
MSDA_DEVICE void reduce_add(float* address, const float (&values)[4]) {
#if __CUDA_ARCH__ >= 900
    asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(address), "f"(values[0]),
                 "f"(values[1]), "f"(values[2]), "f"(values[3])
                 : "memory");
#else
    for (int i = 0; i < 4; ++i) reduce_add(address + i, values[i]);
#endif
}

// Ends the kernel with an error: what a wait does that has lasted too long.
MSDA_DEVICE void trap() { asm volatile("trap;"); }
MSDA_DEVICE void pause(unsigned nanoseconds) {
    asm volatile("nanosleep.u32 %0;" ::"r"(nanoseconds));
}

// ---- cache hints -------------------------------------------------------------------------------
// load_l2: past L1. load_evict_last: stays in L1 longest. load_hinted: L2 follows a policy, made once
// per thread.

using CachePolicy = unsigned long long;

MSDA_DEVICE CachePolicy policy_evict_first() {
    CachePolicy policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
MSDA_DEVICE CachePolicy policy_evict_last() {
    CachePolicy policy;
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

#define MSDA_LOAD(NAME, INSTRUCTION)                                                             \
    MSDA_DEVICE void NAME(Packet<2>& packet, const void* address) {                              \
        asm(INSTRUCTION ".b16 %0, [%1];" : "=h"(packet.word[0]) : "l"(address));                 \
    }                                                                                            \
    MSDA_DEVICE void NAME(Packet<4>& packet, const void* address) {                              \
        asm(INSTRUCTION ".b32 %0, [%1];" : "=r"(packet.word[0]) : "l"(address));                 \
    }                                                                                            \
    MSDA_DEVICE void NAME(Packet<8>& packet, const void* address) {                              \
        asm(INSTRUCTION ".v2.b32 {%0, %1}, [%2];"                                                \
            : "=r"(packet.word[0]), "=r"(packet.word[1])                                         \
            : "l"(address));                                                                     \
    }                                                                                            \
    MSDA_DEVICE void NAME(Packet<16>& packet, const void* address) {                             \
        asm(INSTRUCTION ".v4.b32 {%0, %1, %2, %3}, [%4];"                                        \
            : "=r"(packet.word[0]), "=r"(packet.word[1]), "=r"(packet.word[2]),                  \
              "=r"(packet.word[3])                                                               \
            : "l"(address));                                                                     \
    }
MSDA_LOAD(load_l2, "ld.global.cg")
MSDA_LOAD(load_evict_last, "ld.global.nc.L1::evict_last")
#undef MSDA_LOAD

MSDA_DEVICE void load_hinted(Packet<4>& packet, const void* address, CachePolicy policy) {
    asm("ld.global.nc.L2::cache_hint.b32 %0, [%1], %2;"
        : "=r"(packet.word[0])
        : "l"(address), "l"(policy));
}
MSDA_DEVICE void load_hinted(Packet<8>& packet, const void* address, CachePolicy policy) {
    asm("ld.global.nc.L2::cache_hint.v2.b32 {%0, %1}, [%2], %3;"
        : "=r"(packet.word[0]), "=r"(packet.word[1])
        : "l"(address), "l"(policy));
}
MSDA_DEVICE void load_hinted(Packet<16>& packet, const void* address, CachePolicy policy) {
    asm("ld.global.nc.L2::cache_hint.v4.b32 {%0, %1, %2, %3}, [%4], %5;"
        : "=r"(packet.word[0]), "=r"(packet.word[1]), "=r"(packet.word[2]), "=r"(packet.word[3])
        : "l"(address), "l"(policy));
}

// One line; an address outside of every allocation does no harm.
MSDA_DEVICE void prefetch_l1(const void* address) {
    asm volatile("prefetch.global.L1 [%0];" ::"l"(address));
}
MSDA_DEVICE void prefetch_l2(const void* address) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

// ---- asynchronous copies of a thread -----------------------------------------------------------
// Global to shared memory past the registers: 4, 8 or 16 bytes, both addresses multiples of that. A
// thread sees its own copies after copy_async_wait, the others' after a barrier on top.

template <int BYTES>
MSDA_DEVICE void copy_async(void* shared, const void* global) {
    if constexpr (BYTES == 16) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(shared)),
                     "l"(global)
                     : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(shared_address(shared)),
                     "l"(global), "n"(BYTES)
                     : "memory");
    }
}
// Zeros unless `valid`; then `global` is not read, but must still be aligned.
template <int BYTES>
MSDA_DEVICE void copy_async_or_zero(void* shared, const void* global, bool valid) {
    const int valid_bytes = valid ? BYTES : 0;
    if constexpr (BYTES == 16) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                         shared_address(shared)),
                     "l"(global), "r"(valid_bytes)
                     : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(
                         shared_address(shared)),
                     "l"(global), "n"(BYTES), "r"(valid_bytes)
                     : "memory");
    }
}
// 16 bytes, the destination by 32-bit address.
MSDA_DEVICE void copy_async_or_zero(unsigned shared, const void* global, bool valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
                 "r"(valid ? 16 : 0)
                 : "memory");
}
MSDA_DEVICE void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until at most the newest PENDING_GROUPS groups are still under way.
template <int PENDING_GROUPS>
MSDA_DEVICE void copy_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING_GROUPS) : "memory");
}
MSDA_DEVICE void copy_async_wait_all() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// ---- mbarriers ---------------------------------------------------------------------------------
// A barrier in shared memory that counts arrivals and, from sm_90 on, bytes of copies. Phases have
// parity 0, 1, 0, ...; waiting for parity 1 on a fresh barrier succeeds at once.

using Mbarrier = unsigned long long;

MSDA_DEVICE void mbarrier_init(Mbarrier* barrier, int arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals)
                 : "memory");
}
MSDA_DEVICE void mbarrier_arrive(Mbarrier* barrier) {
    asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0];\n}" ::"r"(
                     shared_address(barrier))
                 : "memory");
}
// Arrives when this thread's copy_async copies so far are there; counts as one of the arrivals.
MSDA_DEVICE void mbarrier_arrive_after_copies(Mbarrier* barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(barrier))
                 : "memory");
}
MSDA_DEVICE bool mbarrier_test_wait(Mbarrier* barrier, unsigned parity) {
    unsigned complete;
    asm volatile(
        "{\n.reg .pred complete;\n"
        "mbarrier.test_wait.parity.shared.b64 complete, [%1], %2;\n"
        "selp.u32 %0, 1, 0, complete;\n}"
        : "=r"(complete)
        : "r"(shared_address(barrier)), "r"(parity)
        : "memory");
    return complete != 0;
}
// May suspend the thread for a while before it answers.
MSDA_DEVICE bool mbarrier_try_wait(Mbarrier* barrier, unsigned parity) {
#if __CUDA_ARCH__ >= 900
    unsigned complete;
    asm volatile(
        "{\n.reg .pred complete;\n"
        "mbarrier.try_wait.parity.shared.b64 complete, [%1], %2;\n"
        "selp.u32 %0, 1, 0, complete;\n}"
        : "=r"(complete)
        : "r"(shared_address(barrier)), "r"(parity)
        : "memory");
    return complete != 0;
#else
    if (mbarrier_test_wait(barrier, parity)) return true;
    pause(20);
    return false;
#endif
}
// Bounded: a phase that never completes ends the kernel with an error instead of hanging the GPU.
MSDA_DEVICE void mbarrier_wait(Mbarrier* barrier, unsigned parity) {
    for (unsigned attempt = 0; !mbarrier_try_wait(barrier, parity); ++attempt) {
        if (attempt == 1u << 24) trap();
    }
}

// ---- bulk and tensor copies (sm_90) ------------------------------------------------------------
// One thread moves a block of memory; its bytes are counted by an mbarrier that was told to expect
// them. Addresses and sizes are multiples of 16; a tensor's destination is a multiple of 128.

// A CUtensorMap, made by the driver, passed inside the kernel's parameters.
struct alignas(64) TensorMap {
    unsigned long long opaque[16];
};

#if __CUDA_ARCH__ >= 900

// Makes initialised mbarriers visible to the copy engine.
MSDA_DEVICE void mbarrier_init_fence() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
MSDA_DEVICE void mbarrier_expect_bytes(Mbarrier* barrier, int bytes) {
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(
                     shared_address(barrier)),
                 "r"(bytes)
                 : "memory");
}
MSDA_DEVICE void mbarrier_arrive_expect_bytes(Mbarrier* barrier, int bytes) {
    asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.expect_tx.shared::cta.b64 state, [%0], %1;\n}" ::
                     "r"(shared_address(barrier)),
                 "r"(bytes)
                 : "memory");
}
MSDA_DEVICE void copy_bulk(void* shared, const void* global, int bytes, Mbarrier* barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(shared_address(shared)),
        "l"(global), "r"(bytes), "r"(shared_address(barrier))
        : "memory");
}
// Orders this thread's own accesses to shared memory before copies that are issued after it.
MSDA_DEVICE void fence_before_copy() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
MSDA_DEVICE void prefetch_tensor_map(const TensorMap* map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
// The box of the map at these coordinates, innermost first; what lies outside arrives as zeros.
MSDA_DEVICE void copy_tensor_2d(void* shared, const TensorMap* map, int x, int y,
                                Mbarrier* barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3}], [%4];" ::"r"(shared_address(shared)),
        "l"(map), "r"(x), "r"(y), "r"(shared_address(barrier))
        : "memory");
}
MSDA_DEVICE void copy_tensor_3d(void* shared, const TensorMap* map, int x, int y, int z,
                                Mbarrier* barrier) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(shared_address(shared)),
        "l"(map), "r"(x), "r"(y), "r"(z), "r"(shared_address(barrier))
        : "memory");
}
MSDA_DEVICE void copy_tensor_4d(void* shared, const TensorMap* map, int x, int y, int z, int w,
                                Mbarrier* barrier) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(shared_address(shared)),
        "l"(map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(shared_address(barrier))
        : "memory");
}

// Gives registers of this warp group (four warps, all of them call it) back or takes more: producers
// need few, consumers many. A multiple of 8 from 24 to 256.
template <int REGISTERS>
MSDA_DEVICE void lower_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
template <int REGISTERS>
MSDA_DEVICE void raise_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

#endif  // __CUDA_ARCH__ >= 900

// ---- tensor cores ------------------------------------------------------------------------------
// sums[16x8] += a[16xK] * b[Kx8], products exact, sums fp32. A register holds two neighbours along K;
// lane 4g + t holds
//   a[i]: row g + 8 (i % 2), columns 2t + 8 (i / 2) and the next
//   b[i]: column g, rows 2t + 8i and the next
//   sums[i]: row g + 8 (i / 2), column 2t + i % 2.

#define MSDA_MMA(NAME, FORMAT)                                                                   \
    MSDA_DEVICE void NAME##_16x8x16(float (&sums)[4], const unsigned (&a)[4],                    \
                                    const unsigned (&b)[2]) {                                    \
        asm("mma.sync.aligned.m16n8k16.row.col.f32." FORMAT "." FORMAT                           \
            ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"               \
            : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])                         \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));                 \
    }                                                                                            \
    MSDA_DEVICE void NAME##_16x8x8(float (&sums)[4], const unsigned (&a)[2],                     \
                                   const unsigned (&b)[1]) {                                     \
        asm("mma.sync.aligned.m16n8k8.row.col.f32." FORMAT "." FORMAT                            \
            ".f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"                           \
            : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])                         \
            : "r"(a[0]), "r"(a[1]), "r"(b[0]));                                                  \
    }
MSDA_MMA(mma_f16, "f16")
MSDA_MMA(mma_bf16, "bf16")
#undef MSDA_MMA

// sums[16x8] += a[16x8] * b[8x8] of floats whose low 13 bits are not looked at. Lane 4g + t holds
//   a[i]: row g + 8 (i % 2), column t + 4 (i / 2)
//   b[i]: row t + 4i, column g; sums as above.
MSDA_DEVICE void mma_tf32_16x8x8(float (&sums)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Lane 8m + r points at row r (16 bytes of shared memory) of 8x8 matrix m. Every lane gets, of each
// matrix, the pair at row lane / 4, columns 2 (lane % 4) and the next; transposed: of the transpose.
#define MSDA_LDMATRIX(NAME, TRANS)                                                               \
    MSDA_DEVICE void NAME(unsigned (&words)[1], const void* row) {                               \
        asm volatile("ldmatrix.sync.aligned.m8n8.x1" TRANS ".shared.b16 {%0}, [%1];"             \
                     : "=r"(words[0])                                                            \
                     : "r"(shared_address(row))                                                  \
                     : "memory");                                                                \
    }                                                                                            \
    MSDA_DEVICE void NAME(unsigned (&words)[2], const void* row) {                               \
        asm volatile("ldmatrix.sync.aligned.m8n8.x2" TRANS ".shared.b16 {%0, %1}, [%2];"         \
                     : "=r"(words[0]), "=r"(words[1])                                            \
                     : "r"(shared_address(row))                                                  \
                     : "memory");                                                                \
    }                                                                                            \
    MSDA_DEVICE void NAME(unsigned (&words)[4], const void* row) {                               \
        asm volatile("ldmatrix.sync.aligned.m8n8.x4" TRANS ".shared.b16 {%0, %1, %2, %3}, [%4];" \
                     : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])            \
                     : "r"(shared_address(row))                                                  \
                     : "memory");                                                                \
    }
MSDA_LDMATRIX(load_matrices, "")
MSDA_LDMATRIX(load_matrices_transposed, ".trans")
#undef MSDA_LDMATRIX
// Four of them, the row by 32-bit address.
MSDA_DEVICE void load_matrices_transposed(unsigned (&words)[4], unsigned row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(row)
                 : "memory");
}

}  // namespace msda

#endif  // MSDA_EMULATED
