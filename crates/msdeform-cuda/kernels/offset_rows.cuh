// The fused operator's rows, a (query, head) each: the place of a row's numbers in memory, the reference that
// an offset starts from, and the softmax over a row.
//
//   location = centre of the reference + offset * step        step = (1 / width, 1 / height) of the level, or
//   weight   = softmax over all samples of the row of logit   a part of the box that the reference is
//
// Coordinates, logits and their sums are fp32 from here on, for every storage dtype. References, offsets
// and logits may be views of a larger tensor: their images and queries have strides, and a query's numbers
// are contiguous.
#pragma once

#include "offset_rule.cuh"
#include "params.cuh"
#ifndef MSDA_EMULATED
#include "ptx_exponentials.cuh"
#endif

namespace msda {

using ReferenceStorage = Storage<REFERENCE_DTYPE>;

// ---- places ------------------------------------------------------------------------------------

// The distance of `count` strides. Kernels with a known number of heads count fewer than 2^32 queries and get
// strides of 31 bits, so the distance is one multiply-add.
MSDA_DEVICE long long distance(unsigned count, int stride) {
    return static_cast<long long>(static_cast<unsigned long long>(count) * static_cast<unsigned>(stride));
}
MSDA_DEVICE long long distance(long long count, long long stride) { return count * stride; }

// The place of a row's first numbers, in elements.
struct RowPlace {
    long long references;  // of its query
    long long offsets;
    long long logits;
};
// `query` counts over images.
template <typename Shape, typename Query>
MSDA_DEVICE RowPlace place_of_query(const Shape& shape, Query query, long long first_sample) {
    RowPlace place = {distance(query, shape.references_query_stride),
                      distance(query, shape.offsets_query_stride) + 2 * first_sample,
                      distance(query, shape.logits_query_stride) + first_sample};
    // In most calls images follow each other like queries. Then no division is needed.
    if (shape.images_follow == 0) {
        const long long image = query / static_cast<Query>(shape.queries);
        const long long before = image * shape.queries;  // queries of the images before
        place.references += image * shape.references_image_stride - before * shape.references_query_stride;
        place.offsets += image * shape.offsets_image_stride - before * shape.offsets_query_stride;
        place.logits += image * shape.logits_image_stride - before * shape.logits_query_stride;
    }
    return place;
}
template <typename Shape>  // a template: only the branch taken must fit its strides
MSDA_DEVICE RowPlace place_of_row(const Shape& shape, long long row) {
    if constexpr (HEADS > 0) {
        constexpr unsigned KNOWN_HEADS = HEADS > 0 ? HEADS : 1;
        const unsigned long long number = static_cast<unsigned long long>(row);
        const unsigned head = static_cast<unsigned>(number % KNOWN_HEADS);
        return place_of_query(shape, static_cast<unsigned>(number / KNOWN_HEADS), head * SAMPLES);
    } else {
        return place_of_query(shape, row / shape.heads, row % shape.heads * shape.samples);
    }
}

// ---- references --------------------------------------------------------------------------------

struct Reference {
    float x;
    float y;
    float width;  // of a box
    float height;
};
// Number `number` of a query whose references start at element `first`.
MSDA_DEVICE Reference load_reference(const void* references, long long first, int number) {
    using S = ReferenceStorage;
    const long long at = first + number * REFERENCE_NUMBERS;
    float numbers[4] = {};
    if constexpr (WHOLE_REFERENCES) {
        Packet<REFERENCE_NUMBERS * S::BYTES> packet;
        float whole[REFERENCE_NUMBERS];
        load_readonly(packet, element_address<S>(references, at));
        unpack<S, REFERENCE_NUMBERS>(packet, whole);
#pragma unroll
        for (int i = 0; i < REFERENCE_NUMBERS; ++i) numbers[i] = whole[i];
    } else {
#pragma unroll
        for (int i = 0; i < REFERENCE_NUMBERS; ++i) numbers[i] = load_element<S>(references, at + i);
    }
    return {numbers[0], numbers[1], numbers[2], numbers[3]};
}

// The number of the reference that a point of a level starts from.
MSDA_DEVICE int reference_of(int level, int point) {
    if constexpr (REFERENCE_OF == OF_LEVEL) return level;
    if constexpr (REFERENCE_OF == OF_ANCHOR) return point % (ANCHORS > 0 ? ANCHORS : 1);
    return 0;
}

// Forces a load to be issued here. Otherwise the compiler may move it past a wait, to the first use of its
// result, and the wait and the load no longer overlap.
MSDA_DEVICE void ask_now(unsigned& word) { word = kept(word); }
MSDA_DEVICE void ask_now(unsigned short& word) { word = static_cast<unsigned short>(kept(word)); }
MSDA_DEVICE void ask_now(float& number) { number = bits_to_float(kept(float_to_bits(number))); }
template <int BYTES>
MSDA_DEVICE void ask_now(Packet<BYTES>& packet) {
#pragma unroll
    for (int w = 0; w < (BYTES + 3) / 4; ++w) ask_now(packet.word[w]);
}
MSDA_DEVICE void ask_now(Reference& reference) {
    ask_now(reference.x);
    ask_now(reference.y);
    if constexpr (BOXES) {
        ask_now(reference.width);
        ask_now(reference.height);
    }
}

// The distance that an offset of one moves a location: the level's step, times the sides of a box.
struct OffsetStep {
    float x;
    float y;
};
MSDA_DEVICE OffsetStep step_from(const Reference& reference, const OffsetStep& of_level) {
    if constexpr (BOXES) return {reference.width * of_level.x, reference.height * of_level.y};
    return of_level;
}

// The offset of a sample whose numbers start at element `at`, as stored.
using StoredOffset = Packet<2 * SamplingStorage::BYTES>;
MSDA_DEVICE StoredOffset load_offset(const void* offsets, long long at) {
    using S = SamplingStorage;
    StoredOffset stored;
    if constexpr (WHOLE_QUADS) {
        load_readonly(stored, element_address<S>(offsets, at));
    } else {
        const float pair[2] = {load_element<S>(offsets, at), load_element<S>(offsets, at + 1)};
        pack<S, 2>(pair, stored);
    }
    return stored;
}

struct Place {
    float x;
    float y;
};
MSDA_DEVICE Place place_of_offset(const StoredOffset& offset, const Reference& reference,
                                  const OffsetStep& step) {
    float pair[2];
    unpack<SamplingStorage, 2>(offset, pair);
    return {fmaf(pair[0], step.x, reference.x), fmaf(pair[1], step.y, reference.y)};
}

// A gradient of zero stays zero, even if the factor is infinite: a sample that does not count passes on
// nothing.
MSDA_DEVICE float passed_on(float gradient, float by) { return gradient == 0.0f ? 0.0f : gradient * by; }

// ---- softmax -----------------------------------------------------------------------------------

constexpr float LOG2_E = 1.44269504f;
MSDA_DEVICE float no_logit() { return bits_to_float(0xff800000u); }  // -inf: has no weight

// The numbers that turn logits into weights: exp2(logit * LOG2_E - largest) * scale.
struct RowSums {
    float largest;
    float scale;
};
MSDA_DEVICE float weight_of(const RowSums& sums, float logit) {
    if constexpr (!SOFTMAX) return logit;
    return exp2_near(fmaf(logit, LOG2_E, -sums.largest)) * sums.scale;
}

// The largest logit alone adds 1. The sum of a row without a logit above -inf is 0; any other sum lies
// between 1 and the number of samples.
MSDA_DEVICE float scale_of(float sum) { return sum == 0.0f ? 0.0f : reciprocal_near(sum); }

// The sums of the logits that one lane has read. `largest` is always finite, so a row in which every logit is
// -inf has powers and weights of zero.
struct PartialSums {
    static constexpr float LEAST = -3.4028235e38f;

