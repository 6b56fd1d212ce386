// Warps with roles: a block has eight warps, of which the first PRODUCERS place samples and request their
// tiles from the copy engine, and the others compute. The grid is persistent: blocks take items in turns.
//
// Every consumer warp has a ring of STAGES buffers, a round's eight tiles each, with two mbarriers per
// buffer:
//
//     full   counts eight producer lanes, one of which announces the bytes, and the bytes; the consumer waits
//     empty  counts the 32 consumer lanes, when they have read the tiles; the producer waits
//
// Every lane arrives by itself. One lane could arrive for its warp after a sync_warp, with fewer arrivals;
// but then neither compute-sanitizer nor a reader sees which accesses a phase has ordered.
//
// What must hold, and why nothing hangs. A ring has exactly one warp at each end, and both walk the same
// items and rounds, found by the same arithmetic from the same numbers: each barrier is reached as often
// from one side as from the other, for any number of queries. A block without work runs no turn on
// either side; in the last turn some consumers have no item and leave, and their producer skips exactly
// these. The only barrier that counts all threads is the one after the rings were made, before the roles
// part. Waits are bounded and trap (ptx_copies.cuh).
#pragma once

#include "ladder/tensor_tiles.cuh"

namespace msda {

constexpr int WARPS = 8;
// For a block with two stages: as many blocks as leave a thread 64 registers. Mirrored by
// src/ladder/rounds.rs.
constexpr int BLOCKS_PER_SM = 4;

template <int PRODUCER_WARPS, int RING_STAGES>
struct Roles {
    static constexpr int PRODUCERS = PRODUCER_WARPS;
    static constexpr int CONSUMERS = WARPS - PRODUCERS;
    static constexpr int STAGES = RING_STAGES;
    static constexpr int BUFFERS = CONSUMERS * STAGES;

    // Shared memory: tiles, then other data of a variant for each buffer and sample, then barriers.
    static constexpr int WEIGHTS_AT = BUFFERS * ROUND_BYTES;
    static constexpr int BARRIERS_AT = WEIGHTS_AT + BUFFERS * ROUND_SAMPLES * 16;
    static constexpr int FLAGS_AT = BARRIERS_AT + 2 * BUFFERS * 8;

    MSDA_DEVICE static int buffer(int consumer, int stage) { return consumer * STAGES + stage; }
    MSDA_DEVICE static Packet16* tile(int buffer, int sample) {
        return reinterpret_cast<Packet16*>(shared_memory() + buffer * ROUND_BYTES) + sample * TILE_PACKETS;
    }
    MSDA_DEVICE static Packet16* weights(int buffer, int sample) {
        return reinterpret_cast<Packet16*>(shared_memory() + WEIGHTS_AT) + buffer * ROUND_SAMPLES + sample;
    }
    MSDA_DEVICE static Mbarrier* full(int buffer) {
        return reinterpret_cast<Mbarrier*>(shared_memory() + BARRIERS_AT) + buffer;
    }
    MSDA_DEVICE static Mbarrier* empty(int buffer) { return full(BUFFERS + buffer); }

    // Called by every thread of the block, once.
    MSDA_DEVICE static void make_rings() {
        if (threadIdx.x < BUFFERS) {
            mbarrier_init(full(threadIdx.x), ROUND_SAMPLES);
            mbarrier_init(empty(threadIdx.x), 32);
            mbarrier_init_fence();
        }
        __syncthreads();
    }

    // Items of turn t are first_item() + t * items_per_turn() and the following, one per consumer.
    MSDA_DEVICE static long long first_item() { return static_cast<long long>(blockIdx.x) * CONSUMERS; }
    MSDA_DEVICE static long long items_per_turn() { return static_cast<long long>(gridDim.x) * CONSUMERS; }
};

// The position of a warp in its ring. The parity is that of the phase in which the buffer is filled.
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
// once. Producer p has consumers p, p + PRODUCERS, p + 2 PRODUCERS and so on. Locations and weights of a
// round are loaded one round ahead: they come from DRAM, and no other warp hides a producer's wait.

template <typename R>
struct Feeding {
    static constexpr int FED = (R::CONSUMERS + R::PRODUCERS - 1) / R::PRODUCERS;  // by one producer
    static constexpr int PASSES = (FED + 3) / 4;

    // The data that a lane hands over in one round, for each pass.
    struct Tiles {
        bool fed[PASSES];     // the lane's consumer has an item: the lane arrives
        bool wanted[PASSES];  // and the lane has a sample of the round
        int slab[PASSES];
        TilePlace place[PASSES];
        int level;
        int count;  // of the round, for each consumer
    };

