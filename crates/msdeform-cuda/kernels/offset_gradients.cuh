// The sink for gradients of the fused operator's samples (sample_sink.cuh).
//
// The softmax's gradient needs the sum of weights times their gradients over the row. If a stage of the walk
// is the whole row, the lanes that own its quads have the whole sum. Otherwise the sink keeps the gradients
// of samples in the workspace for the step `finish` (row_gradients.cuh). It also does so for gradients of
// references, because a reference belongs to all heads of a query.
#pragma once

#include "kept_gradients.cuh"
#include "sample_sink.cuh"

namespace msda {

constexpr bool KEEPS = MSDA_KEEPS != 0;

// Stores EACH numbers of each of four neighbouring samples, from element `at` on.
template <typename S, int EACH>
MSDA_DEVICE void store_numbers(void* numbers, long long at, int first, const float (&stored)[4 * EACH]) {
    if constexpr (WHOLE_QUADS) {
        constexpr int PACKET = at_most(4 * EACH, 16 / S::BYTES);
#pragma unroll
        for (int p = 0; p < 4 * EACH / PACKET; ++p) {
            float part[PACKET];
#pragma unroll
            for (int i = 0; i < PACKET; ++i) part[i] = stored[p * PACKET + i];
            Packet<PACKET * S::BYTES> packet;
            pack<S, PACKET>(part, packet);
            store_streaming(element_address<S>(numbers, at + p * PACKET), packet);
        }
    } else {
#pragma unroll
        for (int i = 0; i < 4 * EACH; ++i) {
            if (first + i / EACH < SAMPLES) store_element<S>(numbers, at + i, stored[i]);
        }
    }
}

struct OffsetGradients {
    const BackwardParams& params;

    template <typename Row>
    MSDA_DEVICE void store_quad(const Row& row, int first, const Quad& quad, const QuadGradients& gradients,
                                const RowShare& share) const {
        const long long sample = row.number * SAMPLES + first;
        if constexpr (KEEPS) {
            if (share.stores) keep(sample, first, gradients);
        } else {
            if constexpr (WANTS_GRAD_WEIGHTS) finish_logits(sample, first, quad, gradients, share);
            if constexpr (WANTS_GRAD_LOCATIONS) {
                if (share.stores) finish_offsets(row.number, sample, first, gradients);
            }
        }
    }

private:
    MSDA_DEVICE void keep(long long sample, int first, const QuadGradients& gradients) const {
        using F = Storage<F32>;
        if constexpr (KEEPS_LOCATIONS) {
            store_numbers<F, 2>(kept_locations(params), 2 * sample, first, gradients.locations);
        }
        if constexpr (WANTS_GRAD_WEIGHTS) {
            store_numbers<F, 1>(kept_weights(params), sample, first, gradients.attention);
        }
    }

    MSDA_DEVICE void finish_logits(long long sample, int first, const Quad& quad,
                                   const QuadGradients& gradients, const RowShare& share) const {
        float logits[4], mine = 0.0f;
#pragma unroll
        for (int i = 0; i < 4; ++i) mine = fmaf(quad.attention[i], gradients.attention[i], mine);
        const float mean = SOFTMAX ? sum_over_lanes(mine, share.part, share.parts) : 0.0f;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            logits[i] =
                SOFTMAX ? quad.attention[i] * (gradients.attention[i] - mean) : gradients.attention[i];
        }
        if (share.stores) store_numbers<SamplingStorage, 1>(params.grad_logits, sample, first, logits);
    }

    MSDA_DEVICE void finish_offsets(long long row, long long sample, int first,
                                    const QuadGradients& gradients) const {
        const long long references = place_of_row(params, row).references;
        float offsets[8];
        OffsetStep step = {};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if (i == 0 || !quads_stay_in_levels() || (BOXES && REFERENCE_OF == OF_ANCHOR)) {
                const int level = level_of_sample(first + i);
                const int number = reference_of(level, first + i - params.level[level].first_sample);
                Reference reference = {};
                if constexpr (BOXES) reference = load_reference(params.references, references, number);
                step = step_from(reference, step_of_level(params, level));
            }
            offsets[2 * i] = passed_on(gradients.locations[2 * i], step.x);
            offsets[2 * i + 1] = passed_on(gradients.locations[2 * i + 1], step.y);
        }
        store_numbers<SamplingStorage, 2>(params.grad_offsets, 2 * sample, first, offsets);
    }
};

MSDA_DEVICE OffsetGradients sample_sink(const BackwardParams& params) { return {params}; }

}  // namespace msda
