// Values as bytes: the gather moves half as much, after a pass that quantises.
//
// Steps, all with the same parameter. The workspace holds a word per slab, the largest |value| as half bits,
// zeroed before; from the next multiple of 256 bytes on, 32 bytes per pixel.
//   _largest    blocks share the levels of a slab and find its largest |value|: an integer maximum of the
//               bits
//   _quantise   byte = round(value * 127 / largest) + 128
//   (gather)    two lanes own 16 channels each of an item, a warp sixteen items; a corner is one 16-byte load
//
// Why. A pixel is 32 bytes instead of 64: the gather moves half, L1 and L2 hold twice as many pixels.
//
// From byte to float in one instruction: a byte permute puts byte b into the second byte of 1.0f, which is
// then 1 + b 2^-15. Products are summed without a correction. Once per level the kernel subtracts the sum of
// the level's weights times (1 + 128 2^-15), before the sum has grown enough to cost digits.
//
// When it loses. Its error is that of 8 bits over the range of a whole slab (bound in fwd_int8_value.rs); one
// outlier makes all other values coarse. The passes before the gather read all values twice and write half of
// their bytes. A caller that uses the values once pays for these passes in every call.
//
// A slab with a value that is not finite gets a scale that is not finite, so its sums are not finite either,
// and store_chunk computes them from the original values.
#include "ladder/sample_quads.cuh"

using namespace msda;

