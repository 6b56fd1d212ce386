// Gradients of the sampling locations and of the attention weights.
//
// Both are made of four numbers per sample: the dot products of the output's gradient with the four corner
// pixels. So this is the forward's gather (fwd_tile_gather) with dot products instead of sums.
//
// Who owns what. A pixel of one head is read by ROW_LANES lanes, 16 bytes each; such a group owns one
// (query, head) during the gather, interleaved heads side by side, so that two groups read one 128-byte line.
// For everything else a lane owns four samples of one (query, head): it computes where their cells start,
// writes these offsets to shared memory, and after the gather reads the sixteen dot products there.
//
// Half precision multiplies on the tensor cores: rows g and g + 8 of the left operand are the chunks of two
// corners of group g, column g of the right one is its gradient; of the 16 x 8 products only those where row
// and column belong to the same group are used, and lane g / 2 of the group gets them. Products
// are exact, sums fp32, and no shuffle is needed. f32 multiplies in the lanes and adds up by shuffles that
// hand out one dot product to every second lane.
//
// Edges. The cell is clamped into the level, so all four loads stay inside (as in chunked_sample.cuh);
// a selection leaves out the dot products of pixels that are no corners, even if they are NaN. Where a
// level may be one pixel thin (THIN) a cell's second pixel along that axis is its first, and never a corner.
//
// Why locations and weights are read twice: keeping them in registers during the gather spills.
#pragma once

#include "grad_output_rows.cuh"
#include "query_tiles.cuh"
#include "query_walk.cuh"
#include "sample_sink.cuh"

namespace msda::sample_gradients {

constexpr int WARPS = MSDA_SAMPLE_WARPS;        // of a block
constexpr int MIN_BLOCKS = MSDA_SAMPLE_BLOCKS;  // per SM: caps the registers
constexpr int TILE_HEIGHT = MSDA_TILE_HEIGHT;   // in queries
constexpr bool THIN = MSDA_THIN != 0;           // a level may be one pixel high or wide

constexpr bool PACKED = VALUE_DTYPE != F32;
using Walk = QueryWalk;
constexpr int ROW_LANES = Walk::ROW_LANES;
static_assert(ROW_LANES == (PACKED ? 4 : 8), "as products and shuffles have it");
constexpr int ROW_STEPS = (CHUNKS + ROW_LANES - 1) / ROW_LANES;  // loads of a lane per pixel
constexpr bool WHOLE_ROWS = CHUNKS % ROW_LANES == 0;
static_assert(Walk::GROUP_PACKETS == 5, "four offsets in one, then four dots for each sample");
constexpr int GROUPS = Walk::GROUPS;

// ---- samples -----------------------------------------------------------------------------------

struct LevelSizes {
    float width;
    float height;
    float row_pitch;
    unsigned origin;
};
MSDA_DEVICE LevelSizes level_sizes(const CallShape& shape, int sample) {
    const LevelGeometry& level = shape.level[level_of_sample(sample)];
    return {static_cast<float>(level.width), static_cast<float>(level.height),
            static_cast<float>(level.row_pitch), static_cast<unsigned>(level.origin)};
}
MSDA_DEVICE constexpr bool quads_have_one_level() {
    for (int l = 0; l < LEVELS; ++l) {
        if (POINT_OFFSETS.at[l] % 4 != 0) return false;
    }
    return true;
}

MSDA_DEVICE float clamped_cell(float position, float size) {
    const float last = THIN ? fmaxf(size - 2.0f, 0.0f) : size - 2.0f;
    return fminf(fmaxf(floor_near(position), 0.0f), last);
}

// Turns locations into coordinates inside of cells; returns where the cells start, in 16-byte units.
MSDA_DEVICE Packet16 place_quad(const CallShape& shape, int first, Quad& quad) {
    Packet16 offsets;
    LevelSizes level = level_sizes(shape, first);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        if (i > 0 && !quads_have_one_level()) level = level_sizes(shape, first + i);
        const float x = fmaf(quad.x[i], level.width, -0.5f);
        const float y = fmaf(quad.y[i], level.height, -0.5f);
        const bool counts = x > -1.0f && x < level.width && y > -1.0f && y < level.height;
        const float column = clamped_cell(x, level.width), row = clamped_cell(y, level.height);
        quad.x[i] = counts ? x - column : bits_to_float(0x7fc00000u);
        quad.y[i] = y - row;
        // Exact: the sum is an integer below 2^24, and 2^23 + n has n in its low mantissa bits.
        constexpr float TWO_23 = 8388608.0f;
        const float cell = fmaf(row, level.row_pitch, column + TWO_23);
        const unsigned pixel = float_to_bits(cell) - float_to_bits(TWO_23) + level.origin;
        offsets.word[i] = pixel * (PIXEL_BYTES / 16);
    }
    return offsets;
}

