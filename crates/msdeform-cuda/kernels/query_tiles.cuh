// Queries as 2-D tiles of their rasters, a block's each.
#pragma once

#include "query_rasters.cuh"

namespace msda {

struct QueryTile {
    Raster raster;
    int x;  // of its first query
    int y;
};

// Tiles of params.tile_width x tile_height queries, numbered through the levels as the host says.
MSDA_DEVICE QueryTile query_tile(const CallShape& shape, int number) {
    QueryTile tile = {{shape.raster_width, shape.raster_height, 0}, 0, 0};
    int level = 0;
    if (shape.queries_are_pixels != 0) {
        int next_query = 0;
        tile.raster = {shape.level[0].width, shape.level[0].height, 0};
#pragma unroll
        for (int l = 1; l < LEVELS; ++l) {
            next_query += shape.level[l - 1].width * shape.level[l - 1].height;
            if (number >= shape.first_query_tile[l]) {
                level = l;
                tile.raster = {shape.level[l].width, shape.level[l].height, next_query};
            }
        }
    }
    const int in_level = number - shape.first_query_tile[level];
    const int row = in_level / shape.query_tiles_x[level];
    tile.y = row * shape.tile_height;
    tile.x = (in_level - row * shape.query_tiles_x[level]) * shape.tile_width;
    return tile;
}

}  // namespace msda
