// Many queries: a block walks neighbouring queries for one group of neighbouring heads.
//
// Who owns what. A pixel of one head is CHUNKS pieces of 16 bytes; LANES neighbouring lanes load it
// with one instruction. Eight lanes are one 128-byte wavefront of the L1 data path, and they are
// filled so that no two of them meet in a bank:
//
//   interleaved   lanes 0-3  head 2k    of query q      both heads of a pixel share a 128-byte line;
//                 lanes 4-7  head 2k+1  of query q      two pixels of one head would always collide
//   head-major    lanes 0-3  pixel x    of query q      the x neighbours are 128 contiguous bytes
//                 lanes 4-7  pixel x+1  of query q
//
// So a group of lanes owns one (query, head) and a warp QUERIES x HEADS of them: an item, neighbours in a
// row of queries. A raster of queries is cut into strips a few items
// wide; a block takes the next rows of a strip, one item per warp and round. Warps never wait for each
// other.
//
// A warp works in stages: its lanes first compute the metadata of four samples each (where the 2x2 cell
// starts, four weights that already contain the attention weight) into the warp's own shared memory,
// then every group gathers its samples two at a time. f16 corners are blended in packed half, four
// products deep, and added up in fp32; bf16 and f32 corners are multiplied and added in fp32. The weights
// of both half formats travel as f16: they are at most 1, where it has three more bits than bf16.
//
// Why that is fast. The wall is the L1 data path: each of four corners of 64 bytes always costs half a
// wavefront. Metadata adds about two wavefronts to the sixteen of a warp's samples. Queries that
// are neighbours in the image share most of their lines, so the window that an SM works in moves slowly:
// 88 to 94 % of the sectors hit L1 with local locations. All of the GPU works on one or two head groups at
// a time, which stay in L2.
//
// When it loses: a few hundred queries (fwd_split_gather spreads one query over a warp), and locations
// without any neighbourhood, where the bandwidth of L2 shows.
//
// Tried and lost, on an H200 (docs/kernels/fwd_tile_gather.md has the numbers): summing with tensor cores;
// one block per SM with a fixed share of everything; 24 or 40 warps per SM instead of 32; a barrier per round
// to keep warps at the same level; keeping fine levels out of L1, or coarse ones in it longer.
//
// Requires: what chunked_sample.cuh requires.
#include "query_walk.cuh"

using namespace msda;

