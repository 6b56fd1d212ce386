// Loop unrolling: fwd_vector_loads, several samples per turn of the loop.
//
// Who owns what. As in fwd_vector_loads. A turn places UNROLL samples, then loads all 4 * UNROLL corners,
// then adds: a lane has up to that many 16-byte loads in flight instead of four. (The compiler decides how
// many it finds registers for: 40, 64 and 77 with UNROLL 2, 4 and 8 for sm_90.)
//
// Why. A warp of the base waits for every sample before it places the next. With more loads in flight the
// same number of warps covers more latency; the loop's own instructions are shared by UNROLL samples.
//
// When it loses. A sample in flight takes 16 registers for its corners and 5 for its place. Past the point
// where registers take warps away, the loads in flight per SM do not grow any more.
#include "ladder/lane_groups.cuh"

using namespace msda;

namespace {

constexpr int UNROLL = MSDA_UNROLL;

// COUNT samples from `first` on. The corners of all of them are loaded before the first one is used.
template <int COUNT>
MSDA_DEVICE void add_samples(const ForwardParams& params, const Item& item, const unsigned char* pixels,
                             int first, float (&sums)[CHUNK_ELEMENTS]) {
    Sample sample[COUNT];
    Corners corners[COUNT];
#pragma unroll
    for (int u = 0; u < COUNT; ++u) sample[u] = sample_of_pair(params, item.row, first + u);
#pragma unroll
    for (int u = 0; u < COUNT; ++u) {
        const unsigned below = row_below(params.level[level_of_sample(first + u)]);
        corners[u] = load_corners(pixels, sample[u].offset, below);
    }
#pragma unroll
    for (int u = 0; u < COUNT; ++u) add_corners(corners[u], sample[u].weight, sums);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(MSDA_THREADS)
    fwd_loop_unroll(const __grid_constant__ ForwardParams params) {
    const long long index = own_group_in_grid();
    if (index >= item_count(params)) return;
    const Item item = item_at(params, index);
    const unsigned char* pixels = item.pixels + own_chunk() * 16;

    float sums[CHUNK_ELEMENTS];
    clear(sums);
    int s = 0;
#pragma unroll 1
    for (; s + UNROLL <= SAMPLES; s += UNROLL) add_samples<UNROLL>(params, item, pixels, s, sums);
#pragma unroll 1
    for (; s < SAMPLES; ++s) add_samples<1>(params, item, pixels, s, sums);
    store_chunk(params, item, own_chunk(), sums);
}
