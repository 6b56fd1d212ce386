// Mixed precision: fwd_vector_loads with the blend in packed half.
//
// Who owns what. As in fwd_vector_loads. Coordinates and weights are computed in fp32; the weights are then
// rounded to half and the corners, which arrive as pairs of halves, are multiplied and summed two at a time.
// SUM_BITS chooses the dtype of the sums: 16 keeps them in half over all samples, 32 adds every sample's
// blend of four corners to fp32 sums.
//
// Why. Eight channels of a corner take four packed instructions instead of eight conversions and eight fp32
// multiply-adds: 16 instead of 64 per sample and lane (16 plus 16 with sums in fp32).
//
// When it loses. In accuracy: a half has 11 bits, and sums of 128 products in it are off by 1 to 2e-3 (the
// bound is stated in the spec; 32-bit sums stay within the contract). In time only if arithmetic was not
// the limit in the first place.
#include "ladder/lane_groups.cuh"

using namespace msda;

namespace {

constexpr bool HALF_SUMS = MSDA_SUM_BITS == 16;
static_assert(HALF_SUMS || MSDA_SUM_BITS == 32, "half or single precision");

constexpr int PAIRS = CHUNK_ELEMENTS / 2;

// sums += the corners times their weights, all in half.
MSDA_DEVICE void blend(const Corners& corners, const float (&weight)[2][2], unsigned (&sums)[PAIRS]) {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
        const float share = weight[c / 2][c % 2];
        const unsigned pair = floats_to_half2(share, share);
#pragma unroll
        for (int i = 0; i < PAIRS; ++i) sums[i] = fma_half2(corners.packet[c].word[i], pair, sums[i]);
    }
}

MSDA_DEVICE void add_pairs(const unsigned (&pairs)[PAIRS], float (&sums)[CHUNK_ELEMENTS]) {
#pragma unroll
    for (int i = 0; i < PAIRS; ++i) {
        sums[2 * i] += half_to_float(static_cast<unsigned short>(pairs[i]));
        sums[2 * i + 1] += half_to_float(static_cast<unsigned short>(pairs[i] >> 16));
    }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(MSDA_THREADS)
    fwd_mixed_precision(const __grid_constant__ ForwardParams params) {
    const long long index = own_group_in_grid();
    if (index >= item_count(params)) return;
    const Item item = item_at(params, index);
    const unsigned char* pixels = item.pixels + own_chunk() * 16;

    float sums[CHUNK_ELEMENTS];
    clear(sums);
    unsigned pairs[PAIRS] = {};
#pragma unroll 1
    for (int s = 0; s < SAMPLES; ++s) {
        const Sample sample = sample_of_pair(params, item.row, s);
        const unsigned below = row_below(params.level[level_of_sample(s)]);
        blend(load_corners(pixels, sample.offset, below), sample.weight, pairs);
        if (!HALF_SUMS) {
            add_pairs(pairs, sums);
#pragma unroll
            for (int i = 0; i < PAIRS; ++i) pairs[i] = 0;
        }
    }
    if (HALF_SUMS) add_pairs(pairs, sums);
    // A sum beyond the range of half is infinite, and is computed again like any other infinite sum.
    store_chunk(params, item, own_chunk(), sums);
}
