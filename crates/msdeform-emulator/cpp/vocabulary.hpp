// The names of CUDA C++ that kernels use without an include, for a host compiler. Passed with -include, so
// that the kernel sources stay exactly as the device compiler reads them.
#pragma once

#include <math.h>

#include "runtime.hpp"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(bytes) alignas(bytes)

#define threadIdx (::msda_emulator::current->index)
#define blockIdx (::msda_emulator::block_index)
#define blockDim (::msda_emulator::block_size)
#define gridDim (::msda_emulator::grid_size)
constexpr int warpSize = 32;

#define MSDA_VECTOR_TYPES(SCALAR, NAME)                                                               \
    struct alignas(2 * sizeof(SCALAR)) NAME##2 { SCALAR x, y; };                                      \
    struct alignas(4 * sizeof(SCALAR) > 16 ? 16 : 4 * sizeof(SCALAR)) NAME##4 { SCALAR x, y, z, w; }; \
    inline NAME##2 make_##NAME##2(SCALAR x, SCALAR y) { return {x, y}; }                              \
    inline NAME##4 make_##NAME##4(SCALAR x, SCALAR y, SCALAR z, SCALAR w) { return {x, y, z, w}; }
MSDA_VECTOR_TYPES(float, float)
MSDA_VECTOR_TYPES(int, int)
MSDA_VECTOR_TYPES(unsigned, uint)
MSDA_VECTOR_TYPES(unsigned short, ushort)
#undef MSDA_VECTOR_TYPES

// ---- synchronisation ----------------------------------------------------------------------------

inline void __syncthreads(msda_emulator::Site site = msda_emulator::Site::here()) {
    msda_emulator::sync_block(site);
}

inline void __syncwarp(unsigned mask = 0xffffffffu, msda_emulator::Site site = msda_emulator::Site::here()) {
    msda_emulator::meet_warp("__syncwarp", mask, nullptr, [](const msda_emulator::WarpMeeting&) {}, site);
}

// A thread is never interrupted between two instructions, so there is nothing to order.
inline void __threadfence() {}
inline void __threadfence_block() {}

// ---- arithmetic ---------------------------------------------------------------------------------

inline float __uint_as_float(unsigned bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}
inline unsigned __float_as_uint(float value) {
    unsigned bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}
inline float __int_as_float(int bits) { return __uint_as_float(static_cast<unsigned>(bits)); }
inline int __float_as_int(float value) { return static_cast<int>(__float_as_uint(value)); }

inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }
inline unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }
inline unsigned max(unsigned a, unsigned b) { return a > b ? a : b; }
inline long long min(long long a, long long b) { return a < b ? a : b; }
inline long long max(long long a, long long b) { return a > b ? a : b; }

inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __saturatef(float value) { return value > 0.0f ? (value < 1.0f ? value : 1.0f) : 0.0f; }

// Byte i of the result is the byte of {high, low} that nibble i of the selector names.
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
    const uint64_t bytes = static_cast<uint64_t>(high) << 32 | low;
    unsigned result = 0;
    for (unsigned i = 0; i < 4; ++i) {
        const unsigned chosen = selector >> (4 * i) & 7u;
        result |= static_cast<unsigned>(bytes >> (8 * chosen) & 0xffu) << (8 * i);
    }
    return result;
}

inline int __popc(unsigned word) { return __builtin_popcount(word); }
inline int __ffs(int word) { return __builtin_ffs(word); }
inline int __clz(int word) { return word == 0 ? 32 : __builtin_clz(static_cast<unsigned>(word)); }
inline unsigned __umulhi(unsigned a, unsigned b) {
    return static_cast<unsigned>(static_cast<uint64_t>(a) * b >> 32);
}

// The device's conversions saturate and turn NaN into 0; a plain cast is undefined here.
inline int msda_saturate(double rounded) {
    if (!(rounded == rounded)) return 0;
    if (rounded <= -2147483648.0) return -2147483647 - 1;
    if (rounded >= 2147483647.0) return 2147483647;
    return static_cast<int>(rounded);
}
inline int __float2int_rd(float value) { return msda_saturate(floor(static_cast<double>(value))); }
inline int __float2int_ru(float value) { return msda_saturate(ceil(static_cast<double>(value))); }
inline int __float2int_rn(float value) { return msda_saturate(nearbyint(static_cast<double>(value))); }
inline int __float2int_rz(float value) { return msda_saturate(trunc(static_cast<double>(value))); }

// ---- atomics ------------------------------------------------------------------------------------

template <typename T>
inline T msda_fetch_add(T* address, T value) {
    const T before = *address;
    *address = static_cast<T>(before + value);
    return before;
}
inline float atomicAdd(float* address, float value) { return msda_fetch_add(address, value); }
inline unsigned atomicAdd(unsigned* address, unsigned value) { return msda_fetch_add(address, value); }
inline int atomicAdd(int* address, int value) {
    // The device wraps around; in C++ that is the unsigned sum.
    const int before = *address;
    *address = static_cast<int>(static_cast<unsigned>(before) + static_cast<unsigned>(value));
    return before;
}
inline unsigned long long atomicAdd(unsigned long long* address, unsigned long long value) {
    return msda_fetch_add(address, value);
}
inline unsigned atomicCAS(unsigned* address, unsigned expected, unsigned desired) {
    const unsigned before = *address;
    if (before == expected) *address = desired;
    return before;
}
inline unsigned atomicExch(unsigned* address, unsigned value) {
    const unsigned before = *address;
    *address = value;
    return before;
}
inline unsigned atomicMax(unsigned* address, unsigned value) {
    const unsigned before = *address;
    if (value > before) *address = value;
    return before;
}
