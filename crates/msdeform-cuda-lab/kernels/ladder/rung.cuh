// The common part of all rungs. They have the seed documents' setting: fp16 values of 32 channels in
// head-major order. A slab is one head of one image, [pixel][32 channels], 64 bytes a pixel; an item is one
// query of one slab. Rungs differ only in how they divide the work on an item: coordinates, weights and edges
// come from chunked_sample.cuh for all of them.
#pragma once

#include "sample_source.cuh"

namespace msda {

static_assert(VALUE_DTYPE == F16 && CHANNELS == 32, "a rung has fp16 values of 32 channels");
static_assert(LAYOUT == HEAD_MAJOR || LAYOUT == HEAD_MAJOR_PADDED, "slabs, with or without a border");

// One query of one slab.
struct Item {
    int slab;
    int query;
    long long row;                // of locations, weights and output: (image, query, head)
    const unsigned char* pixels;  // the slab's first pixel
};

MSDA_DEVICE const unsigned char* slab_pixels(const ForwardParams& params, int slab) {
    const int batch = slab / params.heads, head = slab % params.heads;
    return element_address<ValueStorage>(params.value,
                                         batch * params.value_batch_stride + head * params.value_head_stride);
}

MSDA_DEVICE Item item_of(const ForwardParams& params, int slab, int query) {
    const int batch = slab / params.heads, head = slab % params.heads;
    Item item;
    item.slab = slab;
    item.query = query;
    item.row = (static_cast<long long>(batch) * params.queries + query) * params.heads + head;
    item.pixels = slab_pixels(params, slab);
    return item;
}

// Items in the order of their slabs, so that blocks that run at the same time read the same slab.
MSDA_DEVICE long long item_count(const ForwardParams& params) {
    return static_cast<long long>(params.batch) * params.heads * params.queries;
}
MSDA_DEVICE Item item_at(const ForwardParams& params, long long index) {
    return item_of(params, static_cast<int>(index / params.queries),
                   static_cast<int>(index % params.queries));
}

// The place of sample s of a row, and the weights of its corners.
MSDA_DEVICE Sample sample_of(const ForwardParams& params, long long row, int s) {
    const long long index = row * SAMPLES + s;
    return place_sample(params.level[level_of_sample(s)],
                        load_element<SamplingStorage>(params.locations, 2 * index),
                        load_element<SamplingStorage>(params.locations, 2 * index + 1),
                        load_element<SamplingStorage>(params.weights, index));
}

// The next row of pixels, in the units of Sample::offset.
MSDA_DEVICE unsigned row_below(const LevelGeometry& level) {
    return static_cast<unsigned>(level.row_pitch) * (PIXEL_BYTES / 16);
}

// The four corners' 16-byte chunks: top left, top right, bottom left, bottom right. `chunk` is this lane's
// chunk of the slab's first pixel.
struct Corners {
    Packet16 packet[4];
};
MSDA_DEVICE Corners load_corners(const unsigned char* chunk, unsigned offset, unsigned below) {
    Corners corners;
    const unsigned char* top = chunk_at(chunk, offset);
    const unsigned char* bottom = chunk_at(chunk, offset + below);
    load_readonly(corners.packet[0], top);
    load_readonly(corners.packet[1], top + PIXEL_BYTES);
    load_readonly(corners.packet[2], bottom);
    load_readonly(corners.packet[3], bottom + PIXEL_BYTES);
    return corners;
}

// sums += the corners times their weights, in fp32.
MSDA_DEVICE void add_corners(const Corners& corners, const float (&weight)[2][2],
                             float (&sums)[CHUNK_ELEMENTS]) {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
        float values[CHUNK_ELEMENTS];
        unpack<ValueStorage, CHUNK_ELEMENTS>(corners.packet[c], values);
#pragma unroll
        for (int w = 0; w < CHUNK_ELEMENTS; ++w) {
            sums[w] = fmaf(weight[c / 2][c % 2], values[w], sums[w]);
        }
    }
}

// Computes a chunk of an output row by the definition, for sums that are not finite. `pixels` is the chunk of
// the first pixel.
MSDA_DEVICE void recompute_exactly(const ForwardParams& params, const unsigned char* pixels, long long row,
                                   float (&sums)[CHUNK_ELEMENTS]) {
    recompute_exactly(params, sample_source(params), pixels, row, sums);
}

template <int N>
MSDA_DEVICE void clear(float (&sums)[N]) {
#pragma unroll
    for (int w = 0; w < N; ++w) sums[w] = 0.0f;
}

// Writes chunk `chunk` (0 to 3) of an item's output. A sum that is not finite may have met a pixel that is no
// corner (chunked_sample.cuh) and is computed again.
MSDA_DEVICE void store_chunk(const ForwardParams& params, const Item& item, int chunk,
                             float (&sums)[CHUNK_ELEMENTS]) {
    float zero = 0.0f;  // NaN if any sum is not finite
#pragma unroll
    for (int w = 0; w < CHUNK_ELEMENTS; ++w) zero = fmaf(sums[w], 0.0f, zero);
    if (!(zero == 0.0f)) recompute_exactly(params, item.pixels + chunk * 16, item.row, sums);
    Packet16 packet;
    pack<ValueStorage, CHUNK_ELEMENTS>(sums, packet);
    store(element_address<ValueStorage>(params.output, item.row * CHANNELS) + chunk * 16, packet);
}

}  // namespace msda
