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
// row of queries. A slab is one image and head group. A raster of queries is cut into strips a few items
// wide; a block takes the next rows of a strip, one item per warp and round. Warps never wait for each
// other.
//
// A warp works in stages: its lanes first compute the metadata of four samples each (where the 2x2 cell
// starts, four weights that already contain the attention weight) into the warp's own shared memory,
// then every group gathers its samples two at a time. f16 corners are blended in packed half, four
// products deep, and added up in fp32; bf16 and f32 corners are multiplied and added in fp32. The weights
// of both half formats travel as f16: they are at most 1, where it has three more bits than bf16.
//
// Why that is fast. The wall is the L1 data path: four corners of 64 bytes cost half a wavefront each,
// whatever else happens. Metadata adds about two wavefronts to the sixteen of a warp's samples. Queries that
// are neighbours in the image share most of their lines, so the window that an SM works in moves slowly:
// 88 to 94 % of the sectors hit L1 with local locations. All of the GPU works on one or two slabs at a time,
// which stay in L2.
//
// When it loses: a few hundred queries (fwd_split_gather spreads one query over a warp), and locations
// without any neighbourhood, where the bandwidth of L2 shows.
//
// Tried and lost, on an H200 (docs/kernels/fwd_tile_gather.md has the numbers): summing with tensor cores;
// one block per SM with a fixed share of everything; 24 or 40 warps per SM instead of 32; a barrier per round
// to keep warps at the same level; keeping fine levels out of L1, or coarse ones in it longer.
//
// Requires: what chunked_sample.cuh does.
#include "chunked_sample.cuh"

using namespace msda;