namespace {

constexpr int THREADS = 256;
constexpr int BYTE_PIXEL = CHANNELS;  // bytes of a quantised pixel
constexpr int LANES_PER_ITEM = BYTE_PIXEL / 16;
constexpr int LANE_CHANNELS = 16;
constexpr float QUANTUM = 1.0f / 32768.0f;  // one step of the second byte of 1.0f
constexpr float BIAS = 1.0f + 128.0f * QUANTUM;

MSDA_DEVICE unsigned* largest_of(const ForwardParams& params, int slab) {
    return workspace_part<unsigned>(params, params.largest_at) + slab;
}
MSDA_DEVICE unsigned char* bytes_of(const ForwardParams& params, int slab) {
    return workspace_part<unsigned char>(params, params.bytes_at) +
           static_cast<long long>(slab) * params.slab_pixels * BYTE_PIXEL;
}

// Calls visit(chunk number within the slab) for this thread's share of the slab's chunks of 16 bytes.
template <typename Visit>
MSDA_DEVICE void for_each_chunk(const ForwardParams& params, Visit visit) {
    const int parts = gridDim.x / (params.batch * params.heads);  // the host launches a multiple
    const int part = blockIdx.x % parts;
    for (int l = 0; l < LEVELS; ++l) {
        const LevelGeometry& level = params.level[l];
        const long long pixels = static_cast<long long>(level.height - 1) * level.row_pitch + level.width;
        for (long long c = part * THREADS + threadIdx.x; c < pixels * CHUNKS; c += parts * THREADS) {
            visit(level.origin * CHUNKS + c);
        }
    }
}

MSDA_DEVICE void add_bytes(const Packet16& packet, float weight, float (&sums)[LANE_CHANNELS]) {
#pragma unroll
    for (int i = 0; i < LANE_CHANNELS; ++i) {
        const float value = bits_to_float(__byte_perm(packet.word[i / 4], 0x3f800000u, 0x7604u | i % 4 << 4));
        sums[i] = fmaf(weight, value, sums[i]);
    }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS)
    fwd_int8_value_largest(const __grid_constant__ ForwardParams params) {
    const int slab = blockIdx.x / (gridDim.x / (params.batch * params.heads));
    const unsigned char* chunks = slab_pixels(params, slab);
    unsigned largest = 0;
    for_each_chunk(params, [&](long long chunk) {
        Packet16 packet;
        load_readonly(packet, chunks + chunk * 16);
#pragma unroll
        for (int w = 0; w < 4; ++w) {
            largest = max(largest, max(packet.word[w] & 0x7fffu, packet.word[w] >> 16 & 0x7fffu));
        }
    });
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
        largest = max(largest, shuffle_xor(largest, distance));
    }
    if (threadIdx.x % 32 == 0) atomicMax(largest_of(params, slab), largest);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    fwd_int8_value_quantise(const __grid_constant__ ForwardParams params) {
    const int slab = blockIdx.x / (gridDim.x / (params.batch * params.heads));
    const unsigned char* chunks = slab_pixels(params, slab);
    unsigned char* bytes = bytes_of(params, slab);
    const float largest = half_to_float(static_cast<unsigned short>(*largest_of(params, slab)));
    const float to_steps = largest > 0.0f ? 127.0f / largest : 0.0f;
    for_each_chunk(params, [&](long long chunk) {
        Packet16 packet;
        float values[CHUNK_ELEMENTS];
        load_readonly(packet, chunks + chunk * 16);
        unpack<ValueStorage, CHUNK_ELEMENTS>(packet, values);
        Packet<8> quantised = {};
#pragma unroll
        for (int i = 0; i < CHUNK_ELEMENTS; ++i) {
            const int steps = min(max(__float2int_rn(values[i] * to_steps), -127), 127);
            quantised.word[i / 4] |= static_cast<unsigned>(steps + 128) << 8 * (i % 4);
        }
        store(bytes + chunk * 8, quantised);
    });
}

// Three blocks, 80 registers: two sets of sums and the corners in flight.
extern "C" __global__ void __launch_bounds__(THREADS, 3)
    fwd_int8_value(const __grid_constant__ ForwardParams params) {
    const long long thread = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x;
    if (thread / LANES_PER_ITEM >= item_count(params)) return;
    const Item item = item_at(params, thread / LANES_PER_ITEM);
    const int lane = static_cast<int>(thread % LANES_PER_ITEM);
    const unsigned char* bytes = bytes_of(params, item.slab) + lane * 16;

    float sums[LANE_CHANNELS];
    clear(sums);
#pragma unroll 1
    for (int l = 0; l < LEVELS; ++l) {
        const LevelGeometry& level = params.level[l];
        const long long below = static_cast<long long>(level.row_pitch) * BYTE_PIXEL;
        float of_level[LANE_CHANNELS], weights = 0.0f;
        clear(of_level);
        for_samples_of_level(params, item.row, l, [&](float x, float y, float attention) {
            const Sample sample = place_sample(level, x, y, attention);
            // Offsets count 16-byte units of halves, which are 8 bytes here.
            const unsigned char* top =
                opaque_address(bytes + static_cast<unsigned long long>(sample.offset) * 8);
            Packet16 corner[4];
            load_readonly(corner[0], top);
            load_readonly(corner[1], top + BYTE_PIXEL);
            load_readonly(corner[2], top + below);
            load_readonly(corner[3], top + below + BYTE_PIXEL);
#pragma unroll
            for (int c = 0; c < 4; ++c) {
                add_bytes(corner[c], sample.weight[c / 2][c % 2], of_level);
                weights += sample.weight[c / 2][c % 2];
            }
        });
#pragma unroll
        for (int i = 0; i < LANE_CHANNELS; ++i) sums[i] += fmaf(-BIAS, weights, of_level[i]);
    }
    const float largest = half_to_float(static_cast<unsigned short>(*largest_of(params, item.slab)));
    const float scale = largest / (127.0f * QUANTUM);
#pragma unroll
    for (int part = 0; part < 2; ++part) {
        float chunk[CHUNK_ELEMENTS];
#pragma unroll
        for (int i = 0; i < CHUNK_ELEMENTS; ++i) chunk[i] = sums[part * CHUNK_ELEMENTS + i] * scale;
        store_chunk(params, item, 2 * lane + part, chunk);
    }
}
