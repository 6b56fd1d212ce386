// Gradients of an operator's samples, one by one, for kernels that take any number of levels and samples.
//
//   needs_slopes()                             whether it computes gradients of locations
//   store_weight_gradient(params, number, gradient)
//   store_location_gradient(params, number, axis, has_slope, gradient)   zero if the sample has no slope
#pragma once

#if MSDA_FROM_OFFSETS
#include "offset_any_gradients.cuh"
#else
#include "plain_any_gradients.cuh"
#endif