namespace {

constexpr int WARPS = MSDA_KNOB_WARPS;              // of a block, at most; the launch says how many
constexpr int MIN_BLOCKS = MSDA_KNOB_MIN_BLOCKS;    // of that size per SM: caps the registers
constexpr int STRIP_ITEMS = MSDA_KNOB_STRIP_ITEMS;  // side by side in a strip
constexpr int ROUNDS = MSDA_KNOB_ROUNDS;            // items per warp of a long block
constexpr int UNROLL = MSDA_KNOB_UNROLL;            // quads of samples per loop iteration

MSDA_DEVICE constexpr int heads_that_share_a_line(int lanes) {
    int heads = 1;
    while (2 * heads * lanes <= 8 && HEADS % (2 * heads) == 0) heads *= 2;
    return heads;
}

constexpr bool PACKED = VALUE_DTYPE != F32;  // two elements per register
constexpr bool X_PAIR = PACKED && LAYOUT != INTERLEAVED && LANES == CHUNKS && LANES <= 4;
constexpr int GROUP_LANES = X_PAIR ? 2 * LANES : LANES;
constexpr int GROUPS = 32 / GROUP_LANES;
constexpr int WARP_HEADS = LAYOUT == INTERLEAVED ? heads_that_share_a_line(LANES) : 1;
constexpr int WARP_QUERIES = GROUPS / WARP_HEADS;

static_assert(HEADS > 0, "heads are compiled in");

// Metadata: quads of samples, one quad per lane and stage. With many samples a (query, head) takes several
// stages; with few, one stage serves several runs of WARP_QUERIES queries, gathered one after another.
constexpr int QUADS = (SAMPLES + 3) / 4;  // of one (query, head)
constexpr int STAGE_QUADS = at_most(QUADS, 32 / GROUPS);
constexpr int RUNS = 32 / (GROUPS * next_power_of_two(STAGE_QUADS));
constexpr int ITEM_QUERIES = RUNS * WARP_QUERIES;  // neighbours in a row of the tile
constexpr int STRIP_WIDTH = STRIP_ITEMS * ITEM_QUERIES;
constexpr int WEIGHT_PACKETS = PACKED ? 2 : 4;               // 16 bytes each, per group and quad
constexpr int QUAD_PACKETS = GROUPS * (1 + WEIGHT_PACKETS);  // offsets first, then weights
constexpr int RUN_PACKETS = STAGE_QUADS * QUAD_PACKETS;
constexpr int WARP_PACKETS = RUNS * RUN_PACKETS;
static_assert(RUNS == 1 || QUADS == STAGE_QUADS, "several runs only where one stage is all");

// Where a group's packets stand among the GROUPS of a quad. Eight lanes write together: neighbouring quads
// of one or more groups, whose rows start at the same bank or a few apart; the twist keeps them apart.
MSDA_DEVICE int column(int group, int quad) {
    return (group ^ (GROUPS >= 8 ? quad * (GROUPS / 4) : quad * GROUPS / 8)) % GROUPS;
}

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

// What a block computes: items of one slab (one image, one head group). A long block takes ROUNDS items per
// warp, which lie side by side and meet in L1. The last slabs go to short blocks of one item per warp, so
// that all SMs end together: there ROUNDS rows of the grid stand for one slab.
struct Share {
    int slab;
    unsigned first_item;
    unsigned end;
};
MSDA_DEVICE Share share_of_block(const ForwardParams& params) {
    const int grid_row = static_cast<int>(blockIdx.z * gridDim.y + blockIdx.y);
    const int long_slabs = params.grid_aux;
    const unsigned warps = blockDim.x / 32;
    Share share;
    if (grid_row < long_slabs) {
        share.slab = grid_row;
        share.first_item = blockIdx.x * (ROUNDS * warps);
        share.end = share.first_item + ROUNDS * warps;
    } else {
        const int short_row = grid_row - long_slabs;
        share.slab = long_slabs + short_row / ROUNDS;
        share.first_item = (short_row % ROUNDS * gridDim.x + blockIdx.x) * warps;
        share.end = share.first_item + warps;
    }
    return share;
}

// A raster of queries: one level where the queries are the pixels, all of them otherwise. It is cut into
// strips of STRIP_ITEMS items across; items are numbered along the rows of a strip, strip after strip.
struct Raster {
    int width;
    int height;
};
MSDA_DEVICE unsigned items_of(const Raster& raster) {
    const unsigned strips = static_cast<unsigned>(raster.width + STRIP_WIDTH - 1) / STRIP_WIDTH;
    return strips * STRIP_ITEMS * static_cast<unsigned>(raster.height);
}

// Neighbouring queries in a row of a raster. None, or fewer than none, where a strip reaches past the
// raster or the number past the last item.
struct Item {
    int query;
    int queries;
};
MSDA_DEVICE Item item_of_raster(const Raster& raster, int first_query, int end_query, unsigned number) {
    const unsigned strip_items = STRIP_ITEMS * static_cast<unsigned>(raster.height);
    const unsigned strip = number / strip_items;
    const unsigned in_strip = number - strip * strip_items;
    const int x = static_cast<int>(strip * STRIP_WIDTH + in_strip % STRIP_ITEMS * ITEM_QUERIES);
    const int y = static_cast<int>(in_strip / STRIP_ITEMS);
    const int query = first_query + y * raster.width + x;
    return {query, at_most(at_most(raster.width - x, end_query - query), ITEM_QUERIES)};
}

MSDA_DEVICE Item item_of_slab(const ForwardParams& params, unsigned number) {
    const int queries = params.queries, width = params.query_raster_width;
    if (width >= queries) {  // one row
        const int query = static_cast<int>(number) * ITEM_QUERIES;
        return {query, at_most(queries - query, ITEM_QUERIES)};
    }
    if (width > 0) {
        const unsigned height = static_cast<unsigned>(queries + width - 1) / width;
        return item_of_raster({width, static_cast<int>(height)}, 0, queries, number);
    }

    // The queries are the pixels of the levels.
    Raster raster = {params.level[0].width, params.level[0].height};
    unsigned first_item = 0, next_item = 0;
    int first_query = 0, next_query = 0;
#pragma unroll
    for (int l = 1; l < LEVELS; ++l) {
        const Raster before = {params.level[l - 1].width, params.level[l - 1].height};
        next_item += items_of(before);
        next_query += before.width * before.height;
        if (number >= next_item) {
            raster = {params.level[l].width, params.level[l].height};
            first_item = next_item;
            first_query = next_query;
        }
    }
    return item_of_raster(raster, first_query, queries, number - first_item);
}

// ---- metadata ----------------------------------------------------------------------------------

MSDA_DEVICE constexpr bool levels_start_at_multiples_of(int samples) {
    for (int l = 0; l < LEVELS; ++l) {
        if (POINT_OFFSETS.at[l] % samples != 0) return false;
    }
    return true;
}

// Four samples of one (query, head): locations and weights from `first` on.
struct Quad {
    float x[4];
    float y[4];
    float attention[4];
};
template <typename S>
MSDA_DEVICE Quad load_quad(const ForwardParams& params, long long row, int first) {
    Quad quad;
    const long long sample = row * SAMPLES + first;
    if constexpr (SAMPLES % 4 == 0) {
        constexpr int BYTES = S::BYTES;
        float xy[8];
        Packet<4 * BYTES> weights;
        if constexpr (BYTES == 2) {
            Packet16 locations;
            load_streaming(locations, element_address<S>(params.locations, 2 * sample));
            unpack<S, 8>(locations, xy);
        } else {
            Packet16 half[2];
            const unsigned char* address = element_address<S>(params.locations, 2 * sample);
            load_streaming(half[0], address);
            load_streaming(half[1], address + 16);
#pragma unroll
            for (int i = 0; i < 8; ++i) xy[i] = bits_to_float(half[i / 4].word[i % 4]);
        }
        load_streaming(weights, element_address<S>(params.weights, sample));
        unpack<S, 4>(weights, quad.attention);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            quad.x[i] = xy[2 * i];
            quad.y[i] = xy[2 * i + 1];
        }
    } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            // Past the last sample: a location outside of every level, so the weights become zero.
            const bool exists = first + i < SAMPLES;
            const long long index = exists ? sample + i : sample;
            quad.x[i] = exists ? load_element<S>(params.locations, 2 * index) : -4.0f;
            quad.y[i] = load_element<S>(params.locations, 2 * index + 1);
            quad.attention[i] = exists ? load_element<S>(params.weights, index) : 0.0f;
        }
    }
    return quad;
}

