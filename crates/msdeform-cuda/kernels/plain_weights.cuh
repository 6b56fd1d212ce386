// Attention weights of the plain operator, as an entry of a list has them (list_entries.cuh).
#pragma once

#include "numeric.cuh"

namespace msda {

// The attention bits are those of the tensor's element.
struct EntryWeight {
    using Bits = typename SamplingStorage::Bits;

    MSDA_DEVICE static unsigned half_bits(unsigned attention_bits) { return attention_bits; }
    MSDA_DEVICE static unsigned float_bits(unsigned attention_bits) {
        return float_to_bits(SamplingStorage::to_float(static_cast<Bits>(attention_bits)));
    }
    MSDA_DEVICE static float of_half_bits(unsigned bits) {
        return SamplingStorage::to_float(static_cast<Bits>(bits));
    }
};

}  // namespace msda
