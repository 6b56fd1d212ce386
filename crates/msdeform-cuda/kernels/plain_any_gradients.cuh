// Gradients of the samples of the plain operator, one by one (any_gradients.cuh).
#pragma once

#include "any_backward_samples.cuh"
#include "gradients.cuh"

namespace msda {

MSDA_DEVICE constexpr bool needs_slopes() { return WANTS_GRAD_LOCATIONS; }

template <typename Params>
MSDA_DEVICE void store_weight_gradient(const Params& params, long long number, float gradient) {
    store_element<SamplingStorage>(params.grad_weights, number, gradient);
}
template <typename Params>
MSDA_DEVICE void store_location_gradient(const Params& params, long long number, int axis, bool,
                                         float gradient) {
    store_element<SamplingStorage>(params.grad_locations, 2 * number + axis, gradient);
}

}  // namespace msda
