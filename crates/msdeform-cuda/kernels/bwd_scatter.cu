// f32 and few queries (decoders): one pass over the samples, atomics straight to a gradient that was zeroed.
//
// Who owns what. A warp owns a (query, head). A lane first owns a sample: it works out the cell and leaves
// what the others need in shared memory. Then LANES neighbouring lanes own a corner, 16 bytes of its pixel
// each, and with 32 channels the warp has the four corners of one sample: every lane reads its chunk of the
// pixel for the dot product with the output's gradient, which it holds in registers, and adds its chunk of
// the gradient with one red.v4. The dot products go back through shared memory to the lane that owns the
// sample, which writes the gradients of its location and weight.
//
// Why that is fast. A decoder's samples touch most pixels once, so there is little to aggregate or to sort
// for, and a vector atomic costs L2 no more than the line that it changes. Nothing is launched but this and
// the zeroing, each pixel is read where it is added to, and a sample costs a warp some thirty instructions.
//
// When it loses: many queries (L2 adds up 3.6 TB/s, whatever the samples have in common), and half precision,
// whose fp32 sums must be zeroed and converted: 6 bytes of traffic for 2 of gradient. The last bits differ
// from run to run: deterministic mode refuses it.
//
// Requires: what chunked_sample.cuh does but that levels may be one pixel thin; f32 values; rows of the
// output's gradient packed and aligned, or the step pack (grad_output_rows.cuh); fewer than 2^27 pixels of an
// image.
#include "grad_output_rows.cuh"

using namespace msda;

