// Texture units: the hardware finds the corners, weighs them and leaves out those outside of the level.
//
// Steps. Every level is a layered texture of half4 texels, layer = slab x 8 + group of four channels; its
// handles come in front of the parameter.
//   _fill      a thread per pixel reads its 64 bytes and writes eight texels, one per layer
//   (gather)   eight lanes own the groups of an item, a warp four items; a sample is one fetch per lane
//
// Why. Pixel = location * size - 0.5, and a texel's centre is at + 0.5: the coordinate is location * size.
// Addresses, four loads, bilinear weights, edges and conversions are one instruction, done by units that
// otherwise idle; texels lie in two-dimensional blocks, so that a neighbourhood is a few cache lines.
//
// When it loses. The filter has 8-bit fractions: the error is its own (bound in fwd_texture.rs). The unit
// finds the corners and weighs them anew for every four channels, eight times a sample, at its own fixed
// rate. The values are copied first, every time they change.
#include "ladder/sample_quads.cuh"
#include "ptx_textures.cuh"

using namespace msda;

namespace {

constexpr int THREADS = 256;
constexpr int GROUP = 4;  // channels of a texel
constexpr int GROUPS = CHANNELS / GROUP;

struct TextureParams {
    LevelTexture level_texture[LEVELS];
    ForwardParams call;
};

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS)
    fwd_texture_fill(const __grid_constant__ TextureParams params) {
    const ForwardParams& call = params.call;
    const int parts = gridDim.x / (call.batch * call.heads);  // the host launches a multiple
    const int slab = blockIdx.x / parts, part = blockIdx.x % parts;
    const unsigned char* pixels = slab_pixels(call, slab);
    for (int l = 0; l < LEVELS; ++l) {
        const LevelGeometry& level = call.level[l];
        for (int i = part * THREADS + threadIdx.x; i < level.height * level.width; i += parts * THREADS) {
            const int x = i % level.width, y = i / level.width;
            const long long pixel = level.origin + static_cast<long long>(y) * level.row_pitch + x;
#pragma unroll
            for (int chunk = 0; chunk < CHUNKS; ++chunk) {
                Packet16 packet;
                load_streaming(packet, pixels + pixel * PIXEL_BYTES + chunk * 16);
                const unsigned texel[2][2] = {{packet.word[0], packet.word[1]},
                                              {packet.word[2], packet.word[3]}};
                store_texel(params.level_texture[l], slab * GROUPS + 2 * chunk, x, y, texel[0]);
                store_texel(params.level_texture[l], slab * GROUPS + 2 * chunk + 1, x, y, texel[1]);
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    fwd_texture(const __grid_constant__ TextureParams params) {
    const ForwardParams& call = params.call;
    const long long thread = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x;
    if (thread / GROUPS >= item_count(call)) return;
    const Item item = item_at(call, thread / GROUPS);
    const int group = static_cast<int>(thread % GROUPS), layer = item.slab * GROUPS + group;

    float sums[GROUP] = {};
#pragma unroll 1
    for (int l = 0; l < LEVELS; ++l) {
        const float width = static_cast<float>(call.level[l].width);
        const float height = static_cast<float>(call.level[l].height);
        const LevelTexture texture = params.level_texture[l];
        for_samples_of_level(call, item.row, l, [&](float location_x, float location_y, float attention) {
            const float x = location_x * width, y = location_y * height;
            // Written so that NaN fails. A sample far outside is zero by itself, with any weight.
            const bool counts = x > -0.5f && x < width + 0.5f && y > -0.5f && y < height + 0.5f;
            float texel[GROUP];
            sample_texture(texel, texture, layer, counts ? x : 0.0f, counts ? y : 0.0f);
#pragma unroll
            for (int i = 0; i < GROUP; ++i) sums[i] = fmaf(counts ? attention : 0.0f, texel[i], sums[i]);
        });
    }

    float zero = 0.0f;  // NaN if any sum is not finite
#pragma unroll
    for (int i = 0; i < GROUP; ++i) zero = fmaf(sums[i], 0.0f, zero);
    if (!(zero == 0.0f)) {
        float exact[CHUNK_ELEMENTS];
        recompute_exactly(call, item.pixels + group / 2 * 16, item.row, exact);
#pragma unroll
        for (int i = 0; i < GROUP; ++i) sums[i] = group % 2 != 0 ? exact[GROUP + i] : exact[i];
    }
    Packet<8> packet;
    pack<ValueStorage, GROUP>(sums, packet);
    store(element_address<ValueStorage>(call.output, item.row * CHANNELS) + group * 8, packet);
}
