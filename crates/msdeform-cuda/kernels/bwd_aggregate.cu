// The best of the atomic kernels: neighbouring queries add up in shared memory what falls on the same
// pixels, and only the sums go to L2, one atomic per pixel and channel.
//
// Steps, of which only those are launched whose gradients are asked for:
//   pack     the output's gradient, where its rows are not packed (grad_output_rows.cuh)
//   values   sums of values' gradients, by atomics
//   convert  half precision: rounds the sums, once
//   samples  gradients of locations and weights (sample_gradients.cuh)
//
// Who owns what. A block owns a tile of 32 neighbouring queries of one (image, head) and 32 channels; each of
// its warps takes a level of its own at a time. A lane is a query while samples are placed, and a channel
// while they are added: it holds its channel of the 32 rows of the output's gradient in registers. The warp's
// window, WINDOW_WIDTH x WINDOW_HEIGHT pixels around where its samples lie, is in shared memory; a lane only
// ever touches its own channel there, so no atomics are needed. Corners outside of the window go to L2
// directly.
//
// Why that is fast. Queries that are neighbours sample the same pixels: 128 samples of a tile and level have
// 512 corners but touch some hundred pixels of a fine level and a few dozen of a coarse one. The sums must be
// zeroed and, in half precision, converted, but nothing is sorted and nothing is planned.
//
// When it loses: queries without a neighbourhood aggregate nothing, every corner is an atomic. The last bits
// differ from run to run: deterministic mode refuses it.
//
// Requires: what grad_output_rows.cuh and sample_gradients.cuh do; sums that are zero.
#include "sample_gradients.cuh"

using namespace msda;

namespace {

constexpr int VALUE_WARPS = 4;
constexpr int VALUE_BLOCKS = 3;     // per SM: caps the registers
constexpr int TILE_QUERIES = 32;    // one per lane
constexpr int RUN = MSDA_KNOB_RUN;  // of them along x
constexpr int WINDOW_WIDTH = 16;    // in pixels
constexpr int WINDOW_HEIGHT = MSDA_KNOB_WINDOW_HEIGHT;
constexpr int WINDOW_PIXELS = WINDOW_WIDTH * WINDOW_HEIGHT;
constexpr int SLICE_CHANNELS = 32;  // one per lane
constexpr int AHEAD = 4;            // samples whose records are on their way
constexpr bool SUMS_IN_PLACE = VALUE_DTYPE == F32;
static_assert(TILE_QUERIES % RUN == 0, "whole rows of queries");

MSDA_DEVICE float* value_sums(const BackwardParams& params) {
    return SUMS_IN_PLACE ? static_cast<float*>(params.grad_value)
                         : reinterpret_cast<float*>(workspace_after_rows(params));
}

// Corner c of a sample is 2 * bottom + right. A placed sample:
struct alignas(8) Place {
    int slot;       // the window's pixel of the first corner, negative if not all four lie in the window
    unsigned near;  // bit c: the corner exists and lies in the window, 4 + c: it exists and does not
};

// A warp's shared memory.
struct WarpMemory {
    float* window;     // [WINDOW_PIXELS][SLICE_CHANNELS]
    Packet16* shares;  // of a sample's corners, times the attention weight
    Place* places;
};
constexpr int WARP_BYTES =
    WINDOW_PIXELS * SLICE_CHANNELS * 4 + TILE_QUERIES * (sizeof(Packet16) + sizeof(Place));
MSDA_DEVICE WarpMemory warp_memory(int warp) {
    unsigned char* at = shared_memory() + warp * WARP_BYTES;
    WarpMemory memory;
    memory.window = reinterpret_cast<float*>(at);
    memory.shares = reinterpret_cast<Packet16*>(at + WINDOW_PIXELS * SLICE_CHANNELS * 4);
    memory.places = reinterpret_cast<Place*>(memory.shares + TILE_QUERIES);
    return memory;
}

// Columns and rows of pixels, the last ones included.
struct Box {
    int left, top, right, bottom;
};
MSDA_DEVICE int at_least(int a, int b) { return a > b ? a : b; }
MSDA_DEVICE Box box_of_all_lanes(Box box) {
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) {
        box.left = at_most(box.left, shuffle_xor(box.left, mask));
        box.top = at_most(box.top, shuffle_xor(box.top, mask));
        box.right = at_least(box.right, shuffle_xor(box.right, mask));
        box.bottom = at_least(box.bottom, shuffle_xor(box.bottom, mask));
    }
    return box;
}

