// The tensors of the fused operator, and the rule by which its samples follow from offsets and logits
// (offset_rows.cuh), as src/offsets.rs of the library has it.
#pragma once

#include "config.cuh"

namespace msda {

enum ReferenceOf : int { OF_LEVEL = 0, OF_QUERY = 1, OF_ANCHOR = 2 };
constexpr int REFERENCE_DTYPE = MSDA_REFERENCE_DTYPE;
constexpr int REFERENCE_OF = MSDA_REFERENCE_OF;  // which of a query's references a sample starts from
constexpr int ANCHORS = MSDA_ANCHORS;            // that points take in turn; 0 where there are none
constexpr bool BOXES = MSDA_BOXES != 0;          // references are boxes, else points
constexpr int REFERENCE_NUMBERS = BOXES ? 4 : 2;
constexpr bool SOFTMAX = MSDA_SOFTMAX != 0;  // of the logits; else they are the weights
constexpr bool NEAREST = MSDA_NEAREST != 0;  // pixels are not interpolated
constexpr bool WANTS_GRAD_REFERENCES = (MSDA_GRADIENTS & 8) != 0;
#ifdef MSDA_WHOLE_QUADS
constexpr bool WHOLE_QUADS = MSDA_WHOLE_QUADS != 0;  // aligned, in offsets, logits and their gradients
constexpr bool WHOLE_REFERENCES = MSDA_WHOLE_REFERENCES != 0;
static_assert(!WHOLE_QUADS || SAMPLES % 4 == 0, "a quad that is cut is not whole");
#else
constexpr bool WHOLE_QUADS = false, WHOLE_REFERENCES = false;  // kernels that take numbers at any address
#endif
static_assert(REFERENCE_DTYPE >= F32 && REFERENCE_DTYPE <= BF16, "unknown reference dtype");
static_assert(REFERENCE_OF >= OF_LEVEL && REFERENCE_OF <= OF_ANCHOR, "unknown rule");
static_assert((REFERENCE_OF == OF_ANCHOR) == (ANCHORS > 0), "anchors where points take them in turn");
static_assert(MSDA_GRADIENTS >= 0 && MSDA_GRADIENTS <= 15, "1 value, 2 offsets, 4 logits, 8 references");

struct Operator {
    enum : bool {
        READS_NEAREST_PIXEL = NEAREST,
        SHARES_ROWS = true,  // the lanes that read a row work its softmax out together
        HAS_STEP_ROWS = true,
    };
};

struct ForwardTensors {
    const void* value;
    // [batch, queries, references, 2 or 4]; images and queries have strides, also below
    const void* references;
    const void* offsets;  // [batch, queries, heads, samples, 2]
    const void* logits;   // [batch, queries, heads, samples]
    void* output;         // [batch, queries, heads, channels], contiguous

    // As BackwardTensors::workspace; null where the pipeline asked for none.
    void* workspace;
};

struct BackwardTensors {
    // As ForwardTensors has them.
    const void* value;
    const void* references;
    const void* offsets;
    const void* logits;
    const void* grad_output;  // [batch, queries, heads, channels], any strides, zeros too

    // Null where not asked for (GRADIENTS says so at compile time). Every element must be written.
    void* grad_value;       // packed in the layout of the values; zero in borders and gaps
    void* grad_references;  // contiguous, also below
    void* grad_offsets;
    void* grad_logits;

    // As many bytes as the pipeline asked for, a multiple of 256; anything in it unless a step of the
    // pipeline zeroed it. Carries data from one step to the next, never from launch to launch.
    void* workspace;

    long long grad_value_batch_stride;
    long long grad_value_head_stride;
    long long grad_value_pixel_stride;

    long long grad_output_batch_stride;
    long long grad_output_query_stride;
    long long grad_output_head_stride;
    long long grad_output_channel_stride;
};

}  // namespace msda
