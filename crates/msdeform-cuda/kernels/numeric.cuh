// Dtypes and pixel arithmetic: the accuracy contract in code.
//
// Coordinates, bilinear shares, attention weights and sums are fp32 for every storage dtype. The pixel
// coordinate is fmaf(location, size, -0.5f), one rounding, written out so that it does not depend on
// how a compiler contracts expressions: GPU and emulator agree bit by bit.
#pragma once

#include "config.cuh"
#include "intrinsics.cuh"

namespace msda {

// ---- storage -----------------------------------------------------------------------------------

template <int DTYPE>
struct Storage;

template <>
struct Storage<F32> {
    using Bits = unsigned;
    static constexpr int BYTES = 4;
    MSDA_DEVICE static float to_float(Bits bits) { return bits_to_float(bits); }
    MSDA_DEVICE static Bits from_float(float value) { return float_to_bits(value); }
};

template <>
struct Storage<F16> {
    using Bits = unsigned short;
    static constexpr int BYTES = 2;
    MSDA_DEVICE static float to_float(Bits bits) { return half_to_float(bits); }
    MSDA_DEVICE static Bits from_float(float value) { return float_to_half(value); }
    MSDA_DEVICE static unsigned pair_from_floats(float low, float high) { return floats_to_half2(low, high); }
};

template <>
struct Storage<BF16> {
    using Bits = unsigned short;
    static constexpr int BYTES = 2;
    MSDA_DEVICE static float to_float(Bits bits) { return bfloat_to_float(bits); }
    MSDA_DEVICE static Bits from_float(float value) { return float_to_bfloat(value); }
    MSDA_DEVICE static unsigned pair_from_floats(float low, float high) {
        return floats_to_bfloat2(low, high);
    }
};

using ValueStorage = Storage<VALUE_DTYPE>;
using SamplingStorage = Storage<SAMPLING_DTYPE>;

template <typename S>
MSDA_DEVICE const unsigned char* element_address(const void* base, long long index) {
    return static_cast<const unsigned char*>(base) + index * S::BYTES;
}
template <typename S>
MSDA_DEVICE unsigned char* element_address(void* base, long long index) {
    return static_cast<unsigned char*>(base) + index * S::BYTES;
}

// The N elements that one packet holds, as floats.
template <typename S, int N>
MSDA_DEVICE void unpack(const Packet<N * S::BYTES>& packet, float (&values)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
        if constexpr (S::BYTES == 4 || N == 1) {
            values[i] = S::to_float(static_cast<typename S::Bits>(packet.word[i]));
        } else {
            const unsigned word = packet.word[i / 2];
            values[i] = S::to_float(static_cast<typename S::Bits>(i % 2 ? word >> 16 : word));
        }
    }
}

template <typename S, int N>
MSDA_DEVICE void pack(const float (&values)[N], Packet<N * S::BYTES>& packet) {
    if constexpr (S::BYTES == 4 || N == 1) {
#pragma unroll
        for (int i = 0; i < N; ++i) packet.word[i] = S::from_float(values[i]);
    } else {
#pragma unroll
        for (int i = 0; i < N; i += 2) {
            packet.word[i / 2] = S::pair_from_floats(values[i], values[i + 1]);
        }
    }
}

// One element as a float.
template <typename S>
MSDA_DEVICE float load_element(const void* base, long long index) {
    Packet<S::BYTES> packet;
    load_readonly(packet, element_address<S>(base, index));
    return S::to_float(static_cast<typename S::Bits>(packet.word[0]));
}

template <typename S>
MSDA_DEVICE void store_element(void* base, long long index, float value) {
    Packet<S::BYTES> packet;
    packet.word[0] = S::from_float(value);
    store(element_address<S>(base, index), packet);
}

// ---- pixels ------------------------------------------------------------------------------------

// Where a sample lies: between columns left and left + 1 and rows top and top + 1.
struct Position {
    int left;
    int top;
    float right_share;   // of the columns: fraction of x
    float bottom_share;  // of the rows: fraction of y
    bool counts;         // -1 < x < width and -1 < y < height; false for NaN and infinities
};

MSDA_DEVICE Position locate(float location_x, float location_y, int height, int width) {
    const float x = fmaf(location_x, static_cast<float>(width), -0.5f);
    const float y = fmaf(location_y, static_cast<float>(height), -0.5f);
    Position position;
    // Written so that NaN fails.
    position.counts =
        x > -1.0f && x < static_cast<float>(width) && y > -1.0f && y < static_cast<float>(height);
    // A sample that does not count may be NaN or too large for an int: converting it is undefined.
    const float left = position.counts ? floorf(x) : 0.0f;
    const float top = position.counts ? floorf(y) : 0.0f;
    position.left = static_cast<int>(left);
    position.top = static_cast<int>(top);
    position.right_share = position.counts ? x - left : 0.0f;
    position.bottom_share = position.counts ? y - top : 0.0f;
    return position;
}

}  // namespace msda
