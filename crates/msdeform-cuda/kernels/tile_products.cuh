// Sums of a tile's list on the tensor cores.
//
// Who owns what. A warp owns a list, or a piece of one, and 32 channels. For its 16 pixels it computes
//   sums[16 pixels x 32 channels] += weights[16 pixels x entries] * rows[entries x 32 channels]
// 32 entries at a time: the weights are products of two tents, max(0, 1 - |pixel - x|)
// and the same along y times the attention weight, dense for all 16 pixels, zero where a pixel is no
// corner; the rows are those of the output's gradient. Lane i prepares entry i: eight tents in fp32 to shared
// memory, and its row by asynchronous copies, one stage ahead of the products.
//
// Why that is fast. There is no divergence: lists of any length cost what their entries cost, rounded up to
// 32. Building dense weights costs two instructions per entry and pixel pair, far less than 32 lanes
// branching over four corners.
//
// Numerics. Sums are fp32. f16 and bf16: a weight is rounded once, products are exact. f32: weights and rows
// are split into two tf32 each, three products, relative error about 2^-21. Tensor cores cut off what a sum
// cannot hold instead of rounding it, which drifts with the length of a list; so f32 adds up only 32 entries
// there and these sums outside.
//
// A weight of zero times a row that is not finite is NaN, for pixels that the sample never touches. So a
// result that is not finite is computed again, pixel by pixel, from the samples that have it as a corner
// (add_exactly).
//
// Layout of a stage: 32 slots; entry e takes slot 8 (e % 4) + e / 4. A slot's row lies at slot * ROW_BYTES,
// its 16-byte chunks twisted by slot / 8; then tents, four columns and four rows of TENT_PITCH floats. Lane
// 4g + t of a product owns pixels g and g + 8 of the tile and reads the tents of slots 8t to 8t + 7 in whole
// 16-byte loads; what it has then are entries t, t + 4, ..., so that a short list ends after the first steps.
#pragma once

#include "grad_output_rows.cuh"
#include "list_entries.cuh"
#include "tile_stores.cuh"

namespace msda {

constexpr bool HALF = VALUE_DTYPE != F32;
constexpr int STAGE_ENTRIES = 32;              // entries at a time, one per lane
constexpr int TENT_PITCH = STAGE_ENTRIES + 4;  // keeps the tents of odd and even pixels in different banks
constexpr int STAGE_BYTES = STAGE_ENTRIES * ROW_BYTES + 2 * TILE_SIDE * TENT_PITCH * 4;
// f32 needs most registers and shared memory. Where lists are not cut, in decoders, most are one stage long
// and a warp mostly waits: then as many warps as possible count more than a second stage, and the sums of a
// long list wait in shared memory.
constexpr bool SPARES = !HALF && PIECE_ENTRIES == 0;
constexpr int STAGES = SPARES ? 1 : 2;
constexpr int WARP_BYTES = SPARES ? STAGE_BYTES + SLICE_SUMS * 4 : STAGES * STAGE_BYTES;

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
    const long long first =
        slab / HEADS * upstream.batch_stride + slab % HEADS * upstream.head_stride + slice * SLICE_CHANNELS;
    grad.lane_chunk =
        kept(element_address<ValueStorage>(upstream.first, first) + threadIdx.x % ROW_CHUNKS * 16);
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
    const unsigned tents = stages + STAGE_ENTRIES * ROW_BYTES;
    at.tents = kept(tents + (8 * (lane % 4) + lane / 4) * 4);
    at.x = kept(tents + (g % TILE_SIDE * TENT_PITCH + 8 * t) * 4);
    at.y = kept(tents + ((TILE_SIDE + g / TILE_SIDE) * TENT_PITCH + 8 * t) * 4);
    // Row r of a product's step s is slot 8 (r / 2) + 4s + r % 2, + 2 in its second half.
    const int matrix = lane / 8, r = lane % 8;
    const int slot = 8 * (r / 2) + 2 * (matrix % 2) + r % 2;
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
        at.rows[pair] = kept(stages + (HALF ? row_chunk(slot, 2 * pair + matrix / 2) : row_chunk(8 * t, g)));
    }
    return at;
}

