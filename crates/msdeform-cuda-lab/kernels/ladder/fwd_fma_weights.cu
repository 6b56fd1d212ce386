// Bilinear weights as fused multiply-adds.
//
// Who owns what. A warp owns an item and takes eight samples a round, four lanes for each; every lane places
// its sample itself, so the arithmetic of weights costs four times as much as if it were shared.
//
// FMA = 0 is the textbook form: 1 - u and 1 - v, four products of shares, each corner looked up only if it
// lies inside, and the attention weight multiplied in at the end: five instructions per channel and sample.
//
// FMA = 1 folds the attention weight in first and gets every "one minus" from an fma: a (1 - v) is fma(-a, v,
// a). Six instructions for four weights, none of which waits for more than one other, and four per channel
// and sample. With a border in memory that is all: every corner of a sample that counts can be read. Without
// one, samples at an edge move their weights to the pixels that are there.
//
// When it loses: never. It matters here, where every lane places its own sample and instructions are the
// limit; it stops mattering where metadata is computed once for many lanes (fwd_shuffle_meta).
#include "ladder/rounds.cuh"

using namespace msda;

namespace {

constexpr int WARPS = 8;
constexpr bool FMA = MSDA_FMA != 0;

MSDA_DEVICE unsigned pixel_offset(const LevelGeometry& level, int left, int top) {
    const int pixel = static_cast<int>(level.origin) + top * level.row_pitch + left;
    return static_cast<unsigned>(pixel) * (PIXEL_BYTES / 16);
}

// sums += one sample, as written in textbooks.
MSDA_DEVICE void add_textbook(const unsigned char* chunk, const LevelGeometry& level, const Position& at,
                              float attention, float (&sums)[CHUNK_ELEMENTS]) {
    if (!at.counts) return;
    const float left_share = 1.0f - at.right_share, top_share = 1.0f - at.bottom_share;
    const float share[4] = {top_share * left_share, top_share * at.right_share, at.bottom_share * left_share,
                            at.bottom_share * at.right_share};
    float interpolated[CHUNK_ELEMENTS];
    clear(interpolated);
#pragma unroll
    for (int c = 0; c < 4; ++c) {
        const int x = at.left + c % 2, y = at.top + c / 2;
        Packet16 packet = {};
        if (x >= 0 && x < level.width && y >= 0 && y < level.height) {
            load_readonly(packet, chunk_at(chunk, pixel_offset(level, x, y)));
        }
        float values[CHUNK_ELEMENTS];
        unpack<ValueStorage, CHUNK_ELEMENTS>(packet, values);
#pragma unroll
        for (int w = 0; w < CHUNK_ELEMENTS; ++w) {
            interpolated[w] = fmaf(share[c], values[w], interpolated[w]);
        }
    }
#pragma unroll
    for (int w = 0; w < CHUNK_ELEMENTS; ++w) sums[w] = fmaf(attention, interpolated[w], sums[w]);
}

// Along one axis: a cell that reaches over an edge moves inside, and its weights with it.
MSDA_DEVICE void move_inside(int& cell, int size, float& near, float& far) {
    const bool is_before = cell < 0;
    const bool is_behind = cell > size - 2;
    const float first = near;
    near = is_before ? far : is_behind ? 0.0f : near;
    far = is_behind ? first : is_before ? 0.0f : far;
    cell = min(max(cell, 0), size - 2);
}

// sums += one sample, everything an fma.
MSDA_DEVICE void add_fused(const unsigned char* chunk, const LevelGeometry& level, const Position& at,
                           float attention, float (&sums)[CHUNK_ELEMENTS]) {
    const float counted = at.counts ? attention : 0.0f;
    float top = fmaf(-counted, at.bottom_share, counted), bottom = counted * at.bottom_share;
    int cell_x = at.left, cell_y = at.top;
    if constexpr (LAYOUT == HEAD_MAJOR) move_inside(cell_y, level.height, top, bottom);
    float weight[2][2] = {{fmaf(-top, at.right_share, top), top * at.right_share},
                          {fmaf(-bottom, at.right_share, bottom), bottom * at.right_share}};
    if constexpr (LAYOUT == HEAD_MAJOR) {
        int same = cell_x;
        move_inside(same, level.width, weight[0][0], weight[0][1]);
        move_inside(cell_x, level.width, weight[1][0], weight[1][1]);
    }
    add_corners(load_corners(chunk, pixel_offset(level, cell_x, cell_y), row_below(level)), weight, sums);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(WARPS * 32)
    fwd_fma_weights(const __grid_constant__ ForwardParams params) {
    const int lane = threadIdx.x % 32, sample = lane / CHUNKS;
    const long long index = static_cast<long long>(blockIdx.x) * WARPS + threadIdx.x / 32;
    if (index >= item_count(params)) return;
    const Item item = item_at(params, index);
    const unsigned char* chunk = item.pixels + lane % CHUNKS * 16;

    float sums[CHUNK_ELEMENTS];
    clear(sums);
#pragma unroll UNROLL_ROUNDS
    for (int round = 0; round < ROUNDS; ++round) {
        if (sample >= samples_of_round(round)) continue;
        const int s = round * ROUND_SAMPLES + sample;
        const LevelGeometry& level = params.level[level_of_sample(s)];
        const long long from = item.row * SAMPLES + s;
        const Location location = load_location(params, from);
        const Position at = locate(location.x, location.y, level.height, level.width);
        const float attention = load_attention(params, from);
        if constexpr (FMA) {
            add_fused(chunk, level, at, attention, sums);
        } else {
            add_textbook(chunk, level, at, attention, sums);
        }
    }
    store_item(params, item, lane, combine_samples(sums, lane));
}
