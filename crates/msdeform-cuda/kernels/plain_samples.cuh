// The samples of the plain operator, for kernels that know a row's samples when they are compiled
// (sample_source.cuh defines a source).
#pragma once

#include "sample_source.cuh"

namespace msda {

// Locations and attention weights (after the softmax) lie in memory, so there is nothing to prepare.
// Addresses are read from the parameter each time, because pointers in the source would take registers
// through every gather.
template <typename Tensors>
struct LocationsAndWeights {
    const Tensors& tensors;

    struct Row {
        long long first_sample;
    };
    MSDA_DEVICE Row row(long long number) const { return {number * SAMPLES}; }
    MSDA_DEVICE Row row(long long number, int, int) const { return row(number); }
    MSDA_DEVICE Row unprepared_row(long long number) const { return row(number); }

    MSDA_DEVICE Location location(const Row& row, int s) const {
        const long long sample = row.first_sample + s;
        return {load_element<SamplingStorage>(tensors.locations, 2 * sample),
                load_element<SamplingStorage>(tensors.locations, 2 * sample + 1)};
    }
    MSDA_DEVICE float attention(const Row& row, int s) const {
        return load_element<SamplingStorage>(tensors.weights, row.first_sample + s);
    }

    MSDA_DEVICE Quad quad(const Row& row, int first) const {
        const long long sample = row.first_sample + first;
        if constexpr (SAMPLES % 4 == 0) return whole_quad(sample);
        return cut_quad(sample, first);
    }

    struct Begun {
        Row row;
    };
    template <bool WHOLE_ROW>
    MSDA_DEVICE Begun begin(long long number, int part, int parts) const {
        return {row(number, part, parts)};
    }
    MSDA_DEVICE Quad quad(const Begun& begun, int first) const { return quad(begun.row, first); }

private:
    MSDA_DEVICE Quad whole_quad(long long sample) const {
        using S = SamplingStorage;
        constexpr int EACH = 16 / S::BYTES;  // coordinates of a packet
        Quad quad;
        Packet<4 * S::BYTES> packet;
        load_streaming(packet, element_address<S>(tensors.weights, sample));
        unpack<S, 4>(packet, quad.attention);
#pragma unroll
        for (int p = 0; p < 8 / EACH; ++p) {
            Packet16 coordinates;
            float xy[EACH];
            load_streaming(coordinates, element_address<S>(tensors.locations, 2 * sample) + 16 * p);
            unpack<S, EACH>(coordinates, xy);
#pragma unroll
            for (int i = 0; i < EACH / 2; ++i) {
                quad.x[p * EACH / 2 + i] = xy[2 * i];
                quad.y[p * EACH / 2 + i] = xy[2 * i + 1];
            }
        }
        return quad;
    }

    // A sample past the last one gets a location outside of every level.
    MSDA_DEVICE Quad cut_quad(long long sample, int first) const {
        using S = SamplingStorage;
        Quad quad;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const bool exists = first + i < SAMPLES;
            const long long index = exists ? sample + i : sample;
            quad.x[i] = exists ? load_element<S>(tensors.locations, 2 * index) : -4.0f;
            quad.y[i] = load_element<S>(tensors.locations, 2 * index + 1);
            quad.attention[i] = exists ? load_element<S>(tensors.weights, index) : 0.0f;
        }
        return quad;
    }
};

template <typename Tensors>
MSDA_DEVICE LocationsAndWeights<Tensors> sample_source(const Tensors& tensors) {
    return {tensors};
}

}  // namespace msda
