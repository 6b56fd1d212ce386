// The step `rows` of the fused operator: the softmax of every row, for steps that read its samples one by one
// in any order. It stores the numbers that turn logits into weights, or the weights themselves. A thread owns
// a row.
#pragma once

#include "kept_rows.cuh"

namespace msda {

// The sums over all samples of a row.
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

// Calls keep(row, place of its logits, sums) for every row.
template <typename Keep>
MSDA_DEVICE void for_each_row(const BackwardParams& params, Keep keep) {
    const long long rows = static_cast<long long>(params.batch) * params.queries * params.heads;
    for (long long row = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; row < rows;
         row += static_cast<long long>(gridDim.x) * blockDim.x) {
        const long long logits = place_of_row(params, row).logits;
        keep(row, logits, row_sums(sums_of_row(params, logits)));
    }
}

MSDA_DEVICE void keep_row_sums(const BackwardParams& params) {
    for_each_row(params, [&](long long row, long long, const RowSums& sums) {
        store(kept_row_sums(params) + row,
              Packet<8>{{float_to_bits(sums.largest), float_to_bits(sums.scale)}});
    });
}

// ---- weights -----------------------------------------------------------------------------------

MSDA_DEVICE void keep_row_weights(const BackwardParams& params) {
    for_each_row(params, [&](long long row, long long logits, const RowSums& sums) {
        if constexpr (WHOLE_QUADS) {
            using S = SamplingStorage;
#pragma unroll 4
            for (int s = 0; s < SAMPLES; s += 4) {
                Packet<4 * S::BYTES> packet;
                float quad[4];
                load_readonly(packet, element_address<S>(params.logits, logits + s));
                unpack<S, 4>(packet, quad);
#pragma unroll
                for (int i = 0; i < 4; ++i) quad[i] = weight_of(sums, quad[i]);
                Packet<4 * KeptWeight::BYTES> weights;
                pack<KeptWeight, 4>(quad, weights);
                store(kept_row_weights(params, row * SAMPLES + s), weights);
            }
        } else {
            for (int s = 0; s < params.samples; ++s) {
                const float logit = load_element<SamplingStorage>(params.logits, logits + s);
                store_element<KeptWeight>(workspace_part<unsigned char>(params, params.row_weights_at),
                                          row * params.samples + s, weight_of(sums, logit));
            }
        }
    });
}

}  // namespace msda
