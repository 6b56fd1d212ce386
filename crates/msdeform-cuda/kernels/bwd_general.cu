// Accepts every call: any number of levels, points and channels, any layout, strides (zeros too), alignment
// and tensor size. Gradients are bitwise reproducible. Dispatch chooses it as the last resort, for misaligned
// pointers, and as the fallback of deterministic mode.
//
// `samples`, gradients of locations and weights. A group of `lanes` lanes (a power of two, in
// params.lanes) owns one output row (batch, query, head) and walks its samples; a lane sums its
// channels, the group adds up by shuffles, lane 0 writes.
//
// The gradient of the values takes five steps: a counting sort of the samples by the tile of 4 x 4 pixels
// that their cell starts in, with counters in global memory, so that nothing bounds a level's size.
//   count    a warp counts the samples of a part, a run of queries of one slab (image and head), by tile
//   offsets  a thread scans the parts of one tile
//   starts   a block scans the tiles of one slab
//   scatter  the warps of `count` again: every sample to its place
//   values   a warp owns a tile and 32 channels of it, one per lane; their sums lie in shared memory, and no
//            other thread ever touches them. Cells that touch the tile start in it or in a tile before it, in
//            x, in y or both: two runs of the sorted samples. It walks them in order, 32 at a time: each lane
//            works out where one of them lies, a vote picks those that touch, and for these, in order, every
//            lane adds its channel.
// A tile's samples are in the order of queries and points for any number of parts: there are no atomics, and
// no result depends on the launch. The sums are compensated (Kahan), so that a million samples on one pixel
// lose no more accuracy than one sample does.
//
// When it loses: sums in shared memory take some eighty instructions per sample and tile, where tensor cores
// share them among 32 samples; a tile is one warp's, however long its list; fewer than 32 channels leave
// lanes idle.
//
// Requires: TILE_PIXELS * 256 bytes of shared memory per warp in `values`. Sizes of one axis below 2^31. The
// output's gradient may have a dtype of its own (MSDA_OUTPUT_DTYPE).
#include "intrinsics.cuh"
#include "params.cuh"
#if MSDA_STEP_SAMPLES
#include "any_gradients.cuh"
#endif
#if MSDA_STEP_COUNT || MSDA_STEP_SCATTER || MSDA_STEP_VALUES
#include "any_backward_samples.cuh"
#endif
#if MSDA_STEP_ROWS
#include "row_softmax.cuh"
#endif
#if MSDA_STEP_FINISH
#include "row_gradients.cuh"
#endif

using namespace msda;

