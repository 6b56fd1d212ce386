// Many queries: a block walks a 2-D tile of queries for one group of neighbouring heads.
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
// So a group of lanes owns one (query, head), a warp QUERIES x HEADS of them, a block the tile
// (blockIdx.x) of one image and head group (blockIdx.y). Warps never wait for each other.
//
// A warp works in stages: its lanes first compute the metadata of four samples each (where the 2x2 cell
// starts, four weights that already contain the attention weight) into the warp's own shared memory,
// then every group gathers its samples two at a time. f16 corners are blended in packed half, four
// products deep, and added up in fp32; bf16 and f32 corners are multiplied and added in fp32. The weights
// of both half formats travel as f16: they are at most 1, where it has three more bits than bf16.
//
// Why that is fast. The wall is the L1 data path: four corners of 64 bytes cost half a wavefront each,
// whatever else happens. Metadata adds 1.5 wavefronts per sample and warp, and queries
// that are neighbours in the image share most of their lines: 4 in 5 sectors hit L1 in the profiled trial.
//
// When it loses: few queries (fwd_split_gather spreads one query over a warp), and locations without any
// neighbourhood, where L2 latency shows.
//
// Tried and lost, on an H200: summing with tensor cores (an identity matrix turns mma into "add a half2
// to two floats"; 10 instructions fewer per sample, but the chip clocks 8 % lower); one persistent block
// per SM over a contiguous run of tiles (its bookkeeping costs more registers than its hits gain);
// blocks ordered so that neighbours share an SM (no more hits).
//
// Requires: what chunked_sample.cuh does.
#include "chunked_sample.cuh"

using namespace msda;

namespace {

constexpr int WARPS = MSDA_KNOB_WARPS;              // of a block
constexpr int MIN_BLOCKS = MSDA_KNOB_MIN_BLOCKS;    // per SM: caps the registers
constexpr int TILE_WIDTH = MSDA_KNOB_TILE_WIDTH;    // in queries
constexpr int TILE_HEIGHT = MSDA_KNOB_TILE_HEIGHT;
constexpr int UNROLL = MSDA_KNOB_UNROLL;            // pairs of samples per loop iteration

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
constexpr int ROW_ITEMS = TILE_WIDTH / ITEM_QUERIES;
constexpr int WEIGHT_PACKETS = PACKED ? 2 : 4;                 // 16 bytes each, per group and quad
constexpr int QUAD_PACKETS = GROUPS * (1 + WEIGHT_PACKETS);    // offsets first, then weights
constexpr int RUN_PACKETS = STAGE_QUADS * QUAD_PACKETS;
constexpr int WARP_PACKETS = RUNS * RUN_PACKETS;
static_assert(RUNS == 1 || QUADS == STAGE_QUADS, "several runs only where one stage is all");
static_assert(TILE_WIDTH % ITEM_QUERIES == 0, "a warp takes part of one tile row");

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

// ---- queries -----------------------------------------------------------------------------------

// A raster of queries: one level where the queries are the pixels, all of them otherwise.
struct Raster {
    int width;
    int height;
    int first_query;
    int tile_x;
    int tile_y;
};

MSDA_DEVICE int tiles_along(int queries, int tile) { return (queries + tile - 1) / tile; }

MSDA_DEVICE Raster raster_of_tile(const ForwardParams& params, int tile) {
    const bool queries_are_pixels = params.grid_aux != 0;
    const int width = params.query_raster_width;
    Raster raster = {width, tiles_along(params.queries, width), 0, 0, 0};
    int first_tile = 0;
    if (queries_are_pixels) {
        raster.width = params.level[0].width;
        raster.height = params.level[0].height;
        int level_tile = 0, level_query = 0;
#pragma unroll
        for (int l = 1; l < LEVELS; ++l) {
            const LevelGeometry& before = params.level[l - 1];
            level_tile += tiles_along(before.width, TILE_WIDTH) * tiles_along(before.height, TILE_HEIGHT);
            level_query += before.width * before.height;
            if (tile >= level_tile) {
                raster = {params.level[l].width, params.level[l].height, level_query, 0, 0};
                first_tile = level_tile;
            }
        }
    }
    const int tiles_x = tiles_along(raster.width, TILE_WIDTH);
    raster.tile_y = (tile - first_tile) / tiles_x;
    raster.tile_x = (tile - first_tile) - raster.tile_y * tiles_x;
    return raster;
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
            const unsigned char* address =
                element_address<S>(params.locations, 2 * sample);
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
            quad.attention[i] =
                exists ? load_element<S>(params.weights, index) : 0.0f;
        }
    }
    return quad;
}

