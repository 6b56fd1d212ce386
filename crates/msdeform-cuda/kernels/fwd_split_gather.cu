// Few queries: a whole warp for one (query, head), its samples spread over the lanes.
//
// Who owns what. LANES neighbouring lanes read one pixel as 16-byte chunks; the warp has SPLITS such
// groups, and group g takes samples g, g + SPLITS, ... . Each lane computes the metadata of its group's
// sample itself: the same numbers LANES times, but nothing to exchange and nothing to wait for. At the
// end the groups' sums are added by a shuffle tree that halves the channels a lane still holds at every
// step, so that the last step leaves each lane with its own piece of the output row.
//
// Why that is fast. A decoder has 300 queries x 8 heads: one group of lanes for each would leave the
// GPU empty and every sample waiting for the one before. Here 16 samples are two rounds of loads, all in
// flight at once; what remains is two trips to memory (locations, pixels), the tree, and the launch.
//
// When it loses: with many queries the redundant metadata and the tree cost more than the parallelism
// gains (fwd_tile_gather).
//
// Requires: what chunked_sample.cuh requires.
#include "sample_source.cuh"

using namespace msda;

namespace {

constexpr int WARPS = MSDA_WARPS;  // of a block; each has its own row
constexpr int SPLITS = 32 / LANES;
constexpr int ROUNDS = (SAMPLES + SPLITS - 1) / SPLITS;
constexpr int ROUNDS_IN_FLIGHT = at_most(ROUNDS, MSDA_ROUNDS);
constexpr bool WHOLE_ROUNDS = SAMPLES % (ROUNDS_IN_FLIGHT * SPLITS) == 0;

// Adds the sums of lanes that differ in bit MASK. In each step a lane keeps half of its COUNT sums, the upper
// half if its bit is set, until one sum is left; then both lanes keep that sum. Next does the lower bits.
template <int MASK, int COUNT>
struct Tree {
    static constexpr int KEPT = COUNT > 1 ? COUNT / 2 : 1;
    using Next = Tree<MASK / 2, KEPT>;

    template <int N>
    MSDA_DEVICE static int reduce(float (&sums)[N], int lane) {
        const bool upper = (lane & MASK) != 0;
        int first = 0;
        if constexpr (COUNT > 1) {
#pragma unroll
            for (int i = 0; i < KEPT; ++i) {
                const float sent = upper ? sums[i] : sums[i + KEPT];
                const float kept = upper ? sums[i + KEPT] : sums[i];
                sums[i] = kept + shuffle_xor(sent, MASK);
            }
            first = upper ? KEPT : 0;
        } else {
            sums[0] += shuffle_xor(sums[0], MASK);
        }
        if constexpr (MASK / 2 >= LANES) first += Next::reduce(sums, lane);
        return first;
    }

    // left: how many sums a lane has at the end. copies: the lane bits whose lanes then have the same sums.
    MSDA_DEVICE static constexpr int left() {
        if constexpr (MASK / 2 >= LANES) return Next::left();
        return KEPT;
    }
    MSDA_DEVICE static constexpr int copies() {
        int same = COUNT > 1 ? 0 : MASK;
        if constexpr (MASK / 2 >= LANES) same |= Next::copies();
        return same;
    }
};

// Samples whose loads are in flight together: the four corners of each and their weights.
struct Rounds {
    Packet16 corner[ROUNDS_IN_FLIGHT][4];
    float weight[ROUNDS_IN_FLIGHT][4];
};

// Starts loading the corners of the next samples of this lane's group.
template <typename Source, typename Row>
MSDA_DEVICE void load_rounds(const CallShape& shape, const Source& source, const Row& row,
                             const unsigned char* pixels, int first, Rounds& rounds) {
#pragma unroll
    for (int r = 0; r < ROUNDS_IN_FLIGHT; ++r) {
        const int s = first + r * SPLITS;
        const bool exists = WHOLE_ROUNDS || s < SAMPLES;
        const Location location = source.location(row, exists ? s : 0);
        float attention = 1.0f;  // if lanes share a row, weigh_rounds multiplies it in
        if constexpr (!Operator::SHARES_ROWS) attention = source.attention(row, exists ? s : 0);
        const LevelGeometry& level = shape.level[level_of_sample(exists ? s : 0)];
        const Sample sample = place_sample(level, location.x, location.y, exists ? attention : 0.0f);
#pragma unroll
        for (int c = 0; c < 4; ++c) rounds.weight[r][c] = sample.weight[c / 2][c % 2];
        const unsigned below = static_cast<unsigned>(level.row_pitch) * (PIXEL_BYTES / 16);
        const unsigned char* top = chunk_at(pixels, sample.offset);
        const unsigned char* bottom = chunk_at(pixels, sample.offset + below);
        load_readonly(rounds.corner[r][0], top);
        load_readonly(rounds.corner[r][1], top + PIXEL_BYTES);
        load_readonly(rounds.corner[r][2], bottom);
        load_readonly(rounds.corner[r][3], bottom + PIXEL_BYTES);
    }
}

template <typename Source, typename Row>
MSDA_DEVICE void weigh_rounds(const Source& source, const Row& row, int first, Rounds& rounds) {
#pragma unroll
    for (int r = 0; r < ROUNDS_IN_FLIGHT; ++r) {
        const int s = first + r * SPLITS;
        const float attention = source.attention(row, WHOLE_ROUNDS || s < SAMPLES ? s : 0);
#pragma unroll
        for (int c = 0; c < 4; ++c) rounds.weight[r][c] *= attention;
    }
}

MSDA_DEVICE void add_rounds(const Rounds& rounds, float (&sums)[CHUNK_ELEMENTS]) {
#pragma unroll
    for (int r = 0; r < ROUNDS_IN_FLIGHT; ++r) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
            float values[CHUNK_ELEMENTS];
            unpack<ValueStorage, CHUNK_ELEMENTS>(rounds.corner[r][c], values);
#pragma unroll
            for (int w = 0; w < CHUNK_ELEMENTS; ++w) {
                sums[w] = fmaf(rounds.weight[r][c], values[w], sums[w]);
            }
        }
    }
}

