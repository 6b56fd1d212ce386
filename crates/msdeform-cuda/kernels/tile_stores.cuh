// Where the pixels of a tile lie, and how a warp writes them.
#pragma once

#include "tile_lists.cuh"

namespace msda {

constexpr int ROW_BYTES = SLICE_CHANNELS * ValueStorage::BYTES;  // of a pixel's gradient, and of the output's
constexpr int ROW_CHUNKS = ROW_BYTES / 16;
constexpr int ROWS_AT_ONCE = 32 / ROW_CHUNKS;  // that a warp copies or writes with one instruction

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

// Whether a pixel of a tile lies in its level: tiles may reach past it.
MSDA_DEVICE bool is_inside(const CallShape& shape, const TilePlace& place, int pixel_x, int pixel_y) {
    const LevelGeometry& level = shape.level[place.level];
    return place.x + pixel_x < level.width && place.y + pixel_y < level.height;
}

// The address of a pixel's gradient, at this slice of its channels.
MSDA_DEVICE unsigned char* grad_pixel(const BackwardParams& params, int slab, int slice,
                                      const TilePlace& place, int pixel_x, int pixel_y) {
    const LevelGeometry& level = params.level[place.level];
    // Fits in 32 bits, because the chunks of an image are numbered in 32 bits.
    const unsigned pixel =
        static_cast<unsigned>(level.origin) + (place.y + pixel_y) * level.row_pitch + place.x + pixel_x;
    return element_address<ValueStorage>(params.grad_value, slab / HEADS * params.grad_value_batch_stride +
                                                                slab % HEADS * params.grad_value_head_stride +
                                                                slice * SLICE_CHANNELS) +
           static_cast<unsigned long long>(pixel) * PIXEL_BYTES;
}

// A tile's pixels in 16-byte chunks: in pass k a lane has chunk lane % ROW_CHUNKS of pixel
// lane / ROW_CHUNKS + k ROWS_AT_ONCE.
constexpr int PASSES = TILE_PIXELS / ROWS_AT_ONCE;
constexpr int PASS_ROWS = ROWS_AT_ONCE / TILE_SIDE;
static_assert(PASS_ROWS * TILE_SIDE == ROWS_AT_ONCE, "a pass is whole rows of pixels");

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

MSDA_DEVICE void clear_tile(const BackwardParams& params, int slab, int slice, const TilePlace& place) {
    tile_stores(params, slab, slice, place.level).clear_tile(place);
}

}  // namespace msda
