// The samples of the fused operator, for kernels that know a row's samples when they are compiled
// (sample_source.cuh defines a source).
//
// The lanes that own a row's quads compute the row's softmax when the kernel comes to the row.
#pragma once

#include "offset_rows.cuh"
#include "sample_source.cuh"

namespace msda {

// The level's part of a step, computed by the host.
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

// Whether a call reads its samples once: a backward reads them twice.
template <typename Params>
struct SampleReads {
    enum : bool { ONCE = false };
};
template <>
struct SampleReads<ForwardParams> {
    enum : bool { ONCE = true };
};

// EACH numbers of each of four neighbouring samples, as stored in memory.
template <int EACH, typename Params>
struct StoredQuad {
    using S = SamplingStorage;
    static constexpr int PACKET = WHOLE_QUADS ? at_most(4 * EACH, 16 / S::BYTES) : 1;  // numbers of a load
    static constexpr int PACKETS = 4 * EACH / PACKET;
    Packet<PACKET * S::BYTES> packet[PACKETS];

    // Whether other loads reuse almost nothing of the sectors that a load fetches: a lane loads once, and a
    // row fills most of a sector.
    static constexpr bool ONCE = SampleReads<Params>::ONCE && PACKETS == 1 && SAMPLES * EACH * S::BYTES >= 24;

    // `first` is the number of the first sample. Past the last sample, its numbers are loaded again.
    MSDA_DEVICE void load(const void* numbers, long long at, int first) {
#pragma unroll
        for (int p = 0; p < PACKETS; ++p) {
            const bool exists = WHOLE_QUADS || first + p / EACH < SAMPLES;
            const unsigned char* address = element_address<S>(numbers, exists ? at + p * PACKET : at);
            if constexpr (ONCE) {
                load_streaming(packet[p], address);
            } else {
                load_readonly(packet[p], address);
            }
        }
    }

    MSDA_DEVICE void unpack_all(int first, float absent, float (&numbers)[4 * EACH]) const {
#pragma unroll
        for (int p = 0; p < PACKETS; ++p) {
            float part[PACKET];
            unpack<S, PACKET>(packet[p], part);
            const bool exists = WHOLE_QUADS || first + p / EACH < SAMPLES;
#pragma unroll
            for (int i = 0; i < PACKET; ++i) numbers[p * PACKET + i] = exists ? part[i] : absent;
        }
    }

    MSDA_DEVICE void ask() {
#pragma unroll
        for (int p = 0; p < PACKETS; ++p) ask_now(packet[p]);
    }
};

template <typename Params>
struct OffsetsAndLogits {
    const Params& params;

    // The numbers of a quad, whose loads are in flight.
    struct Numbers {
        StoredQuad<1, Params> logits;
        StoredQuad<2, Params> offsets;
        Reference reference;  // of the first sample

        MSDA_DEVICE void ask() {
            offsets.ask();
            ask_now(reference);
            logits.ask();
        }
    };

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

    MSDA_DEVICE Row unprepared_row(long long number) const { return {number, {}}; }

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
    MSDA_DEVICE float attention_logit(long long number, int s) const {
        return load_element<SamplingStorage>(params.logits, place_of_row(params, number).logits + s);
    }
    MSDA_DEVICE float attention(const Row& row, int s) const {
        return weight_of(row.sums, attention_logit(row.number, s));
    }

    MSDA_DEVICE Quad quad(const Row& row, int first) const {
        const Numbers numbers = numbers_of(row.number, first);
        float logits[4], attention[4];
        numbers.logits.unpack_all(first, SOFTMAX ? no_logit() : 0.0f, logits);
#pragma unroll
        for (int i = 0; i < 4; ++i) attention[i] = weight_of(row.sums, logits[i]);
        return quad_of(row.number, first, numbers, attention);
    }

