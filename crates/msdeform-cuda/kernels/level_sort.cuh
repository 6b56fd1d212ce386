// Sorts the samples of a level of one (image, head) by tile, in one block.
//
// Counters of the tiles lie in shared memory: samples are added to them, a scan turns them into where each
// list starts, and every sample's entries are written there. Where lists must be ORDERED every warp has
// counters of its own.
//
// With few samples a thread holds its own in registers meanwhile (HELD): they are read once, and the places
// that they took in the lists when they were counted are those of their entries. With more, a warp walks its
// run of queries twice.
//
// How lists are handed over. Who reads them may be running: it waits for a word for each tile, which says
// where its list is (ListWord). The words are cleared before the next launch may start, and set when all
// entries are written.
#pragma once

#include "list_entries.cuh"

namespace msda {

constexpr int SORT_THREADS = MSDA_SORT_THREADS;  // of a block; the order of lists depends on it
constexpr int HELD = MSDA_HELD;                  // samples of a thread; 0: any number, not held
constexpr int SORT_AHEAD =
    MSDA_SORT_AHEAD;  // samples of a lane that are on their way together; where not held

static_assert(HELD * SORT_THREADS < 1 << 16, "places are kept in 16 bits");
#if MSDA_FROM_OFFSETS
static_assert(HELD == 0, "samples that follow from offsets are not held");
#endif

// Over the threads before this one; `total` over all of them. `warp_sums` has a word per warp.
MSDA_DEVICE unsigned block_scan(unsigned value, unsigned* warp_sums, unsigned& total) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    const auto warp_scan = [&](unsigned sum) {
#pragma unroll
        for (int distance = 1; distance < 32; distance *= 2) {
            const unsigned other = shuffle_up(sum, distance);
            if (lane >= distance) sum += other;
        }
        return sum;
    };
    const unsigned of_lanes = warp_scan(value);
    if (lane == 31) warp_sums[warp] = of_lanes;
    __syncthreads();
    const unsigned of_warps = warp_scan(lane < warps ? warp_sums[lane] : 0);
    const unsigned before = shuffle(of_warps, warp > 0 ? warp - 1 : 0);
    total = shuffle(of_warps, 31);
    __syncthreads();
    return of_lanes - value + (warp > 0 ? before : 0);
}

// The counters of a block, [copies][tiles of the level].
struct LevelCounters {
    unsigned* first;
    int tiles;
    int copies;    // one, or one for each warp
    unsigned own;  // this thread's, by address in shared memory, as span_counters takes them

    MSDA_DEVICE void clear() const {
        for (int i = threadIdx.x; i < copies * tiles; i += blockDim.x) first[i] = 0;
    }

    // Turns counts into where their entries start, from `before` on; returns where the last end.
    MSDA_DEVICE unsigned scan(unsigned before, unsigned* warp_sums) const {
        constexpr int THREAD_TILES = ORDERED ? 1 : 4;  // the copies of a tile are enough for a thread
        for (int first_tile = 0; first_tile < tiles; first_tile += THREAD_TILES * blockDim.x) {
            const int start = first_tile + THREAD_TILES * threadIdx.x;
            const int end = at_most(start + THREAD_TILES, tiles);
            unsigned entries = 0, all;
            for (int tile = start; tile < end; ++tile) {
                for (int copy = 0; copy < copies; ++copy) entries += first[copy * tiles + tile];
            }
            unsigned at = before + block_scan(entries, warp_sums, all);
            before += all;
            for (int tile = start; tile < end; ++tile) {
                for (int copy = 0; copy < copies; ++copy) {
                    const unsigned count = first[copy * tiles + tile];
                    first[copy * tiles + tile] = at;
                    at += count;
                }
            }
        }
        return before;
    }

    // Where a tile's list starts, for tiles + 1 of them, once all entries are written: places that were taken
    // before the scan left the counters there, those taken since moved every cursor to the end, where the
    // next list starts.
    MSDA_DEVICE unsigned list_start(int tile, unsigned first_entry, unsigned last_end) const {
        if (HELD > 0) return tile < tiles ? first[tile] : last_end;
        return tile > 0 ? first[(copies - 1) * tiles + tile - 1] : first_entry;
    }
};

MSDA_DEVICE LevelCounters level_counters(const LevelGeometry& level, const LevelTiles& tiles,
                                         unsigned* memory) {
    const int warp = threadIdx.x / 32, warps = blockDim.x / 32;
    LevelCounters counters = {memory, tiles_of_level(level), ORDERED ? warps : 1, 0};
    counters.own = shared_address(counters.first) +
                   static_cast<unsigned>((ORDERED ? warp * counters.tiles : 0) - tiles.first_tile) * 4u;
    return counters;
}

MSDA_DEVICE void clear_words(ListWord* words, int tiles) {
    for (int tile = threadIdx.x; tile < tiles; tile += blockDim.x) store_flag(words + tile, 0);
}

