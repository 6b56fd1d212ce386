// The gradient of the values, tile by tile, from the lists of tile_lists.cuh.
//
// Who owns what. A warp owns a piece of a tile's list and 32 channels. For its 16 pixels it computes
//   sums[16 pixels x 32 channels] += weights[16 pixels x entries] * rows[entries x 32 channels]
// on the tensor cores, 32 entries at a time: the weights are products of two tents, max(0, 1 - |pixel - x|)
// and the same along y times the attention weight, dense for all 16 pixels, zero where a pixel is no
// corner; the rows are those of the output's gradient. Lane i prepares entry i: eight tents in fp32 to shared
// memory, and its row by asynchronous copies, one chunk ahead of the products.
//
// Why that is fast. No atomics, no zeroing, every pixel is written once and in its own format. There is no
// divergence: lists of any length cost what their entries cost, rounded up to 32. Building dense weights costs
// two instructions per entry and pixel pair, far less than 32 lanes branching over four corners.
//
// Numerics. Sums are fp32. f16 and bf16: a weight is rounded once, products are exact. f32: weights and rows
// are split into two tf32 each, three products, relative error about 2^-21. Tensor cores cut off what a sum
// cannot hold instead of rounding it, which drifts with the length of a list; so f32 adds up only 32 entries there
// and these sums outside.
//
// A weight of zero times a row that is not finite is NaN, for pixels that the sample never touches. So a
// result that is not finite is computed again, pixel by pixel, from the samples that have it as a corner
// (add_exactly).
//
// Where lists are short, a stage costs far more than its entries: then a warp owns a group of tiles and adds entry
// by entry, without tensor cores (sum_few).
//
// Layout of a stage: 32 slots; entry e takes slot 8 (e % 4) + e / 4. A slot's row lies at slot * ROW_BYTES, its
// 16-byte chunks twisted by slot / 8; then tents, four columns and four rows of TENT_PITCH floats. Lane 4g + t
// of a product owns pixels g and g + 8 of the tile and reads the tents of slots 8t to 8t + 7 in whole 16-byte
// loads; what it has then are entries t, t + 4, ..., so that a short list ends after the first steps.
#pragma once

#include "tile_lists.cuh"