MSDA_DEVICE Position locate_sample(const BackwardParams& params, const LevelGeometry& level,
                                   long long sample) {
    Packet<2 * SamplingStorage::BYTES> packet;
    float xy[2];
    load_readonly(packet, element_address<SamplingStorage>(params.locations, 2 * sample));
    unpack<SamplingStorage, 2>(packet, xy);
    return locate(xy[0], xy[1], level.height, level.width);
}

// The window for a level: around the middle of the pixels that the samples touch, and no larger than
// these.
MSDA_DEVICE Box find_window(const BackwardParams& params, const LevelGeometry& level, int points,
                            long long first_sample, bool exists) {
    constexpr int FAR = 1 << 30;
    Box box = {FAR, FAR, -1, -1};
    for (int point = 0; point < points && exists; ++point) {
        const Position at = locate_sample(params, level, first_sample + point);
        if (!at.counts) continue;
        box.left = at_most(box.left, at_least(at.left, 0));
        box.top = at_most(box.top, at_least(at.top, 0));
        box.right = at_least(box.right, at_most(at.left + 1, level.width - 1));
        box.bottom = at_least(box.bottom, at_most(at.top + 1, level.height - 1));
    }
    box = box_of_all_lanes(box);
    if (box.right - box.left >= WINDOW_WIDTH) {
        box.left = (box.left + box.right + 1 - WINDOW_WIDTH) / 2;
        box.right = box.left + WINDOW_WIDTH - 1;
    }
    if (box.bottom - box.top >= WINDOW_HEIGHT) {
        box.top = (box.top + box.bottom + 1 - WINDOW_HEIGHT) / 2;
        box.bottom = box.top + WINDOW_HEIGHT - 1;
    }
    return box;
}

MSDA_DEVICE void place_in_window(const BackwardParams& params, const Position& at, const LevelGeometry& level,
                                 const Box& window, long long sample, Place& place, Packet16& shares) {
    place = {-1, 0};
    shares = {};
    if (!at.counts) return;
    const float attention = load_element<SamplingStorage>(params.weights, sample);
    unsigned near = 0;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
        const int x = at.left + c % 2, y = at.top + c / 2;
        const bool inside = x >= 0 && x < level.width && y >= 0 && y < level.height;
        const bool is_near = x >= window.left && x <= window.right && y >= window.top && y <= window.bottom;
        near |= inside ? 1u << (is_near ? c : 4 + c) : 0u;
        const float share = (c % 2 ? at.right_share : 1.0f - at.right_share) *
                            (c / 2 ? at.bottom_share : 1.0f - at.bottom_share);
        shares.word[c] = float_to_bits(attention * share);
    }
    const int slot = (at.top - window.top) * WINDOW_WIDTH + at.left - window.left;
    place = {near == 0xfu ? slot : -1, near};
}

// Where the corners of a window's pixel lie from its first, in floats.
MSDA_DEVICE constexpr int corner_offset(int corner) {
    return (corner / 2 * WINDOW_WIDTH + corner % 2) * SLICE_CHANNELS;
}

// Adds the samples of a point that lie in the window with all four corners, every lane its channel. Unrolled,
// so that the rows stay in registers: nothing else belongs in here, the code must fit the instruction cache.
MSDA_DEVICE void add_whole_samples(const WarpMemory& memory, const float (&upstream)[TILE_QUERIES]) {
    float* own_window = memory.window + threadIdx.x % 32;
#pragma unroll
    for (int first = 0; first < TILE_QUERIES; first += AHEAD) {
        int slot[AHEAD];
        Packet16 shares[AHEAD];
#pragma unroll
        for (int u = 0; u < AHEAD; ++u) {
            slot[u] = memory.places[first + u].slot;
            shares[u] = memory.shares[first + u];
        }
#pragma unroll
        for (int u = 0; u < AHEAD; ++u) {
            if (slot[u] < 0) continue;  // the same for all lanes
            float* at = own_window + slot[u] * SLICE_CHANNELS;
            float sum[4];
#pragma unroll
            for (int c = 0; c < 4; ++c) sum[c] = at[corner_offset(c)];
#pragma unroll
            for (int c = 0; c < 4; ++c) {
                at[corner_offset(c)] = fmaf(bits_to_float(shares[u].word[c]), upstream[first + u], sum[c]);
            }
        }
    }
}