namespace {

constexpr int THREADS = MSDA_THREADS;  // of a block, except in `starts`
constexpr int LANES = 32;
constexpr int WARPS = THREADS / LANES;

#if MSDA_STEP_SAMPLES || MSDA_STEP_VALUES
using OutputStorage = Storage<MSDA_OUTPUT_DTYPE>;

MSDA_DEVICE long long upstream_base(const BackwardParams& params, long long batch, long long query,
                                    long long head) {
    return batch * params.grad_output_batch_stride + query * params.grad_output_query_stride +
           head * params.grad_output_head_stride;
}

// Bit 0 top left, 1 top right, 2 bottom left, 3 bottom right: the pixels that exist.
MSDA_DEVICE int corners_inside(const Position& at, const LevelGeometry& level) {
    if (!at.counts) return 0;
    if constexpr (reads_nearest_pixel()) return 1;
    const int left = at.left >= 0, right = at.left + 1 < level.width;
    const int top = at.top >= 0, bottom = at.top + 1 < level.height;
    return (top & left) | (top & right) << 1 | (bottom & left) << 2 | (bottom & right) << 3;
}

#endif

#if MSDA_STEP_SAMPLES
MSDA_DEVICE float group_sum(float mine, int lanes) {
    for (int distance = lanes / 2; distance > 0; distance /= 2) {
        mine += shuffle_xor(mine, distance, lanes);
    }
    return mine;
}

// A corner outside of the level is never read, because its address may be anywhere and a NaN there must not
// count. The lane reads `spare` instead of leaving the load out, because NVRTC 13.4 compiles a conditional
// load to code that reads the load's zero too early.
MSDA_DEVICE float value_at(const BackwardParams& params, bool inside, long long offset, long long spare) {
    const float value = load_element<ValueStorage>(params.value, inside ? offset : spare);
    return inside ? value : 0.0f;
}

// Sums over the channels of a sample: the interpolated value and its slopes, times the output's gradient.
struct SampleSums {
    float interpolated;
    float slope_x;
    float slope_y;
};
MSDA_DEVICE void add_channel(const BackwardParams& params, const Position& at, int inside, long long corner,
                             long long below, long long spare, float upstream, SampleSums& sums) {
    const long long right = params.value_pixel_stride;
    const float top_left = value_at(params, inside & 1, corner, spare);
    const float top_right = value_at(params, inside & 2, corner + right, spare);
    const float bottom_left = value_at(params, inside & 4, corner + below, spare);
    const float bottom_right = value_at(params, inside & 8, corner + below + right, spare);
    const float top_step = top_right - top_left;
    const float bottom_step = bottom_right - bottom_left;
    const float top = fmaf(at.right_share, top_step, top_left);
    const float bottom = fmaf(at.right_share, bottom_step, bottom_left);
    const float across = fmaf(at.bottom_share, bottom_step - top_step, top_step);
    sums.interpolated = fmaf(upstream, fmaf(at.bottom_share, bottom - top, top), sums.interpolated);
    sums.slope_x = fmaf(upstream, across, sums.slope_x);
    sums.slope_y = fmaf(upstream, bottom - top, sums.slope_y);
}
// Sums over the lanes of a group. The lane with `stores` writes the gradients.
MSDA_DEVICE void finish_sample(const BackwardParams& params, const LevelGeometry& level,
                               const AnySample& sample, bool counts, SampleSums sums, int lanes,
                               bool stores) {
    const long long number = number_of(params, sample);
    if constexpr (WANTS_GRAD_WEIGHTS) {
        sums.interpolated = group_sum(sums.interpolated, lanes);
        if (stores) store_weight_gradient(params, number, sums.interpolated);
    }
    if constexpr (needs_slopes()) {
        sums.slope_x = group_sum(sums.slope_x, lanes);
        sums.slope_y = group_sum(sums.slope_y, lanes);
        if (!stores) return;
        // The weight of a sample that does not count may be NaN; nearest pixels have no slope.
        const bool has_slope = counts && !reads_nearest_pixel();
        const float weight = has_slope ? sample_weight(params, sample) : 0.0f;
        store_location_gradient(params, number, 0, has_slope,
                                weight * static_cast<float>(level.width) * sums.slope_x);
        store_location_gradient(params, number, 1, has_slope,
                                weight * static_cast<float>(level.height) * sums.slope_y);
    }
}
#endif

// ---- sorting -------------------------------------------------------------------------------------

#if MSDA_STEP_COUNT || MSDA_STEP_OFFSETS || MSDA_STEP_STARTS || MSDA_STEP_SCATTER || MSDA_STEP_VALUES
constexpr int TILE_SIDE = MSDA_TILE_SIDE;

// Tiles are numbered through a slab, the last level first: models put their coarse levels last, whose tiles
// have the most samples and should start first.
MSDA_DEVICE int tiles_across(int size) {
    return static_cast<int>((static_cast<unsigned>(size) + TILE_SIDE - 1) / TILE_SIDE);
}
MSDA_DEVICE int level_tiles(const LevelGeometry& level) {
    return tiles_across(level.width) * tiles_across(level.height);
}

// A sample in a list.
using Entry = Packet<8>;  // query; number among the samples of its row
static_assert(sizeof(Entry) == MSDA_LIST_ENTRY_BYTES, "as the host reserves");

// The layout of the workspace. Counts are 64-bit, because a slab may have more than 2^32 samples.
struct SortedSamples {
    int parts;  // that the queries of a slab are divided into
    int tiles;  // of a slab
    long long slabs;
    long long slab_entries;
    long long* places;  // [slabs][parts][tiles]: samples of the part in the tile, then their place
    long long* starts;  // [slabs][tiles + 1]: where the tiles' lists start
    Entry* entries;     // [slabs][slab_entries]
};

MSDA_DEVICE SortedSamples sorted_samples(const BackwardParams& params) {
    SortedSamples sorted;
    sorted.parts = params.slab_parts;
    sorted.tiles = params.slab_tiles;
    sorted.slabs = static_cast<long long>(params.batch) * params.heads;
    sorted.slab_entries = static_cast<long long>(params.queries) * params.samples;
    sorted.places = workspace_part<long long>(params, params.places_at);
    sorted.starts = workspace_part<long long>(params, params.starts_at);
    sorted.entries = workspace_part<Entry>(params, params.entries_at);
    return sorted;
}

#endif

#if MSDA_STEP_COUNT || MSDA_STEP_SCATTER
MSDA_DEVICE int first_query_of_part(const BackwardParams& params, int part, int parts) {
    return static_cast<int>(static_cast<long long>(params.queries) * part / parts);
}

// Calls visit(tile, lanes with the same tile, query, sample of the row) for every sample of a part, all lanes
// together, level by level in the order of queries and points. The tile is negative where a lane has no
// sample or its sample does not count.
template <typename Visit>
MSDA_DEVICE void walk_part(const BackwardParams& params, long long slab, int part, int parts, Visit visit) {
    const int lane = static_cast<int>(threadIdx.x) % LANES;
    const long long batch = slab / params.heads, head = slab % params.heads;
    const int first = first_query_of_part(params, part, parts);
    const int end = first_query_of_part(params, part + 1, parts);
    int first_tile = 0;
    for (int l = params.levels - 1; l >= 0; --l) {
        const LevelGeometry level = level_geometry(params, l);
        const int last = l + 1 < params.levels ? level_geometry(params, l + 1).first_sample : params.samples;
        const int points = last - level.first_sample;
        const int tiles = level_tiles(level);
        if (points == 0 || tiles == 0) {
            first_tile += tiles;
            continue;
        }
        // Lane i looks at sample `walked` + i of the part: point `point` of query `query`.
        const long long count = static_cast<long long>(end - first) * points;
        int query = first + lane / points, point = lane % points;
        for (long long walked = 0; walked < count; walked += LANES) {
            int tile = -1;
            if (walked + lane < count) {
                const long long row = (batch * params.queries + query) * params.heads + head;
                const AnySample sample = any_sample(params, row, level, point);
                const Position at = locate_sample(params, sample, l, level);
                const int x = at.left > 0 ? at.left / TILE_SIDE : 0;
                const int y = at.top > 0 ? at.top / TILE_SIDE : 0;
                if (at.counts) tile = first_tile + y * tiles_across(level.width) + x;
            }
            // Lanes without a tile get words that differ from every tile and from each other.
            const unsigned word = tile >= 0 ? static_cast<unsigned>(tile) : 0x80000000u | lane;
            visit(tile, match_lanes(word), query, level.first_sample + point);
            query += LANES / points;
            point += LANES % points;
            if (point >= points) {
                point -= points;
                ++query;
            }
        }
        first_tile += tiles;
    }
}
#endif

// ---- values --------------------------------------------------------------------------------------

#if MSDA_STEP_VALUES
constexpr int TILE_PIXELS = TILE_SIDE * TILE_SIDE;
// Rows of the output's gradient that a warp has in flight at once.
constexpr int AHEAD = 4;

// The pixels that one warp owns, and where they are.
struct Tile {
    int level_number;
    LevelGeometry level;
    int number;
    int tiles_x;
    int x, y;  // its first pixel
};

MSDA_DEVICE Tile find_tile(const BackwardParams& params, int number) {
    int l = params.levels - 1;
    int in_level = number;
    LevelGeometry level = level_geometry(params, l);
    for (int tiles = level_tiles(level); in_level >= tiles; tiles = level_tiles(level)) {
        in_level -= tiles;
        level = level_geometry(params, --l);
    }
    const int tiles_x = tiles_across(level.width);
    return Tile{l, level, number, tiles_x, in_level % tiles_x * TILE_SIDE, in_level / tiles_x * TILE_SIDE};
}

// The shares that a sample adds to the pixels of a tile.
struct Contribution {
    int corner;  // top left pixel: TILE_SIDE * y + x, counted from the tile's first
    int query;
    int inside;  // corners that exist and belong to the tile, as corners_inside
    float top_left, top_right, bottom_left, bottom_right;  // share times attention weight
};

MSDA_DEVICE Contribution describe(const BackwardParams& params, const Tile& tile, long long slab,
                                  const Entry& entry) {
    const long long batch = slab / params.heads, head = slab % params.heads;
    const int query = static_cast<int>(entry.word[0]);
    const long long row = (batch * params.queries + query) * params.heads + head;
    const AnySample sample = any_sample(params, row, entry.word[1]);
    const Position at = locate_sample(params, sample, tile.level_number, tile.level);
    const int x = at.left - tile.x, y = at.top - tile.y;
    const int left = x >= 0 && x < TILE_SIDE, right = x >= -1 && x < TILE_SIDE - 1;
    const int top = y >= 0 && y < TILE_SIDE, bottom = y >= -1 && y < TILE_SIDE - 1;
    Contribution found = {};
    found.query = query;
    found.corner = TILE_SIDE * y + x;
    found.inside = corners_inside(at, tile.level) &
                   ((top & left) | (top & right) << 1 | (bottom & left) << 2 | (bottom & right) << 3);
    if (found.inside == 0) return found;
    const float weight = sample_weight(params, sample);
    const float upper = (1.0f - at.bottom_share) * weight;
    const float lower = at.bottom_share * weight;
    found.top_left = upper * (1.0f - at.right_share);
    found.top_right = upper * at.right_share;
    found.bottom_left = lower * (1.0f - at.right_share);
    found.bottom_right = lower * at.right_share;
    return found;
}

MSDA_DEVICE Contribution broadcast(const Contribution& mine, int source_lane) {
    Contribution found;
    found.corner = shuffle(mine.corner, source_lane);
    found.query = shuffle(mine.query, source_lane);
    found.inside = shuffle(mine.inside, source_lane);
    found.top_left = shuffle(mine.top_left, source_lane);
    found.top_right = shuffle(mine.top_right, source_lane);
    found.bottom_left = shuffle(mine.bottom_left, source_lane);
    found.bottom_right = shuffle(mine.bottom_right, source_lane);
    return found;
}

// Compensated sums: `carry` is the rounding error of `sum` so far. A lane owns every 32nd float.
struct Sums {
    float* lane;