namespace msda {

constexpr int GATHER_WARPS = 4;
constexpr int GATHER_BLOCKS = MSDA_KNOB_GATHER_BLOCKS;  // per SM: caps the registers
constexpr bool HALF = VALUE_DTYPE != F32;
constexpr int CHUNK = 32;  // entries at a time, one per lane
constexpr int ROW_BYTES = SLICE_CHANNELS * ValueStorage::BYTES;
constexpr int ROW_CHUNKS = ROW_BYTES / 16;
constexpr int ROWS_AT_ONCE = 32 / ROW_CHUNKS;  // that a warp copies with one instruction
constexpr int TENT_PITCH = CHUNK + 4;          // keeps the tents of odd and even pixels in different banks
constexpr int STAGE_BYTES = CHUNK * ROW_BYTES + 2 * TILE_SIDE * TENT_PITCH * 4;
constexpr int STAGES = 2;
constexpr unsigned FEW_ENTRIES = MSDA_KNOB_FEW;  // of a group of tiles: summed without tensor cores
static_assert(FEW_ENTRIES <= CHUNK, "a lane holds an entry");

// sums[n][i] of lane 4g + t: pixel g + 8 (i / 2); half: channel 8n + 2t + i % 2, f32: 8t + 4 (i % 2) + n.
constexpr int LANE_SUMS = 16;
using TileSums = float[4][4];

MSDA_DEVICE int channel_of_sum(int n, int i, int t) {
    return HALF ? 8 * n + 2 * t + i % 2 : 8 * t + 4 * (i % 2) + n;
}

MSDA_DEVICE unsigned row_chunk(int slot, int chunk) {
    const int twist = HALF ? slot / 8 : slot / 8 * 2;
    return slot * ROW_BYTES + (chunk ^ twist) * 16;
}

MSDA_DEVICE float tent_weight(float position, int pixel) {
    return saturate(1.0f - fabsf(position - static_cast<float>(pixel)));
}

// Rows of the output's gradient: one slab, one slice of its channels.
struct GradRows {
    const unsigned char* lane_chunk;  // the chunk of query 0 that this lane copies
    unsigned query_chunks;            // 16-byte chunks from one query to the next
    int chunks;                       // that exist of a row
};
MSDA_DEVICE GradRows grad_rows(const BackwardParams& params, int slab, int slice) {
    GradRows grad;
    const GradOutput upstream = grad_output(params);
    const long long first = slab / HEADS * upstream.batch_stride +
                            slab % HEADS * upstream.head_stride + slice * SLICE_CHANNELS;
    grad.lane_chunk = kept(element_address<ValueStorage>(upstream.first, first) +
                           threadIdx.x % ROW_CHUNKS * 16);
    grad.query_chunks = static_cast<unsigned>(upstream.query_stride) * ValueStorage::BYTES / 16u;
    grad.chunks = at_most(CHUNKS - slice * ROW_CHUNKS, ROW_CHUNKS);
    return grad;
}

// Where this lane copies to and reads from in stage 0, in bytes of shared memory.
struct LaneAddresses {
    unsigned copy[ROW_CHUNKS];  // its chunk of slots i * ROWS_AT_ONCE + lane / ROW_CHUNKS
    unsigned tents;             // of its entry
    unsigned x;                 // tents of its pixels, slots 8t and on
    unsigned y;
    unsigned rows[2];  // half: matrices of chunks 0 and 1, 2 and 3; f32: chunk g of slot 8t
};
MSDA_DEVICE LaneAddresses lane_addresses(unsigned stages) {
    const int lane = threadIdx.x % 32;
    const int g = lane / 4, t = lane % 4;
    LaneAddresses at;
#pragma unroll
    for (int i = 0; i < ROW_CHUNKS; ++i) {
        const int slot = i * ROWS_AT_ONCE + lane / ROW_CHUNKS;
        at.copy[i] = kept(stages + row_chunk(slot, lane % ROW_CHUNKS));
    }
    const unsigned tents = stages + CHUNK * ROW_BYTES;
    at.tents = kept(tents + (8 * (lane % 4) + lane / 4) * 4);
    at.x = kept(tents + (g % TILE_SIDE * TENT_PITCH + 8 * t) * 4);
    at.y = kept(tents + ((TILE_SIDE + g / TILE_SIDE) * TENT_PITCH + 8 * t) * 4);
    // Row r of a product's step s is slot 8 (r / 2) + 4s + r % 2, + 2 in its second half.
    const int matrix = lane / 8, r = lane % 8;
    const int slot = 8 * (r / 2) + 2 * (matrix % 2) + r % 2;
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
        at.rows[pair] =
            kept(stages + (HALF ? row_chunk(slot, 2 * pair + matrix / 2) : row_chunk(8 * t, g)));
    }
    return at;
}

// Starts copying the rows of up to 32 entries and writes their tents; rows and weights past the last are
// zero.
MSDA_DEVICE void stage_chunk(const LaneAddresses& at, unsigned stage, const EntryPacket& packet,
                             int entries, const GradRows& grad) {
    const int lane = threadIdx.x % 32;
    const Entry entry = unpack_entry(packet);
    const unsigned offset = entry.query * grad.query_chunks;
#pragma unroll
    for (int i = 0; i < ROW_CHUNKS; ++i) {
        const int slot = i * ROWS_AT_ONCE + lane / ROW_CHUNKS;
        const int source = slot % 8 * 4 + slot / 8;  // the entry of this slot
        const bool valid = source < entries &&
                           (CHANNELS % SLICE_CHANNELS == 0 || lane % ROW_CHUNKS < grad.chunks);
        const unsigned char* from =
            grad.lane_chunk + static_cast<unsigned long long>(shuffle(offset, source)) * 16;
        copy_async_or_zero(at.copy[i] + stage, from, valid);
    }
    const float attention = lane < entries ? entry.attention : 0.0f;
#pragma unroll
    for (int p = 0; p < TILE_SIDE; ++p) {
        const unsigned to = at.tents + stage + p * TENT_PITCH * 4;
        store_shared(to, tent_weight(entry.x, p));
        store_shared(to + TILE_SIDE * TENT_PITCH * 4, attention * tent_weight(entry.y, p));
    }
}

MSDA_DEVICE void load_eight(unsigned from, float (&to)[8]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        Packet16 packet;
        load_shared(packet, from + 16 * half);
#pragma unroll
        for (int i = 0; i < 4; ++i) to[4 * half + i] = bits_to_float(packet.word[i]);
    }
}