// Adds one of the others, corner by corner. Lane `source` knows where it lies.
MSDA_DEVICE void add_corners(const WarpMemory& memory, const LevelGeometry& level, const Box& window,
                             const Position& own, int source, float upstream, float* head_sums,
                             long long pixel_stride, bool owns_channel) {
    const Packet16 shares = memory.shares[source];
    const unsigned near = memory.places[source].near;
    const int left = shuffle(own.left, source), top = shuffle(own.top, source);
#pragma unroll
    for (int c = 0; c < 4; ++c) {
        const int x = left + c % 2, y = top + c / 2;
        if (near >> c & 1u) {
            float* at = memory.window + threadIdx.x % 32 +
                        ((y - window.top) * WINDOW_WIDTH + x - window.left) * SLICE_CHANNELS;
            *at = fmaf(bits_to_float(shares.word[c]), upstream, *at);
        } else if ((near >> (4 + c) & 1u) && owns_channel) {
            const long long pixel = level.origin + static_cast<long long>(y) * level.row_pitch + x;
            reduce_add(head_sums + pixel * pixel_stride, bits_to_float(shares.word[c]) * upstream);
        }
    }
}

// Adds the window to the sums and leaves zeros.
MSDA_DEVICE void flush_window(const WarpMemory& memory, const LevelGeometry& level, const Box& window,
                              float* head_sums, long long pixel_stride, bool owns_channel) {
    const int lane = threadIdx.x % 32;
    for (int y = window.top; y <= window.bottom; ++y) {
        float* row = memory.window + (y - window.top) * WINDOW_WIDTH * SLICE_CHANNELS + lane;
        float* sums = head_sums + (level.origin + static_cast<long long>(y) * level.row_pitch + window.left) *
                                      pixel_stride;
#pragma unroll 4
        for (int x = 0; x <= window.right - window.left; ++x) {
            const float sum = row[x * SLICE_CHANNELS];
            row[x * SLICE_CHANNELS] = 0.0f;
            // NaN is not zero.
            if (owns_channel && sum != 0.0f) reduce_add(sums + x * pixel_stride, sum);
        }
    }
}

// Query number `place` of a tile, -1 if there is none.
MSDA_DEVICE int query_of_place(const QueryTile& tile, int queries, int place) {
    const int x = tile.x * RUN + place % RUN;
    const int y = tile.y * (TILE_QUERIES / RUN) + place / RUN;
    const int query = tile.raster.first_query + y * tile.raster.width + x;
    const bool exists = x < tile.raster.width && y < tile.raster.height && query < queries;
    return exists ? query : -1;
}

// This lane's channel of the output's gradient.
struct UpstreamChannel {
    GradOutput rows;
    long long first_element;
    bool exists;

    MSDA_DEVICE float of_query(int query) const {
        return load_element<ValueStorage>(rows.first, first_element + query * rows.query_stride);
    }
};

// Adds the samples of a point that do not lie in the window with all corners, one after another.
MSDA_DEVICE void add_other_samples(const WarpMemory& memory, const LevelGeometry& level, const Box& window,
                                   const Position& own, int own_query, const UpstreamChannel& upstream,
                                   float* head_sums, long long pixel_stride) {
    const Place own_place = memory.places[threadIdx.x % 32];
    unsigned others = ballot_lanes(own_place.slot < 0 && own_place.near != 0);
#pragma unroll 1
    for (; others != 0; others &= others - 1) {
        const int source = first_bit(others);
        const int query = shuffle(own_query, source);
        float row = 0.0f;
        if (upstream.exists) row = upstream.of_query(query);
        add_corners(memory, level, window, own, source, row, head_sums, pixel_stride, upstream.exists);
    }
}

}  // namespace

extern "C" __global__ void bwd_aggregate_pack(const __grid_constant__ BackwardParams params) {
    pack_rows(params);
}

