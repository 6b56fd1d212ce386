// The data that the step `rows` of the fused operator keeps in the workspace, for steps that read samples one
// by one in any order (row_softmax.cuh).
#pragma once

#include "offset_rows.cuh"

namespace msda {

// [rows]: the numbers that turn a row's logits into weights
MSDA_DEVICE Packet<8>* kept_row_sums(const BackwardParams& params) {
    return workspace_part<Packet<8>>(params, params.row_sums_at);
}
MSDA_DEVICE RowSums load_row_sums(const BackwardParams& params, long long row) {
    Packet<8> packet;
    load_readonly(packet, kept_row_sums(params) + row);
    return {bits_to_float(packet.word[0]), bits_to_float(packet.word[1])};
}

// Or the weights, in the dtype of list entries. They are at most 1, where f16 has three more bits than bf16.
constexpr int KEPT_WEIGHT_DTYPE = SAMPLING_DTYPE == F32 ? F32 : F16;
using KeptWeight = Storage<KEPT_WEIGHT_DTYPE>;

// [rows][samples]
MSDA_DEVICE unsigned char* kept_row_weights(const BackwardParams& params, long long sample) {
    return element_address<KeptWeight>(workspace_part<unsigned char>(params, params.row_weights_at), sample);
}

}  // namespace msda
