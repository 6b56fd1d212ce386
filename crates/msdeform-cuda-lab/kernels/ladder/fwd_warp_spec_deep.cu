// A deeper ring: three or four rounds of tiles per consumer in flight instead of two.
//
// Who owns what. As in fwd_warp_spec_meta with two producers; a consumer's ring has STAGES buffers of 2 KB of
// tiles and 128 bytes of weights.
//
// Why. While a consumer works on one round, a ring of two has one round in flight; a copy that takes longer
// than one round of arithmetic makes it wait. With S stages it takes S - 1 rounds.
//
// When it loses: shared memory pays for depth. Four stages are 49 KB a block; blocks that no longer fit take
// their warps with them, and warps hide latency as well as stages do. If producers cannot fill the rings,
// longer ones change nothing.
#include "ladder/warp_roles.cuh"

using namespace msda;

namespace {

using Warps = Roles<2, MSDA_STAGES>;

}  // namespace

extern "C" __global__ void __launch_bounds__(WARPS * 32, BLOCKS_PER_SM)
    fwd_warp_spec_deep(const __grid_constant__ TiledParams params) {
    run_with_metadata<Warps>(params);
}