MSDA_DEVICE unsigned pack_pair(float low, float high) {
    return VALUE_DTYPE == F16 ? floats_to_half2(low, high) : floats_to_bfloat2(low, high);
}

// Two steps of 16 entries.
MSDA_DEVICE void add_chunk_half(const LaneAddresses& at, unsigned stage, int entries,
                                const float (&x)[8], const float (&upper)[8],
                                const float (&lower)[8], TileSums& sums) {
#pragma unroll
    for (int step = 0; step < 2; ++step) {
        if (step * 16 >= entries) return;
        unsigned weights[4];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int e = 4 * step + 2 * i;
            weights[2 * i] = pack_pair(x[e] * upper[e], x[e + 1] * upper[e + 1]);
            weights[2 * i + 1] = pack_pair(x[e] * lower[e], x[e + 1] * lower[e + 1]);
        }
#pragma unroll
        for (int pair = 0; pair < 2; ++pair) {
            unsigned words[4];
            load_matrices_transposed(words, at.rows[pair] + stage + step * 4 * ROW_BYTES);
            const unsigned even[2] = {words[0], words[1]}, odd[2] = {words[2], words[3]};
            if constexpr (VALUE_DTYPE == F16) {
                mma_f16_16x8x16(sums[2 * pair], weights, even);
                mma_f16_16x8x16(sums[2 * pair + 1], weights, odd);
            } else {
                mma_bf16_16x8x16(sums[2 * pair], weights, even);
                mma_bf16_16x8x16(sums[2 * pair + 1], weights, odd);
            }
        }
    }
}

// A float as the sum of two that tf32 represents, but for the last bits of the second.
constexpr unsigned TF32_BITS = 0xffffe000u;
MSDA_DEVICE unsigned rest_of(unsigned bits) {
    return float_to_bits(bits_to_float(bits) - bits_to_float(bits & TF32_BITS));
}

// Four steps of 8 entries. Channel 4g + n is column g of product n.
MSDA_DEVICE void add_chunk_single(const LaneAddresses& at, unsigned stage, int entries,
                                  const float (&x)[8], const float (&upper)[8],
                                  const float (&lower)[8], TileSums& sums) {
    TileSums part = {};
#pragma unroll
    for (int e = 0; e < 8; e += 2) {
        if (e * 4 >= entries) break;
        const float weights[4] = {x[e] * upper[e], x[e] * lower[e], x[e + 1] * upper[e + 1],
                                  x[e + 1] * lower[e + 1]};
        unsigned high[4], low[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            high[i] = float_to_bits(weights[i]) & TF32_BITS;
            low[i] = rest_of(float_to_bits(weights[i]));
        }
        Packet16 rows[2];
        load_shared(rows[0], at.rows[0] + stage + e * ROW_BYTES);
        load_shared(rows[1], at.rows[0] + stage + (e + 1) * ROW_BYTES);
#pragma unroll
        for (int n = 0; n < 4; ++n) {
            const unsigned row_high[2] = {rows[0].word[n] & TF32_BITS, rows[1].word[n] & TF32_BITS};
            const unsigned row_low[2] = {rest_of(rows[0].word[n]), rest_of(rows[1].word[n])};
            mma_tf32_16x8x8(part[n], low, row_high);
            mma_tf32_16x8x8(part[n], high, row_low);
            mma_tf32_16x8x8(part[n], high, row_high);
        }
    }
#pragma unroll
    for (int k = 0; k < LANE_SUMS; ++k) sums[k / 4][k % 4] += part[k / 4][k % 4];
}

MSDA_DEVICE void add_chunk(const LaneAddresses& at, unsigned stage, int entries, TileSums& sums) {
    float x[8], upper[8], lower[8];
    load_eight(at.x + stage, x);
    load_eight(at.y + stage, upper);
    load_eight(at.y + stage + 2 * TENT_PITCH * 4, lower);
    if constexpr (HALF) {
        add_chunk_half(at, stage, entries, x, upper, lower, sums);
    } else {
        add_chunk_single(at, stage, entries, x, upper, lower, sums);
    }
}

// Whether a pixel is one of the two between which a position lies, also where its share is zero.
MSDA_DEVICE bool is_corner(float position, int pixel) {
    const float distance = position - static_cast<float>(pixel);
    return distance >= -1.0f && distance < 1.0f;
}

