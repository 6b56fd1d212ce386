// Channel split: a block owns eight channels, so that four times as much of the pyramid fits shared memory.
//
// Who owns what. fwd_persistent_full, with the 32 channels of a slab as four slabs of eight. A pixel of such
// a slab is 16 bytes: one load, so a lane owns an item of it and a warp 32 queries. The kept levels are
// packed, 16 bytes a pixel, without gaps.
//
// Why. 96 KB hold three of the seed's four levels (77 KB) instead of two: three quarters of the samples never
// leave the SM. No lane repeats what its neighbours compute.
//
// When it loses. Every query is placed four times, once per chunk, by four blocks. A streamed corner is 16
// bytes of a 32-byte sector: half of what comes from L2 is not used. And a wavefront of eight lanes now holds
// eight unrelated 16-byte places instead of two rows of 64: in shared memory as in L1, two or three of them
// meet.
#include "ladder/resident_levels.cuh"

using namespace msda;

namespace {

constexpr int THREADS = 1024;
constexpr int SHARED_BYTES = MSDA_SHARED_KB * 1024;
constexpr int KEPT_PIXEL = 16;

MSDA_DEVICE void sum_split_item(const ForwardParams& params, const Item& item, int chunk,
                                float (&sums)[CHUNK_ELEMENTS]) {
    clear(sums);
#pragma unroll 1
    for (int run = 0; run < RUNS; ++run) {
        const SampleRun found = load_run(params, item.row, run);
#pragma unroll
        for (int i = 0; i < RUN; ++i) {
            const int l = level_of_sample(run * RUN + i);
            const Sample sample = sample_of_run(params.level[l], found, i);
            const Corners corners = corners_of_cell<KEPT_PIXEL>(residences()[l], item.pixels + chunk * 16, 0,
                                                                sample.offset, row_below(params.level[l]));
            add_corners(corners, sample.weight, sums);
        }
    }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    fwd_channel_split(const __grid_constant__ ForwardParams params) {
    plan_residences<KEPT_PIXEL>(params, SHARED_BYTES, Rest::nothing);
    const Share share = own_share(item_count(params) * CHUNKS);
    int slab = static_cast<int>(share.first / params.queries / CHUNKS);
    int chunk = static_cast<int>(share.first / params.queries % CHUNKS);
    int first_query = static_cast<int>(share.first % params.queries);
    // All threads have the block's share, so all reach every barrier in keep_slab.
    for (long long left = share.end - share.first; left > 0;) {
        const int queries = queries_left(params, first_query, left);
        keep_slab<KEPT_PIXEL>(slab_pixels(params, slab) + chunk * 16);
#pragma unroll 1
        for (int q = threadIdx.x; q < queries; q += THREADS) {
            const Item item = item_of(params, slab, first_query + q);
            float sums[CHUNK_ELEMENTS];
            sum_split_item(params, item, chunk, sums);
            store_chunk(params, item, chunk, sums);
        }
        left -= queries;
        slab += (chunk + 1) / CHUNKS;
        chunk = (chunk + 1) % CHUNKS;
        first_query = 0;
    }
}