// Query tile blockIdx.x, slabs blockIdx.y, + gridDim.y, ..., slice blockIdx.z of the channels.
extern "C" __global__ void __launch_bounds__(VALUE_WARPS * 32, VALUE_BLOCKS)
    bwd_aggregate_values(const __grid_constant__ BackwardParams params) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const WarpMemory memory = warp_memory(warp);
    const int channel = blockIdx.z * SLICE_CHANNELS + lane;
    const bool owns_channel = CHANNELS % SLICE_CHANNELS == 0 || channel < CHANNELS;
    const QueryTile tile =
        query_tile<RUN, TILE_QUERIES / RUN>(params, (params.grid_aux & 1) != 0, static_cast<int>(blockIdx.x));
    const int own_query = query_of_place(tile, params.queries, lane);
    for (int pixel = 0; pixel < WINDOW_PIXELS; ++pixel) {
        memory.window[pixel * SLICE_CHANNELS + lane] = 0.0f;
    }
    for (int slab = blockIdx.y; slab < params.batch * HEADS; slab += gridDim.y) {
        const int batch = slab / HEADS, head = slab % HEADS;
        const GradOutput rows = grad_output(params);
        const long long first_element = batch * rows.batch_stride + head * rows.head_stride + channel;
        const UpstreamChannel channel_rows = {rows, first_element, owns_channel};
        float upstream[TILE_QUERIES];
#pragma unroll
        for (int q = 0; q < TILE_QUERIES; ++q) {
            const int query = query_of_place(tile, params.queries, q);
            upstream[q] = 0.0f;
            if (query >= 0 && owns_channel) upstream[q] = channel_rows.of_query(query);
        }
        const long long own_row =
            (static_cast<long long>(batch) * params.queries + at_least(own_query, 0)) * HEADS + head;
        float* head_sums = value_sums(params) + batch * params.grad_value_batch_stride +
                           head * params.grad_value_head_stride + channel;
        for (int l = warp; l < LEVELS; l += VALUE_WARPS) {
            const LevelGeometry& level = params.level[l];
            const int points =
                (l + 1 < LEVELS ? params.level[l + 1].first_sample : SAMPLES) - level.first_sample;
            const long long first_sample = own_row * SAMPLES + level.first_sample;
            const Box window = find_window(params, level, points, first_sample, own_query >= 0);
#pragma unroll 1
            for (int point = 0; point < points; ++point) {
                Position at = {};
                if (own_query >= 0) at = locate_sample(params, level, first_sample + point);
                place_in_window(params, at, level, window, first_sample + point, memory.places[lane],
                                memory.shares[lane]);
                sync_warp();
                add_whole_samples(memory, upstream);
                add_other_samples(memory, level, window, at, own_query, channel_rows, head_sums,
                                  params.grad_value_pixel_stride);
                sync_warp();
            }
            flush_window(memory, level, window, head_sums, params.grad_value_pixel_stride, owns_channel);
        }
    }
}

extern "C" __global__ void bwd_aggregate_convert(const __grid_constant__ BackwardParams params) {
    const long long chunks = params.batch * params.grad_value_batch_stride / CHUNK_ELEMENTS;
    const float* sums = value_sums(params);
    for (long long index = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; index < chunks;
         index += static_cast<long long>(gridDim.x) * blockDim.x) {
        float elements[CHUNK_ELEMENTS];
#pragma unroll
        for (int p = 0; p < CHUNK_ELEMENTS / 4; ++p) {
            Packet16 packet;
            load_streaming(packet, sums + index * CHUNK_ELEMENTS + 4 * p);
#pragma unroll
            for (int i = 0; i < 4; ++i) elements[4 * p + i] = bits_to_float(packet.word[i]);
        }
        Packet16 packet;
        pack<ValueStorage, CHUNK_ELEMENTS>(elements, packet);
        store(element_address<ValueStorage>(params.grad_value, index * CHUNK_ELEMENTS), packet);
    }
}

extern "C" __global__ void __launch_bounds__(sample_gradients::WARPS * 32, sample_gradients::MIN_BLOCKS)
    bwd_aggregate_samples(const __grid_constant__ BackwardParams params) {
    sample_gradients::walk_queries(params);
}
