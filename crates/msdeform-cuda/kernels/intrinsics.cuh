// Every machine instruction that C++ has no word for, as an inline function, in the ptx_*.cuh included
// below. Kernels contain no asm.
//
// In emulation the same functions come from "intrinsics_emulated.hpp", in plain C++. A function that is added
// here needs its twin there, because kernels that call it cannot run without a GPU otherwise.
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

#include "ptx_copies.cuh"
#include "ptx_launches.cuh"
#include "ptx_matrices.cuh"
#include "ptx_memory.cuh"
#include "ptx_numbers.cuh"
#include "ptx_warps.cuh"

#endif  // MSDA_EMULATED