namespace {

constexpr int WARPS = MSDA_WARPS;              // of a block, at most
constexpr int MIN_BLOCKS = MSDA_MIN_BLOCKS;    // per SM: caps the registers
constexpr int STRIP_ITEMS = MSDA_STRIP_ITEMS;  // side by side in a strip
constexpr int ROUNDS = MSDA_ROUNDS;            // items per warp of a long block
constexpr int UNROLL = MSDA_UNROLL;            // quads of samples per loop iteration

constexpr bool PACKED = VALUE_DTYPE != F32;  // two elements per register
using Walk = QueryWalk;
constexpr int GROUPS = Walk::GROUPS;
constexpr int GROUP_LANES = Walk::ROW_LANES;
constexpr bool X_PAIR = GROUP_LANES > LANES;    // a group reads two pixels
constexpr int WEIGHT_PACKETS = PACKED ? 2 : 4;  // of a quad, after one packet of offsets
static_assert(GROUP_LANES == (X_PAIR ? 2 * LANES : LANES), "a pixel or two");
static_assert(!X_PAIR || (PACKED && LAYOUT != INTERLEAVED && LANES == CHUNKS), "two pixels are one line");
static_assert(Walk::GROUP_PACKETS == 1 + WEIGHT_PACKETS, "as the host reserves");

// Adds weight * pixel, exactly converted, to this lane's channels.
MSDA_DEVICE void add_weighted(const Packet16& pixel, float weight, float (&sums)[CHUNK_ELEMENTS]) {
    float values[CHUNK_ELEMENTS];
    unpack<ValueStorage, CHUNK_ELEMENTS>(pixel, values);
#pragma unroll
    for (int w = 0; w < CHUNK_ELEMENTS; ++w) sums[w] = fmaf(weight, values[w], sums[w]);
}
MSDA_DEVICE void add_half2(unsigned pair, float& low, float& high) {
    low += half_to_float(static_cast<unsigned short>(pair));
    high += half_to_float(static_cast<unsigned short>(pair >> 16));
}
MSDA_DEVICE float low_weight(unsigned pair) { return half_to_float(static_cast<unsigned short>(pair)); }
MSDA_DEVICE float high_weight(unsigned pair) {
    return half_to_float(static_cast<unsigned short>(pair >> 16));
}

// ---- items -------------------------------------------------------------------------------------

// The work of a block: items of one head group of one image. A long block takes ROUNDS items per
// warp, which lie side by side and meet in L1. The last head groups go to short blocks of one item per warp,
// so that all SMs end together. ROUNDS rows of the grid then belong to one head group.
struct Share {
    int head_group;  // counted over images
    unsigned first_item;
    unsigned end;
};
MSDA_DEVICE Share share_of_block(const CallShape& shape) {
    const int grid_row = static_cast<int>(blockIdx.z * gridDim.y + blockIdx.y);
    const int long_groups = shape.long_groups;
    const unsigned warps = blockDim.x / 32;
    Share share;
    if (grid_row < long_groups) {
        share.head_group = grid_row;
        share.first_item = blockIdx.x * (ROUNDS * warps);
        share.end = share.first_item + ROUNDS * warps;
    } else {
        const int short_row = grid_row - long_groups;
        share.head_group = long_groups + short_row / ROUNDS;
        share.first_item = (short_row % ROUNDS * gridDim.x + blockIdx.x) * warps;
        share.end = share.first_item + warps;
    }
    return share;
}

// ---- metadata ----------------------------------------------------------------------------------

MSDA_DEVICE constexpr bool levels_start_at_multiples_of(int samples) {
    for (int l = 0; l < LEVELS; ++l) {
        if (POINT_OFFSETS.at[l] % samples != 0) return false;
    }
    return true;
}

MSDA_DEVICE void write_quad(const CallShape& shape, const Quad& quad, int first, Packet16* packets) {
    Packet16 offsets, weights[WEIGHT_PACKETS];
    int level = level_of_sample(first);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        if constexpr (!levels_start_at_multiples_of(4)) level = level_of_sample(first + i);
        const Sample sample = place_sample(shape.level[level], quad.x[i], quad.y[i], quad.attention[i]);
        offsets.word[i] = sample.offset;
        if constexpr (!PACKED) {
#pragma unroll
            for (int corner = 0; corner < 4; ++corner) {
                weights[i].word[corner] = float_to_bits(sample.weight[corner / 2][corner % 2]);
            }
        } else if constexpr (X_PAIR) {
            // One packet per side, (top, bottom) of each sample.
            weights[0].word[i] = floats_to_half2(sample.weight[0][0], sample.weight[1][0]);
            weights[1].word[i] = floats_to_half2(sample.weight[0][1], sample.weight[1][1]);
        } else {
            // One packet per two samples, (left, right) of the top and of the bottom row.
            weights[i / 2].word[i % 2 * 2] = floats_to_half2(sample.weight[0][0], sample.weight[0][1]);
            weights[i / 2].word[i % 2 * 2 + 1] = floats_to_half2(sample.weight[1][0], sample.weight[1][1]);
        }
    }
    packets[0] = offsets;
#pragma unroll
    for (int i = 0; i < WEIGHT_PACKETS; ++i) packets[(1 + i) * GROUPS] = weights[i];
}

// ---- gather ------------------------------------------------------------------------------------

// From a pixel to the one below it, in the unit of Sample::offset.
MSDA_DEVICE unsigned offset_to_row_below(const CallShape& shape, int sample) {
    const int pitch = shape.level[level_of_sample(sample)].row_pitch;
    return static_cast<unsigned>(pitch) * (PIXEL_BYTES / 16);
}

