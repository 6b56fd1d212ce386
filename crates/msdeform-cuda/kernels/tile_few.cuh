// Sums of short lists, entry by entry.
//
// A stage of tile_products.cuh and the waiting for memory cost the same for one entry as for 32. Here a warp
// owns several neighbouring tiles of one level, waits once for 32 of their entries and once for their rows,
// and adds entry by entry: a lane owns a chunk of some pixels' channels, in registers, and stores that chunk
// itself. Lane i has prepared entry i: its tents, as in tile_products.cuh, and its row by an
// asynchronous copy.
//
// Tents are zero where a pixel is no corner, and zero times a row that is not finite is NaN: then the group
// is summed again, corner by corner.
#pragma once

#include "tile_products.cuh"

namespace msda {

using LaneSums = float[PASSES][CHUNK_ELEMENTS];

struct FewMemory {
    unsigned char rows[STAGE_ENTRIES][ROW_BYTES];
    Packet16 columns[STAGE_ENTRIES];  // tents of an entry along x
    Packet16 lines[STAGE_ENTRIES];    // along y, times its attention weight
};
static_assert(sizeof(FewMemory) <= WARP_BYTES, "fits where stages do");

// Up to 32 entries, one to each lane: writes their tents and starts copying their rows.
MSDA_DEVICE void stage_few(const GradRows& grad, int count, const EntryPacket* entries, FewMemory& memory) {
    const int lane = threadIdx.x % 32;
    EntryPacket packet = {};
    if (lane < count) load_entry(packet, entries + lane);
    const Entry own = unpack_entry(packet);
    const unsigned offset = own.query * grad.query_chunks;
    const unsigned copies = shared_address(memory.rows) + lane * 16;
#pragma unroll
    for (int i = 0; i < ROW_CHUNKS; ++i) {
        if (i * ROWS_AT_ONCE >= count) break;  // the same for all lanes
        const int entry = i * ROWS_AT_ONCE + lane / ROW_CHUNKS;
        const unsigned char* from =
            grad.lane_chunk + static_cast<unsigned long long>(shuffle(offset, entry)) * 16;
        const bool exists = CHANNELS % SLICE_CHANNELS == 0 || lane % ROW_CHUNKS < grad.chunks;
        copy_async_or_zero(copies + i * 32 * 16, from, entry < count && exists);
    }
    copy_async_commit();
    Packet16 columns, lines;
#pragma unroll
    for (int p = 0; p < TILE_SIDE; ++p) {
        columns.word[p] = float_to_bits(tent_weight(own.x, p));
        lines.word[p] = float_to_bits(own.attention * tent_weight(own.y, p));
    }
    memory.columns[lane] = columns;
    memory.lines[lane] = lines;
}

MSDA_DEVICE void add_entry(const FewMemory& memory, int slot, LaneSums& sums) {
    const int lane = threadIdx.x % 32;
    const int pixel = lane / ROW_CHUNKS;  // this lane's pixel in pass 0
    const float column = bits_to_float(memory.columns[slot].word[pixel % TILE_SIDE]);
    float elements[CHUNK_ELEMENTS];
    unpack<ValueStorage, CHUNK_ELEMENTS>(
        reinterpret_cast<const Packet16*>(memory.rows[slot])[lane % ROW_CHUNKS], elements);
#pragma unroll
    for (int k = 0; k < PASSES; ++k) {
        const float weight =
            column * bits_to_float(memory.lines[slot].word[pixel / TILE_SIDE + k * PASS_ROWS]);
#pragma unroll
        for (int i = 0; i < CHUNK_ELEMENTS; ++i) sums[k][i] = fmaf(weight, elements[i], sums[k][i]);
    }
}

// Adds an entry by the definition, corner by corner, if a sum is not finite.
MSDA_DEVICE void add_entry_exactly(const Entry& entry, const GradRows& grad, LaneSums& sums) {
    const int lane = threadIdx.x % 32;
    const int pixel = lane / ROW_CHUNKS;
    Packet16 row = {};
    if (CHANNELS % SLICE_CHANNELS == 0 || lane % ROW_CHUNKS < grad.chunks) {
        load_readonly(
            row, grad.lane_chunk + static_cast<unsigned long long>(entry.query * grad.query_chunks) * 16);
    }
    float elements[CHUNK_ELEMENTS];
    unpack<ValueStorage, CHUNK_ELEMENTS>(row, elements);
    const float column = tent_weight(entry.x, pixel % TILE_SIDE);
#pragma unroll
    for (int k = 0; k < PASSES; ++k) {
        const int line = pixel / TILE_SIDE + k * PASS_ROWS;
        const float weight = entry.attention * (column * tent_weight(entry.y, line));
        if (!is_corner(entry.x, pixel % TILE_SIDE) || !is_corner(entry.y, line)) continue;
#pragma unroll
        for (int i = 0; i < CHUNK_ELEMENTS; ++i) sums[k][i] = fmaf(weight, elements[i], sums[k][i]);
    }
}

// A group of neighbouring tiles of a level whose lists follow each other.
struct TileGroup {
    TilePlace place;  // of its first tile
    int tiles;
    unsigned counts;  // lane i: the number of entries of tile i
    int count;        // the sum of these
    const EntryPacket* entries;