// The samples of a thread: threadIdx.x, + blockDim.x, ... of the level's, by query and point.
struct HeldSamples {
    static constexpr int COUNT = HELD > 0 ? HELD : 1;
    Packet<2 * SamplingStorage::BYTES> location[COUNT];
    Packet<SamplingStorage::BYTES> attention[COUNT];
    unsigned places[COUNT][2];  // in the lists of its tiles, 16 bits each
    int samples;                // of the level
    int points;

    static MSDA_DEVICE int index(int k) { return static_cast<int>(k * blockDim.x + threadIdx.x); }

    // Whether any thread has a sample k: HELD is as many as there may be, and places cost most where they are
    // taken in order.
    MSDA_DEVICE bool is_used(int k) const { return static_cast<int>(k * blockDim.x) < samples; }

    MSDA_DEVICE TileSpan span(int k, const LevelTiles& tiles) const {
        float xy[2];
        unpack<SamplingStorage, 2>(location[k], xy);
        return tile_span(tiles, xy[0], xy[1], index(k) < samples);
    }

    MSDA_DEVICE void load(const BackwardParams& params, int slab, int level) {
        const int first_point = params.level[level].first_sample;
        const int level_end = level + 1 < LEVELS ? params.level[level + 1].first_sample : SAMPLES;
        samples = params.queries * (level_end - first_point);
        points = common_points() > 0 ? common_points() : level_end - first_point;
        const long long first_row =
            static_cast<long long>(slab / HEADS) * params.queries * HEADS + slab % HEADS;
#if !MSDA_FROM_OFFSETS  // where nothing is held
#pragma unroll
        for (int k = 0; k < HELD; ++k) {
            location[k] = {};
            attention[k] = {};
            if (index(k) >= samples) continue;
            const long long row = first_row + static_cast<long long>(index(k) / points) * HEADS;
            const long long sample = row * SAMPLES + first_point + index(k) % points;
            load_readonly(location[k], element_address<SamplingStorage>(params.locations, 2 * sample));
            load_readonly(attention[k], element_address<SamplingStorage>(params.weights, sample));
        }
#endif
    }

    MSDA_DEVICE void count(const LevelTiles& tiles, unsigned counters) {
#pragma unroll
        for (int k = 0; k < HELD; ++k) {
            if (!is_used(k)) break;
            unsigned taken[4];
            take_places(span_counters(span(k, tiles), tiles, counters), taken);
            places[k][0] = taken[0] | taken[1] << 16;
            places[k][1] = taken[2] | taken[3] << 16;
        }
    }

    MSDA_DEVICE void write(const LevelTiles& tiles, unsigned starts, EntryPacket* entries) const {
#pragma unroll
        for (int k = 0; k < HELD; ++k) {
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

// Sorts level blockIdx.x of the slabs blockIdx.y, + gridDim.y, ... and lets the next launch start.
MSDA_DEVICE void sort_level(const BackwardParams& params) {
    const TileLists lists = tile_lists(params);
    const int warp = threadIdx.x / 32, warps = blockDim.x / 32;
    const int level = blockIdx.x;
    const LevelGeometry& geometry = params.level[level];
    const LevelTiles tiles = level_tiles(params, level);
    unsigned* warp_sums = reinterpret_cast<unsigned*>(shared_memory());
    const LevelCounters counters = level_counters(geometry, tiles, warp_sums + 32);
    const auto words = [&](int slab) {
        return lists.list_words + static_cast<long long>(slab) * lists.tiles + tiles.first_tile;
    };
    for (int slab = blockIdx.y; slab < lists.slabs; slab += gridDim.y)
        clear_words(words(slab), counters.tiles);
    const unsigned first_entry = 4u * params.queries * geometry.first_sample;  // four for each sample before
    const int first = first_query_of_part(params.queries, warp, warps);
    const int end = first_query_of_part(params.queries, warp + 1, warps);
    for (int slab = blockIdx.y; slab < lists.slabs; slab += gridDim.y) {
        EntryPacket* entries = entries_of_slab(lists, slab);
        HeldSamples held;
        held.load(params, slab, level);
        counters.clear();
        __syncthreads();
        // No word of another call is left. The last thread, since it has the fewest samples.
        if (slab == static_cast<int>(blockIdx.y) && threadIdx.x + 1 == blockDim.x) {
            fence_device();
            let_next_launch_start();
        }
        if constexpr (HELD > 0) {
            held.count(tiles, counters.own);
        } else {
            count_samples<SORT_AHEAD>(params, slab, level, first, end, counters.own);
        }
        __syncthreads();
        const unsigned last_end = counters.scan(first_entry, warp_sums);
        __syncthreads();
        if constexpr (HELD > 0) {
            held.write(tiles, counters.own, entries);
        } else {
            scatter_samples<SORT_AHEAD>(params, slab, level, first, end, counters.own, entries);
        }
        __syncthreads();
        fence_device();  // all entries before any word
        for (int tile = threadIdx.x; tile < counters.tiles; tile += blockDim.x) {
            const unsigned start = counters.list_start(tile, first_entry, last_end);
            store_flag(words(slab) + tile,
                       list_word(start, counters.list_start(tile + 1, first_entry, last_end) - start));
        }
        __syncthreads();
    }
}

}  // namespace msda