// Adds two samples, of which this lane reads one column each: (top, bottom) weights in a word.
MSDA_DEVICE void gather_columns(const unsigned char* pixels, const unsigned* offsets, const unsigned* weights,
                                const unsigned (&below)[2], float (&sums)[CHUNK_ELEMENTS]) {
    Packet16 upper[2], lower[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        load_readonly(upper[i], chunk_at(pixels, offsets[i]));
        load_readonly(lower[i], chunk_at(pixels, offsets[i] + below[i]));
    }
    if constexpr (VALUE_DTYPE == F16) {
#pragma unroll
        for (int w = 0; w < 4; ++w) {
            unsigned blend = multiply_half2(duplicate_low(weights[0]), upper[0].word[w]);
            blend = fma_half2(duplicate_high(weights[0]), lower[0].word[w], blend);
            blend = fma_half2(duplicate_low(weights[1]), upper[1].word[w], blend);
            blend = fma_half2(duplicate_high(weights[1]), lower[1].word[w], blend);
            add_half2(blend, sums[2 * w], sums[2 * w + 1]);
        }
    } else {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            add_weighted(upper[i], low_weight(weights[i]), sums);
            add_weighted(lower[i], high_weight(weights[i]), sums);
        }
    }
}

// Adds one sample, of which this lane reads all four corners. Packed weights are (left, right) of the top
// and of the bottom row, others one word per corner.
MSDA_DEVICE void gather_cell(const unsigned char* pixels, unsigned offset, const unsigned* weights,
                             unsigned below, float (&sums)[CHUNK_ELEMENTS]) {
    const unsigned char* top = chunk_at(pixels, offset);
    const unsigned char* bottom = chunk_at(pixels, offset + below);
    Packet16 corner[4];
    load_readonly(corner[0], top);
    load_readonly(corner[1], top + PIXEL_BYTES);
    load_readonly(corner[2], bottom);
    load_readonly(corner[3], bottom + PIXEL_BYTES);
    if constexpr (VALUE_DTYPE == F16) {
#pragma unroll
        for (int w = 0; w < 4; ++w) {
            unsigned blend = multiply_half2(duplicate_low(weights[0]), corner[0].word[w]);
            blend = fma_half2(duplicate_high(weights[0]), corner[1].word[w], blend);
            blend = fma_half2(duplicate_low(weights[1]), corner[2].word[w], blend);
            blend = fma_half2(duplicate_high(weights[1]), corner[3].word[w], blend);
            add_half2(blend, sums[2 * w], sums[2 * w + 1]);
        }
    } else {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
            // bf16: eight bits of mantissa cannot carry a blend within the contract.
            const float weight = !PACKED      ? bits_to_float(weights[c])
                                 : c % 2 == 0 ? low_weight(weights[c / 2])
                                              : high_weight(weights[c / 2]);
            add_weighted(corner[c], weight, sums);
        }
    }
}

// Adds the four samples of a quad, from `first` on, two by two.
MSDA_DEVICE void gather_quad(const CallShape& shape, const unsigned char* pixels, int side,
                             const Packet16* packets, int first, float (&sums)[CHUNK_ELEMENTS]) {
    unsigned below[4];
    below[0] = offset_to_row_below(shape, first);
#pragma unroll
    for (int i = 1; i < 4; ++i) {
        below[i] = levels_start_at_multiples_of(4) ? below[0] : offset_to_row_below(shape, first + i);
    }
    if constexpr (X_PAIR) {
        const Packet16 offsets = packets[0];
        const Packet16 weights = packets[(1 + side) * GROUPS];
#pragma unroll
        for (int i = 0; i < 4; i += 2) {
            gather_columns(pixels, offsets.word + i, weights.word + i, {below[i], below[i + 1]}, sums);
        }
    } else {
#pragma unroll
        for (int pair = 0; pair < 2; ++pair) {
            const Packet<8> offsets = reinterpret_cast<const Packet<8>*>(packets)[pair];
            Packet16 weights[WEIGHT_PACKETS / 2];
#pragma unroll
            for (int i = 0; i < WEIGHT_PACKETS / 2; ++i) {
                weights[i] = packets[(1 + pair * (WEIGHT_PACKETS / 2) + i) * GROUPS];
            }
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                gather_cell(pixels, offsets.word[i],
                            PACKED ? weights[0].word + 2 * i : weights[i % (WEIGHT_PACKETS / 2)].word,
                            below[2 * pair + i], sums);
            }
        }
    }
}

// ---- the walk ----------------------------------------------------------------------------------

// The walk's task: this lane's chunk of the output row that its group owns.
template <typename Source>
struct WeightedSums {
    static constexpr bool FINISHES = false;

