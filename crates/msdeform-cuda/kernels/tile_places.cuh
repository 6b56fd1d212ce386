// Where the pixels of a tile lie, and the rows of the output's gradient that they are sums of.
#pragma once

#include "grad_output_rows.cuh"
#include "tile_lists.cuh"

namespace msda {

constexpr int ROW_BYTES = SLICE_CHANNELS * ValueStorage::BYTES;  // of a pixel's gradient, and of the output's
constexpr int ROW_CHUNKS = ROW_BYTES / 16;
constexpr int ROWS_AT_ONCE = 32 / ROW_CHUNKS;  // that a warp copies or writes with one instruction

// Where a tile lies, or a group of tiles of cells.
struct TilePlace {
    int level;
    int x;  // of its first pixel; -1 in the first groups of cells
    int y;
};
MSDA_DEVICE TilePlace place_in_level(const CallShape& shape, int level, int tile) {
    const int group = tile / GROUP_TILES;
    const int groups_x = groups_across(shape.level[level].width);
    const int row = group / groups_x;
    return {level, (group - row * groups_x) * GROUP_SIDE - CELLS, row * GROUP_SIDE - CELLS};
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
    const int x = place.x + pixel_x, y = place.y + pixel_y;
    return (!CELLS || (x >= 0 && y >= 0)) && x < level.width && y < level.height;
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

// Rows of the output's gradient: one slab, one slice of its channels.
struct GradRows {
    const unsigned char* lane_chunk;  // the chunk of query 0 that this lane copies
    unsigned query_chunks;            // 16-byte chunks from one query to the next
    int chunks;                       // that exist of a row
    // The bits of a float that tf32 has, in a way that the compiler cannot know: it would see that products
    // ignore the others, pass them floats as they are, and copy these to where a product wants its operands.
    unsigned tf32_bits;
};
MSDA_DEVICE GradRows grad_rows(const BackwardParams& params, int slab, int slice) {
    GradRows grad;
    const GradOutput upstream = grad_output(params);
    const long long first =
        slab / HEADS * upstream.batch_stride + slab % HEADS * upstream.head_stride + slice * SLICE_CHANNELS;
    grad.lane_chunk =
        kept(element_address<ValueStorage>(upstream.first, first) + threadIdx.x % ROW_CHUNKS * 16);
    grad.query_chunks = static_cast<unsigned>(upstream.query_stride) * ValueStorage::BYTES / 16u;
    grad.tf32_bits = params.queries < 0 ? 0 : 0xffffe000u;  // there are no fewer than 0
    grad.chunks = at_most(CHUNKS - slice * ROW_CHUNKS, ROW_CHUNKS);
    return grad;
}

}  // namespace msda