namespace {

static_assert(VALUE_DTYPE == F32, "sums are made in place");

constexpr int WARPS = MSDA_KNOB_WARPS;       // of a block; each has its own row
constexpr int GROUPS = 32 / LANES;           // of lanes, one for a corner
constexpr int CORNERS = at_most(GROUPS, 4);  // of a sample, at once
constexpr int PASSES = 4 / CORNERS;          // over a sample
constexpr int SAMPLES_AT_ONCE = GROUPS / CORNERS;
constexpr int STAGE = 32;  // samples, one per lane
constexpr int AHEAD =
    at_most(MSDA_KNOB_AHEAD, (at_most(SAMPLES, STAGE) + SAMPLES_AT_ONCE - 1) / SAMPLES_AT_ONCE);
constexpr bool WANTS_SAMPLES = WANTS_GRAD_LOCATIONS || WANTS_GRAD_WEIGHTS;

// What a lane leaves for the others. Corner c is 2 * bottom + right.
struct alignas(16) Placed {
    int cell;  // 16 * the first corner's pixel + a bit for every corner that lies in the level
    float right_share;
    float bottom_share;
    float attention;
};

struct WarpMemory {
    Placed* placed;  // [STAGE]
    float* dots;     // [STAGE][4]
};
MSDA_DEVICE WarpMemory warp_memory() {
    unsigned char* at = shared_memory() + threadIdx.x / 32 * (STAGE * 2 * sizeof(Placed));
    return {reinterpret_cast<Placed*>(at), reinterpret_cast<float*>(at + STAGE * sizeof(Placed))};
}

MSDA_DEVICE Placed place(const BackwardParams& params, const LevelGeometry& level, long long sample) {
    Packet<2 * SamplingStorage::BYTES> packet;
    float xy[2];
    load_streaming(packet, element_address<SamplingStorage>(params.locations, 2 * sample));
    unpack<SamplingStorage, 2>(packet, xy);
    const float attention = load_element<SamplingStorage>(params.weights, sample);
    const Position at = locate(xy[0], xy[1], level.height, level.width);
    const bool left = at.left >= 0, right = at.left + 1 < level.width;
    const bool top = at.top >= 0, bottom = at.top + 1 < level.height;
    const int corners =
        (top && left ? 1 : 0) | (top && right ? 2 : 0) | (bottom && left ? 4 : 0) | (bottom && right ? 8 : 0);
    const int pixel = static_cast<int>(level.origin) + at.top * level.row_pitch + at.left;
    return {pixel * 16 + (at.counts ? corners : 0), at.right_share, at.bottom_share, attention};
}

// Of a sample from its dot products; those of corners outside of the level are zero.
MSDA_DEVICE void write_gradients(const BackwardParams& params, const LevelGeometry& level, long long sample,
                                 const Placed& placed, const Packet16& packet) {
    float dot[4];
#pragma unroll
    for (int c = 0; c < 4; ++c) dot[c] = bits_to_float(packet.word[c]);
    const float right = placed.right_share, left = 1.0f - right;
    const float bottom = placed.bottom_share, top = 1.0f - bottom;
    const bool counts = (placed.cell & 15) != 0;
    if constexpr (WANTS_GRAD_WEIGHTS) {
        const float interpolated =
            top * (left * dot[0] + right * dot[1]) + bottom * (left * dot[2] + right * dot[3]);
        store_element<SamplingStorage>(params.grad_weights, sample, counts ? interpolated : 0.0f);
    }
    if constexpr (WANTS_GRAD_LOCATIONS) {
        const float slope_x = top * (dot[1] - dot[0]) + bottom * (dot[3] - dot[2]);
        const float slope_y = left * (dot[2] - dot[0]) + right * (dot[3] - dot[1]);
        const float gradient[2] = {
            counts ? placed.attention * static_cast<float>(level.width) * slope_x : 0.0f,
            counts ? placed.attention * static_cast<float>(level.height) * slope_y : 0.0f};
        Packet<2 * SamplingStorage::BYTES> locations;
        pack<SamplingStorage, 2>(gradient, locations);
        store(element_address<SamplingStorage>(params.grad_locations, 2 * sample), locations);
    }
}

// A lane's chunks of a (query, head): of its pixels, their gradients and the output's.
struct RowChunks {
    const unsigned char* pixels;  // of the head's first pixel
    unsigned char* sums;
    float grad[CHUNK_ELEMENTS];
};
MSDA_DEVICE RowChunks row_chunks(const BackwardParams& params, const GradOutput& upstream, long long row,
                                 int chunk) {
    const int head = static_cast<int>(row % HEADS);
    const int query = static_cast<int>(row / HEADS % params.queries);
    const int batch = static_cast<int>(row / HEADS / params.queries);
    const long long value = batch * params.value_batch_stride + head * params.value_head_stride;
    const long long grad_value =
        batch * params.grad_value_batch_stride + head * params.grad_value_head_stride;
    const long long grad =
        batch * upstream.batch_stride + query * upstream.query_stride + head * upstream.head_stride;
    RowChunks chunks;
    chunks.pixels = element_address<ValueStorage>(params.value, value) + chunk * 16;
    chunks.sums = element_address<ValueStorage>(params.grad_value, grad_value) + chunk * 16;
    Packet16 packet;
    load_readonly(packet, element_address<ValueStorage>(upstream.first, grad) + chunk * 16);
    unpack<ValueStorage, CHUNK_ELEMENTS>(packet, chunks.grad);
    return chunks;
}

// The corners of AHEAD samples that this lane's group owns, on their way.
struct Corners {
    Placed placed[AHEAD];
    int number[AHEAD];  // of the sample in its stage
    Packet16 value[AHEAD][PASSES];
    long long offset[AHEAD][PASSES];  // in bytes, from the first pixel; negative: no corner
};
MSDA_DEVICE int corner_of_pass(int pass, int group) { return pass * CORNERS + group % CORNERS; }

// Of the samples from `step` on in a stage of `count`, which starts at sample `first`.
MSDA_DEVICE void load_corners(const CallShape& shape, const WarpMemory& memory, const unsigned char* pixels,
                              int first, int step, int count, int group, bool owns_chunk, Corners& corners) {
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) {
        const int sample = step + i * SAMPLES_AT_ONCE + group / CORNERS;
        const bool exists = sample < count;
        corners.number[i] = at_most(sample, STAGE - 1);
        corners.placed[i] = memory.placed[corners.number[i]];
        const int cell = corners.placed[i].cell;
        const int pitch = shape.level[level_of_sample(exists ? first + corners.number[i] : 0)].row_pitch;
#pragma unroll
        for (int p = 0; p < PASSES; ++p) {
            const int corner = corner_of_pass(p, group);
            const bool counts = exists && owns_chunk && (cell >> corner & 1) != 0;
            const int pixel = (cell >> 4) + corner % 2 + (corner / 2 ? pitch : 0);
            // Chosen before it is widened; see sample_gradients.cuh.
            corners.offset[i][p] = static_cast<long long>(counts ? pixel : -1) * PIXEL_BYTES;
            corners.value[i][p] = {};
            if (WANTS_SAMPLES && counts) {
                load_readonly(corners.value[i][p], pixels + corners.offset[i][p]);
            }
        }
    }
}

