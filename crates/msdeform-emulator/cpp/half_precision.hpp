// Half and bfloat16 as bits, in integer arithmetic: correct to the last bit on any host.
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

namespace msda_emulator {

inline uint64_t double_bits(double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

inline float half_to_float(uint16_t half) {
    const uint32_t sign = static_cast<uint32_t>(half >> 15) << 31;
    const uint32_t exponent = half >> 10 & 31;
    const uint32_t mantissa = half & 1023;
    if (exponent == 0) {
        const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
        return sign != 0 ? -magnitude : magnitude;
    }
    const uint32_t widened = exponent == 31 ? 255 : exponent + 112;
    const uint32_t bits = sign | widened << 23 | mantissa << 13;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

inline double half_to_double(uint16_t half) { return static_cast<double>(half_to_float(half)); }

// Rounds a finite or infinite double to `digits` binary digits, ties to even; below 2^lowest_exponent
// the grid stays that of 2^lowest_exponent (subnormal numbers).
inline double round_to_digits(double value, int digits, int lowest_exponent) {
    if (value == 0.0 || !isfinite(value)) return value;
    int exponent;
    frexp(value, &exponent);  // |value| in [2^(exponent - 1), 2^exponent)
    int grid = exponent - digits;
    if (grid < lowest_exponent - digits + 1) grid = lowest_exponent - digits + 1;
    return ldexp(nearbyint(ldexp(value, -grid)), grid);
}

inline uint16_t double_to_half(double value) {
    const uint16_t sign = static_cast<uint16_t>(double_bits(value) >> 63 << 15);
    if (value != value) return 0x7fff;  // the device's NaN
    const double rounded = fabs(round_to_digits(value, 11, -14));
    if (rounded >= 65536.0) return static_cast<uint16_t>(sign | 0x7c00);
    if (rounded < 6.103515625e-05) {  // 2^-14: subnormal
        return static_cast<uint16_t>(sign | static_cast<uint16_t>(ldexp(rounded, 24)));
    }
    int exponent;
    const double fraction = frexp(rounded, &exponent);  // in [0.5, 1)
    const auto mantissa = static_cast<unsigned>(ldexp(fraction, 11)) - 1024u;
    return static_cast<uint16_t>(sign | static_cast<unsigned>(exponent + 14) << 10 | mantissa);
}

inline double bfloat_to_double(uint16_t bfloat) {
    const uint32_t bits = static_cast<uint32_t>(bfloat) << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return static_cast<double>(value);
}

inline uint16_t double_to_bfloat(double value) {
    if (value != value) return 0x7fff;
    const double rounded = round_to_digits(value, 8, -126);
    // Exact: eight digits fit a float; past its range the conversion gives infinity.
    const float narrow = fabs(rounded) > 3.5e38 ? static_cast<float>(copysign(HUGE_VAL, rounded))
                                                : static_cast<float>(rounded);
    uint32_t bits;
    memcpy(&bits, &narrow, sizeof bits);
    return static_cast<uint16_t>(bits >> 16);
}

// a * b + c for factors of at most 26 digits, rounded to odd: rounding that again to fewer digits
// gives what one rounding of the exact sum gives.
inline double fma_round_to_odd(double a, double b, double c) {
    const double product = a * b;  // exact
    const double sum = product + c;
    if (!isfinite(sum)) return sum;
    // Knuth's two-sum: the exact rounding error of the addition.
    const double part = sum - product;
    const double lost = (product - (sum - part)) + (c - part);
    if (lost == 0.0 || (double_bits(sum) & 1u) != 0) return sum;
    return nextafter(sum, lost > 0.0 ? HUGE_VAL : -HUGE_VAL);
}

}  // namespace msda_emulator