    // A row that a group of lanes begins together, a quad each. Lanes past the last quad read the last quad
    // again and do not count. If the group has all quads of the row (WHOLE_ROW), it starts all loads before
    // it computes the softmax, and computes the powers once.
    template <bool WHOLE_ROW>
    struct Begun {
        Row row;
        Numbers numbers;
        float attention[4];
    };
    template <bool WHOLE_ROW>
    MSDA_DEVICE Begun<WHOLE_ROW> begin(long long number, int part, int parts) const {
        if constexpr (!WHOLE_ROW) return {row(number, part, parts), {}, {}};
        constexpr int QUADS = (SAMPLES + 3) / 4;
        const bool counts = QUADS == parts || part < QUADS;
        const int first = 4 * at_most(part, QUADS - 1);
        Begun<WHOLE_ROW> begun = {{number, {}}, numbers_of(number, first), {}};
        begun.numbers.ask();
        float logits[4];
        begun.numbers.logits.unpack_all(first, SOFTMAX ? no_logit() : 0.0f, logits);
        if constexpr (SOFTMAX) {
            PartialSums mine = PartialSums::of(logits, begun.attention);
            if (!counts) mine.sum = 0.0f;  // it reads the last quad again: same largest logit and weights
            float own_scale;
            begun.row.sums = row_sums(mine, part, parts, own_scale);
#pragma unroll
            for (int i = 0; i < 4; ++i) begun.attention[i] *= own_scale;
        } else {
#pragma unroll
            for (int i = 0; i < 4; ++i) begun.attention[i] = logits[i];
        }
        return begun;
    }
    template <bool WHOLE_ROW>
    MSDA_DEVICE Quad quad(const Begun<WHOLE_ROW>& begun, int first) const {
        if constexpr (!WHOLE_ROW) return quad(begun.row, first);
        return quad_of(begun.row.number, first, begun.numbers, begun.attention);
    }

    // A lane's share of a row's softmax: quads `part`, `part` + `parts`, ...
    MSDA_DEVICE PartialSums sums_of_quads(long long number, int part, int parts) const {
        PartialSums sums;
        const long long logits = place_of_row(params, number).logits;
        // A whole warp, or at least one lane per sample: each lane reads single samples.
        if (parts == 32 || parts >= SAMPLES)
            return sums_of_samples(params.logits, logits, SAMPLES, part, parts);
#pragma unroll
        for (int quad = 0; quad < (SAMPLES + 3) / 4; quad += parts) {
            if (quad + part >= (SAMPLES + 3) / 4) break;
            const int first = 4 * (quad + part);
            StoredQuad<1, Params> stored;
            float own[4];
            stored.load(params.logits, logits + first, first);
            stored.unpack_all(first, no_logit(), own);
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
        numbers.offsets.load(params.offsets, place.offsets + 2 * first, first);
        numbers.reference = reference_at(place, first);
        numbers.logits.load(params.logits, place.logits + first, first);
        return numbers;
    }

    MSDA_DEVICE Quad quad_of(long long number, int first, const Numbers& numbers,
                             const float (&attention)[4]) const {
        Quad quad;
        Reference reference = numbers.reference;
        OffsetStep step = {};
        float offsets[8];
        numbers.offsets.unpack_all(first, 0.0f, offsets);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const bool changes = !quads_stay_in_levels() || REFERENCE_OF == OF_ANCHOR;
            if (i > 0 && changes) reference = reference_at(place_of_row(params, number), first + i);
            if (i == 0 || changes) {
                step = step_from(reference, step_of_level(params, level_of_sample(first + i)));
            }
            // A sample past the last one gets a location outside of every level.
            const bool exists = WHOLE_QUADS || first + i < SAMPLES;
            quad.x[i] = exists ? fmaf(offsets[2 * i], step.x, reference.x) : -4.0f;
            quad.y[i] = fmaf(offsets[2 * i + 1], step.y, reference.y);
            quad.attention[i] = attention[i];
        }
        return quad;
    }
};

template <typename Params>
MSDA_DEVICE OffsetsAndLogits<Params> sample_source(const Params& params) {
    return {params};
}

}  // namespace msda
