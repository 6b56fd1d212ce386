// Work that blocks steal from each other: units, handed out by a counter.
#pragma once

#include "ladder/resident_levels.cuh"

namespace msda {

// The next unit of work nobody has taken yet, the same for all threads of the block; a counter that
// a step before has set to zero. All threads call it; the barriers also end whatever they did with the unit
// before.
MSDA_DEVICE unsigned steal_unit(const ForwardParams& params) {
    auto* const stolen = reinterpret_cast<unsigned*>(shared_memory() + LEVELS * 16);
    __syncthreads();
    if (threadIdx.x == 0) *stolen = fetch_add(workspace_part<unsigned>(params, params.counter_at), 1);
    __syncthreads();
    return *stolen;
}

// Units are runs of neighbouring queries of one slab, `params.unit_queries` of them but for the last one.
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
