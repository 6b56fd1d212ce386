// Levels of a slab that a block keeps in shared memory, for the kernels of one block per SM.
//
// Shared memory is filled from the smallest level upwards: a pixel of a small level is read more often than
// one of a large level, since every level has its share of the samples. A level is copied as it lies, row
// after row (with a border: what lies between the rows too), so a pixel's place differs from its offset in
// the slab by a constant.
//
//   shared memory  | table, a line per level | stolen unit | smallest level | next | ... | rows that fit |
#pragma once

#include "ladder/lane_groups.cuh"

namespace msda {

struct alignas(16) Residence {
    unsigned first;   // the level's pixel (0, 0), in the units of Sample::offset
    unsigned limit;   // cells at offsets from `first` below this have all four corners in shared memory
    unsigned place;   // of pixel (0, 0) in shared memory, in bytes
    unsigned pixels;  // how many are kept
};

constexpr int RESIDENT_HEADER = (LEVELS * 16 + 16 + 127) / 128 * 128;

MSDA_DEVICE Residence* residences() { return reinterpret_cast<Residence*>(shared_memory()); }

// For a level that does not fit: whether its first rows are kept, or no row.
enum class Rest { rows, nothing };

// Fills the table; the first LEVELS threads, before a barrier. A kept pixel takes PIXEL bytes: 64, or 16
// where a block owns one chunk.
template <int PIXEL>
MSDA_DEVICE void plan_residences(const ForwardParams& params, int shared_bytes, Rest rest) {
    const int l = threadIdx.x;
    if (l >= LEVELS) return;
    const LevelGeometry& level = params.level[l];
    const int pixels = level.height * level.row_pitch;
    long long before = RESIDENT_HEADER;
#pragma unroll 1
    for (int k = 0; k < LEVELS; ++k) {
        const int others = params.level[k].height * params.level[k].row_pitch;
        if (others < pixels || (others == pixels && k < l)) before += static_cast<long long>(others) * PIXEL;
    }
    const long long room = shared_bytes - before;
    const long long fitting = room / (static_cast<long long>(level.row_pitch) * PIXEL);
    int rows = fitting < level.height ? static_cast<int>(fitting) : level.height;
    // A single row has no cell with all four corners.
    if (rows < 2 || (rest == Rest::nothing && rows < level.height)) rows = 0;
    const unsigned kept = static_cast<unsigned>(rows) * level.row_pitch;
    Residence& own = residences()[l];
    own.first = static_cast<unsigned>(level.origin) * (PIXEL_BYTES / 16);
    own.limit = rows == 0 ? 0 : (kept - level.row_pitch) * (PIXEL_BYTES / 16);
    own.place = static_cast<unsigned>(before);
    own.pixels = kept;
}

// Replaces the pixels in shared memory by those of another slab (of one chunk of it, where PIXEL is 16). All
// threads of the block; barriers on both sides.
template <int PIXEL>
MSDA_DEVICE void keep_slab(const unsigned char* slab) {
    constexpr unsigned PARTS = PIXEL / 16;
    __syncthreads();
#pragma unroll 1
    for (int l = 0; l < LEVELS; ++l) {
        const Residence kept = residences()[l];
        const unsigned char* source = slab + static_cast<unsigned long long>(kept.first) * 16;
        for (unsigned i = threadIdx.x; i < kept.pixels * PARTS; i += blockDim.x) {
            copy_async<16>(shared_memory() + kept.place + i * 16,
                           source + i / PARTS * PIXEL_BYTES + i % PARTS * 16);
        }
    }
    copy_async_wait_all();
    __syncthreads();
}

// Corners of the cell at offset `inside` from the level's first pixel; pixels of PIXEL bytes start at
// `pixels`.
template <int PIXEL>
MSDA_DEVICE Corners resident_corners(const unsigned char* pixels, unsigned inside, unsigned below) {
    constexpr unsigned SCALE = PIXEL / (PIXEL_BYTES / 16);
    const unsigned char* top = pixels + inside * SCALE;
    const unsigned char* bottom = top + below * SCALE;
    Corners corners;
    corners.packet[0] = *reinterpret_cast<const Packet16*>(top);
    corners.packet[1] = *reinterpret_cast<const Packet16*>(top + PIXEL);
    corners.packet[2] = *reinterpret_cast<const Packet16*>(bottom);
    corners.packet[3] = *reinterpret_cast<const Packet16*>(bottom + PIXEL);
    return corners;
}

// Corners of a cell, from shared or global memory. `pixels` is this lane's chunk of the slab's first pixel,
// `shift` that chunk's place within a kept pixel.
template <int PIXEL>
MSDA_DEVICE Corners corners_of_cell(const Residence& level, const unsigned char* pixels, int shift,
                                    unsigned offset, unsigned below) {
    const unsigned inside = offset - level.first;
    if (inside < level.limit) {
        return resident_corners<PIXEL>(shared_memory() + level.place + shift, inside, below);
    }
    return load_corners(pixels, offset, below);
}

// This lane's chunk of an item, eight channels.
MSDA_DEVICE void sum_resident_item(const ForwardParams& params, const Item& item,
                                   float (&sums)[CHUNK_ELEMENTS]) {
    const int shift = own_chunk() * 16;
    clear(sums);
#pragma unroll 1
    for (int run = 0; run < RUNS; ++run) {
        const SampleRun found = load_run(params, item.row, run);
#pragma unroll
        for (int i = 0; i < RUN; ++i) {
            const int l = level_of_sample(run * RUN + i);
            const Sample sample = sample_of_run(params.level[l], found, i);
            const Corners corners = corners_of_cell<PIXEL_BYTES>(residences()[l], item.pixels + shift, shift,
                                                                 sample.offset, row_below(params.level[l]));
            add_corners(corners, sample.weight, sums);
        }
    }
}

// ---- shares of the work -------------------------------------------------------------------------

// An equal share of `count` neighbours for every block.
struct Share {
    long long first;
    long long end;
};
MSDA_DEVICE Share own_share(long long count) {
    return {count * blockIdx.x / gridDim.x, count * (blockIdx.x + 1) / gridDim.x};
}

// How many of the `left` items of a share belong to the slab of the next one.
MSDA_DEVICE int queries_left(const ForwardParams& params, int first_query, long long left) {
    const int of_slab = params.queries - first_query;
    return left < of_slab ? static_cast<int>(left) : of_slab;
}

}  // namespace msda
