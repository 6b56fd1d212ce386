// Lists of samples per tile of pixels, the intermediate result of the backward kernels that sort.
//
// A slab is one image and head. Its levels are cut into tiles of 4 x 4 pixels, numbered through, the last
// level first: models put their coarse levels last, whose tiles have the longest lists and should start
// first. A sample belongs to every tile that one of its corners lies in, so to one, two or four of them,
// 1.56 on average. The gradient of a tile's pixels is then a sum over its list alone.
//
// Requires: chunked_sample.cuh's limits but that levels may be one pixel thin; fewer than 2^32 entries in a
// slab's lists; with 8-byte entries at most 2^18 queries. Checked by src/variants/tile_lists.rs.
#pragma once

#include "grad_output_rows.cuh"

namespace msda {

static_assert(HEADS > 0, "heads are compiled in");

constexpr int TILE_SIDE = MSDA_TILE_SIDE;
constexpr int TILE_PIXELS = TILE_SIDE * TILE_SIDE;
constexpr int PIECE_ENTRIES = MSDA_PIECE;            // of a list, summed by one warp; 0: lists are not cut
constexpr bool ORDERED = MSDA_ORDERED != 0;          // the order of a list depends on the call alone
constexpr int SLICE_CHANNELS = MSDA_SLICE_CHANNELS;  // summed by one warp
constexpr int SLICES = (CHANNELS + SLICE_CHANNELS - 1) / SLICE_CHANNELS;
constexpr int SLICE_SUMS = TILE_PIXELS * SLICE_CHANNELS;

MSDA_DEVICE int tiles_across(int size) {
    return static_cast<int>((static_cast<unsigned>(size) + TILE_SIDE - 1) / TILE_SIDE);
}
MSDA_DEVICE int tiles_of_level(const LevelGeometry& level) {
    return tiles_across(level.width) * tiles_across(level.height);
}

// ---- workspace ---------------------------------------------------------------------------------

// What one warp sums: a whole list, or PIECE_ENTRIES of a longer one. The result goes to the gradient, or
// to a slot where the list has several pieces.
struct alignas(16) Piece {
    unsigned tile;
    unsigned first_entry;
    unsigned entries;
    unsigned slot;
};
constexpr unsigned NO_SLOT = 0xffffffffu;
static_assert(sizeof(Piece) == MSDA_PIECE_BYTES, "as the host reserves");

// Where lists are not cut, a tile's list in one word that is written and read at once. Zero: the list is not
// there yet.
using ListWord = unsigned long long;
static_assert(sizeof(ListWord) == MSDA_LIST_WORD_BYTES, "as the host reserves");
MSDA_DEVICE ListWord list_word(unsigned first_entry, unsigned entries) {
    return static_cast<ListWord>(entries + 1) << 32 | first_entry;
}
MSDA_DEVICE unsigned first_entry_of(ListWord word) { return static_cast<unsigned>(word); }
MSDA_DEVICE unsigned entries_of(ListWord word) { return static_cast<unsigned>(word >> 32) - 1; }

// What lies in the workspace, as src/variants/tile_lists.rs reserves it. Lists that are not cut have
// `list_words` and `entries`; the others have no words but all the rest.
struct TileLists {
    int slabs;
    int parts;              // runs of queries that a slab is divided into
    int tiles;              // of a slab
    long long max_entries;  // of a slab
    long long max_pieces;
    long long max_slots;
    Piece* pieces;           // [slabs][max_pieces]
    ListWord* list_words;    // [slabs][tiles]
    unsigned char* entries;  // [slabs][max_entries]
    unsigned* piece_counts;  // [slabs]
    unsigned* long_counts;   // [slabs]: tiles with several pieces
    unsigned* long_tiles;    // [slabs][max_slots]
    unsigned* slots;         // [slabs][tiles]: the first slot of such a tile
    unsigned* totals;        // [slabs][tiles]: lengths of the lists
    unsigned* starts;        // [slabs][tiles]: of the lists
    float* sums;             // [slabs][max_slots][SLICES][SLICE_SUMS]
    unsigned* counts;        // [slabs][parts][tiles]; then where the part starts in the tile's list
};

MSDA_DEVICE TileLists tile_lists(const BackwardParams& params) {
    TileLists lists;
    lists.slabs = params.batch * HEADS;
    lists.parts = params.slab_parts;
    lists.tiles = params.slab_tiles;
    lists.max_entries = params.max_entries;
    lists.max_pieces = params.max_pieces;
    lists.max_slots = params.max_slots;
    lists.pieces = workspace_part<Piece>(params, params.pieces_at);
    lists.list_words = workspace_part<ListWord>(params, params.list_words_at);
    lists.entries = workspace_part<unsigned char>(params, params.entries_at);
    lists.piece_counts = workspace_part<unsigned>(params, params.piece_counts_at);
    lists.long_counts = workspace_part<unsigned>(params, params.long_counts_at);
    lists.long_tiles = workspace_part<unsigned>(params, params.long_tiles_at);
    lists.slots = workspace_part<unsigned>(params, params.slots_at);
    lists.totals = workspace_part<unsigned>(params, params.totals_at);
    lists.starts = workspace_part<unsigned>(params, params.starts_at);
    lists.sums = workspace_part<float>(params, params.sums_at);
    lists.counts = workspace_part<unsigned>(params, params.counts_at);
    return lists;
}

// ---- samples -----------------------------------------------------------------------------------

// One axis of a sample that counts: the first and last tile with a corner inside of the level.
struct AxisPlace {
    int tile;
    int last_tile;
    float position;  // in pixels; 0 if it does not count
    float before;    // the pixel before it
};
MSDA_DEVICE AxisPlace axis_place(float position, int size, bool counts) {
    AxisPlace place;
    // What does not count may be NaN or too large for an int: converting it is undefined.
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

#if MSDA_FROM_OFFSETS
}  // namespace msda

#include "offset_lists.cuh"

namespace msda {
#else
// Samples of UNROLL steps, on their way from memory.
template <int UNROLL>
struct SampleBatch {
    Packet<2 * SamplingStorage::BYTES> location[UNROLL];
    Packet<SamplingStorage::BYTES> attention[UNROLL];
};

// Where a lane reads its samples, step after step.
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

// Calls visit(query, level, x, y, attention bits, exists) for every sample of queries first .. end - 1 of
// one slab and level, all lanes together, in the order of queries and points. A warp sees the points of
// neighbouring queries together, which fall into few tiles: their entries are stored in whole sectors.
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
#endif

// The counters of the up to four tiles of a sample, by address in shared memory.
struct SpanCounters {
    unsigned address[4];
    bool present[4];
};
// `counters` is the address of that of tile 0 of the slab, which need not be there.
MSDA_DEVICE SpanCounters span_counters(const TileSpan& span, const LevelTiles& tiles, unsigned counters) {
    const unsigned first = counters + span.tile * 4u, below = first + tiles.tiles_x * 4u;
    return {{first, first + 4, below, below + 4},
            {span.counts, span.across, span.down, span.across && span.down}};
}

// Adds a sample of every lane to its counters; `taken` is what they were before, the sample's place.
//
// Lanes that meet in a tile take their places by shared atomics, in an unspecified order. Where lists are
// ORDERED, the lowest of these lanes takes room for all of them, and the counters belong to one warp.
MSDA_DEVICE void take_places(const SpanCounters& counters, unsigned (&taken)[4]) {
    const int lane = threadIdx.x % 32;
    const unsigned lanes_before = (1u << lane) - 1;
    unsigned peers[4];
#pragma unroll
    for (int c = 0; c < 4; ++c) {
        // Words that no address equals keep the others apart.
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

// Adds those samples to counters, one per tile of the slab.
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

// Queries of a slab are divided evenly; a part starts here.
MSDA_DEVICE int first_query_of_part(int queries, int part, int parts) {
    return static_cast<int>(static_cast<long long>(queries) * part / parts);
}

}  // namespace msda
