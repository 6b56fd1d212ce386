// Samples of the plain operator, one by one, in both directions (any_samples.cuh, any_backward_samples.cuh).
#pragma once

#include "numeric.cuh"
#include "params.cuh"

namespace msda {

MSDA_DEVICE constexpr bool reads_nearest_pixel() { return false; }

using AnyRow = long long;

template <typename Params>
MSDA_DEVICE AnyRow begin_row(const Params&, long long row, int, int) {
    return row;
}

// The sample's number over all rows.
using AnySample = long long;

template <typename Params>
MSDA_DEVICE AnySample any_sample(const Params& params, long long row, long long s) {
    return row * params.samples + s;
}
template <typename Params>
MSDA_DEVICE AnySample any_sample(const Params& params, long long row, const LevelGeometry& level, int point) {
    return row * params.samples + level.first_sample + point;
}
MSDA_DEVICE long long number_of(const CallShape&, AnySample sample) { return sample; }
template <typename Params>
MSDA_DEVICE Position locate_sample(const Params& params, AnySample sample, int, const LevelGeometry& level) {
    return locate(load_element<SamplingStorage>(params.locations, 2 * sample),
                  load_element<SamplingStorage>(params.locations, 2 * sample + 1), level.height, level.width);
}
template <typename Params>
MSDA_DEVICE float sample_weight(const Params& params, AnySample sample) {
    return load_element<SamplingStorage>(params.weights, sample);
}

}  // namespace msda
