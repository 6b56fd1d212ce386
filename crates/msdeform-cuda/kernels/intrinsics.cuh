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

}  // namespace msda

#endif  // MSDA_EMULATED