    const ForwardParams& params;
    const Source& source;
    const Walk& walk;
    const unsigned char* pixels;  // this lane's chunk of its head's first pixel; side 1: of the second
    int side;
    int chunk;
    long long first_row;  // of the item
    float (&sums)[CHUNK_ELEMENTS];

    MSDA_DEVICE void place(const Quad& quad, int first, Packet16* packets) const {
        write_quad(params, quad, first, packets);
    }

    MSDA_DEVICE void gather(const Item& item, int run, int stage, int quads) {
        if (Walk::RUNS > 1 || stage == 0) {
#pragma unroll
            for (int w = 0; w < CHUNK_ELEMENTS; ++w) sums[w] = 0.0f;
        }
        const auto add_quad = [&](int quad) {
            gather_quad(params, pixels, side, walk.packets_of(run, quad), 4 * (stage + quad), sums);
        };
        if constexpr (Walk::QUADS % Walk::STAGE_QUADS == 0) {
#pragma unroll UNROLL
            for (int quad = 0; quad < Walk::STAGE_QUADS; ++quad) add_quad(quad);
        } else {
#pragma unroll 1
            for (int quad = 0; quad < quads; ++quad) add_quad(quad);
        }
        if (stage + Walk::STAGE_QUADS >= Walk::QUADS) finish(item, run);
    }

    // Called after the last sample. Stores the sums, unless the query or the chunk belongs to another lane.
    MSDA_DEVICE void finish(const Item& item, int run) {
        if constexpr (X_PAIR) {
#pragma unroll
            for (int w = 0; w < CHUNK_ELEMENTS; ++w) sums[w] += shuffle_xor(sums[w], LANES);
        }
        const int in_item = run * Walk::WARP_QUERIES + walk.group_query;
        const bool owns_chunk = LANES == CHUNKS || walk.lane % LANES < CHUNKS;
        if (in_item >= item.queries || side != 0 || !owns_chunk) return;

        const long long row = first_row + in_item * HEADS + walk.group_head;
        float zero = 0.0f;  // NaN if any sum is not finite
#pragma unroll
        for (int w = 0; w < CHUNK_ELEMENTS; ++w) zero = fmaf(sums[w], 0.0f, zero);
        if (!(zero == 0.0f)) recompute_exactly(params, source, pixels, row, sums);
        Packet16 packet;
        pack<ValueStorage, CHUNK_ELEMENTS>(sums, packet);
        store_streaming(element_address<ValueStorage>(params.output, row * CHANNELS) + chunk * 16, packet);
    }
};

template <typename Source>
MSDA_DEVICE void gather_queries(const ForwardParams& params, const Source& source) {
    const Walk walk;
    const Share share = share_of_block(params);
    if (share.head_group >= params.batch * Walk::HEAD_GROUPS) return;  // the grid's last plane is not full
    const HeadGroup heads = Walk::head_group(share.head_group);
    const int side = walk.lane % GROUP_LANES / LANES;
    const int chunk = at_most(walk.lane % LANES, CHUNKS - 1);
    const long long head_start = heads.batch * params.value_batch_stride +
                                 (heads.first_head + walk.group_head) * params.value_head_stride;
    // Side 1 of an x pair reads the next pixel, whose row follows directly in memory.
    const unsigned char* pixels = opaque_address(element_address<ValueStorage>(params.value, head_start) +
                                                 (side * CHUNKS + chunk) * 16);
#pragma unroll 1
    for (unsigned number = share.first_item + threadIdx.x / 32; number < share.end;
         number += blockDim.x / 32) {
        const Item item = Strips<Walk::ITEM_QUERIES, STRIP_ITEMS>::item(params, number);
        if (item.queries <= 0) continue;  // the same for the whole warp
        const long long first_row = Walk::first_row(params, heads, item);
        float sums[CHUNK_ELEMENTS];
        WeightedSums<Source> task = {params, source, walk, pixels, side, chunk, first_row, sums};
        walk.walk(item, first_row, 0, source, task);
    }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(WARPS * 32, MIN_BLOCKS)
    fwd_tile_gather(const __grid_constant__ ForwardParams params) {
    wait_for_launch_before();
    gather_queries(params, sample_source(params));
}
