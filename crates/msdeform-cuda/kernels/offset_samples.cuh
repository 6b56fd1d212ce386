// A source whose samples follow from offsets and logits (sample_source.cuh says what a source is), for
// kernels that know a row's samples when they are compiled.
//
// A row's softmax is worked out when a kernel comes to the row, by the lanes that own its quads.
#pragma once

#include "offset_rows.cuh"
#include "sample_source.cuh"

namespace msda {

// As the host worked it out.
MSDA_DEVICE OffsetStep step_of_level(const CallShape& shape, int level) {
    return {bits_to_float(static_cast<unsigned>(shape.step_x[level])),
            bits_to_float(static_cast<unsigned>(shape.step_y[level]))};
}

MSDA_DEVICE constexpr bool quads_stay_in_levels() {
    for (int l = 0; l < LEVELS; ++l) {
        if (POINT_OFFSETS.at[l] % 4 != 0) return false;
    }
    return true;
}

// Numbers of four neighbouring samples, EACH of each; `first` is the first of them. Those past the last are
// `absent`.
template <int EACH>
MSDA_DEVICE void load_quad(const void* numbers, long long at, int first, float absent,
                           float (&loaded)[4 * EACH]) {
    using S = SamplingStorage;
    if constexpr (WHOLE_QUADS) {
        constexpr int PACKET = at_most(4 * EACH, 16 / S::BYTES);
#pragma unroll
        for (int p = 0; p < 4 * EACH / PACKET; ++p) {
            Packet<PACKET * S::BYTES> packet;
            float part[PACKET];
            load_readonly(packet, element_address<S>(numbers, at + p * PACKET));
            unpack<S, PACKET>(packet, part);
#pragma unroll
            for (int i = 0; i < PACKET; ++i) loaded[p * PACKET + i] = part[i];
        }
    } else {
#pragma unroll
        for (int i = 0; i < 4 * EACH; ++i) {
            const bool exists = first + i / EACH < SAMPLES;
            const float number = load_element<S>(numbers, exists ? at + i : at);
            loaded[i] = exists ? number : absent;
        }
    }
}

template <typename Params>
struct OffsetsAndLogits {
    const Params& params;

    struct Row {
        long long number;
        RowSums sums;
    };
    MSDA_DEVICE Row row(long long number) const {
        if constexpr (!SOFTMAX) return {number, {}};
        return {number, row_sums(sums_of_quads(number, 0, 1))};
    }
    MSDA_DEVICE Row row(long long number, int part, int parts) const {
        if constexpr (!SOFTMAX) return {number, {}};
        return {number, row_sums(sums_of_quads(number, part, parts), part, parts)};
    }

    MSDA_DEVICE Location location(const Row& row, int s) const {
        const RowPlace place = place_of_row(params, row.number);
        const int level = level_of_sample(s);
        const int point = s - params.level[level].first_sample;
        const Reference reference =
            load_reference(params.references, place.references, reference_of(level, point));
        const OffsetStep step = step_from(reference, step_of_level(params, level));
        const Place at = place_of_offset(load_offset(params.offsets, place.offsets + 2 * s), reference, step);
        return {at.x, at.y};
    }
    MSDA_DEVICE float attention(const Row& row, int s) const {
        const long long logits = place_of_row(params, row.number).logits;
        return weight_of(row.sums, load_element<SamplingStorage>(params.logits, logits + s));
    }

    MSDA_DEVICE Quad quad(const Row& row, int first) const {
        return quad_of(row, first, numbers_of(row.number, first));
    }

    // A row that a group of lanes begins together, a quad each. Where these are all its quads, their numbers
    // are on their way before the softmax is worked out.
    struct Numbers {
        float logits[4];
        float offsets[8];
        Reference reference;  // of the first sample
    };
    template <bool WHOLE_ROW>
    struct Begun {
        Row row;
        Numbers numbers;
    };
    template <bool WHOLE_ROW>
    MSDA_DEVICE Begun<WHOLE_ROW> begin(long long number, int part, int parts) const {
        if constexpr (!WHOLE_ROW) return {row(number, part, parts), {}};
        const Numbers numbers = numbers_of(number, 4 * part);
        if constexpr (!SOFTMAX) return {{number, {}}, numbers};
        PartialSums mine;
        mine.add(numbers.logits);
        return {{number, row_sums(mine, part, parts)}, numbers};
    }
    template <bool WHOLE_ROW>
    MSDA_DEVICE Quad quad(const Begun<WHOLE_ROW>& begun, int first) const {
        return WHOLE_ROW ? quad_of(begun.row, first, begun.numbers) : quad(begun.row, first);
    }

    // A lane's share of a row's softmax: quads `part`, + `parts`, ...
    MSDA_DEVICE PartialSums sums_of_quads(long long number, int part, int parts) const {
        PartialSums sums;
        const long long logits = place_of_row(params, number).logits;
        // A whole warp has a lane for every sample.
        if (parts == 32) return sums_of_samples(params.logits, logits, SAMPLES, part, parts);
#pragma unroll
        for (int quad = 0; quad < (SAMPLES + 3) / 4; quad += parts) {
            if (quad + part >= (SAMPLES + 3) / 4) break;
            const int first = 4 * (quad + part);
            float own[4];
            load_quad<1>(params.logits, logits + first, first, no_logit(), own);
            sums.add(own);
        }
        return sums;
    }

private:
    MSDA_DEVICE Reference reference_at(const RowPlace& place, int s) const {
        const int level = level_of_sample(s);
        const int point = s - params.level[level].first_sample;
        return load_reference(params.references, place.references, reference_of(level, point));
    }

    MSDA_DEVICE Numbers numbers_of(long long number, int first) const {
        const RowPlace place = place_of_row(params, number);
        Numbers numbers;
        load_quad<1>(params.logits, place.logits + first, first, SOFTMAX ? no_logit() : 0.0f, numbers.logits);
        load_quad<2>(params.offsets, place.offsets + 2 * first, first, 0.0f, numbers.offsets);
        numbers.reference = reference_at(place, first);
        return numbers;
    }

    MSDA_DEVICE Quad quad_of(const Row& row, int first, const Numbers& numbers) const {
        Quad quad;
        Reference reference = numbers.reference;
        OffsetStep step = {};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const bool changes = !quads_stay_in_levels() || REFERENCE_OF == OF_ANCHOR;
            if (i > 0 && changes) reference = reference_at(place_of_row(params, row.number), first + i);
            if (i == 0 || changes) {
                step = step_from(reference, step_of_level(params, level_of_sample(first + i)));
            }
            // Past the last sample: a location outside of every level.
            const bool exists = WHOLE_QUADS || first + i < SAMPLES;
            quad.x[i] = exists ? fmaf(numbers.offsets[2 * i], step.x, reference.x) : -4.0f;
            quad.y[i] = fmaf(numbers.offsets[2 * i + 1], step.y, reference.y);
            quad.attention[i] = weight_of(row.sums, numbers.logits[i]);
        }
        return quad;
    }
};

template <typename Params>
MSDA_DEVICE OffsetsAndLogits<Params> sample_source(const Params& params) {
    return {params};
}

// Which quad of a row a lane has, and whether it may write.
struct RowShare {
    int part;
    int parts;
    bool owns;    // there is such a quad
    bool stores;  // and the row is this warp's
};

}  // namespace msda
