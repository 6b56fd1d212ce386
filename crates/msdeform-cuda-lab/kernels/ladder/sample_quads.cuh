// Locations and weights four samples at a time. Lanes of different items read rows that lie SAMPLES x 4 bytes
// and more apart, so every load touches a line per item, no matter how few bytes it reads. One load of 16
// bytes instead of four of 4 makes a quarter of those touches.
#pragma once

#include "ladder/rung.cuh"

namespace msda {

// Rows of locations and weights then start at multiples of 16 and 8 bytes.
constexpr bool QUADS = SAMPLES % 4 == 0;
constexpr bool LEVELS_OF_QUADS = QUADS && common_points() % 4 == 0 && common_points() > 0;

// Samples s to s + 3 of a row; past its end the last sample again.
MSDA_DEVICE Quad load_quad(const ForwardParams& params, long long row, int s) {
    Quad quad;
    if constexpr (QUADS) {
        constexpr int PER_PACKET = 16 / SamplingStorage::BYTES;
        const long long first = row * SAMPLES + s;
        float coordinates[8];
#pragma unroll
        for (int part = 0; part < 8 / PER_PACKET; ++part) {
            Packet16 packet;
            float values[PER_PACKET];
            load_readonly(packet,
                          element_address<SamplingStorage>(params.locations, 2 * first + part * PER_PACKET));
            unpack<SamplingStorage, PER_PACKET>(packet, values);
#pragma unroll
            for (int i = 0; i < PER_PACKET; ++i) coordinates[part * PER_PACKET + i] = values[i];
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            quad.x[i] = coordinates[2 * i];
            quad.y[i] = coordinates[2 * i + 1];
        }
        Packet<4 * SamplingStorage::BYTES> packet;
        load_readonly(packet, element_address<SamplingStorage>(params.weights, first));
        unpack<SamplingStorage, 4>(packet, quad.attention);
    } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const long long index = row * SAMPLES + at_most(s + i, SAMPLES - 1);
            quad.x[i] = load_element<SamplingStorage>(params.locations, 2 * index);
            quad.y[i] = load_element<SamplingStorage>(params.locations, 2 * index + 1);
            quad.attention[i] = load_element<SamplingStorage>(params.weights, index);
        }
    }
    return quad;
}

// visit(x, y, attention) for every sample of a level.
template <typename Visit>
MSDA_DEVICE void for_samples_of_level(const ForwardParams& params, long long row, int level, Visit visit) {
    if constexpr (LEVELS_OF_QUADS) {
#pragma unroll 1
        for (int s = POINT_OFFSETS.at[level]; s < POINT_OFFSETS.at[level + 1]; s += 4) {
            const Quad quad = load_quad(params, row, s);
#pragma unroll
            for (int i = 0; i < 4; ++i) visit(quad.x[i], quad.y[i], quad.attention[i]);
        }
    } else {
#pragma unroll 2
        for (int s = POINT_OFFSETS.at[level]; s < POINT_OFFSETS.at[level + 1]; ++s) {
            const long long index = row * SAMPLES + s;
            visit(load_element<SamplingStorage>(params.locations, 2 * index),
                  load_element<SamplingStorage>(params.locations, 2 * index + 1),
                  load_element<SamplingStorage>(params.weights, index));
        }
    }
}

}  // namespace msda
