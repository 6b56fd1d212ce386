// The tensors of the fused operator.
#pragma once

#include "config.cuh"

namespace msda {

struct Operator {
    enum : bool {
        SHARES_ROWS = true,  // the lanes that read a row compute its softmax together
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

    // As BackwardTensors::workspace; null if the pipeline needs none.
    void* workspace;
};

struct BackwardTensors {
    // As in ForwardTensors.
    const void* value;
    const void* references;
    const void* offsets;
    const void* logits;
    const void* grad_output;  // [batch, queries, heads, channels], any strides, zeros too

    // Null if not requested, which GRADIENTS tells the compiler. Every element of others must be written.
    void* grad_value;       // packed in the layout of the values; zero in borders and gaps
    void* grad_references;  // contiguous, also below
    void* grad_offsets;
    void* grad_logits;

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
