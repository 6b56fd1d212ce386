// Samples of the fused operator in a backward, one by one (any_backward_samples.cuh). The step `rows` has
// computed the softmax of each row.
#pragma once

#include "kept_rows.cuh"
#include "offset_positions.cuh"

namespace msda {

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

}  // namespace msda