    MSDA_DEVICE float& sum(int pixel) const { return lane[2 * LANES * pixel]; }
    MSDA_DEVICE float& carry(int pixel) const { return lane[2 * LANES * pixel + LANES]; }

    MSDA_DEVICE void add(int pixel, float share, float upstream) const {
        const float before = sum(pixel);
        const float addend = fmaf(share, upstream, -carry(pixel));
        const float after = before + addend;
        // An infinite sum stays infinite: its rounding error would be NaN.
        const bool is_finite = after - after == 0.0f;
        carry(pixel) = is_finite ? (after - before) - addend : 0.0f;
        sum(pixel) = after;
    }
};

MSDA_DEVICE void add_contribution(const Sums& sums, const Contribution& found, float upstream) {
    const int below = found.corner + TILE_SIDE;
    if (found.inside & 1) sums.add(found.corner, found.top_left, upstream);
    if (found.inside & 2) sums.add(found.corner + 1, found.top_right, upstream);
    if (found.inside & 4) sums.add(below, found.bottom_left, upstream);
    if (found.inside & 8) sums.add(below + 1, found.bottom_right, upstream);
}

// Adds `count` neighbouring entries of a slab's list to the sums of a tile.
MSDA_DEVICE void add_entries(const BackwardParams& params, const Tile& tile, long long slab,
                             const Entry* entries, long long count, long long channel, const Sums& sums) {
    const int lane = static_cast<int>(threadIdx.x) % LANES;
    const long long upstream_row = upstream_base(params, slab / params.heads, 0, slab % params.heads) +
                                   channel * params.grad_output_channel_stride;
    for (long long first = 0; first < count; first += LANES) {
        Contribution mine = {};
        if (first + lane < count) {
            Entry entry;
            load_readonly(entry, entries + first + lane);
            mine = describe(params, tile, slab, entry);
        }
        unsigned touching = ballot_lanes(mine.inside != 0);
        while (touching != 0) {
            Contribution found[AHEAD];
            float upstream[AHEAD];
#pragma unroll
            for (int i = 0; i < AHEAD; ++i) {
                const int source = touching != 0 ? first_bit(touching) : 0;
                found[i] = broadcast(mine, source);
                if (touching == 0) found[i].inside = 0;
                touching &= touching - 1;
                const bool reads = channel < params.channels && found[i].inside != 0;
                upstream[i] = reads ? load_element<OutputStorage>(
                                          params.grad_output,
                                          upstream_row + found[i].query * params.grad_output_query_stride)
                                    : 0.0f;
            }
#pragma unroll
            for (int i = 0; i < AHEAD; ++i) add_contribution(sums, found[i], upstream[i]);
        }
    }
}

#endif

}  // namespace