// The definition, pixel by pixel, where a sum is not finite.
MSDA_DEVICE void add_exactly(const EntryPacket* entries, int count, const GradRows& grad,
                             TileSums& sums) {
    const int lane = threadIdx.x % 32;
    const int g = lane / 4, t = lane % 4;
#pragma unroll
    for (int k = 0; k < LANE_SUMS; ++k) sums[k / 4][k % 4] = 0.0f;
#pragma unroll 1
    for (int e = 0; e < count; ++e) {
        EntryPacket packet;
        load_readonly(packet, entries + e);
        const Entry entry = unpack_entry(packet);
        if (!is_corner(entry.x, g % TILE_SIDE)) continue;
        const float x = tent_weight(entry.x, g % TILE_SIDE);
        const unsigned char* row =
            grad.lane_chunk - threadIdx.x % ROW_CHUNKS * 16 +
            static_cast<unsigned long long>(entry.query * grad.query_chunks) * 16;
#pragma unroll
        for (int k = 0; k < LANE_SUMS; ++k) {
            const int channel = channel_of_sum(k / 4, k % 4, t);
            const int pixel_y = g / TILE_SIDE + 2 * (k % 4 / 2);
            const float weight = x * tent_weight(entry.y, pixel_y);
            if (is_corner(entry.y, pixel_y) && channel < grad.chunks * CHUNK_ELEMENTS) {
                sums[k / 4][k % 4] = fmaf(entry.attention * weight,
                                          load_element<ValueStorage>(row, channel), sums[k / 4][k % 4]);
            }
        }
    }
}

// Where a tile lies.
struct TilePlace {
    int level;
    int x;  // of its first pixel
    int y;
};
MSDA_DEVICE TilePlace place_in_level(const CallShape& shape, int level, int tile) {
    const int tiles_x = tiles_across(shape.level[level].width);
    const int row = tile / tiles_x;
    return {level, (tile - row * tiles_x) * TILE_SIDE, row * TILE_SIDE};
}
MSDA_DEVICE TilePlace place_of_tile(const CallShape& shape, int tile) {
    TilePlace place = {LEVELS - 1, 0, 0};
#pragma unroll
    for (int l = LEVELS - 1; l > 0; --l) {
        const int tiles = tiles_of_level(shape.level[l]);
        if (place.level == l && tile >= tiles) {
            tile -= tiles;
            place.level = l - 1;
        }
    }
    return place_in_level(shape, place.level, tile);
}

// The gradient of a pixel, this slice of its channels; null where the tile reaches past its level.
MSDA_DEVICE unsigned char* grad_pixel(const BackwardParams& params, int slab, int slice,
                                      const TilePlace& place, int pixel_x, int pixel_y) {
    const LevelGeometry& level = params.level[place.level];
    const int x = place.x + pixel_x, y = place.y + pixel_y;
    if (x >= level.width || y >= level.height) return nullptr;
    const long long pixel = level.origin + static_cast<long long>(y) * level.row_pitch + x;
    return element_address<ValueStorage>(
        params.grad_value, slab / HEADS * params.grad_value_batch_stride +
                               slab % HEADS * params.grad_value_head_stride +
                               pixel * params.grad_value_pixel_stride + slice * SLICE_CHANNELS);
}

MSDA_DEVICE void store_tile(const BackwardParams& params, int slab, int slice,
                            const TilePlace& place, const TileSums& sums) {
    const int lane = threadIdx.x % 32;
    const int g = lane / 4, t = lane % 4;
    // Known at compile time where slices are whole.
    const int channels =
        CHANNELS % SLICE_CHANNELS == 0 ? SLICE_CHANNELS : CHANNELS - slice * SLICE_CHANNELS;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        unsigned char* at = grad_pixel(params, slab, slice, place, g % TILE_SIDE,
                                       g / TILE_SIDE + 2 * half);
        if (at == nullptr) continue;
        if constexpr (HALF) {
#pragma unroll
            for (int n = 0; n < 4; ++n) {
                Packet<4> packet;
                packet.word[0] = pack_pair(sums[n][2 * half], sums[n][2 * half + 1]);
                if (8 * n < channels) store(at + (8 * n + 2 * t) * 2, packet);
            }
        } else {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                Packet16 packet;
#pragma unroll
                for (int n = 0; n < 4; ++n) packet.word[n] = float_to_bits(sums[n][2 * half + i]);
                if (8 * t + 4 * i < channels) store(at + (8 * t + 4 * i) * 4, packet);
            }
        }
    }
}

