// Persistent, any size: small levels whole in shared memory, the large ones streamed through L1.
//
// Who owns what. A block per SM, 1024 threads. Every block owns an equal, contiguous run of all queries of
// all slabs; where the run crosses into another slab the small levels are exchanged. A level is kept whole or
// not at all, so all lanes of a warp agree about where a sample lies. Four lanes own an item.
//
// Why. Against fwd_persistent: no counter and no unit to come back from, a window of neighbouring queries
// that moves slowly through the streamed levels (what one round fetched, the next finds in L1), and 96 KB for
// the small levels, so that L1 keeps the rest.
//
// When it loses. A fixed share is as slow as its slowest block. All slabs are read at once: 132 blocks at 132
// places of 48 slabs read all of the values from L2, 60 MB; blocks that walk together read a few megabytes
// at a time.
#include "ladder/resident_levels.cuh"

using namespace msda;

namespace {

constexpr int THREADS = 1024;
constexpr int BLOCK_GROUPS = THREADS / GROUP_LANES;
constexpr int SHARED_BYTES = MSDA_SHARED_KB * 1024;

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    fwd_persistent_full(const __grid_constant__ ForwardParams params) {
    plan_residences<PIXEL_BYTES>(params, SHARED_BYTES, Rest::nothing);
    const Share share = own_share(item_count(params));
    int slab = static_cast<int>(share.first / params.queries);
    int first_query = static_cast<int>(share.first % params.queries);
    // All threads have the block's share, so all reach every barrier in keep_slab.
    for (long long left = share.end - share.first; left > 0;) {
        const int queries = queries_left(params, first_query, left);
        keep_slab<PIXEL_BYTES>(slab_pixels(params, slab));
#pragma unroll 1
        for (int q = own_group(); q < queries; q += BLOCK_GROUPS) {
            const Item item = item_of(params, slab, first_query + q);
            float sums[CHUNK_ELEMENTS];
            sum_resident_item(params, item, sums);
            store_chunk(params, item, own_chunk(), sums);
        }
        left -= queries;
        slab += 1;
        first_query = 0;
    }
}