#if MSDA_STEP_SAMPLES
extern "C" __global__ void __launch_bounds__(THREADS)
    bwd_general_samples(const __grid_constant__ BackwardParams params) {
    const int lanes = params.lanes;
    const int lane = static_cast<int>(threadIdx.x) & (lanes - 1);
    const int group = static_cast<int>(threadIdx.x) / lanes;
    const int groups = THREADS / lanes;
    const long long rows = static_cast<long long>(params.batch) * params.queries * params.heads;

    // All groups of a block make the same number of trips, so that all lanes of a warp meet in every
    // shuffle; a group past the last row works on the last row again and stores nothing.
    for (long long first_row = static_cast<long long>(blockIdx.x) * groups; first_row < rows;
         first_row += static_cast<long long>(gridDim.x) * groups) {
        const bool owns_row = first_row + group < rows;
        const long long row = owns_row ? first_row + group : rows - 1;
        const long long head = row % params.heads;
        const long long query = row / params.heads % params.queries;
        const long long batch = row / params.heads / params.queries;
        const long long upstream_row = upstream_base(params, batch, query, head);
        const long long head_base = batch * params.value_batch_stride + head * params.value_head_stride;

        int l = 0;
        for (int s = 0; s < params.samples; ++s) {
            while (l + 1 < params.levels && s >= level_geometry(params, l + 1).first_sample) ++l;
            const LevelGeometry level = level_geometry(params, l);
            const AnySample sample = any_sample(params, row, s);
            const Position at = locate_sample(params, sample, l, level);
            const int inside = corners_inside(at, level);
            const long long below = level.row_pitch * params.value_pixel_stride;
            const long long corner =
                head_base + (level.origin + at.left) * params.value_pixel_stride + at.top * below;

            SampleSums sums = {};
            for (int channel = lane; channel < params.channels && inside != 0; channel += lanes) {
                const float upstream = load_element<OutputStorage>(
                    params.grad_output, upstream_row + channel * params.grad_output_channel_stride);
                add_channel(params, at, inside, corner + channel, below, head_base + channel, upstream, sums);
            }
            finish_sample(params, level, sample, inside != 0, sums, lanes, owns_row && lane == 0);
        }
    }
}
#endif