// ---- short lists -------------------------------------------------------------------------------

// A tile's pixels in 16-byte chunks: in pass k a lane has chunk lane % ROW_CHUNKS of pixel
// lane / ROW_CHUNKS + k ROWS_AT_ONCE.
constexpr int PASSES = TILE_PIXELS / ROWS_AT_ONCE;

template <typename Chunk>
MSDA_DEVICE void store_chunks(const BackwardParams& params, int slab, int slice,
                              const TilePlace& place, Chunk chunk_of_pixel) {
    const int lane = threadIdx.x % 32;
    const int chunk = lane % ROW_CHUNKS;
#pragma unroll
    for (int k = 0; k < PASSES; ++k) {
        const int pixel = lane / ROW_CHUNKS + k * ROWS_AT_ONCE;
        unsigned char* at =
            grad_pixel(params, slab, slice, place, pixel % TILE_SIDE, pixel / TILE_SIDE);
        const bool exists = slice * ROW_CHUNKS + chunk < CHUNKS;
        const Packet16 packet = chunk_of_pixel(pixel, chunk);
        if (at != nullptr && exists) store(at + chunk * 16, packet);
    }
}

// Zeros for a tile that no sample touches.
MSDA_DEVICE void clear_tile(const BackwardParams& params, int slab, int slice, const TilePlace& place) {
    store_chunks(params, slab, slice, place, [](int, int) { return Packet16{}; });
}

