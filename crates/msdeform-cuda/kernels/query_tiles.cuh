// Queries in 2-D tiles: blocks that walk neighbours in the image find each other's lines in L1.
//
// Where the queries are the pixels (Lq = S, shape.grid_aux != 0) the tiles are those of the levels, one
// level after another; otherwise the queries are taken to form one raster of shape.query_raster_width. A
// wrong guess costs cache hits, never a result.
#pragma once

#include "intrinsics.cuh"
#include "params.cuh"

namespace msda {

struct QueryTile {
    int raster_width;
    int raster_height;
    int first_query;  // of the raster
    int tile_x;
    int tile_y;
};

MSDA_DEVICE int tiles_along(int size, int tile) { return (size + tile - 1) / tile; }

template <int TILE_WIDTH, int TILE_HEIGHT>
MSDA_DEVICE QueryTile query_tile(const CallShape& shape, bool queries_are_pixels, int tile) {
    const int width = shape.query_raster_width;
    QueryTile found = {width, 0, 0, 0, 0};
    int first_tile = 0;
    if (queries_are_pixels) {
        found.raster_width = shape.level[0].width;
        found.raster_height = shape.level[0].height;
        int level_tile = 0, level_query = 0;
#pragma unroll
        for (int l = 1; l < LEVELS; ++l) {
            const LevelGeometry& before = shape.level[l - 1];
            level_tile += tiles_along(before.width, TILE_WIDTH) * tiles_along(before.height, TILE_HEIGHT);
            level_query += before.width * before.height;
            if (tile >= level_tile) {
                found = {shape.level[l].width, shape.level[l].height, level_query, 0, 0};
                first_tile = level_tile;
            }
        }
    } else {
        found.raster_height = tiles_along(shape.queries, width);
    }
    const int tiles_x = tiles_along(found.raster_width, TILE_WIDTH);
    found.tile_y = (tile - first_tile) / tiles_x;
    found.tile_x = (tile - first_tile) - found.tile_y * tiles_x;
    return found;
}

}  // namespace msda
