// How fast tiles of 2 x 2 pixels with 32 half channels (what one sample reads) reach shared memory.
//
// The slab is one level of one head: rows of pixels of 64 bytes. Tiles are drawn at random, a slot of shared
// memory takes one of them, 128-byte aligned. Cooperatively, 16 lanes load 16 bytes each and store them; by
// the copy engine, one lane of a warp requests the tile and a barrier counts its bytes.
#include "intrinsics.cuh"

using namespace msda;

namespace {

constexpr int CHANNEL_BYTES = 64;
constexpr int TILE_BYTES = 4 * CHANNEL_BYTES;
constexpr int SLOTS = 8;  // tiles in flight: of half a warp, or of a warp's only lane at work
constexpr int WARPS = 8;

struct TileParams {
    TensorMap map;  // (channel, x, y), box 32 x 2 x 2; for the copy engine alone
    const unsigned char* slab;
    unsigned char* out;  // a sink, or the tiles of `tile_check`
    int width;           // of the level, in pixels
    int height;
    int rounds;  // of SLOTS tiles
    int reserved;
};

// The left column and upper row of a tile that lies inside.
struct Place {
    int x, y;
};

struct Dice {
    unsigned state;

    MSDA_DEVICE Place draw(const TileParams& params) {
        const auto below = [this](int count) {
            state = state * 1664525u + 1013904223u;
            return static_cast<int>(__umulhi(state, static_cast<unsigned>(count)));
        };
        const int x = below(params.width - 1);
        return {x, below(params.height - 1)};
    }
};

}  // namespace

#if MSDA_PROBE_TMA

extern "C" __global__ void __launch_bounds__(32 * WARPS, 4)
    tile_copy(const __grid_constant__ TileParams params) {
    const unsigned warp = threadIdx.x / 32;
    unsigned char* tiles = shared_memory() + warp * SLOTS * TILE_BYTES;
    auto* arrived = reinterpret_cast<Mbarrier*>(shared_memory() + WARPS * SLOTS * TILE_BYTES) + warp * SLOTS;
    if (threadIdx.x % 32 == 0) {
        for (int slot = 0; slot < SLOTS; ++slot) mbarrier_init(arrived + slot, 1);
        mbarrier_init_fence();
        Dice dice{(blockIdx.x * WARPS + warp) * 2654435769u + 12345u};
#pragma unroll 1
        for (int round = 0; round < params.rounds; ++round) {
#pragma unroll
            for (int slot = 0; slot < SLOTS; ++slot) {
                // The tile before it in this slot; at once in the first round.
                mbarrier_wait(arrived + slot, (round + 1) & 1);
                mbarrier_arrive_expect_bytes(arrived + slot, TILE_BYTES);
                const Place place = dice.draw(params);
                copy_tensor_3d(tiles + slot * TILE_BYTES, &params.map, 0, place.x, place.y, arrived + slot);
            }
        }
        // Shared memory must outlive the copies.
        for (int slot = 0; slot < SLOTS; ++slot) {
            mbarrier_wait(arrived + slot, (params.rounds + 1) & 1);
        }
    }
}

// One tile per block, from one pixel outside of the level on, written out to be compared.
extern "C" __global__ void tile_check(const __grid_constant__ TileParams params) {
    unsigned char* tile = shared_memory();
    auto* arrived = reinterpret_cast<Mbarrier*>(tile + TILE_BYTES);
    if (threadIdx.x == 0) {
        mbarrier_init(arrived, 1);
        mbarrier_init_fence();
        mbarrier_arrive_expect_bytes(arrived, TILE_BYTES);
        copy_tensor_3d(tile, &params.map, 0, static_cast<int>(blockIdx.x) - 1,
                       static_cast<int>(blockIdx.y) - 1, arrived);
    }
    __syncthreads();
    mbarrier_wait(arrived, 0);
    const unsigned block = blockIdx.y * gridDim.x + blockIdx.x;
    for (unsigned i = threadIdx.x; i < TILE_BYTES; i += blockDim.x) {
        params.out[block * TILE_BYTES + i] = tile[i];
    }
}

#else

extern "C" __global__ void __launch_bounds__(32 * WARPS, 4)
    tile_copy(const __grid_constant__ TileParams params) {
    const unsigned half_warp = threadIdx.x / 16;
    const unsigned piece = threadIdx.x % 16;
    unsigned char* tiles = shared_memory() + half_warp * SLOTS * TILE_BYTES;
    const unsigned char* own = params.slab + piece % 8 * 16;
    Dice dice{(blockIdx.x * 2 * WARPS + half_warp) * 2654435769u + 12345u};
#pragma unroll 1
    for (int round = 0; round < params.rounds; ++round) {
        Packet<16> packets[SLOTS];
#pragma unroll
        for (int slot = 0; slot < SLOTS; ++slot) {
            const Place place = dice.draw(params);
            const int pixel = (place.y + static_cast<int>(piece / 8)) * params.width + place.x;
            load_readonly(packets[slot], own + pixel * CHANNEL_BYTES);
        }
#pragma unroll
        for (int slot = 0; slot < SLOTS; ++slot) {
            *reinterpret_cast<Packet<16>*>(tiles + slot * TILE_BYTES + piece * 16) = packets[slot];
        }
        // A reader of the tiles would wait here, so the compiler must store them.
        sync_warp();
    }
}

#endif
