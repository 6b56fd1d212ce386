// The tensors of the plain operator.
#pragma once

#include "config.cuh"

namespace msda {

struct Operator {
    enum : bool { SHARES_ROWS = false, HAS_STEP_ROWS = false };
};

struct ForwardTensors {
    const void* value;
    const void* locations;  // [batch, queries, heads, samples, 2], contiguous
    const void* weights;    // [batch, queries, heads, samples], contiguous
    void* output;           // [batch, queries, heads, channels], contiguous

    // As BackwardTensors::workspace; null if the pipeline needs none.
    void* workspace;
};

struct BackwardTensors {
    // As in ForwardTensors.
    const void* value;
    const void* locations;
    const void* weights;
    const void* grad_output;  // [batch, queries, heads, channels], any strides, zeros too

    // Null if not requested, which GRADIENTS tells the compiler. Every element of others must be written.
    void* grad_value;      // packed in the layout of the values; zero in borders and gaps
    void* grad_locations;  // like locations
    void* grad_weights;    // like weights

    // As many bytes as the pipeline needs, a multiple of 256. Its content is undefined unless a step of the
    // pipeline zeroed it. Carries data from one step to the next, never from call to call.
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
