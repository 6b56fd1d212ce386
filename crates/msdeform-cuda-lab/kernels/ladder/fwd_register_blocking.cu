// Register blocking: a group of lanes keeps the sums of several queries in registers.
//
// Who owns what. Four lanes own QUERIES neighbouring items of fwd_vector_loads; a lane holds 8 * QUERIES
// sums. A turn of the loop takes the same sample of each of them: the level and its geometry are looked up
// once, and 4 * QUERIES corner loads are in flight together.
//
// Why. Fewer instructions per item for what does not depend on the query, and independent work within a lane,
// as in fwd_loop_unroll. Neighbouring queries look at neighbouring pixels, now in the same lane and one after
// the other, so the second one finds in L1 what the first one fetched.
//
// When it loses. 24 registers per query. Registers are the only thing a block could share, and in this
// operator no operand is shared between queries: unlike a matrix product, blocking saves no load.
#include "ladder/lane_groups.cuh"

using namespace msda;

namespace {

constexpr int QUERIES = MSDA_QUERIES;  // of a group of lanes

}  // namespace

extern "C" __global__ void __launch_bounds__(MSDA_THREADS)
    fwd_register_blocking(const __grid_constant__ ForwardParams params) {
    const long long first = own_group_in_grid() * QUERIES, count = item_count(params);
    if (first >= count) return;
    // The last block may be incomplete: its items past the end repeat the last one and are not stored.
    Item item[QUERIES];
#pragma unroll
    for (int q = 0; q < QUERIES; ++q) {
        item[q] = item_at(params, first + q < count ? first + q : count - 1);
    }

    float sums[QUERIES][CHUNK_ELEMENTS];
#pragma unroll
    for (int q = 0; q < QUERIES; ++q) clear(sums[q]);
#pragma unroll 1
    for (int s = 0; s < SAMPLES; ++s) {
        const unsigned below = row_below(params.level[level_of_sample(s)]);
        Sample sample[QUERIES];
        Corners corners[QUERIES];
#pragma unroll
        for (int q = 0; q < QUERIES; ++q) sample[q] = sample_of_pair(params, item[q].row, s);
#pragma unroll
        for (int q = 0; q < QUERIES; ++q) {
            const unsigned char* pixels = item[q].pixels + own_chunk() * 16;
            corners[q] = load_corners(pixels, sample[q].offset, below);
        }
#pragma unroll
        for (int q = 0; q < QUERIES; ++q) add_corners(corners[q], sample[q].weight, sums[q]);
    }
#pragma unroll
    for (int q = 0; q < QUERIES; ++q) {
        if (first + q < count) store_chunk(params, item[q], own_chunk(), sums[q]);
    }
}
