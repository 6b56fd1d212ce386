// Several queries per block: QUERIES items share eight warps and one barrier.
//
// Who owns what. A block is persistent and takes QUERIES items per turn; 8 / QUERIES warps share an item's
// rounds of eight samples. Each warp leaves its partial sums, a channel per lane, in shared memory; after a
// barrier the first warp of an item adds them up and writes. Partial sums are double-buffered, so that one
// barrier a turn is enough.
//
// Why. With one query per block, 32 samples are four rounds for eight warps: half of the warps have nothing
// to do, and all of them wait at a barrier. Two queries fill the warps, four halve the barriers per query
// once more.
//
// The barrier counts every thread, so every thread runs every turn: in the last one, warps without an item
// add nothing and still arrive. If a warp left the loop instead, the block would wait for ever, as in the
// seed (docs/kernels/fwd_warp_spec.md).
//
// When it loses: against a warp per item, which needs no barrier at all.
#include "ladder/rounds.cuh"

using namespace msda;

namespace {

constexpr int WARPS = 8;
constexpr int BLOCKS_PER_SM = 4;
constexpr int QUERIES = MSDA_QUERIES;
constexpr int SHARES = WARPS / QUERIES;  // warps of an item

// sums += every SHARES-th round of an item, from `share` on.
MSDA_DEVICE void add_rounds(const ForwardParams& params, const Item& item, int share, int lane,
                            float (&sums)[CHUNK_ELEMENTS]) {
    const int sample = lane / CHUNKS;
    const unsigned char* chunk = item.pixels + lane % CHUNKS * 16;
    for (int round = share; round < ROUNDS; round += SHARES) {
        if (sample >= samples_of_round(round)) continue;
        const int s = round * ROUND_SAMPLES + sample;
        const LevelGeometry& level = params.level[level_of_sample(s)];
        const long long from = item.row * SAMPLES + s;
        const Location location = load_location(params, from);
        const Sample at = place_sample(level, location.x, location.y, load_attention(params, from));
        add_corners(load_corners(chunk, at.offset, row_below(level)), at.weight, sums);
    }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(WARPS * 32, BLOCKS_PER_SM)
    fwd_multi_query(const __grid_constant__ ForwardParams params) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int share = warp % SHARES;
    float* partial = reinterpret_cast<float*>(shared_memory());  // [2][WARPS][32]
    int buffer = 0;
    for (long long first = static_cast<long long>(blockIdx.x) * QUERIES; first < item_count(params);
         first += static_cast<long long>(gridDim.x) * QUERIES, buffer ^= 1) {
        const long long index = first + warp / SHARES;
        const bool has_item = index < item_count(params);  // the same for all warps of an item
        const Item item = item_at(params, has_item ? index : first);
        float sums[CHUNK_ELEMENTS];
        clear(sums);
        if (has_item) add_rounds(params, item, share, lane, sums);
        float sum = combine_samples(sums, lane);
        float* own = partial + (buffer * WARPS + warp) * 32 + lane;
        *own = sum;
        __syncthreads();
        if (share == 0 && has_item) {
#pragma unroll
            for (int other = 1; other < SHARES; ++other) sum += own[other * 32];
            store_item(params, item, lane, sum);
        }
    }
}
