// Reads the samples of the fused operator for the lists (sample_tiles.cuh).
#pragma once

#include "kept_rows.cuh"
#include "offset_samples.cuh"
#include "sample_tiles.cuh"

namespace msda {

constexpr bool WEIGHTS_ARE_KEPT = SOFTMAX && MSDA_ROW_SUMS != 0;  // by the step `rows`
using StoredWeight = Storage<WEIGHTS_ARE_KEPT ? KEPT_WEIGHT_DTYPE : SAMPLING_DTYPE>;

// Samples of UNROLL steps whose loads are in flight.
template <int UNROLL>
struct SampleBatch {
    StoredOffset offset[UNROLL];
    Reference reference[UNROLL];
    Packet<StoredWeight::BYTES> weight[UNROLL];  // or the logit, together with
    PartialSums share[UNROLL];                   // the sums of its row
};

// The reads of one lane, step after step: the same point of every step_queries-th query.
template <int UNROLL, bool ATTENTION>
struct SampleStream {
    const BackwardParams& params;
    RowPlace place;  // of its next query
    long long row;
    int sample;     // among those of the row
    int reference;  // among those of the query
    int part;       // of the lanes that share the row
    int parts;
    int step_queries;
    int left;  // queries from the next load on

    // The attention weight of a sample. All lanes call it together.
    MSDA_DEVICE float weight(const SampleBatch<UNROLL>& loaded, int u) const {
        float stored[1];
        unpack<StoredWeight, 1>(loaded.weight[u], stored);
        if constexpr (!SOFTMAX || WEIGHTS_ARE_KEPT) return stored[0];
        return weight_of(row_sums(loaded.share[u], part, parts), stored[0]);
    }

    MSDA_DEVICE SampleBatch<UNROLL> load() {
        using S = SamplingStorage;
        SampleBatch<UNROLL> loaded = {};
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            if (u * step_queries < left) {
                const unsigned at = static_cast<unsigned>(u * step_queries);
                const long long offset = place.offsets + distance(at, params.offsets_query_stride);
                loaded.offset[u] = load_offset(params.offsets, offset + 2 * sample);
                loaded.reference[u] = load_reference(
                    params.references, place.references + distance(at, params.references_query_stride),
                    reference);
                if constexpr (ATTENTION && WEIGHTS_ARE_KEPT) {
                    const long long kept = (row + static_cast<long long>(at) * HEADS) * SAMPLES + sample;
                    load_readonly(loaded.weight[u], kept_row_weights(params, kept));
                } else if constexpr (ATTENTION) {
                    const long long logit = place.logits + distance(at, params.logits_query_stride);
                    load_readonly(loaded.weight[u], element_address<S>(params.logits, logit + sample));
                    if constexpr (SOFTMAX) {
                        const long long numbered = row + static_cast<long long>(at) * HEADS;
                        loaded.share[u] = sample_source(params).sums_of_quads(numbered, part, parts);
                    }
                }
            }
        }
        const unsigned step = static_cast<unsigned>(UNROLL * step_queries);
        place.references += distance(step, params.references_query_stride);
        place.offsets += distance(step, params.offsets_query_stride);
        place.logits += distance(step, params.logits_query_stride);
        row += static_cast<long long>(step) * HEADS;
        left -= UNROLL * step_queries;
        return loaded;
    }
};

// As for the plain operator: visit(query, level, x, y, bits of the attention weight in fp32, exists).
template <int UNROLL, bool ATTENTION, typename Visit>
MSDA_DEVICE void for_each_sample(const BackwardParams& params, int slab, int level, int first, int end,
                                 Visit visit) {
    const int lane = threadIdx.x % 32;
    const int batch = slab / HEADS, head = slab % HEADS;
    const LevelGeometry& geometry = params.level[level];
    const int level_end = level + 1 < LEVELS ? params.level[level + 1].first_sample : SAMPLES;
    const LevelTiles tiles = level_tiles(params, level);
    const OffsetStep of_level = step_of_level(params, level);
#pragma unroll 1
    for (int point = geometry.first_sample; point < level_end; point += 32) {
        constexpr bool FIXED = common_points() > 0 && common_points() <= 32;
        const int points = FIXED ? common_points() : at_most(level_end - point, 32);
        const int warp_queries = 32 / points;
        const int lane_query = lane / points;
        const bool takes_part = lane_query < warp_queries;
        const int sample = point + lane % points;
        const int left = takes_part ? end - first - lane_query : 0;
        // Idle lanes read the row of the first query, so that every lane's address is valid.
        const long long row =
            (static_cast<long long>(batch) * params.queries + first + (left > 0 ? lane_query : 0)) * HEADS +
            head;
        const int reference = reference_of(level, sample - geometry.first_sample);
        // The lanes of a query share its row where all levels have as many points.
        const int part = FIXED ? lane % points : 0, parts = FIXED ? points : 1;
        SampleStream<UNROLL, ATTENTION> stream = {
            params, place_of_row(params, row), row, sample, reference, part, parts, warp_queries, left};
        SampleBatch<UNROLL> next = stream.load();
#pragma unroll 1
        for (int at = first; at < end; at += UNROLL * warp_queries) {
            const SampleBatch<UNROLL> now = next;
            next = stream.load();
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) {
                const Reference& reference = now.reference[u];
                const OffsetStep step = step_from(reference, of_level);
                const Place place = place_of_offset(now.offset[u], reference, step);
                unsigned attention_bits = 0;
                if constexpr (ATTENTION) attention_bits = float_to_bits(stream.weight(now, u));
                const int query = at + u * warp_queries + lane_query;
                visit(query, tiles, place.x, place.y, attention_bits, takes_part && query < end);
            }
        }
    }
}

}  // namespace msda