MSDA_DEVICE void write_quad(const ForwardParams& params, const Quad& quad, int first, Packet16* packets) {
    Packet16 offsets, weights[WEIGHT_PACKETS];
    int level = level_of_sample(first);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        if constexpr (!levels_start_at_multiples_of(4)) level = level_of_sample(first + i);
        const Sample sample = place_sample(params.level[level], quad.x[i], quad.y[i], quad.attention[i]);
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
MSDA_DEVICE unsigned offset_to_row_below(const ForwardParams& params, int sample) {
    const int pitch = params.level[level_of_sample(sample)].row_pitch;
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

// Adds the four samples of a quad, two by two, to this lane's channels.
MSDA_DEVICE void gather_quad(const ForwardParams& params, const unsigned char* pixels,
                             const Packet16* run_packets, int group, int side, int stage, int quad,
                             float (&sums)[CHUNK_ELEMENTS]) {
    const Packet16* packets = run_packets + quad * QUAD_PACKETS + column(group, quad);
    unsigned below[4];
    below[0] = offset_to_row_below(params, 4 * (stage + quad));
#pragma unroll
    for (int i = 1; i < 4; ++i) {
        below[i] =
            levels_start_at_multiples_of(4) ? below[0] : offset_to_row_below(params, 4 * (stage + quad) + i);
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

// Stores this lane's channels of an output row.
MSDA_DEVICE void finish(const ForwardParams& params, const unsigned char* pixels, long long row, int chunk,
                        float (&sums)[CHUNK_ELEMENTS]) {
    float zero = 0.0f;  // NaN if any sum is not finite
#pragma unroll
    for (int w = 0; w < CHUNK_ELEMENTS; ++w) zero = fmaf(sums[w], 0.0f, zero);
    if (!(zero == 0.0f)) recompute_exactly(params, pixels, row, sums);
    Packet16 packet;
    pack<ValueStorage, CHUNK_ELEMENTS>(sums, packet);
    store_streaming(element_address<ValueStorage>(params.output, row * CHANNELS) + chunk * 16, packet);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(WARPS * 32, MIN_BLOCKS)
    fwd_tile_gather(const __grid_constant__ ForwardParams params) {
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    Packet16* warp_packets = reinterpret_cast<Packet16*>(shared_memory()) + warp * WARP_PACKETS;

    // Gathering, this lane belongs to (query, head) `group` and owns one chunk of its channels.
    const int group = lane / GROUP_LANES;
    const int group_query = group / WARP_HEADS;
    const int group_head = group % WARP_HEADS;
    const int side = lane % GROUP_LANES / LANES;
    const int chunk = at_most(lane % LANES, CHUNKS - 1);
    // For metadata it owns one quad of one group of one run. Neighbouring lanes take neighbouring quads:
    // locations and weights arrive in whole lines.
    const int own_quad = lane % STAGE_QUADS;
    const int own_group = lane / STAGE_QUADS % GROUPS;
    const int own_run = lane / (STAGE_QUADS * GROUPS);
    Packet16* own_packets =
        warp_packets + own_run * RUN_PACKETS + own_quad * QUAD_PACKETS + column(own_group, own_quad);

    constexpr int HEAD_GROUPS = HEADS / WARP_HEADS;
    const Share share = share_of_block(params);
    if (share.slab >= params.batch * HEAD_GROUPS) return;  // the grid's last plane is not full
    const int batch = share.slab / HEAD_GROUPS;
    const int first_head = share.slab % HEAD_GROUPS * WARP_HEADS;
    const long long head_start =
        batch * params.value_batch_stride + (first_head + group_head) * params.value_head_stride;
    // Side 1 of an x pair reads the next pixel; its row follows at once.
    const unsigned char* pixels = opaque_address(element_address<ValueStorage>(params.value, head_start) +
                                                 (side * CHUNKS + chunk) * 16);

#pragma unroll 1
    for (unsigned number = share.first_item + warp; number < share.end; number += blockDim.x / 32) {
        const Item item = item_of_slab(params, number);
        if (item.queries <= 0) continue;  // the same for the whole warp

        const long long first_row =
            (static_cast<long long>(batch) * params.queries + item.query) * HEADS + first_head;
        const int own_query = at_most(own_run * WARP_QUERIES + own_group / WARP_HEADS, item.queries - 1);
        const long long own_row = first_row + own_query * HEADS + own_group % WARP_HEADS;

        float sums[CHUNK_ELEMENTS];
#pragma unroll 1
        for (int stage = 0; stage < QUADS; stage += STAGE_QUADS) {
            const int quads = at_most(STAGE_QUADS, QUADS - stage);
            if (own_run < RUNS && own_quad < quads) {
                const int first = 4 * (stage + own_quad);
                write_quad(params, load_quad<SamplingStorage>(params, own_row, first), first, own_packets);
            }
            sync_warp();
#pragma unroll 1
            for (int run = 0; run < RUNS; ++run) {
                const Packet16* run_packets = warp_packets + run * RUN_PACKETS;
                if (RUNS > 1 || stage == 0) {
#pragma unroll
                    for (int w = 0; w < CHUNK_ELEMENTS; ++w) sums[w] = 0.0f;
                }
                if constexpr (QUADS % STAGE_QUADS == 0) {
#pragma unroll UNROLL
                    for (int quad = 0; quad < STAGE_QUADS; ++quad) {
                        gather_quad(params, pixels, run_packets, group, side, stage, quad, sums);
                    }
                } else {
#pragma unroll 1
                    for (int quad = 0; quad < quads; ++quad) {
                        gather_quad(params, pixels, run_packets, group, side, stage, quad, sums);
                    }
                }
                if (stage + STAGE_QUADS < QUADS) continue;

                if constexpr (X_PAIR) {
#pragma unroll
                    for (int w = 0; w < CHUNK_ELEMENTS; ++w) sums[w] += shuffle_xor(sums[w], LANES);
                }
                const int in_item = run * WARP_QUERIES + group_query;
                const bool owns_chunk = LANES == CHUNKS || lane % LANES < CHUNKS;
                if (in_item < item.queries && side == 0 && owns_chunk) {
                    const long long row = first_row + in_item * HEADS + group_head;
                    finish(params, pixels, row, chunk, sums);
                }
            }
            sync_warp();  // the next stage or item overwrites what others may still read
        }
    }
}
