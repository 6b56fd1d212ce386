// Exponentials for the softmax. Not part of intrinsics.cuh, because only kernels with a softmax need them.
#pragma once

namespace msda {

// 2 to the power of `exponent`, within two units in the last place; subnormal results are zero.
MSDA_DEVICE float exp2_near(float exponent) {
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(exponent));
    return power;
}

// 1 / number, within one unit in the last place, where neither is subnormal.
MSDA_DEVICE float reciprocal_near(float number) {
    float reciprocal;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(number));
    return reciprocal;
}

}  // namespace msda
