// Accepts every call: any number of levels, points and channels, any layout and value strides, any tensor
// size. Dispatch chooses it as the last resort and for misaligned pointers.
//
// Who owns what: a group of `lanes` lanes (a power of two, params.lanes) owns one output row
// (batch, query, head); each lane owns VECTOR neighbouring channels, and rows with more channels than
// lanes * VECTOR are walked in several passes. A warp holds 32 / lanes rows.
//
// Why it is reasonably fast: a lane works out the metadata of one sample (level, corner offset, four
// shares) and hands it to its group by shuffles, so that arithmetic happens once per `lanes` samples
// and not once per channel; values move VECTOR channels at a time.
//
// When it loses: against kernels that know L, P and D at compile time (unrolled, 32-bit offsets), and
// nine shuffles per sample are visible when a row has few channels.
//
// Requires: VECTOR (MSDA_VECTOR) divides the channels, every stride and, in elements, the
// alignment of value and output; 1 requires nothing. Sizes of one axis below 2^31. The output may have a
// dtype of its own (MSDA_OUTPUT_DTYPE).
#include "any_samples.cuh"

using namespace msda;

namespace {

constexpr int VECTOR = MSDA_VECTOR;
constexpr int THREADS = MSDA_THREADS;  // of a block
using ValuePacket = Packet<VECTOR * ValueStorage::BYTES>;
using OutputStorage = Storage<MSDA_OUTPUT_DTYPE>;

// The metadata of one sample, for all lanes of a group. Offsets are in elements from (batch, head).
struct Sample {
    long long corner;      // top left pixel; may lie outside, then it is not read
    long long row_stride;  // to the pixel below
    float top_left, top_right, bottom_left, bottom_right;  // share times attention weight
    int inside;  // bit 0 top left, 1 top right, 2 bottom left, 3 bottom right
};

// The level `l` of sample `s`. Callers pass growing `s`, so `l` only moves forward.
MSDA_DEVICE Sample describe(const ForwardParams& params, const AnyRow& row, int s, int& l) {
    while (l + 1 < params.levels && s >= level_geometry(params, l + 1).first_sample) ++l;
    const LevelGeometry level = level_geometry(params, l);
    const Position at = locate_sample(params, any_sample(params, row, s), l, level);
    const float weight = sample_weight(params, any_sample(params, row, s));
    const float top = (1.0f - at.bottom_share) * weight;
    const float bottom = at.bottom_share * weight;

    const int left_inside = at.left >= 0;
    const int right_inside = at.left + 1 < level.width;
    const int top_inside = at.top >= 0;
    const int bottom_inside = at.top + 1 < level.height;

    Sample sample;
    sample.row_stride = level.row_pitch * params.value_pixel_stride;
    sample.corner = (level.origin + at.left) * params.value_pixel_stride + at.top * sample.row_stride;
    sample.top_left = top * (1.0f - at.right_share);
    sample.top_right = top * at.right_share;
    sample.bottom_left = bottom * (1.0f - at.right_share);
    sample.bottom_right = bottom * at.right_share;
    sample.inside = !at.counts ? 0
                               : (top_inside & left_inside) | (top_inside & right_inside) << 1 |
                                     (bottom_inside & left_inside) << 2 | (bottom_inside & right_inside) << 3;
    if constexpr (reads_nearest_pixel()) sample.inside &= 1;
    return sample;
}

MSDA_DEVICE Sample broadcast(const Sample& mine, int source_lane, int lanes) {
    Sample sample;
    sample.corner = shuffle(mine.corner, source_lane, lanes);
    sample.row_stride = shuffle(mine.row_stride, source_lane, lanes);
    sample.top_left = shuffle(mine.top_left, source_lane, lanes);
    sample.top_right = shuffle(mine.top_right, source_lane, lanes);
    sample.bottom_left = shuffle(mine.bottom_left, source_lane, lanes);
    sample.bottom_right = shuffle(mine.bottom_right, source_lane, lanes);
    sample.inside = shuffle(mine.inside, source_lane, lanes);
    return sample;
}

// A corner outside of the level is never read, because its address may be anywhere and a NaN there must not
// count.
MSDA_DEVICE void add_corner(float (&sums)[VECTOR], bool inside, float share, const void* value,
                            long long offset) {
    if (!inside) return;
    ValuePacket packet;
    load_readonly(packet, element_address<ValueStorage>(value, offset));
    float values[VECTOR];
    unpack<ValueStorage>(packet, values);
#pragma unroll
    for (int i = 0; i < VECTOR; ++i) sums[i] = fmaf(share, values[i], sums[i]);
}

MSDA_DEVICE void add_sample(float (&sums)[VECTOR], const ForwardParams& params, const Sample& sample,
                            int inside, long long top) {
    const long long right = params.value_pixel_stride, bottom = top + sample.row_stride;
    add_corner(sums, inside & 1, sample.top_left, params.value, top);
    add_corner(sums, inside & 2, sample.top_right, params.value, top + right);
    add_corner(sums, inside & 4, sample.bottom_left, params.value, bottom);
    add_corner(sums, inside & 8, sample.bottom_right, params.value, bottom + right);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS, 8)
    fwd_general(const __grid_constant__ ForwardParams params) {
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
        const long long batch = row / params.heads / params.queries;
        const long long head_base = batch * params.value_batch_stride + head * params.value_head_stride;
        const AnyRow samples_of_row = begin_row(params, row, lane, lanes);

        for (int first_channel = 0; first_channel < params.channels; first_channel += lanes * VECTOR) {
            const int channel = first_channel + lane * VECTOR;
            const bool owns_channels = channel < params.channels;
            float sums[VECTOR] = {};
            int l = 0;

            for (int first_sample = 0; first_sample < params.samples; first_sample += lanes) {
                const int remaining = params.samples - first_sample;
                const int count = remaining < lanes ? remaining : lanes;
                Sample mine = {};
                if (lane < count) mine = describe(params, samples_of_row, first_sample + lane, l);

                for (int source = 0; source < count; ++source) {
                    const Sample sample = broadcast(mine, source, lanes);
                    add_sample(sums, params, sample, owns_channels ? sample.inside : 0,
                               head_base + sample.corner + channel);
                }
            }

            if (owns_row && owns_channels) {
                Packet<VECTOR * OutputStorage::BYTES> packet;
                pack<OutputStorage>(sums, packet);
                store(element_address<OutputStorage>(params.output, row * params.channels + channel), packet);
            }
        }
    }
}