// Starts copying the rows of up to 32 entries and writes their tents; rows and weights past the last are
// zero.
MSDA_DEVICE void fill_stage(const LaneAddresses& at, unsigned stage, const EntryPacket& packet, int entries,
                            const GradRows& grad) {
    const int lane = threadIdx.x % 32;
    const Entry entry = unpack_entry(packet);
    const unsigned offset = entry.query * grad.query_chunks;
#pragma unroll
    for (int i = 0; i < ROW_CHUNKS; ++i) {
        const int slot = i * ROWS_AT_ONCE + lane / ROW_CHUNKS;
        const int source = slot % 8 * 4 + slot / 8;  // the entry of this slot
        const bool valid =
            source < entries && (CHANNELS % SLICE_CHANNELS == 0 || lane % ROW_CHUNKS < grad.chunks);
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

MSDA_DEVICE void load_pair(unsigned from, float (&to)[2]) {
    Packet<8> packet;
    load_shared(packet, from);
    to[0] = bits_to_float(packet.word[0]);
    to[1] = bits_to_float(packet.word[1]);
}

MSDA_DEVICE unsigned pack_pair(float low, float high) {
    return VALUE_DTYPE == F16 ? floats_to_half2(low, high) : floats_to_bfloat2(low, high);
}

// Two steps of 16 entries.
MSDA_DEVICE void add_stage_half(const LaneAddresses& at, unsigned stage, int entries, const float (&x)[8],
                                const float (&upper)[8], const float (&lower)[8], TileSums& sums) {
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

// Four steps of 8 entries, for sums that are zero before. Channel 4g + n is column g of product n.
MSDA_DEVICE void sum_chunk_single(const LaneAddresses& at, unsigned stage, int entries, TileSums& part) {
#pragma unroll
    for (int e = 0; e < 8; e += 2) {
        if (e * 4 >= entries) break;
        // Read here and not in advance, because registers are scarce.
        float x[2], upper[2], lower[2];
        load_pair(at.x + stage + e * 4, x);
        load_pair(at.y + stage + e * 4, upper);
        load_pair(at.y + stage + 2 * TENT_PITCH * 4 + e * 4, lower);
        const float weights[4] = {x[0] * upper[0], x[0] * lower[0], x[1] * upper[1], x[1] * lower[1]};
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
}

MSDA_DEVICE void add_stage(const LaneAddresses& at, unsigned stage, int entries, TileSums& sums) {
    if constexpr (HALF) {
        float x[8], upper[8], lower[8];
        load_eight(at.x + stage, x);
        load_eight(at.y + stage, upper);
        load_eight(at.y + stage + 2 * TENT_PITCH * 4, lower);
        add_stage_half(at, stage, entries, x, upper, lower, sums);
    } else {
        TileSums part = {};
        sum_chunk_single(at, stage, entries, part);
#pragma unroll
        for (int k = 0; k < LANE_SUMS; ++k) sums[k / 4][k % 4] += part[k / 4][k % 4];
    }
}

// Whether a pixel is one of the two around a position, even if its share is zero.
MSDA_DEVICE bool is_corner(float position, int pixel) {
    const float distance = position - static_cast<float>(pixel);
    return distance >= -1.0f && distance < 1.0f;
}

// Computes the sum by the definition, pixel by pixel, if a sum is not finite.
MSDA_DEVICE void add_exactly(const EntryPacket* entries, int count, const GradRows& grad, TileSums& sums) {
    const int lane = threadIdx.x % 32;
    const int g = lane / 4, t = lane % 4;
#pragma unroll
    for (int k = 0; k < LANE_SUMS; ++k) sums[k / 4][k % 4] = 0.0f;
#pragma unroll 1
    for (int e = 0; e < count; ++e) {
        EntryPacket packet;
        load_entry(packet, entries + e);
        const Entry entry = unpack_entry(packet);
        if (!is_corner(entry.x, g % TILE_SIDE)) continue;
        const float x = tent_weight(entry.x, g % TILE_SIDE);
        const unsigned char* row = grad.lane_chunk - threadIdx.x % ROW_CHUNKS * 16 +
                                   static_cast<unsigned long long>(entry.query * grad.query_chunks) * 16;
#pragma unroll
        for (int k = 0; k < LANE_SUMS; ++k) {
            const int channel = channel_of_sum(k / 4, k % 4, t);
            const int pixel_y = g / TILE_SIDE + 2 * (k % 4 / 2);
            const float weight = x * tent_weight(entry.y, pixel_y);
            if (is_corner(entry.y, pixel_y) && channel < grad.chunks * CHUNK_ELEMENTS) {
                sums[k / 4][k % 4] = fmaf(entry.attention * weight, load_element<ValueStorage>(row, channel),
                                          sums[k / 4][k % 4]);
            }
        }
    }
}

// L2 evicts the sums first, because this call does not read them again. The values should stay in L2,
// because the other gradients read them.
MSDA_DEVICE void store_tile(const BackwardParams& params, int slab, int slice, const TilePlace& place,
                            const TileSums& sums) {
    const int lane = threadIdx.x % 32;
    const int g = lane / 4, t = lane % 4;
    unsigned char* first = grad_pixel(params, slab, slice, place, g % TILE_SIDE, g / TILE_SIDE);
    const long long two_rows = 2LL * params.level[place.level].row_pitch * PIXEL_BYTES;
    // Known at compile time if slices are whole.
    const int channels = CHANNELS % SLICE_CHANNELS == 0 ? SLICE_CHANNELS : CHANNELS - slice * SLICE_CHANNELS;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        if (!is_inside(params, place, g % TILE_SIDE, g / TILE_SIDE + 2 * half)) continue;
        unsigned char* at = first + half * two_rows;
        if constexpr (HALF) {
#pragma unroll
            for (int n = 0; n < 4; ++n) {
                Packet<4> packet;
                packet.word[0] = pack_pair(sums[n][2 * half], sums[n][2 * half + 1]);
                if (8 * n < channels) store_streaming(at + (8 * n + 2 * t) * 2, packet);
            }
        } else {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                Packet16 packet;
#pragma unroll
                for (int n = 0; n < 4; ++n) packet.word[n] = float_to_bits(sums[n][2 * half + i]);
                if (8 * t + 4 * i < channels) store_streaming(at + (8 * t + 4 * i) * 4, packet);
            }
        }
    }
}

// Sums `count` entries and loads the next stage meanwhile.
MSDA_DEVICE void sum_staged(const EntryPacket* entries, int count, const GradRows& grad,
                            const LaneAddresses& at, TileSums& sums) {
    const int lane = threadIdx.x % 32;
    const int rounds = (count + STAGE_ENTRIES - 1) / STAGE_ENTRIES;
    EntryPacket next = {};
    if (lane < count) load_entry(next, entries + lane);
#pragma unroll 1
    for (int round = -1; round < rounds; ++round) {
        if (round + 1 < rounds) {
            const unsigned stage = (round + 1) % STAGES * STAGE_BYTES;
            fill_stage(at, stage, next, count - (round + 1) * STAGE_ENTRIES, grad);
        }
        copy_async_commit();
        const int ahead = (round + 2) * STAGE_ENTRIES + lane;
        if (ahead < count) load_entry(next, entries + ahead);
        if (round < 0) continue;
        copy_async_wait<1>();
        sync_warp();
        add_stage(at, round % STAGES * STAGE_BYTES, count - round * STAGE_ENTRIES, sums);
        sync_warp();
    }
}

// The same with one stage, to save registers: shared memory after the stage holds the sums of earlier stages.
MSDA_DEVICE void sum_sparing(const EntryPacket* entries, int count, const GradRows& grad,
                             const LaneAddresses& at, float* waiting, TileSums& sums) {
    const int lane = threadIdx.x % 32;
    EntryPacket next = {};
    if (lane < count) load_entry(next, entries + lane);
#pragma unroll 1
    for (int first = 0; first < count; first += STAGE_ENTRIES) {
        fill_stage(at, 0, next, count - first, grad);
        copy_async_commit();
        const int ahead = first + STAGE_ENTRIES + lane;
        if (ahead < count) load_entry(next, entries + ahead);
        copy_async_wait<0>();
        sync_warp();
        if (first > 0) {
#pragma unroll
            for (int k = 0; k < LANE_SUMS; ++k) {
                waiting[k * 32 + lane] = sums[k / 4][k % 4];
                sums[k / 4][k % 4] = 0.0f;
            }
        }
        sum_chunk_single(at, 0, count - first, sums);
        if (first > 0) {
#pragma unroll
            for (int k = 0; k < LANE_SUMS; ++k) sums[k / 4][k % 4] += waiting[k * 32 + lane];
        }
        sync_warp();
    }
}

MSDA_DEVICE void sum_entries(const EntryPacket* entries, int count, const GradRows& grad,
                             unsigned char* memory, TileSums& sums) {
    const LaneAddresses at = lane_addresses(shared_address(memory));
    if constexpr (SPARES) {
        sum_sparing(entries, count, grad, at, reinterpret_cast<float*>(memory + STAGE_BYTES), sums);
    } else {
        sum_staged(entries, count, grad, at, sums);
    }
    float zero = 0.0f;  // NaN if any sum is not finite
#pragma unroll
    for (int k = 0; k < LANE_SUMS; ++k) zero = fmaf(sums[k / 4][k % 4], 0.0f, zero);
    if (any_lane(!(zero == 0.0f))) add_exactly(entries, count, grad, sums);
}

}  // namespace msda
