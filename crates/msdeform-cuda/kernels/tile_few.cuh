// Sums of short lists, entry by entry.
//
// A stage of tile_products.cuh and the waiting for memory cost the same for one entry as for 32. Here a warp owns several
// neighbouring tiles of one level with up to 32 entries in all, waits once for their entries and once for their rows, and
// adds entry by entry into sums in shared memory: a quarter of the warp owns a corner, a lane of it four channels. Lane i
// has prepared entry i: the weights of its corners, and where their sums lie. Only corners are added, so nothing has to be
// computed again where a row is not finite.
#pragma once

#include "tile_products.cuh"

namespace msda {

// A tile's pixels in 16-byte chunks: in pass k a lane has chunk lane % ROW_CHUNKS of pixel
// lane / ROW_CHUNKS + k ROWS_AT_ONCE.
constexpr int PASSES = TILE_PIXELS / ROWS_AT_ONCE;
constexpr int PASS_ROWS = ROWS_AT_ONCE / TILE_SIDE;
static_assert(PASS_ROWS * TILE_SIDE == ROWS_AT_ONCE, "a pass is whole rows of pixels");

// How a lane writes the tiles of one level, slab and slice.
struct TileStores {
    unsigned char* first;  // its chunk of its first pixel of the tile at the level's first pixel
    long long pass_bytes;
    int row_pitch;
    int columns;  // of pixels from this lane's on, in the level
    int rows;
    bool exists;  // a slice may be cut short

    // chunk_of_pixel(pixel, chunk) says what; it is asked for every pixel, also beyond the level.
    template <typename Chunk>
    MSDA_DEVICE void store_tile(const TilePlace& place, Chunk chunk_of_pixel) const {
        const int lane = threadIdx.x % 32;
        const unsigned pixel = place.y * row_pitch + place.x;
        unsigned char* at = first + static_cast<unsigned long long>(pixel) * PIXEL_BYTES;
        const bool writes = exists && place.x < columns;
#pragma unroll
        for (int k = 0; k < PASSES; ++k) {
            const Packet16 packet = chunk_of_pixel(lane / ROW_CHUNKS + k * ROWS_AT_ONCE, lane % ROW_CHUNKS);
            if (writes && place.y + k * PASS_ROWS < rows) store_streaming(at + k * pass_bytes, packet);
        }
    }

    // Zeros for a tile that no sample touches.
    MSDA_DEVICE void clear_tile(const TilePlace& place) const {
        store_tile(place, [](int, int) { return Packet16{}; });
    }
};
MSDA_DEVICE TileStores tile_stores(const BackwardParams& params, int slab, int slice, int level) {
    const int lane = threadIdx.x % 32;
    const int chunk = lane % ROW_CHUNKS, x = lane / ROW_CHUNKS % TILE_SIDE, y = lane / ROW_CHUNKS / TILE_SIDE;
    const LevelGeometry& geometry = params.level[level];
    TileStores stores;
    stores.first = grad_pixel(params, slab, slice, {level, 0, 0}, x, y) + chunk * 16;
    stores.pass_bytes = static_cast<long long>(PASS_ROWS) * geometry.row_pitch * PIXEL_BYTES;
    stores.row_pitch = geometry.row_pitch;
    stores.columns = geometry.width - x;
    stores.rows = geometry.height - y;
    stores.exists = CHUNKS % ROW_CHUNKS == 0 || slice * ROW_CHUNKS + chunk < CHUNKS;
    return stores;
}

constexpr int LANE_CHANNELS = 4;
struct FewMemory {
    unsigned char rows[CHUNK][ROW_BYTES];
    Packet16 sums[SLICE_SUMS / 4];
    Packet16 weights[CHUNK];  // of corner 2 * bottom + right
    Packet16 places[CHUNK];   // of its pixel in `sums`, in bytes; negative: another tile's
};
static_assert(sizeof(FewMemory) <= WARP_BYTES, "fits where stages do");

MSDA_DEVICE void place_corners(const Entry& entry, FewMemory& memory) {
    const float column = floor_near(entry.x), row = floor_near(entry.y);
    const float right = entry.x - column, bottom = entry.y - row;
    const int x = static_cast<int>(column), y = static_cast<int>(row);
    Packet16 weights, places;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
        const int pixel_x = x + c % 2, pixel_y = y + c / 2;
        const bool owned = (pixel_x | pixel_y) >= 0 && pixel_x < TILE_SIDE && pixel_y < TILE_SIDE;
        const int place = (pixel_y * TILE_SIDE + pixel_x) * (SLICE_CHANNELS * 4);
        weights.word[c] = float_to_bits(entry.attention * (c % 2 ? right : 1.0f - right) *
                                        (c / 2 ? bottom : 1.0f - bottom));
        places.word[c] = static_cast<unsigned>(owned ? place : -1);
    }
    memory.weights[threadIdx.x % 32] = weights;
    memory.places[threadIdx.x % 32] = places;
}

