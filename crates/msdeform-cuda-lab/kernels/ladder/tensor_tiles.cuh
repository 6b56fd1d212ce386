// Tiles brought by the copy engine (cp.async.bulk.tensor): one thread requests a box of 2 x 2 pixels, an
// mbarrier counts its bytes.
//
// Cells are not clamped here. Pixels outside of a level arrive as zeros, so a corner outside
// adds nothing for any weight, and no border in memory is needed. A sample entirely outside is a tile of
// zeros times zero. So the result is also right for values that are not finite, and no sum is computed
// again.
#pragma once

#include "ladder/tiles.cuh"

namespace msda {

// One map per level; the slab is the fourth dimension, after channels, columns and rows.
struct TiledParams {
    TensorMap map[LEVELS];
    ForwardParams call;
};

struct TilePlace {
    int left;
    int top;
    float weight[2][2];
};
MSDA_DEVICE TilePlace place_tile(const LevelGeometry& level, const Location& location, float attention) {
    const Position at = locate(location.x, location.y, level.height, level.width);
    constexpr int OUTSIDE = -2;
    // The weight of a sample outside of its level may be NaN.
    const float counted = at.counts ? attention : 0.0f;
    const float top = counted * (1.0f - at.bottom_share), bottom = counted * at.bottom_share;
    TilePlace place;
    place.left = at.counts ? at.left : OUTSIDE;
    place.top = at.counts ? at.top : OUTSIDE;
    place.weight[0][0] = top * (1.0f - at.right_share);
    place.weight[0][1] = top * at.right_share;
    place.weight[1][0] = bottom * (1.0f - at.right_share);
    place.weight[1][1] = bottom * at.right_share;
    return place;
}

// Requests a tile; 256 bytes arrive at `barrier`, even if a part of it lies outside.
MSDA_DEVICE void copy_tile(Packet16* tile, const TensorMap& map, const TilePlace& place, int slab,
                           Mbarrier* barrier) {
    copy_tensor_4d(tile, &map, 0, place.left, place.top, slab, barrier);
}

// Writes an item's output, a channel per lane.
MSDA_DEVICE void store_exact(const ForwardParams& params, const Item& item, int lane, float sum) {
    store_element<ValueStorage>(params.output, item.row * CHANNELS + combined_channel(lane), sum);
}

}  // namespace msda
