// The next level's tiles in flight while this one computes.
//
// Who owns what. A warp owns an item, as in fwd_tma_tile, and two buffers of eight tiles, each with its
// mbarrier. Before it waits for a round it has placed the samples of the next one and requested their tiles
// from the copy engine. With eight points per level a round is a level: one map, one set of sizes.
//
// Why. The arithmetic of the level before hides the time from request to arrival, without a second kind of
// warp: the warp that needs the tiles requests them, so warps need not communicate.
//
// When it loses: it saves latency, and other warps hide that too. The engine and L2 take as long for a tile
// as before, and if shared memory is the limit, twice as much of it halves the number of warps.
#include "ladder/tensor_tiles.cuh"

using namespace msda;

namespace {

constexpr int WARPS = 8;
constexpr int BUFFERS = 2;

// The tiles of a warp in flight.
struct Flight {
    Packet16* tiles;    // [BUFFERS][ROUND_SAMPLES][TILE_PACKETS]
    Mbarrier* arrived;  // [BUFFERS]
};

MSDA_DEVICE Packet16* tile_of(const Flight& flight, int round, int sample) {
    return flight.tiles + (round % BUFFERS * ROUND_SAMPLES + sample) * TILE_PACKETS;
}

// Places this lane's sample of a round and requests its tile.
MSDA_DEVICE TilePlace launch_round(const TiledParams& params, const Item& item, const Flight& flight,
                                   int round, int lane) {
    const int sample = lane / CHUNKS, s = round * ROUND_SAMPLES + sample;
    TilePlace place = {};
    if (sample < samples_of_round(round)) {
        Mbarrier* arrived = flight.arrived + round % BUFFERS;
        const int level = level_of_sample(s);
        const long long from = item.row * SAMPLES + s;
        place = place_tile(params.call.level[level], load_location(params.call, from),
                           load_attention(params.call, from));
        if (lane == 0) mbarrier_arrive_expect_bytes(arrived, samples_of_round(round) * TILE_BYTES);
        if (lane % CHUNKS == 0) {
            copy_tile(tile_of(flight, round, sample), params.map[level], place, item.slab, arrived);
        }
    }
    return place;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(WARPS * 32)
    fwd_tma_multilevel(const __grid_constant__ TiledParams params) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int sample = lane / CHUNKS, chunk = lane % CHUNKS, flip = corner_flip(sample);
    const long long index = static_cast<long long>(blockIdx.x) * WARPS + warp;
    if (index >= item_count(params.call)) return;  // no barrier counts other warps
    const Item item = item_at(params.call, index);
    Flight flight;
    flight.tiles = reinterpret_cast<Packet16*>(shared_memory() + warp * BUFFERS * ROUND_BYTES);
    flight.arrived =
        reinterpret_cast<Mbarrier*>(shared_memory() + WARPS * BUFFERS * ROUND_BYTES) + warp * BUFFERS;
    if (lane < BUFFERS) {
        mbarrier_init(flight.arrived + lane, 1);
        mbarrier_init_fence();
    }
    sync_warp();

    float sums[CHUNK_ELEMENTS];
    clear(sums);
    TilePlace place = launch_round(params, item, flight, 0, lane);
#pragma unroll UNROLL_ROUNDS
    for (int round = 0; round < ROUNDS; ++round) {
        TilePlace next = {};
        if (round + 1 < ROUNDS) next = launch_round(params, item, flight, round + 1, lane);
        mbarrier_wait(flight.arrived + round % BUFFERS, round / BUFFERS % 2);
        if (sample < samples_of_round(round)) {
            add_tile(tile_of(flight, round, sample), chunk, flip, flipped(place.weight, flip), sums);
        }
        sync_warp();  // the tiles have been read: the round after the next may overwrite them
        place = next;
    }
    store_exact(params.call, item, lane, combine_samples(sums, lane));
}
