// Attention weights of the fused operator, and how an entry of a list has them (list_entries.cuh).
#pragma once

#include "numeric.cuh"

namespace msda {

constexpr bool SOFTMAX = MSDA_SOFTMAX != 0;  // of the logits; else they are the weights

// The attention bits are those of an fp32 number. After a softmax the number is at most 1, where f16 has
// three more bits than bf16.
struct EntryWeight {
    using Half = Storage<SOFTMAX ? F16 : SAMPLING_DTYPE>;

    MSDA_DEVICE static unsigned half_bits(unsigned attention_bits) {
        return Half::from_float(bits_to_float(attention_bits));
    }
    MSDA_DEVICE static unsigned float_bits(unsigned attention_bits) { return attention_bits; }
    MSDA_DEVICE static float of_half_bits(unsigned bits) {
        return Half::to_float(static_cast<typename Half::Bits>(bits));
    }
};

}  // namespace msda
