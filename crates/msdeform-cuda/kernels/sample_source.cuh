// Where samples come from and where their gradients go.
//
// A kernel that walks samples asks a source for them and hands gradients to a sink; it knows no tensor of
// either. An operator whose samples come otherwise (from offsets, logits and reference points, say) brings a
// source and a sink of its own; the walk (query_walk.cuh) and what is done with a sample stay as they are.
//
// A source has
//   Row                  what the samples of a (query, head) have in common, kept in registers
//   row(n)               that of row n, counted over images, queries and heads; a lane by itself
//   row(n, part, parts)  the same, worked out by `parts` neighbouring lanes that ask for the same row, this
//                        one being number `part`: each looks at its share and they shuffle. All lanes of the
//                        warp call it together; the last group may be cut short, and its row is not used
//   quad(row, first)     four samples from `first` on, a multiple of four; what lies past the last does not
//                        count
//   location(row, s)     of one sample
//   attention(row, s)
// and a sink
//   store_quad(row, first, quad, gradients)   of the samples that exist; `quad` has their attention weights
//
// A sink that needs a sum over the row, as behind a softmax, finds it in the row: the sum of weights times
// their gradients is the dot product of the row's output with its gradient.
#pragma once

#include "chunked_sample.cuh"

namespace msda {

struct Quad {
    float x[4];
    float y[4];
    float attention[4];
};

#if MSDA_FROM_OFFSETS
}  // namespace msda

#include "offset_samples.cuh"

namespace msda {
#else
// Locations and attention weights, the latter already soft-maxed, lie in memory: nothing to prepare. The
// parameters are asked where, each time: pointers of its own would take registers through every gather.
template <typename Tensors>
struct LocationsAndWeights {
    const Tensors& tensors;

    struct Row {
        long long first_sample;
    };
    MSDA_DEVICE Row row(long long number) const { return {number * SAMPLES}; }
    MSDA_DEVICE Row row(long long number, int, int) const { return row(number); }

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

    // Past the last sample: a location outside of every level.
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

// What a sink is given, in units of the level's locations.
struct QuadGradients {
    float locations[8];  // x and y in turn
    float attention[4];
};

// The gradients of LocationsAndWeights, those that are asked for.
struct LocationAndWeightGradients {
    const BackwardTensors& tensors;

    template <typename Row>
    MSDA_DEVICE void store_quad(const Row& row, int first, const Quad&,
                                const QuadGradients& gradients) const {
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

// The source and the sink of a call.
template <typename Tensors>
MSDA_DEVICE LocationsAndWeights<Tensors> sample_source(const Tensors& tensors) {
    return {tensors};
}
MSDA_DEVICE LocationAndWeightGradients sample_sink(const BackwardTensors& tensors) { return {tensors}; }
#endif

}  // namespace msda
