// Exponentials. Beside intrinsics.cuh and not part of it: only kernels with a softmax need them.
#pragma once

namespace msda {

// 2 to the power of `exponent`, within two units in the last place; subnormal results are zero.
MSDA_DEVICE float exp2_near(float exponent) {
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(exponent));
    return power;
}

}  // namespace msda
