// Direct loads only: the report's fastest kernel, without its half arithmetic.
//
// Who owns what. Four neighbouring lanes own the four 16-byte chunks of one item, a warp eight items, as in
// fwd_direct_vec8. There is no shared memory, no barrier and no branch that depends on data: a lane walks
// the samples of its item, loads four corners through L1, and adds them up in fp32.
//
// Why. Edges are tents (chunked_sample.cuh), so samples need no case distinction; a level's size is read once
// per level; locations are read four samples at a time. What remains between two samples is arithmetic that
// the scheduler can overlap with the loads of the next one: independent, unrolled.
//
// When it loses. The four lanes of an item compute the same coordinates four times, and the two rows of a
// quarter-warp (two items) meet in the same half of a 128-byte line half of the time: a two-way conflict in
// L1.
#include "ladder/sample_quads.cuh"

using namespace msda;

namespace {

constexpr int THREADS = MSDA_THREADS;

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS)
    fwd_distributed(const __grid_constant__ ForwardParams params) {
    const long long thread = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x;
    if (thread / CHUNKS >= item_count(params)) return;
    const Item item = item_at(params, thread / CHUNKS);
    const int chunk = static_cast<int>(thread % CHUNKS);
    const unsigned char* pixels = item.pixels + chunk * 16;

    float sums[CHUNK_ELEMENTS];
    clear(sums);
#pragma unroll 1
    for (int l = 0; l < LEVELS; ++l) {
        const LevelGeometry& level = params.level[l];
        const unsigned below = row_below(level);
        for_samples_of_level(params, item.row, l, [&](float x, float y, float attention) {
            const Sample sample = place_sample(level, x, y, attention);
            add_corners(load_corners(pixels, sample.offset, below), sample.weight, sums);
        });
    }
    store_chunk(params, item, chunk, sums);
}
