// The step `rows`: the softmax of every row, for steps that meet its samples one by one and in any order.
// A thread owns a row.
#pragma once

#include "offset_rows.cuh"

namespace msda {

// [rows]
MSDA_DEVICE Packet<8>* kept_row_sums(const BackwardParams& params) {
    return workspace_part<Packet<8>>(params, params.row_sums_at);
}
MSDA_DEVICE RowSums load_row_sums(const BackwardParams& params, long long row) {
    Packet<8> packet;
    load_readonly(packet, kept_row_sums(params) + row);
    return {bits_to_float(packet.word[0]), bits_to_float(packet.word[1])};
}

// Of all samples of a row.
MSDA_DEVICE PartialSums sums_of_row(const BackwardParams& params, long long first) {
    PartialSums sums;
    if constexpr (WHOLE_QUADS) {
        using S = SamplingStorage;
#pragma unroll 4
        for (int s = 0; s < SAMPLES; s += 4) {
            Packet<4 * S::BYTES> packet;
            float quad[4];
            load_readonly(packet, element_address<S>(params.logits, first + s));
            unpack<S, 4>(packet, quad);
            sums.add(quad);
        }
        return sums;
    }
    return sums_of_samples(params.logits, first, params.samples, 0, 1);
}

MSDA_DEVICE void keep_row_sums(const BackwardParams& params) {
    const long long rows = static_cast<long long>(params.batch) * params.queries * params.heads;
    for (long long row = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; row < rows;
         row += static_cast<long long>(gridDim.x) * blockDim.x) {
        const long long logits = place_of_row(params, row).logits;
        const RowSums sums = row_sums(sums_of_row(params, logits));
        store(kept_row_sums(params) + row,
              Packet<8>{{float_to_bits(sums.largest), float_to_bits(sums.scale)}});
    }
}

}  // namespace msda
