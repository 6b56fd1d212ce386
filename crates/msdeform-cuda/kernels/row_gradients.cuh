// The step `finish` of the fused operator. It turns the gradients of locations and weights, which an earlier
// step kept in the workspace in fp32 (kept_gradients.cuh), into gradients of logits, offsets and references.
//
// A warp owns a query: its rows one after another, a lane for every 32nd sample, then its references, each
// summed over the samples of all heads that start from it. Without atomics, so the
// result is bitwise reproducible.
//
// Takes any number of levels and samples.
#pragma once

#include "kept_gradients.cuh"
#include "offset_positions.cuh"

namespace msda {

// ---- the step ----------------------------------------------------------------------------------

MSDA_DEVICE void finish_logits(const BackwardParams& params, long long row, const RowPlace& place) {
    using S = SamplingStorage;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const float* kept = kept_weights(params) + row * params.samples;
    RowSums sums = {};
    float mean = 0.0f;
    if constexpr (SOFTMAX) {
        sums = row_sums(sums_of_samples(params.logits, place.logits, params.samples, lane, 32), lane, 32);
        for (int s = lane; s < params.samples; s += 32) {
            const float weight = weight_of(sums, load_element<S>(params.logits, place.logits + s));
            mean = fmaf(weight, kept[s], mean);
        }
        mean = sum_over_lanes(mean, lane, 32);
    }
    for (int s = lane; s < params.samples; s += 32) {
        float gradient = kept[s];
        if constexpr (SOFTMAX) {
            gradient = weight_of(sums, load_element<S>(params.logits, place.logits + s)) * (gradient - mean);
        }
        store_element<S>(params.grad_logits, row * params.samples + s, gradient);
    }
}

MSDA_DEVICE void finish_offsets(const BackwardParams& params, long long row, const RowPlace& place) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    int level = 0;
    for (int s = lane; s < params.samples; s += 32) {
        level = level_from(params, level, s);
        const Origin origin = origin_of_sample(params, params.references, place.references, level,
                                               level_geometry(params, level), s);
        const long long at = 2 * (row * params.samples + s);
        const float* kept = kept_locations(params) + at;
        store_element<SamplingStorage>(params.grad_offsets, at, passed_on(kept[0], origin.step.x));
        store_element<SamplingStorage>(params.grad_offsets, at + 1, passed_on(kept[1], origin.step.y));
    }
}

// Adds to the gradient of reference `number` the shares of the samples of a level that start from it.
MSDA_DEVICE void add_to_reference(const BackwardParams& params, long long query, int number, int level,
                                  float (&sums)[REFERENCE_NUMBERS]) {
    const LevelGeometry geometry = level_geometry(params, level);
    const int points = end_of_level(params, level) - geometry.first_sample;
    const OffsetStep step = any_step_of_level(params, level, geometry);
    const long long items = static_cast<long long>(params.heads) * points;
    for (long long item = threadIdx.x % 32; item < items; item += 32) {
        const int point = static_cast<int>(item % points);
        if (reference_of(level, point) != number) continue;
        const long long row = query * params.heads + item / points;
        const int s = geometry.first_sample + point;
        const float* kept = kept_locations(params) + 2 * (row * params.samples + s);
        sums[0] += kept[0];
        sums[1] += kept[1];
        if constexpr (BOXES) {
            const long long offset = place_of_row(params, row).offsets + 2 * s;
            sums[2] += passed_on(kept[0], load_element<SamplingStorage>(params.offsets, offset) * step.x);
            sums[3] += passed_on(kept[1], load_element<SamplingStorage>(params.offsets, offset + 1) * step.y);
        }
    }
}

MSDA_DEVICE void finish_references(const BackwardParams& params, long long query) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int references = REFERENCE_OF == OF_LEVEL ? params.levels : REFERENCE_OF == OF_ANCHOR ? ANCHORS : 1;
    for (int number = 0; number < references; ++number) {
        float sums[REFERENCE_NUMBERS] = {};
        const int first = REFERENCE_OF == OF_LEVEL ? number : 0;
        const int end = REFERENCE_OF == OF_LEVEL ? number + 1 : params.levels;
        for (int level = first; level < end; ++level) add_to_reference(params, query, number, level, sums);
        const long long at = (query * references + number) * REFERENCE_NUMBERS;
#pragma unroll
        for (int i = 0; i < REFERENCE_NUMBERS; ++i) {
            const float sum = sum_over_lanes(sums[i], lane, 32);
            if (lane == 0) store_element<ReferenceStorage>(params.grad_references, at + i, sum);
        }
    }
}

MSDA_DEVICE void finish_queries(const BackwardParams& params) {
    const int warps = static_cast<int>(blockDim.x) / 32;
    const long long queries = static_cast<long long>(params.batch) * params.queries;
    for (long long query = static_cast<long long>(blockIdx.x) * warps + threadIdx.x / 32; query < queries;
         query += static_cast<long long>(gridDim.x) * warps) {
        for (int head = 0; head < params.heads; ++head) {
            const long long row = query * params.heads + head;
            const RowPlace place = place_of_row(params, row);
            if constexpr (WANTS_GRAD_WEIGHTS) finish_logits(params, row, place);
            if constexpr (WANTS_GRAD_LOCATIONS) finish_offsets(params, row, place);
        }
        if constexpr (WANTS_GRAD_REFERENCES) finish_references(params, query);
    }
}

}  // namespace msda