// ---- dot products ------------------------------------------------------------------------------

struct GradRow {
    Packet16 chunk[ROW_STEPS];
};
MSDA_DEVICE GradRow load_grad_row(const unsigned char* row, int lane_chunk) {
    GradRow grad;
#pragma unroll
    for (int step = 0; step < ROW_STEPS; ++step) {
        grad.chunk[step] = {};
        if (WHOLE_ROWS || step * ROW_LANES + lane_chunk < CHUNKS) {
            load_readonly(grad.chunk[step], row + step * ROW_LANES * 16);
        }
    }
    return grad;
}

// Half precision: both corners of a row of the cell, for all groups of the warp. Lane g / 2 gets the results.
MSDA_DEVICE void add_dots_packed(const Packet16& left, const Packet16& right, const Packet16& grad,
                                 float& left_dot, float& right_dot) {
    float sums[4] = {};
#pragma unroll
    for (int k = 0; k < 4; k += 2) {
        const unsigned corners[4] = {left.word[k], right.word[k], left.word[k + 1], right.word[k + 1]};
        const unsigned column[2] = {grad.word[k], grad.word[k + 1]};
        if constexpr (VALUE_DTYPE == F16) {
            mma_f16_16x8x16(sums, corners, column);
        } else {
            mma_bf16_16x8x16(sums, corners, column);
        }
    }
    const bool odd = threadIdx.x / 4 % 2 != 0;  // the group's column
    left_dot += odd ? sums[1] : sums[0];
    right_dot += odd ? sums[3] : sums[2];
}
// f32: this lane's share.
MSDA_DEVICE void add_dots_single(const Packet16& left, const Packet16& right, const Packet16& grad,
                                 float& left_dot, float& right_dot) {
#pragma unroll
    for (int w = 0; w < 4; ++w) {
        left_dot = fmaf(bits_to_float(left.word[w]), bits_to_float(grad.word[w]), left_dot);
        right_dot = fmaf(bits_to_float(right.word[w]), bits_to_float(grad.word[w]), right_dot);
    }
}

// The cells of two neighbouring samples of a group.
struct CellPair {
    const unsigned char* top[2];
    int right[2];        // bytes to the cell's other column
    long long below[2];  // and row
};
MSDA_DEVICE CellPair cell_pair(const CallShape& shape, const unsigned char* pixels, const Packet<8>& offsets,
                               int first) {
    CellPair cells;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        cells.top[i] = pixels + static_cast<unsigned long long>(offsets.word[i]) * 16u;
        if (i == 0 || !quads_have_one_level()) {
            const LevelGeometry& level = shape.level[level_of_sample(first + i)];
            cells.right[i] = THIN && level.width == 1 ? 0 : PIXEL_BYTES;
            // The choice is made in 32 bits, because NVRTC (12.9 to 13.4) compiles a 64-bit choice between
            // zero and a product to code that reads the zero before it is written.
            const int pitch = THIN && level.height == 1 ? 0 : level.row_pitch;
            cells.below[i] = static_cast<long long>(pitch) * PIXEL_BYTES;
        } else {
            cells.right[i] = cells.right[0];
            cells.below[i] = cells.below[0];
        }
    }
    return cells;
}

// The dot products of the output's gradient with the corners of two cells.
MSDA_DEVICE void dot_corners(const CellPair& cells, int lane_chunk, const GradRow& grad,
                             float (&dots)[2][4]) {
#pragma unroll
    for (int k = 0; k < 8; ++k) dots[k / 4][k % 4] = 0.0f;
#pragma unroll
    for (int step = 0; step < ROW_STEPS; ++step) {
        Packet16 corner[2][4] = {};
        if (WHOLE_ROWS || step * ROW_LANES + lane_chunk < CHUNKS) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const unsigned char* at = cells.top[i] + step * ROW_LANES * 16;
                load_readonly(corner[i][0], at);
                load_readonly(corner[i][1], at + cells.right[i]);
                load_readonly(corner[i][2], at + cells.below[i]);
                load_readonly(corner[i][3], at + cells.below[i] + cells.right[i]);
            }
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
#pragma unroll
            for (int c = 0; c < 4; c += 2) {
                if constexpr (PACKED) {
                    add_dots_packed(corner[i][c], corner[i][c + 1], grad.chunk[step], dots[i][c],
                                    dots[i][c + 1]);
                } else {
                    add_dots_single(corner[i][c], corner[i][c + 1], grad.chunk[step], dots[i][c],
                                    dots[i][c + 1]);
                }
            }
        }
    }
}

