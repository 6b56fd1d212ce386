// The rows of the output's gradient, packed and aligned, for kernels that read them in 16-byte chunks.
//
// If a gradient is not packed, the step `pack` first copies it to a packed tensor in the workspace. The
// gradient of `sum()`, for example, is one number with all strides zero. The copy costs a few per cent of the
// gather that follows.
#pragma once

#include "chunked_sample.cuh"

namespace msda {

constexpr bool PACKS = MSDA_PACK != 0;

struct GradOutput {
    const unsigned char* first;  // element of image, query, head and channel 0
    // Strides in elements.
    long long batch_stride;
    long long query_stride;
    long long head_stride;
};
MSDA_DEVICE GradOutput grad_output(const BackwardParams& params) {
    if constexpr (PACKS) {
        constexpr long long QUERY = static_cast<long long>(HEADS) * CHANNELS;
        return {workspace_part<unsigned char>(params, params.rows_at), params.queries * QUERY, QUERY,
                CHANNELS};
    } else {
        return {static_cast<const unsigned char*>(params.grad_output), params.grad_output_batch_stride,
                params.grad_output_query_stride, params.grad_output_head_stride};
    }
}

// Copies the gradient, a chunk per thread.
MSDA_DEVICE void pack_rows(const BackwardParams& params) {
    const long long chunks = static_cast<long long>(params.batch) * params.queries * HEADS * CHUNKS;
    auto* rows = workspace_part<unsigned char>(params, params.rows_at);
    for (long long index = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; index < chunks;
         index += static_cast<long long>(gridDim.x) * blockDim.x) {
        const long long row = index / CHUNKS;
        const long long channel = index % CHUNKS * CHUNK_ELEMENTS;
        const long long from = row / HEADS / params.queries * params.grad_output_batch_stride +
                               row / HEADS % params.queries * params.grad_output_query_stride +
                               row % HEADS * params.grad_output_head_stride +
                               channel * params.grad_output_channel_stride;
        float elements[CHUNK_ELEMENTS];
#pragma unroll
        for (int i = 0; i < CHUNK_ELEMENTS; ++i) {
            elements[i] =
                load_element<ValueStorage>(params.grad_output, from + i * params.grad_output_channel_stride);
        }
        // The conversion to fp32 and back is exact.
        Packet16 packet;
        pack<ValueStorage, CHUNK_ELEMENTS>(elements, packet);
        store(rows + index * 16, packet);
    }
}

}  // namespace msda