#if MSDA_STEP_ROWS
extern "C" __global__ void __launch_bounds__(THREADS)
    bwd_general_rows(const __grid_constant__ BackwardParams params) {
    keep_row_sums(params);
}
#endif

#if MSDA_STEP_FINISH
extern "C" __global__ void __launch_bounds__(THREADS)
    bwd_general_finish(const __grid_constant__ BackwardParams params) {
    finish_queries(params);
}
#endif

#if MSDA_STEP_COUNT
extern "C" __global__ void __launch_bounds__(THREADS)
    bwd_general_count(const __grid_constant__ BackwardParams params) {
    const SortedSamples sorted = sorted_samples(params);
    const int lane = static_cast<int>(threadIdx.x) % LANES;
    const int warp = static_cast<int>(threadIdx.x) / LANES;
    const long long items = sorted.slabs * sorted.parts;
    for (long long item = static_cast<long long>(blockIdx.x) * WARPS + warp; item < items;
         item += static_cast<long long>(gridDim.x) * WARPS) {
        long long* counts = sorted.places + item * sorted.tiles;
        for (int tile = lane; tile < sorted.tiles; tile += LANES) counts[tile] = 0;
        sync_warp();
        const auto visit = [&](int tile, unsigned peers, int, int) {
            if (tile >= 0 && first_bit(peers) == lane) counts[tile] += count_bits(peers);
            // Makes these counts visible to the lanes of the next call.
            sync_warp();
        };
        walk_part(params, item / sorted.parts, static_cast<int>(item % sorted.parts), sorted.parts, visit);
    }
}
#endif