// Adds up over the eight lanes of a row while handing the dots out: lane j gets dot j / 2.
MSDA_DEVICE float share_out(const float (&dots)[4]) {
    const int lane = threadIdx.x % 8;
    const bool upper = (lane & 4) != 0, odd = (lane & 2) != 0;
    float even_dot = upper ? dots[2] : dots[0], odd_dot = upper ? dots[3] : dots[1];
    even_dot += shuffle_xor(upper ? dots[0] : dots[2], 4);
    odd_dot += shuffle_xor(upper ? dots[1] : dots[3], 4);
    float dot = odd ? odd_dot : even_dot;
    dot += shuffle_xor(odd ? even_dot : odd_dot, 2);
    return dot + shuffle_xor(dot, 1);
}

MSDA_DEVICE void keep_dots(Packet16* slot, const float (&dots)[4]) {
    const int lane = threadIdx.x % 32;
    if constexpr (PACKED) {
        Packet16 packet;
#pragma unroll
        for (int c = 0; c < 4; ++c) packet.word[c] = float_to_bits(dots[c]);
        if (lane % 4 == lane / 8) *slot = packet;
    } else {
        const float dot = share_out(dots);
        if (lane % 2 == 0) slot->word[lane % 8 / 2] = float_to_bits(dot);
    }
}

// ---- gradients ---------------------------------------------------------------------------------

// One axis of a sample: weights of the two pixels of its clamped cell, their slopes, and which of them are
// corners. u is the coordinate from the first pixel: negative before the level, at least 1 after its end.
struct Axis {
    float near, far;
    float near_slope, far_slope;
    bool near_counts, far_counts;
};
MSDA_DEVICE Axis axis_at(float u, float size) {
    Axis axis;
    axis.near = saturate(1.0f - fabsf(u));
    axis.far = saturate(1.0f - fabsf(1.0f - u));
    axis.near_slope = u < 0.0f ? 1.0f : -1.0f;
    axis.far_slope = u < 1.0f ? 1.0f : -1.0f;
    axis.near_counts = u < 1.0f;
    axis.far_counts = u >= 0.0f && (!THIN || size > 1.0f);
    return axis;
}

// The gradients of a placed quad from its dot products, at dots[0], dots[GROUPS], ...
MSDA_DEVICE QuadGradients quad_gradients(const CallShape& shape, int first, const Quad& quad,
                                         const Packet16* dots) {
    QuadGradients gradients;
    LevelSizes level = level_sizes(shape, first);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        if (i > 0 && !quads_have_one_level()) level = level_sizes(shape, first + i);
        const Packet16 packet = dots[i * GROUPS];
        const Axis x = axis_at(quad.x[i], level.width), y = axis_at(quad.y[i], level.height);
        float dot[2][2];
#pragma unroll
        for (int c = 0; c < 4; ++c) {
            const bool counts =
                (c % 2 ? x.far_counts : x.near_counts) && (c / 2 ? y.far_counts : y.near_counts);
            dot[c / 2][c % 2] = counts ? bits_to_float(packet.word[c]) : 0.0f;
        }
        const float upper = x.near * dot[0][0] + x.far * dot[0][1];
        const float lower = x.near * dot[1][0] + x.far * dot[1][1];
        const float upper_slope = x.near_slope * dot[0][0] + x.far_slope * dot[0][1];
        const float lower_slope = x.near_slope * dot[1][0] + x.far_slope * dot[1][1];
        const float slope_x = y.near * upper_slope + y.far * lower_slope;
        const float slope_y = y.near_slope * upper + y.far_slope * lower;
        const bool counts = quad.x[i] == quad.x[i];
        gradients.locations[2 * i] = counts ? quad.attention[i] * slope_x * level.width : 0.0f;
        gradients.locations[2 * i + 1] = counts ? quad.attention[i] * slope_y * level.height : 0.0f;
        gradients.attention[i] = counts ? y.near * upper + y.far * lower : 0.0f;
    }
    return gradients;
}

// ---- the walk ----------------------------------------------------------------------------------

// The task of the walk: a group computes dot products, and the owner of a quad its gradients.
template <typename Sink>
struct DotProducts {
    static constexpr bool FINISHES = true;

    const CallShape& shape;
    const Sink& sink;
    const Walk& walk;
    const unsigned char* pixels;     // this lane's chunk of its head's first pixel
    const unsigned char* grad_rows;  // of the output's gradient at its head's first query
    long long query_stride;
    int lane_chunk;

