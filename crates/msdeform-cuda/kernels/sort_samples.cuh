// The samples that a block keeps between counting and writing while it sorts a level, so that it reads them
// once. They stay in registers of their threads, or in shared memory. Registers keep samples as the tensors
// store them, so only for the plain operator. Shared memory keeps locations and weights of any operator.
#pragma once

#include "list_writes.cuh"

namespace msda {

constexpr int SORT_THREADS = MSDA_SORT_THREADS;            // of a block; the order of lists depends on it
constexpr int REGISTER_SAMPLES = MSDA_REGISTER_SAMPLES;    // of a thread; 0: none in registers
constexpr bool SHARED_SAMPLES = MSDA_SHARED_SAMPLES != 0;  // samples stay in shared memory
constexpr int SORT_AHEAD = MSDA_SORT_AHEAD;                // samples of a lane whose loads are in flight

static_assert(REGISTER_SAMPLES * SORT_THREADS < 1 << 16, "places are kept in 16 bits");
static_assert(REGISTER_SAMPLES == 0 || !SHARED_SAMPLES, "one place is enough");

// The samples of a thread: threadIdx.x, + blockDim.x, ... of the level's, by query and point.
struct RegisterSamples {
    static constexpr int COUNT = REGISTER_SAMPLES > 0 ? REGISTER_SAMPLES : 1;
    Packet<2 * SamplingStorage::BYTES> location[COUNT];
    Packet<SamplingStorage::BYTES> attention[COUNT];
    unsigned places[COUNT][2];  // in the lists of its tiles, 16 bits each
    int samples;                // of the level
    int points;

    static MSDA_DEVICE int index(int k) { return static_cast<int>(k * blockDim.x + threadIdx.x); }

    // Whether any thread has a sample k: there may be fewer than REGISTER_SAMPLES, and places cost most where
    // they are taken in order.
    MSDA_DEVICE bool is_used(int k) const { return static_cast<int>(k * blockDim.x) < samples; }

    MSDA_DEVICE TileSpan span(int k, const LevelTiles& tiles) const {
        float xy[2];
        unpack<SamplingStorage, 2>(location[k], xy);
        return tile_span(tiles, xy[0], xy[1], index(k) < samples);
    }

    // A template, because only the plain operator has these tensors.
    template <typename Params>
    MSDA_DEVICE void load(const Params& params, int slab, int level) {
        const int first_point = params.level[level].first_sample;
        const int level_end = level + 1 < LEVELS ? params.level[level + 1].first_sample : SAMPLES;
        samples = params.queries * (level_end - first_point);
        points = common_points() > 0 ? common_points() : level_end - first_point;
        const long long first_row =
            static_cast<long long>(slab / HEADS) * params.queries * HEADS + slab % HEADS;
        if constexpr (REGISTER_SAMPLES > 0) {
#pragma unroll
            for (int k = 0; k < REGISTER_SAMPLES; ++k) {
                location[k] = {};
                attention[k] = {};
                if (index(k) >= samples) continue;
                const long long row = first_row + static_cast<long long>(index(k) / points) * HEADS;
                const long long sample = row * SAMPLES + first_point + index(k) % points;
                load_readonly(location[k], element_address<SamplingStorage>(params.locations, 2 * sample));
                load_readonly(attention[k], element_address<SamplingStorage>(params.weights, sample));
            }
        }
    }

    MSDA_DEVICE void count(const LevelTiles& tiles, unsigned counters) {
#pragma unroll
        for (int k = 0; k < REGISTER_SAMPLES; ++k) {
            if (!is_used(k)) break;
            unsigned taken[4];
            take_places(span_counters(span(k, tiles), tiles, counters), taken);
            places[k][0] = taken[0] | taken[1] << 16;
            places[k][1] = taken[2] | taken[3] << 16;
        }
    }

    MSDA_DEVICE void write(const LevelTiles& tiles, unsigned starts, EntryPacket* entries) const {
#pragma unroll
        for (int k = 0; k < REGISTER_SAMPLES; ++k) {
            if (!is_used(k)) break;
            const TileSpan span_of_sample = span(k, tiles);
            if (!span_of_sample.counts) continue;
            const SpanCounters own = span_counters(span_of_sample, tiles, starts);
            const EntryPacket entry = pack_entry(static_cast<unsigned>(index(k) / points), span_of_sample.x,
                                                 span_of_sample.y, attention[k].word[0]);
#pragma unroll
            for (int c = 0; c < 4; ++c) {
                if (!own.present[c]) continue;
                Packet<4> start;
                load_shared(start, own.address[c]);
                store(entries + start.word[0] + (places[k][c / 2] >> c % 2 * 16 & 0xffffu),
                      shifted_entry(entry, c % 2, c / 2));
            }
        }
    }
};

// The samples of a level, as for_each_sample passes them. A warp counts and writes the same queries.
struct SharedSamples {
    static constexpr int POINTS = common_points() > 0 ? common_points() : 1;
    static_assert(!SHARED_SAMPLES || (common_points() > 0 && common_points() <= 32),
                  "a lane has one point of a query");

    unsigned* words;  // x of all samples, then y, then bits of the attention weight
    int samples;

    MSDA_DEVICE void count(const BackwardParams& params, int slab, int level, int first, int end,
                           unsigned counters) const {
        const int point = lane() % POINTS;
        const auto visit = [&](int query, const LevelTiles& tiles, float x, float y, unsigned attention,
                               bool exists) {
            const SpanCounters own = span_counters(tile_span(tiles, x, y, exists), tiles, counters);
#pragma unroll
            for (int c = 0; c < 4; ++c) shared_increment(own.address[c], own.present[c]);
            if (exists) keep(query * POINTS + point, x, y, attention);
        };
        for_each_sample<SORT_AHEAD, true>(params, slab, level, first, end, visit);
    }

    MSDA_DEVICE void write(const LevelTiles& tiles, int first, int end, unsigned cursors,
                           EntryPacket* entries) const {
        const int last = end * POINTS - 1;
#pragma unroll 2
        for (int at = first * POINTS; at <= last; at += 32) {
            const int sample = at_most(at + lane(), last);
            const TileSpan span = tile_span(tiles, bits_to_float(words[sample]),
                                            bits_to_float(words[samples + sample]), at + lane() <= last);
            const SpanCounters own = span_counters(span, tiles, cursors);
            const EntryPacket entry = pack_entry(static_cast<unsigned>(sample / POINTS), span.x, span.y,
                                                 words[2 * samples + sample]);
            unsigned places[4];
            take_places(own, places);
#pragma unroll
            for (int c = 0; c < 4; ++c) {
                if (own.present[c]) store(entries + places[c], shifted_entry(entry, c % 2, c / 2));
            }
        }
    }

private:
    static MSDA_DEVICE int lane() { return static_cast<int>(threadIdx.x % 32); }

    MSDA_DEVICE void keep(int sample, float x, float y, unsigned attention) const {
        words[sample] = float_to_bits(x);
        words[samples + sample] = float_to_bits(y);
        words[2 * samples + sample] = attention;
    }
};

}  // namespace msda
