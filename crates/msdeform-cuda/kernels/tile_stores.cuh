// How a warp writes the pixels of a tile.
#pragma once

#include "tile_places.cuh"

namespace msda {

// A tile's pixels in 16-byte chunks: in pass k a lane has chunk lane % ROW_CHUNKS of pixel
// lane / ROW_CHUNKS + k ROWS_AT_ONCE.
constexpr int PASSES = TILE_PIXELS / ROWS_AT_ONCE;
constexpr int PASS_ROWS = ROWS_AT_ONCE / PIXEL_SIDE;
static_assert(PASS_ROWS * PIXEL_SIDE == ROWS_AT_ONCE, "a pass is whole rows of pixels");

// How a lane writes the tiles of one level, slab and slice.
struct TileStores {
    unsigned char* first;  // the lane's chunk in pass 0 of the level's first tile
    long long pass_bytes;
    int row_pitch;
    int columns;  // of the level, from this lane's pixel on
    int rows;
    bool exists;  // a slice may be cut short

    // chunk_of_pass(k) is called for every pass, also beyond the level.
    template <typename Chunk>
    MSDA_DEVICE void store_tile(const TilePlace& place, Chunk chunk_of_pass) const {
        const unsigned pixel = place.y * row_pitch + place.x;
        unsigned char* at = first + static_cast<unsigned long long>(pixel) * PIXEL_BYTES;
        const bool writes = exists && place.x < columns;
#pragma unroll
        for (int k = 0; k < PASSES; ++k) {
            const Packet16 packet = chunk_of_pass(k);
            if (writes && place.y + k * PASS_ROWS < rows) store_streaming(at + k * pass_bytes, packet);
        }
    }

    // Zeros for a tile that no sample touches.
    MSDA_DEVICE void clear_tile(const TilePlace& place) const {
        store_tile(place, [](int) { return Packet16{}; });
    }
};
MSDA_DEVICE TileStores tile_stores(const BackwardParams& params, int slab, int slice, int level) {
    const int lane = threadIdx.x % 32;
    const int chunk = lane % ROW_CHUNKS, x = lane / ROW_CHUNKS % PIXEL_SIDE,
              y = lane / ROW_CHUNKS / PIXEL_SIDE;
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

MSDA_DEVICE void clear_tile(const BackwardParams& params, int slab, int slice, const TilePlace& place) {
    tile_stores(params, slab, slice, place.level).clear_tile(place);
}

}  // namespace msda
