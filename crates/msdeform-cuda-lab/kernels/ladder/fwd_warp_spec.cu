// Two kinds of warps: two that bring tiles, six that compute.
//
// Who owns what. A block is persistent and takes six items per turn. A consumer warp owns an item and a ring
// of two buffers of eight tiles; a producer warp feeds three consumers, eight lanes for each, a sample per
// lane. Full and empty mbarriers pass a buffer between the sides (warp_roles.cuh). As in the seed, both sides
// compute where a sample lies: producers for the tile, consumers for the weights.
//
// Why. The copy engine needs one thread that requests tiles. A warp that does nothing else runs ahead of the
// arithmetic, so that tiles are there when a consumer needs them, and a consumer is one short loop.
//
// When it loses: if loading was no burden in the first place. A gather's addresses are known as soon as its
// locations are, and thirty-two warps that each have four loads in flight hide latency by themselves.
// Here a quarter of the warps do no arithmetic, and tiles come past L1 (see fwd_tma_tile).
#include "ladder/warp_roles.cuh"

using namespace msda;

namespace {

using Warps = Roles<2, 2>;

MSDA_DEVICE void consume(const TiledParams& params, int warp, int lane) {
    const ForwardParams& call = params.call;
    const int consumer = warp - Warps::PRODUCERS;
    const int sample = lane / CHUNKS, chunk = lane % CHUNKS, flip = corner_flip(sample);
    RingPosition<Warps> at;
    for (long long index = Warps::first_item() + consumer; index < item_count(call);
         index += Warps::items_per_turn()) {
        const Item item = item_at(call, index);
        float sums[CHUNK_ELEMENTS];
        clear(sums);
#pragma unroll 1
        for (int round = 0; round < ROUNDS; ++round, at.advance()) {
            const int s = round * ROUND_SAMPLES + sample;
            const int buffer = Warps::buffer(consumer, at.stage);
            const bool exists = sample < samples_of_round(round);
            CornerWeights weights = {};
            if (exists) {
                const long long from = item.row * SAMPLES + s;
                const TilePlace place = place_tile(call.level[level_of_sample(s)], load_location(call, from),
                                                   load_attention(call, from));
                weights = flipped(place.weight, flip);
            }
            mbarrier_wait(Warps::full(buffer), at.parity);
            if (exists) add_tile(Warps::tile(buffer, sample), chunk, flip, weights, sums);
            mbarrier_arrive(Warps::empty(buffer));
        }
        store_exact(call, item, lane, combine_samples(sums, lane));
    }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(WARPS * 32, BLOCKS_PER_SM)
    fwd_warp_spec(const __grid_constant__ TiledParams params) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    Warps::make_rings();
    if (warp < Warps::PRODUCERS) {
        produce<Warps>(params, warp, lane, [](int, int, const TilePlace&) {});
    } else {
        consume(params, warp, lane);
    }
}
