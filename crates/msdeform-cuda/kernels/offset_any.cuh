// The samples of the fused operator, one by one (any_samples.cuh).
#pragma once

#include "any_samples.cuh"
#include "offset_positions.cuh"
#ifdef MSDA_KEEPS
#include "kept_gradients.cuh"
#include "kept_rows.cuh"
#endif

namespace msda {

#ifndef MSDA_KEEPS
// A forward: the lanes of a row work its softmax out.

struct AnyRow {
    RowPlace place;
    RowSums sums;
};
MSDA_DEVICE AnyRow begin_row(const ForwardParams& params, long long row, int lane, int lanes) {
    const RowPlace place = place_of_row(params, row);
    const PartialSums mine = sums_of_samples(params.logits, place.logits, params.samples, lane, lanes);
    return {place, row_sums(mine, lane, lanes)};
}
struct AnySample {
    AnyRow row;
    int s;
};
MSDA_DEVICE AnySample any_sample(const ForwardParams&, const AnyRow& row, int s) { return {row, s}; }
MSDA_DEVICE Position locate_sample(const ForwardParams& params, const AnySample& sample, int l,
                                   const LevelGeometry& level) {
    return locate_offset(params, sample.row.place, l, level, sample.s);
}
MSDA_DEVICE float sample_weight(const ForwardParams& params, const AnySample& sample) {
    return weight_of_sample(params, sample.row.place, sample.row.sums, sample.s);
}

#else
// A backward: the step `rows` has worked it out.

struct AnySample {
    long long row;
    int s;
};
MSDA_DEVICE AnySample any_sample(const BackwardParams&, long long row, int s) { return {row, s}; }
MSDA_DEVICE AnySample any_sample(const BackwardParams&, long long row, const LevelGeometry& level,
                                 int point) {
    return {row, level.first_sample + point};
}
MSDA_DEVICE long long number_of(const BackwardParams& params, const AnySample& sample) {
    return sample.row * params.samples + sample.s;
}
MSDA_DEVICE Position locate_sample(const BackwardParams& params, const AnySample& sample, int l,
                                   const LevelGeometry& level) {
    return locate_offset(params, place_of_row(params, sample.row), l, level, sample.s);
}
MSDA_DEVICE float sample_weight(const BackwardParams& params, const AnySample& sample) {
    const RowSums sums = SOFTMAX ? load_row_sums(params, sample.row) : RowSums{};
    return weight_of_sample(params, place_of_row(params, sample.row), sums, sample.s);
}

// Gradients go to the step `finish`.
MSDA_DEVICE constexpr bool needs_slopes() { return KEEPS_LOCATIONS; }

MSDA_DEVICE void store_weight_gradient(const BackwardParams& params, long long number, float gradient) {
    kept_weights(params)[number] = gradient;
}
MSDA_DEVICE void store_location_gradient(const BackwardParams& params, long long number, int axis,
                                         bool has_slope, float gradient) {
    kept_locations(params)[2 * number + axis] = has_slope ? gradient : 0.0f;
}
#endif

}  // namespace msda