#if MSDA_STEP_OFFSETS
extern "C" __global__ void __launch_bounds__(THREADS)
    bwd_general_offsets(const __grid_constant__ BackwardParams params) {
    const SortedSamples sorted = sorted_samples(params);
    const long long items = sorted.slabs * sorted.tiles;
    for (long long item = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x; item < items;
         item += static_cast<long long>(gridDim.x) * THREADS) {
        const long long slab = item / sorted.tiles, tile = item % sorted.tiles;
        long long* places = sorted.places + slab * sorted.parts * sorted.tiles + tile;
        long long sum = 0;
#pragma unroll 4
        for (int part = 0; part < sorted.parts; ++part) {
            const long long count = places[static_cast<long long>(part) * sorted.tiles];
            places[static_cast<long long>(part) * sorted.tiles] = sum;
            sum += count;
        }
        sorted.starts[slab * (sorted.tiles + 1) + tile] = sum;
    }
}
#endif

#if MSDA_STEP_STARTS
constexpr int SCAN_THREADS = MSDA_SCAN_THREADS;
static_assert(SCAN_THREADS == LANES * LANES, "a warp scans the sums of all warps");

// Turns the lengths of a slab's lists into where they start.
extern "C" __global__ void __launch_bounds__(SCAN_THREADS)
    bwd_general_starts(const __grid_constant__ BackwardParams params) {
    const SortedSamples sorted = sorted_samples(params);
    const int lane = static_cast<int>(threadIdx.x) % LANES;
    const int warp = static_cast<int>(threadIdx.x) / LANES;
    auto* warp_sums = reinterpret_cast<long long*>(shared_memory());
    const auto warp_scan = [&](long long sum) {
#pragma unroll
        for (int distance = 1; distance < LANES; distance *= 2) {
            const long long other = shuffle_up(sum, distance);
            if (lane >= distance) sum += other;
        }
        return sum;
    };
    for (long long slab = blockIdx.x; slab < sorted.slabs; slab += gridDim.x) {
        long long* starts = sorted.starts + slab * (sorted.tiles + 1);
        long long before = 0;
        // One more than there are tiles: where the last list ends.
        for (long long chunk = 0; chunk <= sorted.tiles; chunk += SCAN_THREADS) {
            const long long tile = chunk + threadIdx.x;
            const long long count = tile < sorted.tiles ? starts[tile] : 0;
            const long long of_lanes = warp_scan(count);
            if (lane == LANES - 1) warp_sums[warp] = of_lanes;
            __syncthreads();
            const long long of_warps = warp_scan(warp_sums[lane]);
            const long long of_warps_before = shuffle(of_warps, warp > 0 ? warp - 1 : 0);
            if (tile <= sorted.tiles) {
                starts[tile] = before + of_lanes - count + (warp > 0 ? of_warps_before : 0);
            }
            before += shuffle(of_warps, LANES - 1);
            __syncthreads();
        }
    }
}
#endif

