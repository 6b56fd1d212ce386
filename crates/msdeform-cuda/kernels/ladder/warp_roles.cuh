// Warps with roles: a block of eight warps, of which the first PRODUCERS place samples and ask the copy
// engine for their tiles, and the others compute. A persistent grid: blocks stay and take items in turns.
//
// Every consumer warp has a ring of STAGES buffers, a round's eight tiles each, with two mbarriers per buffer:
//
//     full   one arrival by the producer, which announces the bytes, and the bytes: the consumer waits
//     empty  one arrival by the consumer, which has read them:                      the producer waits
//
// What must hold, and why nothing hangs. A ring has exactly one warp at each end, and both walk the same
// items and rounds, found by the same arithmetic from the same numbers: each barrier is reached as often
// from one side as from the other, whatever the number of queries. A block without work runs no turn on
// either side; in the last turn some consumers have no item and leave, and their producer skips exactly
// these. The only barrier that counts all threads is the one after the rings were made, before the roles
// part. Waits are bounded and trap (ptx_copies.cuh).
#pragma once

#include "ladder/tensor_tiles.cuh"

namespace msda {

constexpr int WARPS = 8;
// Of a block with two stages: as many as leave a thread 64 registers. Mirrored by src/variants/ladder/mod.rs.
constexpr int BLOCKS_PER_SM = 4;

template <int PRODUCER_WARPS, int RING_STAGES>
struct Roles {
    static constexpr int PRODUCERS = PRODUCER_WARPS;
    static constexpr int CONSUMERS = WARPS - PRODUCERS;
    static constexpr int STAGES = RING_STAGES;
    static constexpr int BUFFERS = CONSUMERS * STAGES;

    // Shared memory: tiles, then what else a variant keeps per buffer and sample, then barriers.
    static constexpr int WEIGHTS_AT = BUFFERS * ROUND_BYTES;
    static constexpr int BARRIERS_AT = WEIGHTS_AT + BUFFERS * ROUND_SAMPLES * 16;
    static constexpr int FLAGS_AT = BARRIERS_AT + 2 * BUFFERS * 8;

    MSDA_DEVICE static int buffer(int consumer, int stage) { return consumer * STAGES + stage; }
    MSDA_DEVICE static Packet16* tile(int buffer, int sample) {
        return reinterpret_cast<Packet16*>(shared_memory() + buffer * ROUND_BYTES) +
               sample * TILE_PACKETS;
    }
    MSDA_DEVICE static Packet16* weights(int buffer, int sample) {
        return reinterpret_cast<Packet16*>(shared_memory() + WEIGHTS_AT) + buffer * ROUND_SAMPLES +
               sample;
    }
    MSDA_DEVICE static Mbarrier* full(int buffer) {
        return reinterpret_cast<Mbarrier*>(shared_memory() + BARRIERS_AT) + buffer;
    }
    MSDA_DEVICE static Mbarrier* empty(int buffer) { return full(BUFFERS + buffer); }

    // Called by every thread of the block, once.
    MSDA_DEVICE static void make_rings() {
        if (threadIdx.x < BUFFERS) {
            mbarrier_init(full(threadIdx.x), 1);
            mbarrier_init(empty(threadIdx.x), 1);
            mbarrier_init_fence();
        }
        __syncthreads();
    }

    // Items of turn t are first_item() + t * items_per_turn() and the following, one per consumer.
    MSDA_DEVICE static long long first_item() { return static_cast<long long>(blockIdx.x) * CONSUMERS; }
    MSDA_DEVICE static long long items_per_turn() {
        return static_cast<long long>(gridDim.x) * CONSUMERS;
    }
};

// Where in its ring a warp is. The parity is that of the phase in which the buffer is filled.
template <typename R>
struct RingPosition {
    int stage = 0;
    unsigned parity = 0;
    MSDA_DEVICE void advance() {
        if (++stage == R::STAGES) {
            stage = 0;
            parity ^= 1u;
        }
    }
};

// ---- producers -------------------------------------------------------------------------------------
// Eight lanes feed one consumer, a sample each, so that a producer places the samples of four consumers at
// once. Producer p has consumers p, p + PRODUCERS, p + 2 PRODUCERS and so on.

template <typename R>
struct Feeding {
    static constexpr int FED = (R::CONSUMERS + R::PRODUCERS - 1) / R::PRODUCERS;  // by one producer
    static constexpr int PASSES = (FED + 3) / 4;

    int consumer[PASSES];
    Item item[PASSES];  // of this turn
    bool has_item[PASSES];