// Sums of neighbouring tiles of one level that have up to FEW_ENTRIES entries in all. A stage of products and the
// waiting for memory cost the same for one entry as for 32. Here a warp waits once for all its tiles and adds
// entry by entry into sums in shared memory: a quarter of the warp owns a corner, a lane of it four channels.
// Only corners are added, so nothing has to be computed again where a row is not finite.
//
// `counts` has the entries of tile i in lane i; they follow each other from `entries` on. `memory` are the
// warp's stages: rows in the first, sums in the second.
MSDA_DEVICE void sum_few(const BackwardParams& params, int slab, int slice, TilePlace place, int tiles,
                         unsigned counts, int count, const EntryPacket* entries,
                         unsigned char* memory) {
    const int lane = threadIdx.x % 32;
    const int chunk = lane % ROW_CHUNKS;
    const GradRows grad = grad_rows(params, slab, slice);
    EntryPacket packet = {};
    if (lane < count) load_streaming(packet, entries + lane);
    const Entry own = unpack_entry(packet);
    const unsigned offset = own.query * grad.query_chunks;
    const unsigned copies = shared_address(memory) + chunk * 16;
#pragma unroll
    for (int i = 0; i < ROW_CHUNKS; ++i) {
        const int entry = i * ROWS_AT_ONCE + lane / ROW_CHUNKS;
        if (i * ROWS_AT_ONCE < count) {
            const unsigned char* from =
                grad.lane_chunk + static_cast<unsigned long long>(shuffle(offset, entry)) * 16;
            const bool exists = CHANNELS % SLICE_CHANNELS == 0 || chunk < grad.chunks;
            copy_async_or_zero(copies + entry * ROW_BYTES, from, entry < count && exists);
        }
    }
    copy_async_commit();

    // Meanwhile: cells, from the tile's first pixel, and sums of zero.
    const float column = floor_near(own.x), row = floor_near(own.y);
    const float share_x = own.x - column, share_y = own.y - row;
    const int cell = (static_cast<int>(row) + 1) * 8 + static_cast<int>(column) + 1;
    float* sums = reinterpret_cast<float*>(memory + STAGE_BYTES);
    const auto clear_own = [&] {
#pragma unroll
        for (int i = 0; i < SLICE_SUMS / 4; i += 32) {
            reinterpret_cast<Packet16*>(sums)[i + lane] = Packet16{};
        }
    };
    clear_own();
    copy_async_wait<0>();
    sync_warp();

    constexpr int LANE_CHANNELS = 4;
    using RowPart = Packet<LANE_CHANNELS * ValueStorage::BYTES>;
    const int corner_x = lane / 8 % 2, corner_y = lane / 16;
    const int part = lane % 8;
    int e = 0;
#pragma unroll 1
    for (int tile = 0; tile < tiles; ++tile) {
        const int end = e + static_cast<int>(shuffle(counts, tile));
        if (e == end) {
            clear_tile(params, slab, slice, place);
        } else {
#pragma unroll 1
            for (; e < end; ++e) {
                const int at = shuffle(cell, e);
                const int x = at % 8 - 1 + corner_x, y = at / 8 - 1 + corner_y;
                const float right = shuffle(share_x, e), bottom = shuffle(share_y, e);
                const float weight = shuffle(own.attention, e) * (corner_x ? right : 1.0f - right) *
                                     (corner_y ? bottom : 1.0f - bottom);
                const bool owned = (x | y) >= 0 && x < TILE_SIDE && y < TILE_SIDE;
                if (owned) {
                    float elements[LANE_CHANNELS];
                    unpack<ValueStorage, LANE_CHANNELS>(
                        *reinterpret_cast<const RowPart*>(memory + e * ROW_BYTES +
                                                          part * sizeof(RowPart)),
                        elements);
                    Packet16& place_of_sums = reinterpret_cast<Packet16*>(
                        sums)[(y * TILE_SIDE + x) * (SLICE_CHANNELS / LANE_CHANNELS) + part];
                    Packet16 sum = place_of_sums;
#pragma unroll
                    for (int i = 0; i < LANE_CHANNELS; ++i) {
                        sum.word[i] =
                            float_to_bits(fmaf(weight, elements[i], bits_to_float(sum.word[i])));
                    }
                    place_of_sums = sum;
                }
                // The next entry's corners are other lanes'.
                sync_warp();
            }
            store_chunks(params, slab, slice, place, [&](int pixel, int pixel_chunk) {
                float elements[CHUNK_ELEMENTS];
#pragma unroll
                for (int p = 0; p < CHUNK_ELEMENTS / 4; ++p) {
                    const Packet16 four = reinterpret_cast<const Packet16*>(
                        sums)[(pixel * SLICE_CHANNELS + pixel_chunk * CHUNK_ELEMENTS) / 4 + p];
#pragma unroll
                    for (int i = 0; i < 4; ++i) elements[4 * p + i] = bits_to_float(four.word[i]);
                }
                Packet16 packed;
                pack<ValueStorage, CHUNK_ELEMENTS>(elements, packed);
                return packed;
            });
            sync_warp();
            clear_own();
            sync_warp();
        }
        place.x += TILE_SIDE;
        if (place.x >= params.level[place.level].width) {
            place.x = 0;
            place.y += TILE_SIDE;
        }
    }
}
static_assert(SLICE_SUMS * 4 <= STAGE_BYTES, "sums fit a stage");

// ---- long lists --------------------------------------------------------------------------------

// Sums `count` entries.
MSDA_DEVICE void sum_entries(const EntryPacket* entries, int count, const GradRows& grad,
                             const LaneAddresses& at, TileSums& sums) {
    const int lane = threadIdx.x % 32;
    const int chunks = (count + CHUNK - 1) / CHUNK;
    EntryPacket next = {};
    if (lane < count) load_streaming(next, entries + lane);
#pragma unroll 1
    for (int chunk = -1; chunk < chunks; ++chunk) {
        if (chunk + 1 < chunks) {
            const unsigned stage = (chunk + 1) % STAGES * STAGE_BYTES;
            stage_chunk(at, stage, next, count - (chunk + 1) * CHUNK, grad);
        }
        copy_async_commit();
        const int ahead = (chunk + 2) * CHUNK + lane;
        if (ahead < count) load_streaming(next, entries + ahead);
        if (chunk < 0) continue;
        copy_async_wait<1>();
        sync_warp();
        add_chunk(at, chunk % STAGES * STAGE_BYTES, count - chunk * CHUNK, sums);
        sync_warp();
    }
    float zero = 0.0f;  // NaN if any sum is not finite
#pragma unroll
    for (int k = 0; k < LANE_SUMS; ++k) zero = fmaf(sums[k / 4][k % 4], 0.0f, zero);
    if (any_lane(!(zero == 0.0f))) add_exactly(entries, count, grad, sums);
}

