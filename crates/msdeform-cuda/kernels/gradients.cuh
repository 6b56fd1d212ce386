// Which gradients a backward kernel computes. A step that computes the same for any of them does not include
// this file, so it is compiled once.
#pragma once

#include "config.cuh"

namespace msda {

// LOCATIONS and WEIGHTS stand for offsets and logits in the fused operator.
constexpr bool WANTS_GRAD_VALUE = (MSDA_GRADIENTS & 1) != 0;
constexpr bool WANTS_GRAD_LOCATIONS = (MSDA_GRADIENTS & 2) != 0;
constexpr bool WANTS_GRAD_WEIGHTS = (MSDA_GRADIENTS & 4) != 0;
constexpr bool WANTS_GRAD_REFERENCES = (MSDA_GRADIENTS & 8) != 0;
static_assert(MSDA_GRADIENTS > 0 && MSDA_GRADIENTS <= 15, "1 value, 2 locations, 4 weights, 8 references");

}  // namespace msda