MSDA_DEVICE void write_quad(const ForwardParams& params, const Quad& quad, int first,
                            Packet16* packets) {
    Packet16 offsets, weights[WEIGHT_PACKETS];
    int level = level_of_sample(first);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        if constexpr (!levels_start_at_multiples_of(4)) level = level_of_sample(first + i);
        const Sample sample =
            place_sample(params.level[level], quad.x[i], quad.y[i], quad.attention[i]);
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
            weights[i / 2].word[i % 2 * 2] =
                floats_to_half2(sample.weight[0][0], sample.weight[0][1]);
            weights[i / 2].word[i % 2 * 2 + 1] =
                floats_to_half2(sample.weight[1][0], sample.weight[1][1]);
        }
    }
    packets[0] = offsets;
#pragma unroll
    for (int i = 0; i < WEIGHT_PACKETS; ++i) packets[(1 + i) * GROUPS] = weights[i];
}

// ---- gather ------------------------------------------------------------------------------------

MSDA_DEVICE long long bytes_to_row_below(const ForwardParams& params, int sample) {
    return static_cast<long long>(params.level[level_of_sample(sample)].row_pitch) * PIXEL_BYTES;
}

// Adds samples 2 * pair and 2 * pair + 1 of a stage to this lane's channels.
MSDA_DEVICE void gather_pair(const ForwardParams& params, const unsigned char* pixels,
                             const Packet16* run_packets, int group, int side, int stage_first,
                             int pair, float (&sums)[CHUNK_ELEMENTS]) {
    const Packet16* quad = run_packets + pair / 2 * QUAD_PACKETS + column(group, pair / 2);
    const Packet<8> offsets = reinterpret_cast<const Packet<8>*>(quad)[pair % 2];
    Packet16 corners[2];  // of the two samples; the other kinds of weights below
    if constexpr (PACKED && X_PAIR) {
        const Packet<8> own =
            reinterpret_cast<const Packet<8>*>(quad + (1 + side) * GROUPS)[pair % 2];
        corners[0].word[0] = own.word[0];
        corners[1].word[0] = own.word[1];
    } else if constexpr (PACKED) {
        const Packet16 both = quad[(1 + pair % 2) * GROUPS];
        corners[0].word[0] = both.word[0];
        corners[0].word[1] = both.word[1];
        corners[1].word[0] = both.word[2];
        corners[1].word[1] = both.word[3];
    } else {
        corners[0] = quad[(1 + pair % 2 * 2) * GROUPS];
        corners[1] = quad[(2 + pair % 2 * 2) * GROUPS];
    }
    long long below = bytes_to_row_below(params, stage_first + 2 * pair);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        if (i == 1 && !levels_start_at_multiples_of(2)) {
            below = bytes_to_row_below(params, stage_first + 2 * pair + 1);
        }
        const unsigned char* top =
            pixels + static_cast<unsigned long long>(offsets.word[i]) * 16u;
        const unsigned char* bottom = top + below;
        const Packet16& weight = corners[i];
        if constexpr (X_PAIR) {
            Packet16 upper, lower;
            load_readonly(upper, top);
            load_readonly(lower, bottom);
            const unsigned both = weight.word[0];
            if constexpr (VALUE_DTYPE == F16) {
#pragma unroll
                for (int w = 0; w < 4; ++w) {
                    unsigned blend = multiply_half2(duplicate_low(both), upper.word[w]);
                    blend = fma_half2(duplicate_high(both), lower.word[w], blend);
                    add_half2(blend, sums[2 * w], sums[2 * w + 1]);
                }
            } else {
                add_weighted(upper, low_weight(both), sums);
                add_weighted(lower, high_weight(both), sums);
            }
        } else {
            Packet16 corner[4];
            load_readonly(corner[0], top);
            load_readonly(corner[1], top + PIXEL_BYTES);
            load_readonly(corner[2], bottom);
            load_readonly(corner[3], bottom + PIXEL_BYTES);
            if constexpr (VALUE_DTYPE == F16) {
                const unsigned upper = weight.word[0], lower = weight.word[1];
#pragma unroll
                for (int w = 0; w < 4; ++w) {
                    unsigned blend = multiply_half2(duplicate_low(upper), corner[0].word[w]);
                    blend = fma_half2(duplicate_high(upper), corner[1].word[w], blend);
                    blend = fma_half2(duplicate_low(lower), corner[2].word[w], blend);
                    blend = fma_half2(duplicate_high(lower), corner[3].word[w], blend);
                    add_half2(blend, sums[2 * w], sums[2 * w + 1]);
                }
            } else if constexpr (VALUE_DTYPE == BF16) {
                // Eight bits of mantissa cannot carry a blend within the contract.
                add_weighted(corner[0], low_weight(weight.word[0]), sums);
                add_weighted(corner[1], high_weight(weight.word[0]), sums);
                add_weighted(corner[2], low_weight(weight.word[1]), sums);
                add_weighted(corner[3], high_weight(weight.word[1]), sums);
            } else {
#pragma unroll
                for (int c = 0; c < 4; ++c) {
                    add_weighted(corner[c], bits_to_float(weight.word[c]), sums);
                }
            }
        }
    }
}