// Adds this lane's chunk of a corner's gradient.
MSDA_DEVICE void scatter_corner(const RowChunks& row, const Placed& placed, int corner, long long offset) {
    const float x_share = corner % 2 ? placed.right_share : 1.0f - placed.right_share;
    const float y_share = corner / 2 ? placed.bottom_share : 1.0f - placed.bottom_share;
    const float share = placed.attention * (x_share * y_share);
    float part[CHUNK_ELEMENTS];
#pragma unroll
    for (int w = 0; w < CHUNK_ELEMENTS; ++w) part[w] = share * row.grad[w];
    if (offset >= 0) reduce_add(reinterpret_cast<float*>(row.sums + offset), part);
}

// The dot product of a corner with the output's gradient, in all lanes that own it.
MSDA_DEVICE float corner_dot(const RowChunks& row, const Packet16& value, bool counts) {
    float values[CHUNK_ELEMENTS];
    unpack<ValueStorage, CHUNK_ELEMENTS>(value, values);
    float dot = 0.0f;
#pragma unroll
    for (int w = 0; w < CHUNK_ELEMENTS; ++w) dot = fmaf(values[w], row.grad[w], dot);
    // A gradient that is not finite times the zeros of a corner that is none.
    dot = counts ? dot : 0.0f;
#pragma unroll
    for (int mask = LANES / 2; mask > 0; mask /= 2) dot += shuffle_xor(dot, mask);
    return dot;
}

MSDA_DEVICE void use_corners(const WarpMemory& memory, const RowChunks& row, int group, int lane,
                             const Corners& corners) {
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) {
#pragma unroll
        for (int p = 0; p < PASSES; ++p) {
            const int corner = corner_of_pass(p, group);
            const long long offset = corners.offset[i][p];
            if constexpr (WANTS_GRAD_VALUE) scatter_corner(row, corners.placed[i], corner, offset);
            if constexpr (WANTS_SAMPLES) {
                const float dot = corner_dot(row, corners.value[i][p], offset >= 0);
                if (lane % LANES == 0) memory.dots[corners.number[i] * 4 + corner] = dot;
            }
        }
    }
}

}  // namespace

extern "C" __global__ void bwd_scatter_pack(const __grid_constant__ BackwardParams params) {
    pack_rows(params);
}

extern "C" __global__ void __launch_bounds__(WARPS * 32)
    bwd_scatter(const __grid_constant__ BackwardParams params) {
    const int lane = threadIdx.x % 32;
    const int group = lane / LANES, chunk = at_most(lane % LANES, CHUNKS - 1);
    const bool owns_chunk = LANES == CHUNKS || lane % LANES < CHUNKS;
    const WarpMemory memory = warp_memory();
    const GradOutput upstream = grad_output(params);
    const long long rows = static_cast<long long>(params.batch) * params.queries * HEADS;

    for (long long row = static_cast<long long>(blockIdx.x) * WARPS + threadIdx.x / 32; row < rows;
         row += static_cast<long long>(gridDim.x) * WARPS) {
        const RowChunks chunks = row_chunks(params, upstream, row, chunk);
#pragma unroll 1
        for (int first = 0; first < SAMPLES; first += STAGE) {
            const bool owns_sample = first + lane < SAMPLES;
            const long long own_sample = row * SAMPLES + first + lane;
            const LevelGeometry& own_level = params.level[level_of_sample(owns_sample ? first + lane : 0)];
            Placed own = {};
            if (owns_sample) own = place(params, own_level, own_sample);
            memory.placed[lane] = own;
            sync_warp();
            const int count = at_most(STAGE, SAMPLES - first);
#pragma unroll 1
            for (int step = 0; step < count; step += AHEAD * SAMPLES_AT_ONCE) {
                Corners corners;
                load_corners(params, memory, chunks.pixels, first, step, count, group, owns_chunk, corners);
                use_corners(memory, chunks, group, lane, corners);
            }
            if constexpr (WANTS_SAMPLES) {
                sync_warp();
                if (owns_sample) {
                    write_gradients(params, own_level, own_sample, own,
                                    reinterpret_cast<const Packet16*>(memory.dots)[lane]);
                }
            }
            sync_warp();  // the next stage overwrites what others may still read
        }
    }
}