// Brings the entries, one to each lane, and their rows; the sums are zero then.
MSDA_DEVICE void stage_few(const GradRows& grad, int count, const EntryPacket* entries, FewMemory& memory) {
    const int lane = threadIdx.x % 32;
    EntryPacket packet = {};
    if (lane < count) load_streaming(packet, entries + lane);
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
    place_corners(own, memory);
#pragma unroll
    for (int i = 0; i < SLICE_SUMS / 4; i += 32) memory.sums[i + lane] = Packet16{};
    copy_async_wait<0>();
    sync_warp();
}

// Adds entries first .. end - 1, the same for all lanes.
MSDA_DEVICE void add_few(int first, int end, FewMemory& memory) {
    using RowPart = Packet<LANE_CHANNELS * ValueStorage::BYTES>;
    const int corner = threadIdx.x % 32 / 8, part = threadIdx.x % 8;
    unsigned char* sums = reinterpret_cast<unsigned char*>(memory.sums) + part * 16;
#pragma unroll 2
    for (int e = first; e < end; ++e) {
        const int place = static_cast<int>(memory.places[e].word[corner]);
        const float weight = bits_to_float(memory.weights[e].word[corner]);
        float elements[LANE_CHANNELS];
        unpack<ValueStorage, LANE_CHANNELS>(reinterpret_cast<const RowPart*>(memory.rows[e])[part], elements);
        if (place >= 0) {
            Packet16& at = *reinterpret_cast<Packet16*>(sums + place);
            Packet16 sum = at;
#pragma unroll
            for (int i = 0; i < LANE_CHANNELS; ++i) {
                sum.word[i] = float_to_bits(fmaf(weight, elements[i], bits_to_float(sum.word[i])));
            }
            at = sum;
        }
        sync_warp();  // the next entry's corners are other lanes'
    }
}

// `counts` has the entries of tile i in lane i; they follow each other from `entries` on.
MSDA_DEVICE void sum_few(const BackwardParams& params, int slab, int slice, TilePlace place, int tiles,
                         unsigned counts, int count, const EntryPacket* entries, FewMemory& memory) {
    if (count > 0) stage_few(grad_rows(params, slab, slice), count, entries, memory);
    const TileStores stores = tile_stores(params, slab, slice, place.level);
    const int width = params.level[place.level].width;
    int e = 0;
#pragma unroll 1
    for (int tile = 0; tile < tiles; ++tile) {
        const int end = e + static_cast<int>(shuffle(counts, tile));
        if (e == end) {
            stores.clear_tile(place);
        } else {
            add_few(e, end, memory);
            // Leaves zeros for the next tile.
            stores.store_tile(place, [&](int pixel, int chunk) {
                float elements[CHUNK_ELEMENTS];
#pragma unroll
                for (int p = 0; p < CHUNK_ELEMENTS / 4; ++p) {
                    Packet16& four =
                        memory.sums[(pixel * SLICE_CHANNELS + chunk * CHUNK_ELEMENTS) / 4 + p];
#pragma unroll
                    for (int i = 0; i < 4; ++i) elements[4 * p + i] = bits_to_float(four.word[i]);
                    four = Packet16{};
                }
                Packet16 packed;
                pack<ValueStorage, CHUNK_ELEMENTS>(elements, packed);
                return packed;
            });
            sync_warp();
        }
        e = end;
        place.x += TILE_SIDE;
        if (place.x >= width) {
            place.x = 0;
            place.y += TILE_SIDE;
        }
    }
}

}  // namespace msda
