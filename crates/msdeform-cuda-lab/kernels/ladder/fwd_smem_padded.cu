// Small levels in shared memory, pixel rows padded: what bank conflicts cost and what avoiding them costs.
//
// Who owns what. A block owns a share of the queries of one slab and keeps the slab's small levels
// (resident_levels, a bit each; as many as fit, smallest first) in its shared memory, a pixel every 32 +
// PADDING channels. Four lanes own the chunks (eight channels) of an item. Larger levels are read from
// global memory as in fwd_distributed.
//
// Why the padding. A pixel of 64 bytes is 16 of the 32 banks: unpadded, every pixel starts in bank 0 or 16,
// and items that meet in the same half wait for each other. The report's answer is 34 channels (PADDING 2):
// pixels then start in any bank. It also makes pixels multiples of 4 bytes only, so a chunk is four 4-byte
// loads where it was one of 16 bytes. PADDING 8 (80 bytes) starts pixels in eight places and keeps the
// 16-byte load.
//
//   PADDING 0   | c0 c1 c2 c3 | c0 c1 c2 c3 | ...             16-byte loads
//   PADDING 2   | c0 c1 c2 c3 .| c0 c1 c2 c3 .| ...           4-byte loads
//   PADDING 8   | c0 c1 c2 c3 __ | c0 c1 c2 c3 __ | ...       16-byte loads
//
// When it loses. L1 has the same banks and holds these levels anyway: 1160 pixels, 74 KB. The staged levels
// never missed L1, and the larger levels, which do, get less of it.
#include "ladder/sample_quads.cuh"

using namespace msda;

namespace {

constexpr int THREADS = 1024;
constexpr int ITEMS = THREADS / CHUNKS;
constexpr int ROW_BYTES = (CHANNELS + MSDA_PADDING) * ValueStorage::BYTES;  // from pixel to pixel
constexpr int ACCESS_BYTES = ROW_BYTES % 16 == 0 ? 16 : 4;
static_assert(ROW_BYTES % 4 == 0, "a row is whole words");

MSDA_DEVICE bool is_resident(const ForwardParams& params, int level) {
    return (params.resident_levels >> level & 1) != 0;
}

// Pixels from the first of a level to its last, those between the rows included.
MSDA_DEVICE int span(const LevelGeometry& level) {
    return (level.height - 1) * level.row_pitch + level.width;
}

MSDA_DEVICE void stage(const ForwardParams& params, const unsigned char* pixels) {
    constexpr int PARTS = PIXEL_BYTES / ACCESS_BYTES;
    unsigned char* rows = shared_memory();
    for (int l = 0; l < LEVELS; ++l) {
        if (!is_resident(params, l)) continue;
        const LevelGeometry& level = params.level[l];
        const unsigned char* first = pixels + level.origin * PIXEL_BYTES;
        for (int t = threadIdx.x; t < span(level) * PARTS; t += THREADS) {
            copy_async<ACCESS_BYTES>(rows + t / PARTS * ROW_BYTES + t % PARTS * ACCESS_BYTES,
                                     first + static_cast<long long>(t) * ACCESS_BYTES);
        }
        rows += static_cast<long long>(span(level)) * ROW_BYTES;
    }
    copy_async_wait_all();
}

MSDA_DEVICE void load_row(Packet16& packet, const unsigned char* row) {
    if constexpr (ACCESS_BYTES == 16) {
        packet = *reinterpret_cast<const Packet16*>(row);
    } else {
#pragma unroll
        for (int w = 0; w < 4; ++w) packet.word[w] = reinterpret_cast<const unsigned*>(row)[w];
    }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    fwd_smem_padded(const __grid_constant__ ForwardParams params) {
    const int shares = gridDim.x / (params.batch * params.heads);  // the host launches a multiple
    const int slab = blockIdx.x / shares, share = blockIdx.x % shares;
    stage(params, slab_pixels(params, slab));
    __syncthreads();

    const int chunk = threadIdx.x % CHUNKS;
    for (long long query = share * ITEMS + threadIdx.x / CHUNKS; query < params.queries;
         query += shares * ITEMS) {
        const Item item = item_of(params, slab, static_cast<int>(query));
        const unsigned char* pixels = item.pixels + chunk * 16;
        const unsigned char* rows = shared_memory() + chunk * 16;
        float sums[CHUNK_ELEMENTS];
        clear(sums);
#pragma unroll 1
        for (int l = 0; l < LEVELS; ++l) {
            const LevelGeometry& level = params.level[l];
            if (is_resident(params, l)) {
                const unsigned below = level.row_pitch * ROW_BYTES;
                for_samples_of_level(params, item.row, l, [&](float x, float y, float attention) {
                    const Sample sample = place_sample(level, x, y, attention);
                    const unsigned pixel =
                        sample.offset / (PIXEL_BYTES / 16) - static_cast<unsigned>(level.origin);
                    const unsigned char* top = rows + pixel * ROW_BYTES;
                    Corners corners;
                    load_row(corners.packet[0], top);
                    load_row(corners.packet[1], top + ROW_BYTES);
                    load_row(corners.packet[2], top + below);
                    load_row(corners.packet[3], top + below + ROW_BYTES);
                    add_corners(corners, sample.weight, sums);
                });
                rows += span(level) * ROW_BYTES;
            } else {
                const unsigned below = row_below(level);
                for_samples_of_level(params, item.row, l, [&](float x, float y, float attention) {
                    const Sample sample = place_sample(level, x, y, attention);
                    add_corners(load_corners(pixels, sample.offset, below), sample.weight, sums);
                });
            }
        }
        store_chunk(params, item, chunk, sums);
    }
}
