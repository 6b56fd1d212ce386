// A sample's four corners as one tile in shared memory, copied by the whole warp.
//
// Who owns what. A warp owns an item and 2 KB of shared memory, aligned to 128 bytes and used again for
// every level: eight tiles of 2 x 2 pixels x 32 channels. As copiers the 32 lanes move two tiles per
// instruction; as owners four lanes have a sample, each eight of its channels.
//
// Why. Both pixels of a row are neighbours in memory, so that every eight lanes of a copy read 128 bytes
// in a row: the pattern that L1 serves without a conflict, for all four corners of every sample. And a lane
// may compute other data than it loads.
//
// When it loses: always, against loading the corners where they are used. A tile is used once, by the warp
// that copied it, so that writing it to shared memory and reading it back are two more passes through the
// data path that limits the kernel, and the loads of a round have to be there before its arithmetic starts.
#include "ladder/cooperative_tiles.cuh"

using namespace msda;

namespace {

constexpr int WARPS = MSDA_WARPS;

}  // namespace

extern "C" __global__ void __launch_bounds__(WARPS * 32)
    fwd_tile_2x2(const __grid_constant__ ForwardParams params) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const long long index = static_cast<long long>(blockIdx.x) * WARPS + warp;
    if (index >= item_count(params)) return;
    Packet16* tiles = reinterpret_cast<Packet16*>(shared_memory()) + warp * ROUND_SAMPLES * TILE_PACKETS;
    compute_with_cooperative_tiles(params, item_at(params, index), tiles, lane);
}
