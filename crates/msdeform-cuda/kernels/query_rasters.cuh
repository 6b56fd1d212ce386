// Queries as rasters: neighbours in the image are walked together and find each other's lines in L1.
//
// Where the queries are the pixels (Lq = S) every level is a raster, one after another; otherwise all queries
// are taken to form one of shape.raster_width. A wrong guess costs cache hits, never a result.
//
// A raster is cut into items, runs of neighbouring queries in a row, one warp's at a time. A kernel
// chooses the items of a block: rows of a strip a few items wide (Strips), or a 2-D tile (query_tiles.cuh).
#pragma once

#include "chunked_sample.cuh"

namespace msda {

struct Raster {
    int width;
    int height;
    int first_query;
};

// Neighbouring queries in a row of a raster. `queries` is 0 or negative if the item lies outside.
struct Item {
    int query;
    int queries;
};

// If the queries are the pixels: the level of unit `number`. `units_of` defines the unit.
// Units are numbered through all levels; `number` becomes the unit's number within its level.
template <typename Number, typename UnitsOf>
MSDA_DEVICE Raster level_of_unit(const CallShape& shape, Number& number, UnitsOf units_of) {
    Raster raster = {shape.level[0].width, shape.level[0].height, 0};
    Number first_unit = 0, next_unit = 0;
    int next_query = 0;
#pragma unroll
    for (int l = 1; l < LEVELS; ++l) {
        const Raster before = {shape.level[l - 1].width, shape.level[l - 1].height, 0};
        next_unit += units_of(before);
        next_query += before.width * before.height;
        if (number >= next_unit) {
            raster = {shape.level[l].width, shape.level[l].height, next_query};
            first_unit = next_unit;
        }
    }
    number -= first_unit;
    return raster;
}

// ---- strips ------------------------------------------------------------------------------------

// Items of ITEM_QUERIES queries in strips STRIP_ITEMS items wide, numbered along the rows of a strip, strip
// after strip.
template <int ITEM_QUERIES, int STRIP_ITEMS>
struct Strips {
    static constexpr int WIDTH = STRIP_ITEMS * ITEM_QUERIES;

    MSDA_DEVICE static unsigned items_of(const Raster& raster) {
        const unsigned strips = static_cast<unsigned>(raster.width + WIDTH - 1) / WIDTH;
        return strips * STRIP_ITEMS * static_cast<unsigned>(raster.height);
    }

    MSDA_DEVICE static Item item_of_raster(const Raster& raster, int queries, unsigned number) {
        const unsigned strip_items = STRIP_ITEMS * static_cast<unsigned>(raster.height);
        const unsigned strip = number / strip_items;
        const unsigned in_strip = number - strip * strip_items;
        const int x = static_cast<int>(strip * WIDTH + in_strip % STRIP_ITEMS * ITEM_QUERIES);
        const int y = static_cast<int>(in_strip / STRIP_ITEMS);
        const int query = raster.first_query + y * raster.width + x;
        return {query, at_most(at_most(raster.width - x, queries - query), ITEM_QUERIES)};
    }

    // Width 0: the queries are the pixels.
    MSDA_DEVICE static Item item(const CallShape& shape, unsigned number) {
        const int queries = shape.queries, width = shape.raster_width;
        if (width >= queries) {  // one row
            const int query = static_cast<int>(number) * ITEM_QUERIES;
            return {query, at_most(queries - query, ITEM_QUERIES)};
        }
        if (width > 0) {
            const unsigned height = static_cast<unsigned>(queries + width - 1) / width;
            return item_of_raster({width, static_cast<int>(height), 0}, queries, number);
        }
        const Raster level = level_of_unit(shape, number, items_of);
        return item_of_raster(level, queries, number);
    }
};

}  // namespace msda
