// Gradients of samples of the fused operator, which an earlier step leaves in the workspace for the step
// `finish` (row_gradients.cuh).
#pragma once

#include "gradients.cuh"
#include "numeric.cuh"
#include "params.cuh"

namespace msda {

constexpr bool KEEPS_LOCATIONS = WANTS_GRAD_LOCATIONS || WANTS_GRAD_REFERENCES;

// [rows][samples][2] and [rows][samples].
MSDA_DEVICE float* kept_locations(const BackwardParams& params) {
    return workspace_part<float>(params, params.kept_locations_at);
}
MSDA_DEVICE float* kept_weights(const BackwardParams& params) {
    return workspace_part<float>(params, params.kept_weights_at);
}

}  // namespace msda
