// Dtypes and arithmetic. Part of intrinsics.cuh.
#pragma once

namespace msda {

// ---- dtypes: half and bfloat16 are bits --------------------------------------------------------

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

MSDA_DEVICE unsigned add_half2(unsigned a, unsigned b) {
    unsigned result;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
    return result;
}

// One half of a pair in both places. Costs nothing: packed arithmetic selects halves of its operands.
MSDA_DEVICE unsigned duplicate_low(unsigned pair) {
    unsigned result;
    asm("{.reg .b16 low, high; mov.b32 {low, high}, %1; mov.b32 %0, {low, low};}" : "=r"(result) : "r"(pair));
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

// The value, or zero, by a mask. The compiler may compile a plain choice to a zero in two registers, which it
// overwrites under predicates and reads before they are written (sample_gradients.cuh). The test `compiled`
// of msdeform-cuda-lab finds this machine code.
MSDA_DEVICE unsigned value_if(bool wanted, unsigned value) {
    unsigned result;
    asm("{\n.reg .b32 mask;\nneg.s32 mask, %2;\nand.b32 %0, %1, mask;\n}"
        : "=r"(result)
        : "r"(value), "r"(static_cast<unsigned>(wanted)));
    return result;
}
MSDA_DEVICE int value_if(bool wanted, int value) {
    return static_cast<int>(value_if(wanted, static_cast<unsigned>(value)));
}

// Returns the same address, but hides its origin from the compiler. Otherwise the compiler spreads the terms
// of an address over several sums and computes a 64-bit pair for each. From an opaque address it reaches
// neighbours by the displacement that every load has.
MSDA_DEVICE const unsigned char* opaque_address(const unsigned char* address) {
    asm("" : "+l"(address));
    return address;
}

}  // namespace msda
