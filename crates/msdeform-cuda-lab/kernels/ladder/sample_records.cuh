// Samples placed by a kernel of their own: a record per sample in the workspace, an offset and four weights
// that already contain the attention weight. Offsets and weights are two arrays, so that both are read in
// whole words.
//
// The weights are rounded to fp16: 12 bytes a sample instead of 20, for 2e-4 of error. A weight that does not
// fit fp16 becomes infinite, and the item is computed again like any other that is not finite.
#pragma once

#include "ladder/lane_groups.cuh"

namespace msda {

using RecordWeights = Packet<8>;  // top left, top right, bottom left, bottom right

MSDA_DEVICE unsigned* record_offsets(const ForwardParams& params) {
    return workspace_part<unsigned>(params, params.record_offsets_at);
}
MSDA_DEVICE unsigned char* record_weights(const ForwardParams& params) {
    return workspace_part<unsigned char>(params, params.record_weights_at);
}

// One thread per sample, in the order of locations and weights.
MSDA_DEVICE void write_records(const ForwardParams& params) {
    const long long count = item_count(params) * SAMPLES;
    const long long step = static_cast<long long>(gridDim.x) * blockDim.x;
    for (long long index = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; index < count;
         index += step) {
        const Sample sample = sample_of_pair(params, index / SAMPLES, static_cast<int>(index % SAMPLES));
        record_offsets(params)[index] = sample.offset;
        RecordWeights weights;
        weights.word[0] = floats_to_half2(sample.weight[0][0], sample.weight[0][1]);
        weights.word[1] = floats_to_half2(sample.weight[1][0], sample.weight[1][1]);
        store(record_weights(params) + index * sizeof(RecordWeights), weights);
    }
}

MSDA_DEVICE void unpack_weights(const RecordWeights& record, float (&weight)[2][2]) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
        weight[row][0] = half_to_float(static_cast<unsigned short>(record.word[row]));
        weight[row][1] = half_to_float(static_cast<unsigned short>(record.word[row] >> 16));
    }
}

}  // namespace msda
