// The rule of the fused operator, as constants (offset_rows.cuh). Mirrors src/offsets.rs of the library.
#pragma once

#include "offset_weights.cuh"

namespace msda {

enum ReferenceOf : int { OF_LEVEL = 0, OF_QUERY = 1, OF_ANCHOR = 2 };
constexpr int REFERENCE_DTYPE = MSDA_REFERENCE_DTYPE;
constexpr int REFERENCE_OF = MSDA_REFERENCE_OF;  // which of a query's references a sample starts from
constexpr int ANCHORS = MSDA_ANCHORS;            // that points take in turn; 0: no anchors
constexpr bool BOXES = MSDA_BOXES != 0;          // references are boxes, else points
constexpr int REFERENCE_NUMBERS = BOXES ? 4 : 2;
constexpr bool NEAREST = MSDA_NEAREST != 0;  // pixels are not interpolated
#ifdef MSDA_WHOLE_QUADS
constexpr bool WHOLE_QUADS = MSDA_WHOLE_QUADS != 0;  // aligned, in offsets, logits and their gradients
constexpr bool WHOLE_REFERENCES = MSDA_WHOLE_REFERENCES != 0;
static_assert(!WHOLE_QUADS || SAMPLES % 4 == 0, "a quad that is cut is not whole");
#else
constexpr bool WHOLE_QUADS = false, WHOLE_REFERENCES = false;  // for kernels that accept any address
#endif
static_assert(REFERENCE_DTYPE >= F32 && REFERENCE_DTYPE <= BF16, "unknown reference dtype");
static_assert(REFERENCE_OF >= OF_LEVEL && REFERENCE_OF <= OF_ANCHOR, "unknown rule");
static_assert((REFERENCE_OF == OF_ANCHOR) == (ANCHORS > 0), "anchors where points take them in turn");

}  // namespace msda
