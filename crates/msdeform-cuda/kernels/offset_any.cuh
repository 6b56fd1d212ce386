// Samples of the fused operator in a forward, one by one (any_samples.cuh). The lanes of a row compute its
// softmax together.
#pragma once

#include "offset_positions.cuh"

namespace msda {

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

}  // namespace msda
