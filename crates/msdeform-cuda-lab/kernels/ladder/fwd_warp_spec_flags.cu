// A flag per sample instead of a barrier per buffer, with the ordering that makes it right.
//
// Who owns what. As in fwd_warp_spec_meta with two producers. But each sample has a flag that announces its
// weights, and each consumer has a counter that announces its progress:
//
//     ready[buffer][sample]  written by the one producer lane that wrote the sample's weights
//     done[consumer]         written by lane 0 of the consumer
//
// A flag holds the number of the round that it announces, counted from 1 over the whole life of the block. It
// only ever grows. So it is never reset, a late reader does not mistake an old announcement for a new one,
// and there is no phase to agree on at the start. Tiles themselves are still announced by an mbarrier: the
// copy engine can signal nothing else.
//
// What the seed's version lacked. `volatile` gives no order: a reader may see the flag before the data. Here
// the writer's store releases and the reader's load acquires. And a wait that cannot end ends the kernel:
// spins are counted and trap.
//
// When it loses: eight flags are eight stores and, for the consumer, a poll of a word per lane where a
// barrier is one; the hardware can put a thread to sleep on an mbarrier, but not on a word.
#include "ladder/warp_roles.cuh"

using namespace msda;

namespace {

using Warps = Roles<2, 2>;

MSDA_DEVICE unsigned* ready_flag(int buffer, int sample) {
    return reinterpret_cast<unsigned*>(shared_memory() + Warps::FLAGS_AT) + buffer * ROUND_SAMPLES + sample;
}
MSDA_DEVICE unsigned* done_counter(int consumer) { return ready_flag(Warps::BUFFERS, 0) + consumer; }

constexpr int FLAGS = Warps::BUFFERS * ROUND_SAMPLES + Warps::CONSUMERS;

// Waits until the word is `number` or later. Numbers wrap around after 2^32 rounds; the difference does not.
MSDA_DEVICE void wait_for(const unsigned* flag, unsigned number) {
    for (unsigned attempt = 0; static_cast<int>(load_acquire_block(flag) - number) < 0; ++attempt) {
        if (attempt == 1u << 24) trap();
        pause(32);
    }
}

MSDA_DEVICE void produce_with_flags(const TiledParams& params, int warp, int lane) {
    static_assert(Feeding<Warps>::PASSES == 1, "two producers feed three consumers each");
    Feeding<Warps> feeding(params.call, warp, lane);
    const int consumer = feeding.consumer[0], sample = feeding.sample;
    RingPosition<Warps> at;
    for (unsigned number = 1; feeding.has_turn(params.call); ++number, at.advance()) {
        const auto tiles = feeding.place_and_advance(params.call);
        if (!tiles.fed[0]) continue;
        const int buffer = Warps::buffer(consumer, at.stage);
        // Waits for the round that used this buffer before. Rounds 1 and 2 have none: done starts at 0.
        wait_for(done_counter(consumer), number - Warps::STAGES);
        fence_before_copy();  // the engine overwrites what the consumer read with ordinary loads
        announce<Warps>(buffer, sample, tiles.count);
        if (!tiles.wanted[0]) continue;
        publish_weights<Warps>(buffer, sample, tiles.place[0]);
        store_release_block(ready_flag(buffer, sample), number);
        copy_tile(Warps::tile(buffer, sample), params.map[tiles.level], tiles.place[0], tiles.slab[0],
                  Warps::full(buffer));
    }
}

MSDA_DEVICE void consume_with_flags(const TiledParams& params, int warp, int lane) {
    const int consumer = warp - Warps::PRODUCERS;
    const int sample = lane / CHUNKS, chunk = lane % CHUNKS, flip = corner_flip(sample);
    RingPosition<Warps> at;
    unsigned number = 1;
    for (long long index = Warps::first_item() + consumer; index < item_count(params.call);
         index += Warps::items_per_turn()) {
        float sums[CHUNK_ELEMENTS];
        clear(sums);
#pragma unroll 1
        for (int round = 0; round < ROUNDS; ++round, ++number, at.advance()) {
            const int buffer = Warps::buffer(consumer, at.stage);
            const bool exists = sample < samples_of_round(round);
            CornerWeights weights = {};
            if (exists) {
                wait_for(ready_flag(buffer, sample), number);
                const Packet16 packet = *Warps::weights(buffer, sample);
#pragma unroll
                for (int c = 0; c < 4; ++c) weights.corner[c] = bits_to_float(packet.word[c]);
            }
            mbarrier_wait(Warps::full(buffer), at.parity);
            if (exists) add_tile(Warps::tile(buffer, sample), chunk, flip, weights, sums);
            sync_warp();
            if (lane == 0) store_release_block(done_counter(consumer), number);
        }
        store_exact(params.call, item_at(params.call, index), lane, combine_samples(sums, lane));
    }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(WARPS * 32, BLOCKS_PER_SM)
    fwd_warp_spec_flags(const __grid_constant__ TiledParams params) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (threadIdx.x < FLAGS) *ready_flag(0, threadIdx.x) = 0;
    Warps::make_rings();  // its barrier also shows all threads the flags
    if (warp < Warps::PRODUCERS) {
        produce_with_flags(params, warp, lane);
    } else {
        consume_with_flags(params, warp, lane);
    }
}
