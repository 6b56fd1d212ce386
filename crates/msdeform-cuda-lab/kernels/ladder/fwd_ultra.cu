// Everything at once: persistent blocks, kept levels, stolen units, samples placed beforehand, unrolled
// loops, L2 policies.
//
// Who owns what. A first kernel places every sample (fwd_precomputed_weights). Then a block per SM steals
// runs of queries (fwd_persistent), keeps the small levels whole in shared memory (fwd_persistent_full), and
// four lanes own an item. They read records four samples at a time, to be dropped from L2 first, and load all
// corners of the four before the first is used (fwd_loop_unroll); pixels are to be dropped last
// (fwd_l2_hints).
//
// Why. Each of these techniques helps somewhere; the document of this rung combines them.
//
// When it loses. Techniques that save the same cost do not add up. Records go through DRAM to save
// arithmetic that unrolling already hides; one block per SM gives away half of the warps that would have
// hidden latency; kept levels take from L1 what the streamed ones need.
#include "ladder/sample_records.cuh"
#include "ladder/stolen_units.cuh"

using namespace msda;

namespace {

constexpr int THREADS = 512;  // 128 registers each: four samples' corners and records
constexpr int BLOCK_GROUPS = THREADS / GROUP_LANES;
constexpr int SHARED_BYTES = MSDA_SHARED_KB * 1024;

// Samples per turn: four, or one if a turn would have samples of two levels or rows are no multiple of four.
constexpr int TURN = SAMPLES % 4 == 0 && common_points() % 4 == 0 && common_points() > 0 ? 4 : 1;

struct Records {
    unsigned offset[TURN];
    float weight[TURN][2][2];
};
MSDA_DEVICE Records load_records(const ForwardParams& params, long long first, CachePolicy policy) {
    Packet<4 * TURN> offsets;
    load_hinted(offsets, record_offsets(params) + first, policy);
    const unsigned char* weights = record_weights(params) + first * sizeof(RecordWeights);
    constexpr int WEIGHT_PACKET = TURN == 1 ? 8 : 16;
    Records records;
#pragma unroll
    for (int at = 0; at < TURN * 8; at += WEIGHT_PACKET) {
        Packet<WEIGHT_PACKET> packet;
        load_hinted(packet, weights + at, policy);
#pragma unroll
        for (int i = 0; i < WEIGHT_PACKET / 8; ++i) {
            unpack_weights({{packet.word[2 * i], packet.word[2 * i + 1]}}, records.weight[at / 8 + i]);
        }
    }
#pragma unroll
    for (int i = 0; i < TURN; ++i) records.offset[i] = offsets.word[i];
    return records;
}

MSDA_DEVICE Corners lasting_corners(const unsigned char* chunk, unsigned offset, unsigned below,
                                    CachePolicy policy) {
    Corners corners;
    const unsigned char* top = chunk_at(chunk, offset);
    const unsigned char* bottom = chunk_at(chunk, offset + below);
    load_hinted(corners.packet[0], top, policy);
    load_hinted(corners.packet[1], top + PIXEL_BYTES, policy);
    load_hinted(corners.packet[2], bottom, policy);
    load_hinted(corners.packet[3], bottom + PIXEL_BYTES, policy);
    return corners;
}

MSDA_DEVICE void sum_recorded_item(const ForwardParams& params, const Item& item,
                                   float (&sums)[CHUNK_ELEMENTS]) {
    const CachePolicy keep = policy_evict_last(), pass = policy_evict_first();
    const int shift = own_chunk() * 16;
    clear(sums);
#pragma unroll 1
    for (int s = 0; s < SAMPLES; s += TURN) {
        const int l = level_of_sample(s);
        const Residence kept = residences()[l];
        const unsigned below = row_below(params.level[l]);
        const Records records = load_records(params, item.row * SAMPLES + s, pass);
        Corners corners[TURN];
        if (kept.pixels > 0) {
            const unsigned char* pixels = shared_memory() + kept.place + shift;
#pragma unroll
            for (int i = 0; i < TURN; ++i) {
                corners[i] = resident_corners<PIXEL_BYTES>(pixels, records.offset[i] - kept.first, below);
            }
        } else {
#pragma unroll
            for (int i = 0; i < TURN; ++i) {
                corners[i] = lasting_corners(item.pixels + shift, records.offset[i], below, keep);
            }
        }
#pragma unroll
        for (int i = 0; i < TURN; ++i) add_corners(corners[i], records.weight[i], sums);
    }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(256)
    fwd_ultra_records(const __grid_constant__ ForwardParams params) {
    write_records(params);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    fwd_ultra(const __grid_constant__ ForwardParams params) {
    plan_residences<PIXEL_BYTES>(params, SHARED_BYTES, Rest::nothing);
    int kept_slab = -1;
    for (unsigned number; (number = steal_unit(params)) < unit_count(params);) {
        const Unit unit = unit_at(params, number);
        if (unit.slab != kept_slab) keep_slab<PIXEL_BYTES>(slab_pixels(params, unit.slab));
        kept_slab = unit.slab;
#pragma unroll 1
        for (int query = unit.first_query + own_group(); query < unit.end_query; query += BLOCK_GROUPS) {
            const Item item = item_of(params, unit.slab, query);
            float sums[CHUNK_ELEMENTS];
            sum_recorded_item(params, item, sums);
            store_chunk(params, item, own_chunk(), sums);
        }
    }
}
