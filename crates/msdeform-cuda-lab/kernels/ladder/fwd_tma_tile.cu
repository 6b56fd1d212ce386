// The copy engine brings the tile, instead of lanes.
//
// Who owns what. A warp owns an item, 2 KB of shared memory and an mbarrier. For a round of eight samples
// (with eight points: a level) one lane of each sample requests its tile from the copy engine, a box of 32
// channels x 2 columns x 2 rows, and all lanes wait for the 2 KB to arrive. MAPS chooses the description of
// the tensor: 3 is the seeds' way, a three-dimensional map for every level of every image and head; 4 has one
// map per level and counts slabs along a fourth dimension. 0 is for GPUs without a copy engine and drivers
// that refuse the map: the warp copies the tiles itself.
//
// Why. A copy takes one instruction and no registers, addresses are computed by the engine, and pixels
// outside of a level arrive as zeros: neither a border in memory nor a clamp in the kernel.
//
// When it loses: here. The engine goes past L1, so every tile comes from L2, also tiles that neighbouring
// queries share. And it is built for boxes of kilobytes: it takes requests one at a time, and a request of
// 256 bytes in rows of 128 costs as much bookkeeping as a large one.
#include "ladder/tiles.cuh"

#if MSDA_MAPS == 0
#include "ladder/cooperative_tiles.cuh"
#else
#include "ladder/tensor_tiles.cuh"
#endif

using namespace msda;

namespace {

constexpr int WARPS = 8;

// This warp's item; past the last one for warps that have none.
MSDA_DEVICE long long item_of_warp() { return static_cast<long long>(blockIdx.x) * WARPS + threadIdx.x / 32; }
MSDA_DEVICE Packet16* tiles_of_warp() {
    return reinterpret_cast<Packet16*>(shared_memory() + threadIdx.x / 32 * ROUND_BYTES);
}

#if MSDA_MAPS == 0

using Params = ForwardParams;

MSDA_DEVICE void compute(const Params& params) {
    const long long index = item_of_warp();
    if (index >= item_count(params)) return;
    compute_with_cooperative_tiles(params, item_at(params, index), tiles_of_warp(), threadIdx.x % 32);
}

#else

constexpr bool MAP_PER_SLAB = MSDA_MAPS == 3;

// How many maps of levels and slabs fit a kernel's parameter.
constexpr int SLAB_MAPS = 224;
struct Params {
    TensorMap map[MAP_PER_SLAB ? SLAB_MAPS : LEVELS];
    ForwardParams call;
};

MSDA_DEVICE void bring(Packet16* tile, const Params& params, int level, const TilePlace& place, int slab,
                       Mbarrier* barrier) {
    if constexpr (MAP_PER_SLAB) {
        copy_tensor_3d(tile, &params.map[slab * LEVELS + level], 0, place.left, place.top, barrier);
    } else {
        copy_tile(tile, params.map[level], place, slab, barrier);
    }
}

MSDA_DEVICE void compute(const Params& params) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int sample = lane / CHUNKS, chunk = lane % CHUNKS, flip = corner_flip(sample);
    const ForwardParams& call = params.call;
    const long long index = item_of_warp();
    if (index >= item_count(call)) return;  // no barrier counts other warps
    const Item item = item_at(call, index);
    Packet16* tile = tiles_of_warp() + sample * TILE_PACKETS;
    Mbarrier* arrived = reinterpret_cast<Mbarrier*>(shared_memory() + WARPS * ROUND_BYTES) + warp;
    if (lane == 0) {
        mbarrier_init(arrived, 1);
        mbarrier_init_fence();
    }
    sync_warp();

    float sums[CHUNK_ELEMENTS];
    clear(sums);
#pragma unroll UNROLL_ROUNDS
    for (int round = 0; round < ROUNDS; ++round) {
        const int s = round * ROUND_SAMPLES + sample;
        const bool exists = sample < samples_of_round(round);
        TilePlace place;
        if (exists) {
            const int level = level_of_sample(s);
            const SampleInputs inputs = load_sample(call, item.row * SAMPLES + s);
            place = place_tile(call.level[level], inputs.location, inputs.attention);
            if (lane == 0) mbarrier_arrive_expect_bytes(arrived, samples_of_round(round) * TILE_BYTES);
            if (chunk == 0) bring(tile, params, level, place, item.slab, arrived);
        }
        mbarrier_wait(arrived, round % 2);
        if (exists) add_tile(tile, chunk, flip, flipped(place.weight, flip), sums);
        sync_warp();  // the tiles have been read: the next round may overwrite them
    }
    store_exact(call, item, lane, combine_samples(sums, lane));
}

#endif

}  // namespace

extern "C" __global__ void __launch_bounds__(WARPS * 32) fwd_tma_tile(const __grid_constant__ Params params) {
    compute(params);
}
