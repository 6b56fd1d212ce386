// Work that blocks steal from each other: units, handed out by a counter.
#pragma once

#include "ladder/resident_levels.cuh"

namespace msda {

// The next free unit of work, the same for all threads of the block, from a counter that an earlier step has
// set to zero. All threads call it; its barriers also wait until all threads have finished the unit before.
MSDA_DEVICE unsigned steal_unit(const ForwardParams& params) {
    auto* const stolen = reinterpret_cast<unsigned*>(shared_memory() + LEVELS * 16);
    __syncthreads();
    if (threadIdx.x == 0) *stolen = fetch_add(workspace_part<unsigned>(params, params.counter_at), 1);
    __syncthreads();
    return *stolen;
}

// A unit is a run of `params.unit_queries` neighbouring queries of one slab; the last one may be shorter.
struct Unit {
    int slab;
    int first_query;
    int end_query;
};
MSDA_DEVICE Unit unit_at(const ForwardParams& params, unsigned number) {
    const auto slab_units = static_cast<unsigned>(params.slab_units);
    Unit unit;
    unit.slab = static_cast<int>(number / slab_units);
    unit.first_query = static_cast<int>(number % slab_units) * params.unit_queries;
    unit.end_query = at_most(params.queries - unit.first_query, params.unit_queries) + unit.first_query;
    return unit;
}
MSDA_DEVICE unsigned unit_count(const ForwardParams& params) {
    return static_cast<unsigned>(params.batch * params.heads * params.slab_units);
}

}  // namespace msda