#if MSDA_STEP_SCATTER
extern "C" __global__ void __launch_bounds__(THREADS)
    bwd_general_scatter(const __grid_constant__ BackwardParams params) {
    const SortedSamples sorted = sorted_samples(params);
    const int lane = static_cast<int>(threadIdx.x) % LANES;
    const int warp = static_cast<int>(threadIdx.x) / LANES;
    const long long items = sorted.slabs * sorted.parts;
    for (long long item = static_cast<long long>(blockIdx.x) * WARPS + warp; item < items;
         item += static_cast<long long>(gridDim.x) * WARPS) {
        const long long slab = item / sorted.parts;
        long long* places = sorted.places + item * sorted.tiles;
        const long long* starts = sorted.starts + slab * (sorted.tiles + 1);
        Entry* entries = sorted.entries + slab * sorted.slab_entries;
        const auto visit = [&](int tile, unsigned peers, int query, int sample) {
            const int lowest = first_bit(peers);
            long long place = 0;
            if (tile >= 0 && lowest == lane) {
                place = places[tile];
                places[tile] = place + count_bits(peers);
                place += starts[tile];
            }
            place = shuffle(place, lowest) + count_bits(peers & ((1u << lane) - 1));
            if (tile >= 0) {
                store(entries + place, Entry{{static_cast<unsigned>(query), static_cast<unsigned>(sample)}});
            }
            sync_warp();
        };
        walk_part(params, slab, static_cast<int>(item % sorted.parts), sorted.parts, visit);
    }
}
#endif

#if MSDA_STEP_VALUES
extern "C" __global__ void __launch_bounds__(THREADS)
    bwd_general_values(const __grid_constant__ BackwardParams params) {
    const SortedSamples sorted = sorted_samples(params);
    const int lane = static_cast<int>(threadIdx.x) % LANES;
    const int warp = static_cast<int>(threadIdx.x) / LANES;
    const Sums sums = {reinterpret_cast<float*>(shared_memory()) + 2 * LANES * TILE_PIXELS * warp + lane};
    const long long slices = (params.channels + LANES - 1) / LANES;
    const long long items = sorted.tiles * slices * sorted.slabs;

    // No barrier is needed: a lane reads only the sums that the lane itself wrote.
    for (long long item = static_cast<long long>(blockIdx.x) * WARPS + warp; item < items;
         item += static_cast<long long>(gridDim.x) * WARPS) {
        // Neighbouring warps take the same tile of other slabs, so that long lists start first.
        const long long slab = item % sorted.slabs;
        const long long channel = item / sorted.slabs % slices * LANES + lane;
        const Tile tile = find_tile(params, static_cast<int>(item / sorted.slabs / slices));
        for (int pixel = 0; pixel < TILE_PIXELS; ++pixel) {
            sums.sum(pixel) = 0.0f;
            sums.carry(pixel) = 0.0f;
        }

        const long long* starts = sorted.starts + slab * (sorted.tiles + 1) + tile.number;
        const Entry* entries = sorted.entries + slab * sorted.slab_entries;
        const int before = tile.x > 0 ? 1 : 0;
        for (int above = tile.y > 0 ? 1 : 0; above >= 0; --above) {
            const long long row = -static_cast<long long>(above) * tile.tiles_x;
            const long long first = starts[row - before];
            add_entries(params, tile, slab, entries + first, starts[row + 1] - first, channel, sums);
        }

        const long long base = slab / params.heads * params.grad_value_batch_stride +
                               slab % params.heads * params.grad_value_head_stride + channel;
        for (int pixel = 0; pixel < TILE_PIXELS && channel < params.channels; ++pixel) {
            const int x = tile.x + pixel % TILE_SIDE, y = tile.y + pixel / TILE_SIDE;
            if (x >= tile.level.width || y >= tile.level.height) continue;
            const long long place = tile.level.origin + static_cast<long long>(y) * tile.level.row_pitch + x;
            store_element<ValueStorage>(params.grad_value, base + place * params.grad_value_pixel_stride,
                                        sums.sum(pixel));
        }
    }
}
#endif
