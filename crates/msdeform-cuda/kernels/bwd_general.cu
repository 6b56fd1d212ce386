// Accepts everything and gives the same bits on every run: any number of levels, points and channels,
// any layout, strides (zeros too), alignment and tensor size. The dispatcher's last resort, the path
// for misaligned pointers, and what deterministic mode can always fall back to. No workspace.
//
// Two steps, each launched only if its gradients are asked for.
//
// `samples`, gradients of locations and weights. A group of `lanes` lanes (a power of two,
// params.grid_aux) owns one output row (batch, query, head) and walks its samples; a lane sums its
// channels, the group adds up by shuffles, lane 0 writes.
//
// `values`, gradient of the values. A warp owns a run of up to CAPACITY neighbouring pixels of one level
// of one (batch, head) and 32 channels of them, one per lane; their sums lie in shared memory, and no
// other thread ever touches them. It walks all samples of that level in order, 32 at a time: each lane
// works out where one of them lies, a vote picks those that touch the run, and for these, in order,
// every lane adds its channel. So a pixel's sum is formed in the order of the samples, however the
// pixels are divided among warps: no atomics, nothing depends on the launch. The sums are compensated
// (Kahan), so that a million samples on one pixel lose no more than one does.
//
// When it loses: every run looks at all samples of its level, so the time grows with pixels x samples;
// fewer than 32 channels leave lanes idle. Kernels that sort the samples first read each of them once.
//
// Requires: CAPACITY * 256 bytes of shared memory per warp in `values`. Sizes of one axis below 2^31.
#include "numeric.cuh"
#include "params.cuh"

using namespace msda;

