// A sink stores the gradients of samples (sample_source.cuh).
//
// A sink has
//   store_quad(row, first, quad, gradients, share)
//                        stores those of existing samples; `quad` has their attention weights. If
//                        Operator::SHARES_ROWS all lanes of the warp call it together, otherwise only lanes
//                        with a quad that they store
//
// A sink may need a sum over the row, as the gradient of a softmax does. That sum, of weights times their
// gradients, is the dot product of the row's output with its gradient.
#pragma once

#include "sample_source.cuh"

namespace msda {

// The gradients that a sink stores, in units of the level's locations.
struct QuadGradients {
    float locations[8];  // x and y in turn
    float attention[4];
};

}  // namespace msda

// The operator's sample_sink(params).
#if MSDA_FROM_OFFSETS
#include "offset_gradients.cuh"
#else
#include "plain_gradients.cuh"
#endif
