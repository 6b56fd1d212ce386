// The sink for gradients of the plain operator's samples (sample_sink.cuh).
#pragma once

#include "gradients.cuh"
#include "sample_sink.cuh"

namespace msda {

// Stores the requested gradients of LocationsAndWeights.
struct LocationAndWeightGradients {
    const BackwardTensors& tensors;

    template <typename Row>
    MSDA_DEVICE void store_quad(const Row& row, int first, const Quad&, const QuadGradients& gradients,
                                const RowShare&) const {
        const long long sample = row.first_sample + first;
        if constexpr (SAMPLES % 4 == 0) {
            if constexpr (WANTS_GRAD_LOCATIONS) store_locations(sample, gradients.locations);
            if constexpr (WANTS_GRAD_WEIGHTS) store_weights(sample, gradients.attention);
        } else {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                if (first + i < SAMPLES) store_sample(sample + i, gradients, i);
            }
        }
    }

private:
    using S = SamplingStorage;

    MSDA_DEVICE void store_locations(long long sample, const float (&gradients)[8]) const {
        constexpr int EACH = 16 / S::BYTES;
#pragma unroll
        for (int p = 0; p < 8 / EACH; ++p) {
            float part[EACH];
#pragma unroll
            for (int i = 0; i < EACH; ++i) part[i] = gradients[p * EACH + i];
            Packet16 packet;
            pack<S, EACH>(part, packet);
            store_streaming(element_address<S>(tensors.grad_locations, 2 * sample) + 16 * p, packet);
        }
    }

    MSDA_DEVICE void store_weights(long long sample, const float (&gradients)[4]) const {
        Packet<4 * S::BYTES> packet;
        pack<S, 4>(gradients, packet);
        store_streaming(element_address<S>(tensors.grad_weights, sample), packet);
    }

    MSDA_DEVICE void store_sample(long long sample, const QuadGradients& gradients, int i) const {
        if constexpr (WANTS_GRAD_LOCATIONS) {
            store_element<S>(tensors.grad_locations, 2 * sample, gradients.locations[2 * i]);
            store_element<S>(tensors.grad_locations, 2 * sample + 1, gradients.locations[2 * i + 1]);
        }
        if constexpr (WANTS_GRAD_WEIGHTS) {
            store_element<S>(tensors.grad_weights, sample, gradients.attention[i]);
        }
    }
};

MSDA_DEVICE LocationAndWeightGradients sample_sink(const BackwardTensors& tensors) { return {tensors}; }

}  // namespace msda