    int sample;
    int consumer[PASSES];
    long long first = R::first_item();
    int round = 0;
    bool has_item[PASSES];
    long long row[PASSES];
    int slab[PASSES];
    SampleInputs inputs[PASSES];

    MSDA_DEVICE Feeding(const ForwardParams& params, int warp, int lane) : sample(lane % ROUND_SAMPLES) {
#pragma unroll
        for (int pass = 0; pass < PASSES; ++pass) {
            consumer[pass] = warp + (4 * pass + lane / ROUND_SAMPLES) * R::PRODUCERS;
        }
        take_turn(params);
        load(params);
    }
    // Whether the block has another turn; the same for all lanes.
    MSDA_DEVICE bool has_turn(const ForwardParams& params) const { return first < item_count(params); }

    // Places the samples of this round and starts loading the next one's.
    MSDA_DEVICE Tiles place_and_advance(const ForwardParams& params) {
        Tiles tiles;
        tiles.count = samples_of_round(round);
        tiles.level = level_of_sample(at_most(round * ROUND_SAMPLES + sample, SAMPLES - 1));
#pragma unroll
        for (int pass = 0; pass < PASSES; ++pass) {
            tiles.fed[pass] = has_item[pass];
            tiles.wanted[pass] = has_item[pass] && sample < tiles.count;
            tiles.slab[pass] = slab[pass];
            tiles.place[pass] =
                place_tile(params.level[tiles.level], inputs[pass].location, inputs[pass].attention);
        }
        if (++round == ROUNDS) {
            round = 0;
            first += R::items_per_turn();
            take_turn(params);
        }
        load(params);
        return tiles;
    }

private:
    MSDA_DEVICE void take_turn(const ForwardParams& params) {
#pragma unroll
        for (int pass = 0; pass < PASSES; ++pass) {
            const long long index = first + consumer[pass];
            has_item[pass] = consumer[pass] < R::CONSUMERS && index < item_count(params);
            if (has_item[pass]) {
                const Item item = item_at(params, index);
                row[pass] = item.row;
                slab[pass] = item.slab;
            }
        }
    }
    MSDA_DEVICE void load(const ForwardParams& params) {
#pragma unroll
        for (int pass = 0; pass < PASSES; ++pass) {
            inputs[pass] = {};
            if (has_item[pass] && sample < samples_of_round(round)) {
                inputs[pass] = load_sample(params, row[pass] * SAMPLES + round * ROUND_SAMPLES + sample);
            }
        }
    }
};

// A producer lane's arrival. The first lane announces how many bytes will come. Copies of other lanes may
// arrive before that, but the phase waits for this lane.
template <typename R>
MSDA_DEVICE void announce(int buffer, int sample, int tiles) {
    if (sample == 0) {
        mbarrier_arrive_expect_bytes(R::full(buffer), tiles * TILE_BYTES);
    } else {
        mbarrier_arrive(R::full(buffer));
    }
}

// The whole life of a producer warp. `publish(buffer, sample, place)` writes further data of a sample for the
// consumer, before the buffer is announced.
template <typename R, typename Publish>
MSDA_DEVICE void produce(const TiledParams& params, int warp, int lane, Publish publish) {
    Feeding<R> feeding(params.call, warp, lane);
    RingPosition<R> at;
    for (; feeding.has_turn(params.call); at.advance()) {
        const auto tiles = feeding.place_and_advance(params.call);
        const int sample = feeding.sample;
#pragma unroll
        for (int pass = 0; pass < Feeding<R>::PASSES; ++pass) {
            const int buffer = R::buffer(feeding.consumer[pass], at.stage);
            if (tiles.fed[pass]) mbarrier_wait(R::empty(buffer), at.parity ^ 1u);
            if (tiles.wanted[pass]) publish(buffer, sample, tiles.place[pass]);
            if (tiles.fed[pass]) announce<R>(buffer, sample, tiles.count);
            if (tiles.wanted[pass]) {
                copy_tile(R::tile(buffer, sample), params.map[tiles.level], tiles.place[pass],
                          tiles.slab[pass], R::full(buffer));
            }
        }
    }
}

// ---- consumers -------------------------------------------------------------------------------------

// The whole life of a consumer warp that finds the weights of its samples next to their tiles.
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
            mbarrier_arrive(R::empty(buffer));
        }
        store_exact(params.call, item_at(params.call, index), lane, combine_samples(sums, lane));
    }
}

// The weights that producers write for a consumer.
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
