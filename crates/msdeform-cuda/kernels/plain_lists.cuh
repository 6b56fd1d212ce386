// Reads the samples of the plain operator for the lists (sample_tiles.cuh).
#pragma once

#include "sample_tiles.cuh"

namespace msda {

// Samples of UNROLL steps whose loads are in flight.
template <int UNROLL>
struct SampleBatch {
    Packet<2 * SamplingStorage::BYTES> location[UNROLL];
    Packet<SamplingStorage::BYTES> attention[UNROLL];
};

// The reads of one lane, step after step.
template <int UNROLL, bool ATTENTION>
struct SampleStream {
    const unsigned char* location;
    const unsigned char* attention;
    long long step;  // bytes of attention weights from one step to the next
    int step_queries;
    int left;  // queries from the next load on

    MSDA_DEVICE SampleBatch<UNROLL> load() {
        SampleBatch<UNROLL> loaded = {};
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            if (u * step_queries < left) {
                load_readonly(loaded.location[u], location + u * 2 * step);
                if constexpr (ATTENTION) load_readonly(loaded.attention[u], attention + u * step);
            }
        }
        location += 2 * UNROLL * step;
        attention += UNROLL * step;
        left -= UNROLL * step_queries;
        return loaded;
    }
};

template <int UNROLL, bool ATTENTION, typename Visit>
MSDA_DEVICE void for_each_sample(const BackwardParams& params, int slab, int level, int first, int end,
                                 Visit visit) {
    const int lane = threadIdx.x % 32;
    const int batch = slab / HEADS, head = slab % HEADS;
    const long long query_samples = static_cast<long long>(HEADS) * SAMPLES;
    const LevelGeometry& geometry = params.level[level];
    const int level_end = level + 1 < LEVELS ? params.level[level + 1].first_sample : SAMPLES;
    const LevelTiles tiles = level_tiles(params, level);
#pragma unroll 1
    for (int point = geometry.first_sample; point < level_end; point += 32) {
        // Queries that the warp takes at a time, and this lane's.
        constexpr bool FIXED = common_points() > 0 && common_points() <= 32;
        const int points = FIXED ? common_points() : at_most(level_end - point, 32);
        const int warp_queries = 32 / points;
        const int lane_query = lane / points;
        const bool takes_part = lane_query < warp_queries;
        const long long start =
            (static_cast<long long>(batch) * params.queries + first + lane_query) * query_samples +
            head * SAMPLES + point + lane % points;
        SampleStream<UNROLL, ATTENTION> stream = {
            element_address<SamplingStorage>(params.locations, 2 * start),
            element_address<SamplingStorage>(params.weights, start),
            query_samples * warp_queries * SamplingStorage::BYTES, warp_queries,
            takes_part ? end - first - lane_query : 0};
        SampleBatch<UNROLL> next = stream.load();
#pragma unroll 1
        for (int at = first; at < end; at += UNROLL * warp_queries) {
            const SampleBatch<UNROLL> now = next;
            next = stream.load();
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) {
                float xy[2];
                unpack<SamplingStorage, 2>(now.location[u], xy);
                unsigned attention_bits = 0;
                if constexpr (ATTENTION) attention_bits = now.attention[u].word[0];
                const int query = at + u * warp_queries + lane_query;
                visit(query, tiles, xy[0], xy[1], attention_bits, takes_part && query < end);
            }
        }
    }
}

}  // namespace msda
