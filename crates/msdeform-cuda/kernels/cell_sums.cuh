// Sums of the pixels that a group of tiles of cells touches, and the seams where groups meet.
//
// A lane owns a channel. A sum is a pixel's gradient if only this group touches the pixel. The outer pixels
// are touched by two or four groups: their sums go to `seams`, and add_seams adds them up in a fixed order.
#pragma once

#include "tile_places.cuh"

namespace msda {

// The number of an outer pixel: the upper row, the lower row, and what is left of both columns.
MSDA_DEVICE constexpr int seam_pixel(int x, int y) {
    if (y == 0) return x;
    if (y == GROUP_SIDE) return SUM_SIDE + x;
    return 2 * SUM_SIDE + y - 1 + (x == 0 ? 0 : GROUP_SIDE - 1);
}

constexpr int GROUP_SEAMS = SEAM_PIXELS * SLICE_CHANNELS;
MSDA_DEVICE float* seams_of_group(const TileLists& lists, int slab, int slice, int group) {
    const long long groups = lists.tiles / GROUP_TILES;
    const long long index = (static_cast<long long>(slab) * SLICES + slice) * groups + group;
    return lists.seams + index * GROUP_SEAMS + threadIdx.x % 32;
}

// The pixels of one group, slice and slab, this lane's channel. Made for constant x and y, which become
// displacements.
struct GroupPixels {
    float* seams;
    unsigned char* first;  // gradient of pixel (0, 0), which may lie outside of the level
    long long row_bytes;
    int columns;  // that lie in the level, counted from x = 0; none if the channel does not exist
    int rows;

    // A pixel inside of the group, or whose sums were added.
    MSDA_DEVICE void store_pixel(int x, int y, float sum) const {
        if (x >= columns || y >= rows) return;
        Packet<ValueStorage::BYTES> packet;
        packet.word[0] = ValueStorage::from_float(sum);
        store_streaming(first + y * row_bytes + x * PIXEL_BYTES, packet);
    }

    MSDA_DEVICE void store_sum(int x, int y, float sum) const {
        if (x % GROUP_SIDE == 0 || y % GROUP_SIDE == 0) {
            seams[seam_pixel(x, y) * SLICE_CHANNELS] = sum;
        } else {
            store_pixel(x, y, sum);
        }
    }
};
// `tile` is the group's first.
MSDA_DEVICE GroupPixels group_pixels(const BackwardParams& params, const TileLists& lists, int slab,
                                     int slice, int tile) {
    const TilePlace place = place_of_tile(params, tile);
    const LevelGeometry& level = params.level[place.level];
    const int lane = threadIdx.x % 32;
    const bool exists = CHANNELS % SLICE_CHANNELS == 0 || slice * SLICE_CHANNELS + lane < CHANNELS;
    GroupPixels pixels;
    pixels.seams = seams_of_group(lists, slab, slice, tile / GROUP_TILES);
    pixels.first = grad_pixel(params, lists.first_slab + slab, slice, {place.level, 0, 0}, 0, 0) +
                   (static_cast<long long>(place.y) * level.row_pitch + place.x) * PIXEL_BYTES +
                   lane * ValueStorage::BYTES;
    pixels.row_bytes = static_cast<long long>(level.row_pitch) * PIXEL_BYTES;
    pixels.columns = exists ? level.width - place.x : 0;
    pixels.rows = level.height - place.y;
    return pixels;
}

// Adds the sums of the groups that meet in a group's upper row and left column.
MSDA_DEVICE void add_seams(const BackwardParams& params, const TileLists& lists, int slab, int slice,
                           int group) {
    const TilePlace place = place_of_tile(params, group * GROUP_TILES);
    const GroupPixels pixels = group_pixels(params, lists, slab, slice, group * GROUP_TILES);
    const int groups_x = groups_across(params.level[place.level].width);
    const float* own = pixels.seams;
    const float* left = own - GROUP_SEAMS;
    const float* above = own - static_cast<long long>(groups_x) * GROUP_SEAMS;
    const auto sum_of = [](const float* seams, int x, int y) {
        return seams[seam_pixel(x, y) * SLICE_CHANNELS];
    };
    const bool has_left = place.x >= 0, has_above = place.y >= 0;
    float sums[GROUP_SIDE];
    if (has_left) {
#pragma unroll
        for (int y = 1; y < GROUP_SIDE; ++y) sums[y] = sum_of(left, GROUP_SIDE, y) + sum_of(own, 0, y);
#pragma unroll
        for (int y = 1; y < GROUP_SIDE; ++y) pixels.store_pixel(0, y, sums[y]);
    }
    if (has_above) {
#pragma unroll
        for (int x = 1; x < GROUP_SIDE; ++x) sums[x] = sum_of(above, x, GROUP_SIDE) + sum_of(own, x, 0);
#pragma unroll
        for (int x = 1; x < GROUP_SIDE; ++x) pixels.store_pixel(x, 0, sums[x]);
    }
    if (has_left && has_above) {
        const float upper =
            sum_of(above - GROUP_SEAMS, GROUP_SIDE, GROUP_SIDE) + sum_of(above, 0, GROUP_SIDE);
        pixels.store_pixel(0, 0, upper + (sum_of(left, GROUP_SIDE, 0) + sum_of(own, 0, 0)));
    }
}

}  // namespace msda