    MSDA_DEVICE void place(Quad quad, int first, Packet16* packets) const {
        packets[0] = place_quad(shape, first, quad);
    }

    MSDA_DEVICE void gather(const Item& item, int run, int stage, int quads) const {
        const int gathered =
            item.query + at_most(run * Walk::WARP_QUERIES + walk.group_query, item.queries - 1);
        const GradRow grad =
            load_grad_row(grad_rows + gathered * query_stride * ValueStorage::BYTES, lane_chunk);
#pragma unroll 1
        for (int pair = 0; pair < 2 * quads; ++pair) {
            Packet16* packets = walk.packets_of(run, pair / 2);
            const Packet<8> offsets = reinterpret_cast<const Packet<8>*>(packets)[pair % 2];
            const CellPair cells = cell_pair(shape, pixels, offsets, 4 * stage + 2 * pair);
            float dots[2][4];
            dot_corners(cells, lane_chunk, grad, dots);
            keep_dots(packets + (1 + pair % 2 * 2) * GROUPS, dots[0]);
            keep_dots(packets + (2 + pair % 2 * 2) * GROUPS, dots[1]);
        }
    }

    template <typename Source>
    MSDA_DEVICE void finish(const Source& source, const typename Source::Row& row, int first,
                            const Packet16* packets, const RowShare& share) const {
        if constexpr (Operator::SHARES_ROWS) {
            Quad quad = {};
            QuadGradients gradients = {};
            if (share.owns) {
                quad = source.quad(row, first);
                place_quad(shape, first, quad);
                gradients = quad_gradients(shape, first, quad, packets + GROUPS);
            }
            sink.store_quad(row, first, quad, gradients, share);
        } else {
            Quad quad = source.quad(row, first);
            place_quad(shape, first, quad);
            sink.store_quad(row, first, quad, quad_gradients(shape, first, quad, packets + GROUPS), share);
        }
    }
};

// Item `number` of a tile, row after row.
MSDA_DEVICE Item item_of_tile(const CallShape& shape, const QueryTile& tile, int number) {
    const int row = TILE_HEIGHT > 1 ? number / shape.tile_row_items : 0;
    const int x = tile.x + (number - row * shape.tile_row_items) * Walk::ITEM_QUERIES;
    const int y = tile.y + row;
    const int query = tile.raster.first_query + y * tile.raster.width + x;
    const int in_row = at_most(tile.raster.width - x, shape.queries - query);
    return {query, y < tile.raster.height ? at_most(in_row, Walk::ITEM_QUERIES) : 0};
}

// A block takes a 2-D tile of queries (blockIdx.x) of an image and head group (blockIdx.y).
template <typename Source, typename Sink>
MSDA_DEVICE void walk_queries(const BackwardParams& params, const Source& source, const Sink& sink) {
    const Walk walk;
    const int lane_chunk = walk.lane % ROW_LANES;
    const QueryTile tile = query_tile<TILE_HEIGHT>(params, static_cast<int>(blockIdx.x));
    const int parts = Walk::ITEM_PARTS * params.tile_row_items * TILE_HEIGHT;
    for (int group = blockIdx.y; group < params.batch * Walk::HEAD_GROUPS; group += gridDim.y) {
        const HeadGroup heads = Walk::head_group(group);
        const int head = heads.first_head + walk.group_head;
        const long long head_start =
            heads.batch * params.value_batch_stride + head * params.value_head_stride;
        const unsigned char* pixels =
            kept(element_address<ValueStorage>(params.value, head_start) + lane_chunk * 16);
        const GradOutput upstream = grad_output(params);
        const unsigned char* grad_rows =
            element_address<ValueStorage>(upstream.first,
                                          heads.batch * upstream.batch_stride + head * upstream.head_stride) +
            lane_chunk * 16;
        const long long query_stride = upstream.query_stride;
        const DotProducts<Sink> task = {params, sink, walk, pixels, grad_rows, query_stride, lane_chunk};
#pragma unroll 1
        for (int part = threadIdx.x / 32; part < parts; part += WARPS) {
            const Item item = item_of_tile(params, tile, part / Walk::ITEM_PARTS);
            if (item.queries <= 0) continue;  // the same for the whole warp
            walk.walk(item, Walk::first_row(params, heads, item), part % Walk::ITEM_PARTS * Walk::ITEM_QUADS,
                      source, task);
        }
    }
}

// The step that computes the gradients of locations and weights.
MSDA_DEVICE void walk_queries(const BackwardParams& params) {
    walk_queries(params, sample_source(params), sample_sink(params));
}

}  // namespace msda::sample_gradients
