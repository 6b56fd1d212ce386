// The seeds' own kernel: eight channels a thread, past L1, everything in half precision.
//
// Who owns what. Four neighbouring lanes own the four 16-byte chunks (eight channels each) of one item; a
// warp has eight items. A lane reads its chunk of all four corners with ld.global.cg and adds them up as
// half2.
//
// Why. One 16-byte load replaces the eight scalar loads of the original, and half2 arithmetic does two
// channels per instruction without converting anything. `.cg` keeps values out of L1, on the theory that they
// are not read again soon.
//
// When it loses. Neighbouring queries do read the same pixels, and what L1 could serve comes from L2. And
// the arithmetic is wrong by percents: a column is at most 11 bits, so at 128 and more it is an eighth of a
// pixel coarse, and 128 products are added up in 11 bits. Its bound is its own (fwd_direct_vec8.rs).
#include "ladder/sample_quads.cuh"

using namespace msda;

namespace {

constexpr int THREADS = MSDA_THREADS;

struct HalfSample {
    unsigned offset;
    unsigned weight[4];  // each corner's weight, in both halves
};

// Position, distances and weights are rounded to half at every step; the cell itself is an integer.
MSDA_DEVICE HalfSample place_in_half(const LevelGeometry& level, float x, float y, float attention) {
    const unsigned size = floats_to_half2(static_cast<float>(level.width), static_cast<float>(level.height));
    const unsigned position = fma_half2(floats_to_half2(x, y), size, 0xb800b800u);  // - 0.5
    const Tent column = tent(half_to_float(static_cast<unsigned short>(position)), level.width);
    const Tent row = tent(half_to_float(static_cast<unsigned short>(position >> 16)), level.height);
    const unsigned columns = floats_to_half2(column.near, column.far);
    const unsigned rows =
        multiply_half2(floats_to_half2(row.near, row.far), floats_to_half2(attention, attention));
    const unsigned top = multiply_half2(duplicate_low(rows), columns);
    const unsigned bottom = multiply_half2(duplicate_high(rows), columns);
    const int pixel = static_cast<int>(row.cell) * level.row_pitch + static_cast<int>(column.cell);
    HalfSample sample;
    sample.offset = (static_cast<unsigned>(pixel) + static_cast<unsigned>(level.origin)) * (PIXEL_BYTES / 16);
    sample.weight[0] = duplicate_low(top);
    sample.weight[1] = duplicate_high(top);
    sample.weight[2] = duplicate_low(bottom);
    sample.weight[3] = duplicate_high(bottom);
    return sample;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS)
    fwd_direct_vec8(const __grid_constant__ ForwardParams params) {
    const long long thread = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x;
    if (thread / CHUNKS >= item_count(params)) return;
    const Item item = item_at(params, thread / CHUNKS);
    const int chunk = static_cast<int>(thread % CHUNKS);
    const unsigned char* pixels = item.pixels + chunk * 16;

    unsigned halves[4] = {};
#pragma unroll 1
    for (int l = 0; l < LEVELS; ++l) {
        const LevelGeometry& level = params.level[l];
        const unsigned below = row_below(level);
        for_samples_of_level(params, item.row, l, [&](float x, float y, float attention) {
            const HalfSample sample = place_in_half(level, x, y, attention);
            Packet16 corner[4];
            const unsigned char* top = chunk_at(pixels, sample.offset);
            const unsigned char* bottom = chunk_at(pixels, sample.offset + below);
            load_l2(corner[0], top);
            load_l2(corner[1], top + PIXEL_BYTES);
            load_l2(corner[2], bottom);
            load_l2(corner[3], bottom + PIXEL_BYTES);
#pragma unroll
            for (int c = 0; c < 4; ++c) {
#pragma unroll
                for (int w = 0; w < 4; ++w) {
                    halves[w] = fma_half2(sample.weight[c], corner[c].word[w], halves[w]);
                }
            }
        });
    }
    float sums[CHUNK_ELEMENTS];
#pragma unroll
    for (int w = 0; w < 4; ++w) {
        sums[2 * w] = half_to_float(static_cast<unsigned short>(halves[w]));
        sums[2 * w + 1] = half_to_float(static_cast<unsigned short>(halves[w] >> 16));
    }
    store_chunk(params, item, chunk, sums);
}
