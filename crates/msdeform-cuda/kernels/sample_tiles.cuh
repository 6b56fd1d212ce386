// The tiles of a sample, and counters of samples per tile.
#pragma once

#include "tile_lists.cuh"

namespace msda {

constexpr bool ORDERED = MSDA_ORDERED != 0;  // the order of a list depends on the call alone

// One axis of a sample that counts: the first and last tile with a corner inside of the level.
struct AxisPlace {
    int tile;
    int last_tile;
    float position;  // in pixels; 0 if the sample does not count
    float before;    // the pixel before it
};
MSDA_DEVICE AxisPlace axis_place(float position, int size, bool counts) {
    AxisPlace place;
    // A sample that does not count may be NaN or too large for an int: converting it is undefined.
    place.position = counts ? position : 0.0f;
    place.before = floor_near(place.position);
    const int pixel = static_cast<int>(place.before);
    const int first = pixel > 0 ? pixel : 0;
    place.tile = static_cast<int>(static_cast<unsigned>(first) / TILE_SIDE);
    place.last_tile = static_cast<int>(static_cast<unsigned>(at_most(pixel + 1, size - 1)) / TILE_SIDE);
    return place;
}

struct LevelTiles {
    int width;
    int height;
    int tiles_x;
    int first_tile;
};

MSDA_DEVICE LevelTiles level_tiles(const CallShape& shape, int level) {
    const LevelGeometry& geometry = shape.level[level];
    return {geometry.width, geometry.height, tiles_across(geometry.width), shape.first_tile[level]};
}

// The tiles of one sample.
struct TileSpan {
    AxisPlace x;
    AxisPlace y;
    int tile;  // of the first corner inside of the level
    bool counts;
    bool across;  // counts, and also tile + 1
    bool down;    // counts, and also the tile below
};
MSDA_DEVICE TileSpan tile_span(const LevelTiles& level, float location_x, float location_y, bool exists) {
    const float width = static_cast<float>(level.width), height = static_cast<float>(level.height);
    const float x = fmaf(location_x, width, -0.5f);
    const float y = fmaf(location_y, height, -0.5f);
    TileSpan span;
    span.counts = exists && x > -1.0f && x < width && y > -1.0f && y < height;
    span.x = axis_place(x, level.width, span.counts);
    span.y = axis_place(y, level.height, span.counts);
    span.tile = level.first_tile + span.y.tile * level.tiles_x + span.x.tile;
    span.across = span.counts && span.x.last_tile != span.x.tile;
    span.down = span.counts && span.y.last_tile != span.y.tile;
    return span;
}

}  // namespace msda

// The operator's samples for the lists:
//   for_each_sample<UNROLL, ATTENTION>(params, slab, level, first, end, visit)
//     calls visit(query, level, x, y, attention bits, exists) for every sample of queries first .. end - 1 of
//     one slab and level, all lanes together, in the order of queries and points. A warp sees the points of
//     neighbouring queries together, which fall into few tiles: their entries are stored in whole sectors.
#if MSDA_FROM_OFFSETS
#include "offset_lists.cuh"
#else
#include "plain_lists.cuh"
#endif

namespace msda {

// The counters of the up to four tiles of a sample, by address in shared memory.
struct SpanCounters {
    unsigned address[4];
    bool present[4];
};
// `counters` is the address of tile 0's counter. That counter need not exist, if the block has other tiles.
MSDA_DEVICE SpanCounters span_counters(const TileSpan& span, const LevelTiles& tiles, unsigned counters) {
    const unsigned first = counters + span.tile * 4u, below = first + tiles.tiles_x * 4u;
    return {{first, first + 4, below, below + 4},
            {span.counts, span.across, span.down, span.across && span.down}};
}

// Adds a sample of every lane to its counters. `taken` gets their values before, which are the sample's
// places.
//
// Lanes that meet in a tile take their places by shared atomics, in an unspecified order. Where lists are
// ORDERED, the lowest of these lanes takes room for all of them, and the counters belong to one warp.
MSDA_DEVICE void take_places(const SpanCounters& counters, unsigned (&taken)[4]) {
    const int lane = threadIdx.x % 32;
    const unsigned lanes_before = (1u << lane) - 1;
    unsigned peers[4];
#pragma unroll
    for (int c = 0; c < 4; ++c) {
        // Lanes without a tile get words that differ from every address and from each other.
        if constexpr (ORDERED) {
            peers[c] = match_lanes(counters.present[c] ? counters.address[c] : 0x80000000u | lane);
        }
    }
#pragma unroll
    for (int c = 0; c < 4; ++c) {
        if constexpr (ORDERED) {
            // A tile may be one lane's first and another's second: first ones go first.
            sync_warp();
            const bool lowest = counters.present[c] && (peers[c] & lanes_before) == 0;
            taken[c] = shared_add(counters.address[c], count_bits(peers[c]), lowest);
        } else {
            taken[c] = shared_add(counters.address[c], 1, counters.present[c]);
        }
    }
#pragma unroll
    for (int c = 0; c < 4; ++c) {
        if constexpr (ORDERED) {
            taken[c] = shuffle(taken[c], first_bit(peers[c])) + count_bits(peers[c] & lanes_before);
        }
    }
}

// Adds the samples of for_each_sample to counters, one per tile of the slab.
template <int UNROLL>
MSDA_DEVICE void count_samples(const BackwardParams& params, int slab, int level, int first, int end,
                               unsigned counters) {
    const auto visit = [&](int, const LevelTiles& tiles, float x, float y, unsigned, bool exists) {
        const SpanCounters own = span_counters(tile_span(tiles, x, y, exists), tiles, counters);
#pragma unroll
        for (int c = 0; c < 4; ++c) shared_increment(own.address[c], own.present[c]);
    };
    for_each_sample<UNROLL, false>(params, slab, level, first, end, visit);
}

// The first query of a part. Parts have equal numbers of queries.
MSDA_DEVICE int first_query_of_part(int queries, int part, int parts) {
    return static_cast<int>(static_cast<long long>(queries) * part / parts);
}

}  // namespace msda
