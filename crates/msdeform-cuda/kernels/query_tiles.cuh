// Queries as 2-D tiles of their rasters, one tile per block.
#pragma once

#include "query_rasters.cuh"

namespace msda {

struct QueryTile {
    Raster raster;
    int x;  // of its first query
    int y;
};

// Tiles of params.tile_width x HEIGHT queries, in the host's order over all levels.
template <int HEIGHT>
MSDA_DEVICE QueryTile query_tile(const CallShape& shape, int number) {
    QueryTile tile = {{shape.raster_width, shape.raster_height, 0}, 0, 0};
    int first = 0, tiles_x = shape.query_tiles_x[0];
    if (shape.queries_are_pixels != 0) {
        int next_query = 0;
        tile.raster = {shape.level[0].width, shape.level[0].height, 0};
#pragma unroll
        for (int l = 1; l < LEVELS; ++l) {
            next_query += shape.level[l - 1].width * shape.level[l - 1].height;
            if (number >= shape.first_query_tile[l]) {
                tile.raster = {shape.level[l].width, shape.level[l].height, next_query};
                first = shape.first_query_tile[l];
                tiles_x = shape.query_tiles_x[l];
            }
        }
    }
    const int row = (number - first) / tiles_x;
    tile.y = row * HEIGHT;
    tile.x = (number - first - row * tiles_x) * shape.tile_width;
    return tile;
}

}  // namespace msda