namespace {

constexpr int THREADS = 128;
constexpr int LANES = 32;
constexpr int CAPACITY = 48;
// Small levels are hit by many samples each: divided among more warps, down to this many pixels.
constexpr int SMALLEST_RUN = 8;
constexpr int RUNS_OF_A_SMALL_LEVEL = 64;
// Rows of the output's gradient that a warp has in flight at once.
constexpr int AHEAD = 4;

MSDA_DEVICE long long upstream_base(const BackwardParams& params, long long batch, long long query,
                                    long long head) {
    return batch * params.grad_output_batch_stride + query * params.grad_output_query_stride +
           head * params.grad_output_head_stride;
}

// Bit 0 top left, 1 top right, 2 bottom left, 3 bottom right: the pixels that exist.
MSDA_DEVICE int corners_inside(const Position& at, const LevelGeometry& level) {
    if (!at.counts) return 0;
    const int left = at.left >= 0, right = at.left + 1 < level.width;
    const int top = at.top >= 0, bottom = at.top + 1 < level.height;
    return (top & left) | (top & right) << 1 | (bottom & left) << 2 | (bottom & right) << 3;
}

MSDA_DEVICE Position locate_sample(const BackwardParams& params, const LevelGeometry& level,
                                   long long sample) {
    return locate(load_element<SamplingStorage>(params.locations, 2 * sample),
                  load_element<SamplingStorage>(params.locations, 2 * sample + 1), level.height,
                  level.width);
}

MSDA_DEVICE float group_sum(float mine, int lanes) {
    for (int distance = lanes / 2; distance > 0; distance /= 2) {
        mine += shuffle_xor(mine, distance, lanes);
    }
    return mine;
}

// An outside corner is never read: its address may be anywhere, and a NaN there must not count.
MSDA_DEVICE float value_at(const BackwardParams& params, bool inside, long long offset) {
    return inside ? load_element<ValueStorage>(params.value, offset) : 0.0f;
}

// ---- values --------------------------------------------------------------------------------------

// Neighbouring pixels, in reading order, that one warp owns.
struct Run {
    LevelGeometry level;
    int points;            // of the level
    long long first;       // pixel
    int pixels;
};

MSDA_DEVICE long long level_pixels(const LevelGeometry& level) {
    return static_cast<long long>(level.height) * level.width;
}

MSDA_DEVICE int run_length(const LevelGeometry& level) {
    const long long shared = (level_pixels(level) + RUNS_OF_A_SMALL_LEVEL - 1) / RUNS_OF_A_SMALL_LEVEL;
    return shared < SMALLEST_RUN ? SMALLEST_RUN
                                 : shared > CAPACITY ? CAPACITY : static_cast<int>(shared);
}

MSDA_DEVICE long long level_runs(const LevelGeometry& level) {
    const int length = run_length(level);
    return (level_pixels(level) + length - 1) / length;
}

MSDA_DEVICE Run find_run(const BackwardParams& params, long long index) {
    int l = 0;
    LevelGeometry level = level_geometry(params, 0);
    for (long long runs = level_runs(level); index >= runs; runs = level_runs(level)) {
        index -= runs;
        level = level_geometry(params, ++l);
    }
    const int last = l + 1 < params.levels ? level_geometry(params, l + 1).first_sample
                                           : params.samples;
    const int length = run_length(level);
    const long long first = index * length;
    const long long rest = level_pixels(level) - first;
    return Run{level, last - level.first_sample, first,
               rest < length ? static_cast<int>(rest) : length};
}

// What a sample adds to the pixels of a run.
struct Contribution {
    long long corner;  // top left pixel, counted from the run's first
    int query;
    int inside;  // corners that exist and belong to the run, as corners_inside
    float top_left, top_right, bottom_left, bottom_right;  // share times attention weight
};

MSDA_DEVICE Contribution describe(const BackwardParams& params, const Run& run, long long sample,
                                  int query) {
    const Position at = locate_sample(params, run.level, sample);
    const long long width = run.level.width;
    Contribution found = {};
    found.query = query;
    found.corner = at.top * width + at.left - run.first;
    const auto owned = [&](long long pixel) { return pixel >= 0 && pixel < run.pixels; };
    found.inside = corners_inside(at, run.level) &
                   (owned(found.corner) | owned(found.corner + 1) << 1 |
                    owned(found.corner + width) << 2 | owned(found.corner + width + 1) << 3);
    if (found.inside == 0) return found;
    const float weight = load_element<SamplingStorage>(params.weights, sample);
    const float top = (1.0f - at.bottom_share) * weight;
    const float bottom = at.bottom_share * weight;
    found.top_left = top * (1.0f - at.right_share);
    found.top_right = top * at.right_share;
    found.bottom_left = bottom * (1.0f - at.right_share);
    found.bottom_right = bottom * at.right_share;
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

// A sum and what rounding has taken from it so far; a lane's own, 32 apart from its next.
struct Sums {
    float* lane;

    MSDA_DEVICE float& sum(int pixel) const { return lane[2 * LANES * pixel]; }
    MSDA_DEVICE float& carry(int pixel) const { return lane[2 * LANES * pixel + LANES]; }

    MSDA_DEVICE void add(int pixel, float share, float upstream) const {
        const float before = sum(pixel);
        const float addend = fmaf(share, upstream, -carry(pixel));
        const float after = before + addend;
        // An infinite sum stays infinite instead of turning into NaN by what it "lost".
        const bool is_finite = after - after == 0.0f;
        carry(pixel) = is_finite ? (after - before) - addend : 0.0f;
        sum(pixel) = after;
    }
};

MSDA_DEVICE void add_contribution(const Sums& sums, const Contribution& found, int width,
                                  float upstream) {
    const int corner = static_cast<int>(found.corner);
    if (found.inside & 1) sums.add(corner, found.top_left, upstream);
    if (found.inside & 2) sums.add(corner + 1, found.top_right, upstream);
    if (found.inside & 4) sums.add(corner + width, found.bottom_left, upstream);
    if (found.inside & 8) sums.add(corner + width + 1, found.bottom_right, upstream);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS)
    bwd_general_samples(const __grid_constant__ BackwardParams params) {
    const int lanes = params.grid_aux;
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
        const long long head_base =
            batch * params.value_batch_stride + head * params.value_head_stride;

        int l = 0;
        for (int s = 0; s < params.samples; ++s) {
            while (l + 1 < params.levels && s >= level_geometry(params, l + 1).first_sample) ++l;
            const LevelGeometry level = level_geometry(params, l);
            const long long sample = row * params.samples + s;
            const Position at = locate_sample(params, level, sample);
            const int inside = corners_inside(at, level);
            const long long right = params.value_pixel_stride;
            const long long below = level.row_pitch * params.value_pixel_stride;
            const long long corner =
                head_base + (level.origin + at.left) * params.value_pixel_stride + at.top * below;

            float interpolated = 0.0f, slope_x = 0.0f, slope_y = 0.0f;
            for (int channel = lane; channel < params.channels && inside != 0; channel += lanes) {
                const float upstream = load_element<ValueStorage>(
                    params.grad_output, upstream_row + channel * params.grad_output_channel_stride);
                const long long at_channel = corner + channel;
                const float top_left = value_at(params, inside & 1, at_channel);
                const float top_right = value_at(params, inside & 2, at_channel + right);
                const float bottom_left = value_at(params, inside & 4, at_channel + below);
                const float bottom_right = value_at(params, inside & 8, at_channel + below + right);
                const float top_step = top_right - top_left;
                const float bottom_step = bottom_right - bottom_left;
                const float top = fmaf(at.right_share, top_step, top_left);
                const float bottom = fmaf(at.right_share, bottom_step, bottom_left);
                const float across = fmaf(at.bottom_share, bottom_step - top_step, top_step);
                interpolated = fmaf(upstream, fmaf(at.bottom_share, bottom - top, top), interpolated);
                slope_x = fmaf(upstream, across, slope_x);
                slope_y = fmaf(upstream, bottom - top, slope_y);
            }
            if constexpr (WANTS_GRAD_WEIGHTS) {
                interpolated = group_sum(interpolated, lanes);
                if (owns_row && lane == 0) {
                    store_element<SamplingStorage>(params.grad_weights, sample, interpolated);
                }
            }
            if constexpr (WANTS_GRAD_LOCATIONS) {
                slope_x = group_sum(slope_x, lanes);
                slope_y = group_sum(slope_y, lanes);
                if (owns_row && lane == 0) {
                    // The weight of a sample that does not count may be NaN.
                    const float weight =
                        inside != 0 ? load_element<SamplingStorage>(params.weights, sample) : 0.0f;
                    store_element<SamplingStorage>(params.grad_locations, 2 * sample,
                                                   weight * static_cast<float>(level.width) * slope_x);
                    store_element<SamplingStorage>(
                        params.grad_locations, 2 * sample + 1,
                        weight * static_cast<float>(level.height) * slope_y);
                }
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    bwd_general_values(const __grid_constant__ BackwardParams params) {
    const int lane = static_cast<int>(threadIdx.x) % LANES;
    const int warp = static_cast<int>(threadIdx.x) / LANES;
    const int warps = THREADS / LANES;
    const Sums sums = {reinterpret_cast<float*>(shared_memory()) + 2 * LANES * CAPACITY * warp + lane};

    long long runs = 0;
    for (int l = 0; l < params.levels; ++l) runs += level_runs(level_geometry(params, l));
    const long long slices = (params.channels + LANES - 1) / LANES;
    const long long items = runs * slices * params.heads * params.batch;

    // A warp at a time: no lane ever reads what another one wrote.
    for (long long item = static_cast<long long>(blockIdx.x) * warps + warp; item < items;
         item += static_cast<long long>(gridDim.x) * warps) {
        const Run run = find_run(params, item % runs);
        const long long channel = item / runs % slices * LANES + lane;
        const long long head = item / runs / slices % params.heads;
        const long long batch = item / runs / slices / params.heads;
        const bool owns_channel = channel < params.channels;

        for (int pixel = 0; pixel < run.pixels; ++pixel) {
            sums.sum(pixel) = 0.0f;
            sums.carry(pixel) = 0.0f;
        }

        // Lane i looks at sample first + i of the level: point `point` of query `query`.
        const long long count = static_cast<long long>(params.queries) * run.points;
        const int query_step = run.points > 0 ? LANES / run.points : 0;
        const int point_step = run.points > 0 ? LANES % run.points : 0;
        int query = run.points > 0 ? lane / run.points : 0;
        int point = run.points > 0 ? lane % run.points : 0;
        for (long long first = 0; first < count; first += LANES) {
            Contribution mine = {};
            if (first + lane < count) {
                const long long row = (batch * params.queries + query) * params.heads + head;
                const long long sample = row * params.samples + run.level.first_sample + point;
                mine = describe(params, run, sample, query);
            }
            query += query_step;
            point += point_step;
            if (point >= run.points) {
                point -= run.points;
                ++query;
            }

            unsigned touching = ballot_lanes(mine.inside != 0);
            while (touching != 0) {
                Contribution found[AHEAD];
                float upstream[AHEAD];
#pragma unroll
                for (int i = 0; i < AHEAD; ++i) {
                    const int source = touching != 0 ? __ffs(static_cast<int>(touching)) - 1 : 0;
                    found[i] = broadcast(mine, source);
                    if (touching == 0) found[i].inside = 0;
                    touching &= touching - 1;
                    const bool reads = owns_channel && found[i].inside != 0;
                    upstream[i] =
                        reads ? load_element<ValueStorage>(
                                    params.grad_output,
                                    upstream_base(params, batch, found[i].query, head) +
                                        channel * params.grad_output_channel_stride)
                              : 0.0f;
                }
#pragma unroll
                for (int i = 0; i < AHEAD; ++i) {
                    add_contribution(sums, found[i], run.level.width, upstream[i]);
                }
            }
        }

        const long long base = batch * params.grad_value_batch_stride +
                               head * params.grad_value_head_stride + channel;
        for (int pixel = 0; pixel < run.pixels && owns_channel; ++pixel) {
            const long long at = run.first + pixel;
            const long long place = run.level.origin + at / run.level.width * run.level.row_pitch +
                                    at % run.level.width;
            store_element<ValueStorage>(params.grad_value,
                                        base + place * params.grad_value_pixel_stride,
                                        sums.sum(pixel));
        }
    }
}
