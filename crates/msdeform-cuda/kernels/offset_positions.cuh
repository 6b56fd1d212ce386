// Positions of the fused operator's samples, one by one, for kernels that take any number of levels and
// samples.
#pragma once

#include "offset_rows.cuh"

namespace msda {

MSDA_DEVICE int end_of_level(const CallShape& shape, int level) {
    return level + 1 < shape.levels ? level_geometry(shape, level + 1).first_sample : shape.samples;
}
// The level of a sample. The search starts at `level`, the level of an earlier sample.
MSDA_DEVICE int level_from(const CallShape& shape, int level, int sample) {
    while (level + 1 < shape.levels && sample >= level_geometry(shape, level + 1).first_sample) ++level;
    return level;
}
MSDA_DEVICE OffsetStep any_step_of_level(const CallShape& shape, int level, const LevelGeometry& geometry) {
    if constexpr (BOXES) {
        const float scale = bits_to_float(static_cast<unsigned>(shape.offset_scale));
        const float step = scale / static_cast<float>(end_of_level(shape, level) - geometry.first_sample);
        return {step, step};
    }
    return {1.0f / static_cast<float>(geometry.width), 1.0f / static_cast<float>(geometry.height)};
}

// The reference that a sample starts from, and the distance that an offset of one moves it.
struct Origin {
    Reference reference;
    OffsetStep step;
};
MSDA_DEVICE Origin origin_of_sample(const CallShape& shape, const void* references, long long first,
                                    int level, const LevelGeometry& geometry, int sample) {
    const int number = reference_of(level, sample - geometry.first_sample);
    const Reference reference = load_reference(references, first, number);
    return {reference, step_from(reference, any_step_of_level(shape, level, geometry))};
}

// ---- positions ---------------------------------------------------------------------------------

// The nearest pixel. Beyond the border it is the last pixel of the row or column.
MSDA_DEVICE int nearest_pixel(float location, int size) {
    const float last = static_cast<float>(size - 1);
    return static_cast<int>(fminf(fmaxf(truncf(fmaf(location, static_cast<float>(size), 0.5f)), 0.0f), last));
}
MSDA_DEVICE Position locate_nearest(float x, float y, int height, int width) {
    Position position = {};
    position.counts = x == x && y == y;
    if (position.counts) {
        position.left = nearest_pixel(x, width);
        position.top = nearest_pixel(y, height);
    }
    return position;
}

MSDA_DEVICE constexpr bool reads_nearest_pixel() { return NEAREST; }

// Where a sample of a row lies.
template <typename Params>
MSDA_DEVICE Position locate_offset(const Params& params, const RowPlace& place, int l,
                                   const LevelGeometry& level, int s) {
    const Origin origin = origin_of_sample(params, params.references, place.references, l, level, s);
    const long long at = place.offsets + 2 * s;
    const float x =
        fmaf(load_element<SamplingStorage>(params.offsets, at), origin.step.x, origin.reference.x);
    const float y =
        fmaf(load_element<SamplingStorage>(params.offsets, at + 1), origin.step.y, origin.reference.y);
    if constexpr (NEAREST) return locate_nearest(x, y, level.height, level.width);
    return locate(x, y, level.height, level.width);
}

template <typename Params>
MSDA_DEVICE float weight_of_sample(const Params& params, const RowPlace& place, const RowSums& sums, int s) {
    return weight_of(sums, load_element<SamplingStorage>(params.logits, place.logits + s));
}

}  // namespace msda
