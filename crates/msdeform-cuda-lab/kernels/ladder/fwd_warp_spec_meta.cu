// Metadata once, by the producers, in shared memory next to the tiles.
//
// Who owns what. As in fwd_warp_spec, with PRODUCERS of the eight warps producing. A producer's lane that
// places a sample also writes its four corner weights, 16 bytes, into the buffer; its arrival at the full
// barrier, which releases, announces them together with the tiles.
//
// Why. Consumers read 16 bytes. In fwd_warp_spec they read location and weight and spend some thirty
// instructions on the sample's place, redundantly in four lanes of each sample.
//
// When it loses: against metadata that needs no second warp (fwd_shuffle_meta). A warp requests one tile at a
// time, so a single producer is too few; with two the requests are not the limit.
#include "ladder/warp_roles.cuh"

using namespace msda;

namespace {

using Warps = Roles<MSDA_PRODUCERS, 2>;

}  // namespace

extern "C" __global__ void __launch_bounds__(WARPS * 32, BLOCKS_PER_SM)
    fwd_warp_spec_meta(const __grid_constant__ TiledParams params) {
    run_with_metadata<Warps>(params);
}