// Stores this lane's channels of an output row.
MSDA_DEVICE void finish(const ForwardParams& params, const unsigned char* head_pixels, long long row,
                        int chunk, float (&sums)[CHUNK_ELEMENTS]) {
    float zero = 0.0f;  // NaN if any sum is not finite
#pragma unroll
    for (int w = 0; w < CHUNK_ELEMENTS; ++w) zero = fmaf(sums[w], 0.0f, zero);
    if (!(zero == 0.0f)) recompute_exactly(params, head_pixels, row, sums);
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
    Packet16* own_packets = warp_packets + own_run * RUN_PACKETS + own_quad * QUAD_PACKETS +
                            column(own_group, own_quad);

    const Raster raster = raster_of_tile(params, static_cast<int>(blockIdx.x));
    constexpr int HEAD_GROUPS = HEADS / WARP_HEADS;

    for (int slab = blockIdx.y; slab < params.batch * HEAD_GROUPS; slab += gridDim.y) {
        const int batch = slab / HEAD_GROUPS;
        const int first_head = slab % HEAD_GROUPS * WARP_HEADS;
        const unsigned char* head_pixels =
            element_address<ValueStorage>(params.value,
                                          batch * params.value_batch_stride +
                                              (first_head + group_head) * params.value_head_stride) +
            chunk * 16;
        // Side 1 of an x pair reads the next pixel; its row follows at once.
        const unsigned char* pixels = head_pixels + side * (CHUNKS * 16);

#pragma unroll 1
        for (int item = warp; item < ROW_ITEMS * TILE_HEIGHT; item += WARPS) {
            const int x = raster.tile_x * TILE_WIDTH + item % ROW_ITEMS * ITEM_QUERIES;
            const int y = raster.tile_y * TILE_HEIGHT + item / ROW_ITEMS;
            const int query = raster.first_query + y * raster.width + x;
            const int in_row = at_most(raster.width - x, params.queries - query);
            const int queries = y < raster.height ? at_most(in_row, ITEM_QUERIES) : 0;
            if (queries <= 0) continue;  // the same for the whole warp

            const long long first_row =
                (static_cast<long long>(batch) * params.queries + query) * HEADS + first_head;
            const int own_query =
                at_most(own_run * WARP_QUERIES + own_group / WARP_HEADS, queries - 1);
            const long long own_row = first_row + own_query * HEADS + own_group % WARP_HEADS;

            float sums[CHUNK_ELEMENTS];
#pragma unroll 1
            for (int stage = 0; stage < QUADS; stage += STAGE_QUADS) {
                const int quads = at_most(STAGE_QUADS, QUADS - stage);
                if (own_run < RUNS && own_quad < quads) {
                    const int first = 4 * (stage + own_quad);
                    write_quad(params, load_quad<SamplingStorage>(params, own_row, first), first,
                               own_packets);
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
                        for (int pair = 0; pair < 2 * STAGE_QUADS; ++pair) {
                            gather_pair(params, pixels, run_packets, group, side, 4 * stage, pair, sums);
                        }
                    } else {
#pragma unroll 1
                        for (int pair = 0; pair < 2 * quads; ++pair) {
                            gather_pair(params, pixels, run_packets, group, side, 4 * stage, pair, sums);
                        }
                    }
                    if (stage + STAGE_QUADS < QUADS) continue;

                    if constexpr (X_PAIR) {
#pragma unroll
                        for (int w = 0; w < CHUNK_ELEMENTS; ++w) {
                            sums[w] += shuffle_xor(sums[w], LANES);
                        }
                    }
                    const int in_item = run * WARP_QUERIES + group_query;
                    const bool owns_chunk = LANES == CHUNKS || lane % LANES < CHUNKS;
                    if (in_item < queries && side == 0 && owns_chunk) {
                        const long long row = first_row + in_item * HEADS + group_head;
                        finish(params, head_pixels, row, chunk, sums);
                    }
                }
                sync_warp();  // the next stage overwrites what others may still read
            }
        }
    }
}