    // Calls visit(place, first, end) for each tile and its entries, the same for all lanes.
    template <typename Visit>
    MSDA_DEVICE void for_each_tile(int width, Visit visit) const {
        TilePlace at = place;
        int first = 0;
#pragma unroll 1
        for (int tile = 0; tile < tiles; ++tile) {
            const int end = first + static_cast<int>(shuffle(counts, tile));
            visit(at, first, end);
            first = end;
            at.x += TILE_SIDE;
            if (at.x >= width) {
                at.x = 0;
                at.y += TILE_SIDE;
            }
        }
    }
};

// Where a lane reads and writes in a level; the same for all tiles of the level.
struct GatherLane {
    GradRows grad;
    TileStores stores;
    int width;  // of the level
};
MSDA_DEVICE GatherLane gather_lane(const BackwardParams& params, int slab, int slice, int level) {
    return {grad_rows(params, slab, slice), tile_stores(params, slab, slice, level),
            params.level[level].width};
}

MSDA_DEVICE void store_sums(const TileStores& stores, const TilePlace& place, const LaneSums& sums) {
    stores.store_tile(place, [&](int k) {
        Packet16 packed;
        pack<ValueStorage, CHUNK_ELEMENTS>(sums[k], packed);
        return packed;
    });
}

// Sums the tiles of a group again, if a sum is not finite.
MSDA_DEVICE void sum_few_exactly(const GatherLane& lane, const TileGroup& group) {
    group.for_each_tile(lane.width, [&](const TilePlace& place, int first, int end) {
        LaneSums sums = {};
#pragma unroll 1
        for (int e = first; e < end; ++e) {
            EntryPacket packet;
            load_entry(packet, group.entries + e);
            add_entry_exactly(unpack_entry(packet), lane.grad, sums);
        }
        store_sums(lane.stores, place, sums);
    });
}

MSDA_DEVICE void sum_few(const GatherLane& lane, const TileGroup& group, FewMemory& memory) {
    int staged = at_most(group.count, STAGE_ENTRIES);
    if (group.count > 0) stage_few(lane.grad, staged, group.entries, memory);
    group.for_each_tile(lane.width, [&](const TilePlace& place, int first, int end) {
        if (first == end) lane.stores.clear_tile(place);
    });
    if (group.count == 0) return;
    copy_async_wait<0>();
    sync_warp();
    float zero = 0.0f;  // NaN if any sum is not finite
    group.for_each_tile(lane.width, [&](const TilePlace& place, int first, int end) {
        if (first == end) return;
        LaneSums sums = {};
#pragma unroll 1
        while (first < end) {
            if (first == staged) {
                sync_warp();  // all lanes have read the staged entries
                stage_few(lane.grad, at_most(group.count - staged, STAGE_ENTRIES), group.entries + staged,
                          memory);
                copy_async_wait<0>();
                sync_warp();
                staged = at_most(group.count, staged + STAGE_ENTRIES);
            }
            const int stop = at_most(end, staged);
#pragma unroll 2
            for (; first < stop; ++first) add_entry(memory, first % STAGE_ENTRIES, sums);
        }
#pragma unroll
        for (int i = 0; i < PASSES * CHUNK_ELEMENTS; ++i) {
            zero = fmaf(sums[i / CHUNK_ELEMENTS][i % CHUNK_ELEMENTS], 0.0f, zero);
        }
        store_sums(lane.stores, place, sums);
    });
    if (any_lane(!(zero == 0.0f))) sum_few_exactly(lane, group);
}

}  // namespace msda