// Adds up over the groups and stores each lane's piece of its chunk, at `output`.
MSDA_DEVICE void store_tree(unsigned char* output, bool owns_chunk, float (&sums)[CHUNK_ELEMENTS]) {
    const int lane = threadIdx.x % 32;
    constexpr bool SPLIT = SPLITS > 1;
    using Sum = Tree<SPLIT ? 16 : LANES, CHUNK_ELEMENTS>;
    constexpr int LEFT = SPLIT ? Sum::left() : CHUNK_ELEMENTS;
    constexpr int COPIES = SPLIT ? Sum::copies() : 0;
    int first = 0;
    if constexpr (SPLIT) first = Sum::reduce(sums, lane);
    if (!owns_chunk || (lane & COPIES) != 0) return;
    float own[LEFT];
#pragma unroll
    for (int i = 0; i < LEFT; ++i) own[i] = sums[i];
    Packet<LEFT * ValueStorage::BYTES> packet;
    pack<ValueStorage, LEFT>(own, packet);
    store(output + first * ValueStorage::BYTES, packet);
}

template <typename Source>
MSDA_DEVICE void gather_rows(const ForwardParams& params, const Source& source) {
    const int lane = threadIdx.x % 32;
    const int group = lane / LANES;
    const int chunk = at_most(lane % LANES, CHUNKS - 1);
    const bool owns_chunk = LANES == CHUNKS || lane % LANES < CHUNKS;
    const long long rows = static_cast<long long>(params.batch) * params.queries * HEADS;

    for (long long row = static_cast<long long>(blockIdx.x) * WARPS + threadIdx.x / 32; row < rows;
         row += static_cast<long long>(gridDim.x) * WARPS) {
        const int head = static_cast<int>(row % HEADS);
        const int batch = static_cast<int>(row / HEADS / params.queries);
        const long long head_start = batch * params.value_batch_stride + head * params.value_head_stride;
        const unsigned char* pixels =
            opaque_address(element_address<ValueStorage>(params.value, head_start) + chunk * 16);
        // Pixels are loaded before the lanes prepare a shared row, because only the weights need the row.
        typename Source::Row samples = source.unprepared_row(row);
        constexpr int ROW_LANES = at_most(next_power_of_two(SAMPLES), 32);
        float sums[CHUNK_ELEMENTS];
#pragma unroll
        for (int w = 0; w < CHUNK_ELEMENTS; ++w) sums[w] = 0.0f;
#pragma unroll 1
        for (int round = 0; round < ROUNDS; round += ROUNDS_IN_FLIGHT) {
            Rounds rounds;
            load_rounds(params, source, samples, pixels, round * SPLITS + group, rounds);
            if constexpr (Operator::SHARES_ROWS) {
                if (round == 0) samples = source.row(row, lane % ROW_LANES, ROW_LANES);
                weigh_rounds(source, samples, round * SPLITS + group, rounds);
            }
            add_rounds(rounds, sums);
        }

        float zero = 0.0f;  // NaN if any sum is not finite
#pragma unroll
        for (int w = 0; w < CHUNK_ELEMENTS; ++w) zero = fmaf(sums[w], 0.0f, zero);
        unsigned char* output = element_address<ValueStorage>(params.output, row * CHANNELS) + chunk * 16;
        if (!any_lane(!(zero == 0.0f))) {
            store_tree(output, owns_chunk, sums);
        } else if (group == 0 && owns_chunk) {
            recompute_exactly(params, source, pixels, row, sums);
            Packet16 packet;
            pack<ValueStorage, CHUNK_ELEMENTS>(sums, packet);
            store(output, packet);
        }
    }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(WARPS * 32)
    fwd_split_gather(const __grid_constant__ ForwardParams params) {
    wait_for_launch_before();
    gather_rows(params, sample_source(params));
}
