// Samples for kernels that read a pixel as 16-byte chunks, one chunk per lane.
//
// Edges without branches. Along one axis the two corners of a cell have weights max(0, 1 - |u|) and
// max(0, 1 - |1 - u|), u being the distance from the cell's first pixel. With the cell clamped into the
// level these tents are zero exactly for the corners that do not count, and all four loads stay inside.
// They may touch a pixel that is no corner of the sample, with weight zero; if that pixel is not finite
// the product is NaN. An output that is not finite is therefore computed again, corner by corner
// (recompute_exactly). So the result is right for any values, and finite values cost eight instructions more.
//
// Requires: packed pixels (only the batch and head strides are free) whose rows are 16 to 512 bytes in
// multiples of 16; levels of at least 2 x 2 and fewer than 2^23 pixels; everything in multiples of 16
// bytes, the offset of the last pixel below 2^36 bytes; heads, channels and points compiled in. Checked by
// src/variants/chunked_sample.rs.
#pragma once

#include "numeric.cuh"
#include "params.cuh"

namespace msda {

MSDA_DEVICE constexpr int next_power_of_two(int n) {
    int power = 1;
    while (power < n) power *= 2;
    return power;
}
MSDA_DEVICE constexpr int at_most(int a, int b) { return a < b ? a : b; }

constexpr int CHUNK_ELEMENTS = 16 / ValueStorage::BYTES;
constexpr int CHUNKS = CHANNELS * ValueStorage::BYTES / 16;  // of one pixel of one head
constexpr int LANES = next_power_of_two(CHUNKS);             // that read one pixel; the last ones may idle
constexpr int PIXEL_BYTES = CHUNKS * 16 * (LAYOUT == INTERLEAVED ? HEADS : 1);  // to the next pixel

static_assert(CHANNELS > 0 && SAMPLES > 0, "channels and points are compiled in");
static_assert(LAYOUT != INTERLEAVED || HEADS > 0, "and heads, where they lie between pixels");
static_assert(CHUNKS * 16 == CHANNELS * ValueStorage::BYTES, "rows are multiples of 16 bytes");
static_assert(LANES <= 32, "a pixel is read by one warp");

using Packet16 = Packet<16>;

// Points of every level, 0 if they differ.
MSDA_DEVICE constexpr int common_points() {
    const int points = POINT_OFFSETS.at[1];
    for (int l = 1; l < LEVELS; ++l) {
        if (POINT_OFFSETS.at[l + 1] - POINT_OFFSETS.at[l] != points) return 0;
    }
    return points;
}

MSDA_DEVICE int level_of_sample(int sample) {
    if constexpr (common_points() > 0) {
        // A quad may reach past the last sample.
        return at_most(sample / common_points(), SAMPLES % 4 == 0 ? SAMPLES : LEVELS - 1);
    } else {
        int level = 0;
#pragma unroll
        for (int l = 1; l < LEVELS; ++l) level += sample >= POINT_OFFSETS.at[l] ? 1 : 0;
        return level;
    }
}

// The location of a sample, in units of its level.
struct Location {
    float x;
    float y;
};

// The two pixels that a coordinate lies between, clamped into the level, and their weights.
struct Tent {
    float cell;
    float near;
    float far;
};
MSDA_DEVICE Tent tent(float position, int size) {
    Tent tent;
    // NaN becomes 0 here, and its weights below.
    tent.cell = fminf(fmaxf(floor_near(position), 0.0f), static_cast<float>(size - 2));
    const float u = position - tent.cell;
    tent.near = add_saturating(1.0f, -fabsf(u));
    tent.far = add_saturating(1.0f, -fabsf(1.0f - u));
    return tent;
}

struct Sample {
    unsigned offset;  // of the cell's first pixel, in 16-byte units from the head's first pixel
    float weight[2][2];
};
MSDA_DEVICE Sample place_sample(const LevelGeometry& level, float x, float y, float attention) {
    const Tent column = tent(fmaf(x, static_cast<float>(level.width), -0.5f), level.width);
    const Tent row = tent(fmaf(y, static_cast<float>(level.height), -0.5f), level.height);
    Sample sample;
    // Exact: the sum is an integer below 2^24, and 2^23 + n has n in its low mantissa bits.
    constexpr float TWO_23 = 8388608.0f;
    const float cell = fmaf(row.cell, static_cast<float>(level.row_pitch), column.cell + TWO_23);
    const unsigned pixel = float_to_bits(cell) - float_to_bits(TWO_23);
    sample.offset = (pixel + static_cast<unsigned>(level.origin)) * (PIXEL_BYTES / 16);
    const float top = attention * row.near, bottom = attention * row.far;
    sample.weight[0][0] = top * column.near;
    sample.weight[0][1] = top * column.far;
    sample.weight[1][0] = bottom * column.near;
    sample.weight[1][1] = bottom * column.far;
    return sample;
}

// A lane's chunk of a pixel, from its chunk of the head's first pixel: one multiply-add. The pixel to the
// right is a displacement away.
MSDA_DEVICE const unsigned char* chunk_at(const unsigned char* pixels, unsigned offset) {
    return opaque_address(pixels + static_cast<unsigned long long>(offset) * 16u);
}

// Computes the definition corner by corner, for a (query, head) whose output is not finite. The samples come
// from a source (sample_source.cuh).
template <typename Source>
MSDA_DEVICE void recompute_exactly(const CallShape& shape, const Source& source, const unsigned char* pixels,
                                   long long row, float (&sums)[CHUNK_ELEMENTS]) {
#pragma unroll
    for (int w = 0; w < CHUNK_ELEMENTS; ++w) sums[w] = 0.0f;
    const typename Source::Row samples = source.row(row);
#pragma unroll 1
    for (int s = 0; s < SAMPLES; ++s) {
        const LevelGeometry& level = shape.level[level_of_sample(s)];
        const Location location = source.location(samples, s);
        const Position at = locate(location.x, location.y, level.height, level.width);
        if (!at.counts) continue;
        const float attention = source.attention(samples, s);
#pragma unroll 1
        for (int c = 0; c < 4; ++c) {
            const int x = at.left + c % 2, y = at.top + c / 2;
            if (x < 0 || x >= level.width || y < 0 || y >= level.height) continue;
            const float share = (c % 2 ? at.right_share : 1.0f - at.right_share) *
                                (c / 2 ? at.bottom_share : 1.0f - at.bottom_share);
            Packet16 packet;
            float values[CHUNK_ELEMENTS];
            const long long pixel = level.origin + static_cast<long long>(y) * level.row_pitch + x;
            load_readonly(packet, pixels + pixel * PIXEL_BYTES);
            unpack<ValueStorage, CHUNK_ELEMENTS>(packet, values);
#pragma unroll
            for (int w = 0; w < CHUNK_ELEMENTS; ++w) {
                sums[w] = fmaf(attention * share, values[w], sums[w]);
            }
        }
    }
}

}  // namespace msda