    MSDA_DEVICE Feeding(int warp, int lane) {
#pragma unroll
        for (int pass = 0; pass < PASSES; ++pass) {
            consumer[pass] = warp + (4 * pass + lane / ROUND_SAMPLES) * R::PRODUCERS;
        }
    }
    MSDA_DEVICE void take_turn(const ForwardParams& params, long long first) {
#pragma unroll
        for (int pass = 0; pass < PASSES; ++pass) {
            const long long index = first + consumer[pass];
            has_item[pass] = consumer[pass] < R::CONSUMERS && index < item_count(params);
            if (has_item[pass]) item[pass] = item_at(params, index);
        }
    }
};

// The whole life of a producer warp. `publish(buffer, sample, place)` writes what else the consumer is told
// about a sample, before the buffer is announced.
template <typename R, typename Publish>
MSDA_DEVICE void produce(const TiledParams& params, int warp, int lane, Publish publish) {
    const int sample = lane % ROUND_SAMPLES;
    Feeding<R> feeding(warp, lane);
    RingPosition<R> at;
    for (long long first = R::first_item(); first < item_count(params.call);
         first += R::items_per_turn()) {
        feeding.take_turn(params.call, first);
#pragma unroll 1
        for (int round = 0; round < ROUNDS; ++round, at.advance()) {
            const int s = round * ROUND_SAMPLES + sample;
#pragma unroll
            for (int pass = 0; pass < Feeding<R>::PASSES; ++pass) {
                const int buffer = R::buffer(feeding.consumer[pass], at.stage);
                const Item& item = feeding.item[pass];
                const bool feeds = feeding.has_item[pass] && sample < samples_of_round(round);
                TilePlace place = {};
                if (feeds) {
                    const long long from = item.row * SAMPLES + s;
                    place = place_tile(params.call.level[level_of_sample(s)],
                                       load_location(params.call, from),
                                       load_attention(params.call, from));
                    mbarrier_wait(R::empty(buffer), at.parity ^ 1u);
                    publish(buffer, sample, place);
                }
                sync_warp();  // what all eight lanes published comes before the one arrival
                if (feeds && sample == 0) {
                    mbarrier_arrive_expect_bytes(R::full(buffer), samples_of_round(round) * TILE_BYTES);
                }
                if (feeds) {
                    copy_tile(R::tile(buffer, sample), params.map[level_of_sample(s)], place, item.slab,
                              R::full(buffer));
                }
            }
        }
    }
}

// ---- consumers -------------------------------------------------------------------------------------

// The buffer was read by every lane of the warp.
template <typename R>
MSDA_DEVICE void give_back(int buffer, int lane) {
    sync_warp();
    if (lane == 0) mbarrier_arrive(R::empty(buffer));
}

// The whole life of a consumer warp that finds the weights of its samples beside their tiles.
template <typename R>
MSDA_DEVICE void consume_with_metadata(const TiledParams& params, int warp, int lane) {
    const int consumer = warp - R::PRODUCERS;
    const int sample = lane / CHUNKS, chunk = lane % CHUNKS, flip = corner_flip(sample);
    RingPosition<R> at;
    for (long long index = R::first_item() + consumer; index < item_count(params.call);
         index += R::items_per_turn()) {
        float sums[CHUNK_ELEMENTS];
        clear(sums);
#pragma unroll 1
        for (int round = 0; round < ROUNDS; ++round, at.advance()) {
            const int buffer = R::buffer(consumer, at.stage);
            mbarrier_wait(R::full(buffer), at.parity);
            if (sample < samples_of_round(round)) {
                const Packet16 packet = *R::weights(buffer, sample);
                CornerWeights weights;
#pragma unroll
                for (int c = 0; c < 4; ++c) weights.corner[c] = bits_to_float(packet.word[c]);
                add_tile(R::tile(buffer, sample), chunk, flip, weights, sums);
            }
            give_back<R>(buffer, lane);
        }
        store_exact(params.call, item_at(params.call, index), lane, combine_samples(sums, lane));
    }
}

// What producers write for them.
template <typename R>
MSDA_DEVICE void publish_weights(int buffer, int sample, const TilePlace& place) {
    const CornerWeights weights = flipped(place.weight, corner_flip(sample));
    Packet16 packet;
#pragma unroll
    for (int c = 0; c < 4; ++c) packet.word[c] = float_to_bits(weights.corner[c]);
    *R::weights(buffer, sample) = packet;
}

// A block whose producers compute the metadata of every sample once.
template <typename R>
MSDA_DEVICE void run_with_metadata(const TiledParams& params) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    R::make_rings();
    if (warp < R::PRODUCERS) {
        produce<R>(params, warp, lane, [](int buffer, int sample, const TilePlace& place) {
            publish_weights<R>(buffer, sample, place);
        });
    } else {
        consume_with_metadata<R>(params, warp, lane);
    }
}

}  // namespace msda