    float largest = LEAST;
    float sum = 0.0f;  // of powers, relative to `largest`

    template <int N>
    MSDA_DEVICE void add(const float (&logits)[N]) {
        const float before = largest;
        float powers[N];
        const PartialSums more = of(logits, powers, before);
        sum = fmaf(sum, exp2_near(before - more.largest), more.sum);
        largest = more.largest;
    }

    // The sums of these logits alone, and their `powers`. `largest` is their maximum, but at least `least`.
    // fmaxf ignores NaN, but the sum does not, so a NaN makes the whole row NaN.
    template <int N>
    MSDA_DEVICE static PartialSums of(const float (&logits)[N], float (&powers)[N], float least = LEAST) {
        PartialSums sums;
        sums.largest = least;
#pragma unroll
        for (int i = 0; i < N; ++i) sums.largest = fmaxf(sums.largest, logits[i] * LOG2_E);
#pragma unroll
        for (int i = 0; i < N; ++i) {
            powers[i] = exp2_near(fmaf(logits[i], LOG2_E, -sums.largest));
            sums.sum += powers[i];
        }
        return sums;
    }
};

// combine(..., ...) over a group of `parts` neighbouring lanes, in which this lane has number `part`. All
// lanes of the group get the same result. All lanes of the warp take part; the last group may be cut short.
template <typename Combine>
MSDA_DEVICE float over_lanes(float mine, int part, int parts, Combine combine) {
    if ((parts & (parts - 1)) == 0) {
#pragma unroll
        for (int distance = parts / 2; distance > 0; distance /= 2) {
            mine = combine(mine, shuffle_xor(mine, distance));
        }
        return mine;
    }
    const int first = static_cast<int>(threadIdx.x) % 32 - part;
    float all = shuffle(mine, first);
#pragma unroll
    for (int i = 1; i < parts; ++i) all = combine(all, shuffle(mine, first + i < 32 ? first + i : 31));
    return all;
}
MSDA_DEVICE float sum_over_lanes(float mine, int part, int parts) {
    return over_lanes(mine, part, parts, [](float a, float b) { return a + b; });
}

// The sums of a row that these lanes have read together. A lane's weights are its powers times `own_scale`.
MSDA_DEVICE RowSums row_sums(const PartialSums& mine, int part, int parts, float& own_scale) {
    const auto larger = [](float a, float b) { return fmaxf(a, b); };
    const float largest = over_lanes(mine.largest, part, parts, larger);
    const float lowered = exp2_near(mine.largest - largest);
    const float scale = scale_of(sum_over_lanes(mine.sum * lowered, part, parts));
    own_scale = lowered * scale;
    return {largest, scale};
}
MSDA_DEVICE RowSums row_sums(const PartialSums& mine, int part, int parts) {
    float own_scale;
    return row_sums(mine, part, parts, own_scale);
}
// The sums of a row that one lane has read alone.
MSDA_DEVICE RowSums row_sums(const PartialSums& all) { return {all.largest, scale_of(all.sum)}; }

// A lane's share of any row: samples `part`, + `parts`, ...
MSDA_DEVICE PartialSums sums_of_samples(const void* logits, long long first, int samples, int part,
                                        int parts) {
    PartialSums sums;
    for (int s = part; s < samples && SOFTMAX; s += parts) {
        sums.add({load_element<SamplingStorage>(logits, first + s)});
    }
    return sums;
}

}  // namespace msda
