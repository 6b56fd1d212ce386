// Persistent: one block per SM, which keeps the coarse levels in shared memory and steals its work.
//
// Who owns what. The grid has a block per SM, 1024 threads. A block takes a unit (a run of queries of one
// slab) from an atomic counter, keeps the slab's small levels in shared memory, from the smallest upwards and
// with as many rows of the first one that does not fit, and walks the unit's queries, four lanes each. Units
// are numbered slab by slab: blocks that run at the same time read the same few slabs from L2.
//
// Why. The coarse levels take half of the samples and little room. In shared memory they are copied once per
// unit, are never evicted, and need no tag lookup. With stealing all SMs end at the same time, even if
// units differ in cost.
//
// When it loses. L1 and shared memory are one memory, so the small levels take their room from the large
// ones. L1 would have kept the hot pixels of the small levels anyway. For the level that is kept in part, a
// lane tests where its cell lies, and the groups of a warp diverge. And only half of the SM's warps fit.
#include "ladder/stolen_units.cuh"

using namespace msda;

namespace {

constexpr int THREADS = 1024;
constexpr int BLOCK_GROUPS = THREADS / GROUP_LANES;
constexpr int SHARED_BYTES = MSDA_SHARED_KB * 1024;

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    fwd_persistent(const __grid_constant__ ForwardParams params) {
    plan_residences<PIXEL_BYTES>(params, SHARED_BYTES, Rest::rows);
    int kept_slab = -1;
    // The counter is the same for all threads of a block, so all of them leave together and no barrier waits
    // for a thread that has left.
    for (unsigned number; (number = steal_unit(params)) < unit_count(params);) {
        const Unit unit = unit_at(params, number);
        if (unit.slab != kept_slab) keep_slab<PIXEL_BYTES>(slab_pixels(params, unit.slab));
        kept_slab = unit.slab;
#pragma unroll 1
        for (int query = unit.first_query + own_group(); query < unit.end_query; query += BLOCK_GROUPS) {
            const Item item = item_of(params, unit.slab, query);
            float sums[CHUNK_ELEMENTS];
            sum_resident_item(params, item, sums);
            store_chunk(params, item, own_chunk(), sums);
        }
    }
}