// Sums one piece and puts the result where it belongs; place() says where its tile lies.
template <typename Place>
MSDA_DEVICE void gather_piece(const BackwardParams& params, const TileLists& lists, int slab, int slice,
                              const Piece& piece, Place place) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (piece.entries == 0) {
        clear_tile(params, slab, slice, place());
        return;
    }
    TileSums sums = {};
    sum_entries(entries_of_slab(lists, slab) + piece.first_entry, static_cast<int>(piece.entries),
                grad_rows(params, slab, slice),
                lane_addresses(shared_address(shared_memory() + warp * STAGES * STAGE_BYTES)), sums);
    if (PIECE_ENTRIES == 0 || piece.slot == NO_SLOT) {
        store_tile(params, slab, slice, place(), sums);
    } else {
        float* slot = lists.sums + lane +
                      ((slab * lists.max_slots + piece.slot) * SLICES + slice) * SLICE_SUMS;
#pragma unroll
        for (int k = 0; k < LANE_SUMS; ++k) slot[k * 32] = sums[k / 4][k % 4];
    }
}

// A warp per piece of a slab (blockIdx.y) and slice (blockIdx.z).
MSDA_DEVICE void gather_pieces(const BackwardParams& params) {
    const TileLists lists = tile_lists(params);
    const unsigned index = blockIdx.x * GATHER_WARPS + threadIdx.x / 32;
    for (int slab = blockIdx.y; slab < lists.slabs; slab += gridDim.y) {
        if (index >= lists.piece_counts[slab]) continue;
        const Piece piece = lists.pieces[slab * lists.max_pieces + index];
        gather_piece(params, lists, slab, blockIdx.z, piece,
                     [&] { return place_of_tile(params, static_cast<int>(piece.tile)); });
    }
}

// Where lists are not cut: a warp per group of neighbouring tiles of a slab (blockIdx.y). A group is several
// tiles where few entries are expected, by the level's size alone. blockIdx.z is a slice of a level, the last
// level first; the grid is as wide as the level with most groups needs it. The same arithmetic as in
// src/variants/tile_lists.rs.
constexpr int GROUP_TILES = 4;
MSDA_DEVICE void gather_groups(const BackwardParams& params) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int level = LEVELS - 1 - static_cast<int>(blockIdx.z) / SLICES, slice = blockIdx.z % SLICES;
    const int level_tiles = tiles_of_level(params.level[level]);
    const int level_end = level + 1 < LEVELS ? params.level[level + 1].first_sample : SAMPLES;
    // Fits: lists.max_entries below 2^32 is checked.
    const int samples = params.queries * (level_end - params.level[level].first_sample);
    const bool is_sparse = FEW_ENTRIES > 0 && samples / GROUP_TILES <= level_tiles;
    const int first = (static_cast<int>(blockIdx.x) * GATHER_WARPS + warp) *
                      (is_sparse ? GROUP_TILES : 1);  // tile of the level
    const int tiles = at_most(is_sparse ? GROUP_TILES : 1, level_tiles - first);
    if (tiles <= 0) return;  // the same for the whole warp
    const TileLists lists = tile_lists(params);
    const int first_tile = first_tile_of_level(params, level) + first;
    wait_for_launch_before();  // the lists
    for (int slab = blockIdx.y; slab < lists.slabs; slab += gridDim.y) {
        const Piece* pieces = lists.pieces + slab * lists.max_pieces + first_tile;
        if (tiles > 1) {
            const Piece own = lane < tiles ? pieces[lane] : Piece{};
            unsigned count = own.entries + shuffle_xor(own.entries, 1);
            count = shuffle(count + shuffle_xor(count, 2), 0);
            if (count <= FEW_ENTRIES) {
                sum_few(params, slab, slice, place_in_level(params, level, first), tiles, own.entries,
                        static_cast<int>(count),
                        entries_of_slab(lists, slab) + shuffle(own.first_entry, 0),
                        shared_memory() + warp * STAGES * STAGE_BYTES);
                sync_warp();  // the next slab's rows come to the same place
                continue;
            }
        }
#pragma unroll 1
        for (int tile = 0; tile < tiles; ++tile) {
            gather_piece(params, lists, slab, slice, pieces[tile],
                         [&] { return place_in_level(params, level, first + tile); });
        }
    }
}
static_assert(GROUP_TILES == 4, "the sum over four lanes");

}  // namespace msda
