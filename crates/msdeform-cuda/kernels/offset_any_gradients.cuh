// Gradients of the samples of the fused operator, one by one (any_gradients.cuh).
#pragma once

#include "any_backward_samples.cuh"
#include "kept_gradients.cuh"

namespace msda {

// Gradients go to the step `finish`.
MSDA_DEVICE constexpr bool needs_slopes() { return KEEPS_LOCATIONS; }

MSDA_DEVICE void store_weight_gradient(const BackwardParams& params, long long number, float gradient) {
    kept_weights(params)[number] = gradient;
}
MSDA_DEVICE void store_location_gradient(const BackwardParams& params, long long number, int axis,
                                         bool has_slope, float gradient) {
    kept_locations(params)[2 * number + axis] = has_slope ? gradient : 0.0f;
}

}  // namespace msda
