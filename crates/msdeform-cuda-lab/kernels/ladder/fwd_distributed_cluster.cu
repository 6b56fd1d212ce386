// Distributed shared memory: a cluster of blocks holds the levels of a slab among them.
//
// Who owns what. A cluster of CLUSTER blocks owns one slab (or a share of its queries). Pixel i of the
// resident levels lies in block i % CLUSTER, so that any neighbourhood is spread evenly. Every block copies
// its own pixels once, and after one cluster barrier a lane reads corners from any block (mapa,
// ld.shared::cluster). Four lanes own the chunks of an item; the items of the slab go round the blocks.
//
// Which levels are resident is the host's choice (resident_levels, a bit each): the smallest first, as many
// as the blocks' shared memory holds together. The others are read from global memory as in fwd_distributed.
//
// Why. One multiprocessor holds 227 KB, eight hold 1.8 MB, more than a whole slab of the seed workload.
// Misses of L1 that would go to L2 become reads of a neighbour.
//
// When it loses. All but one in CLUSTER of the reads cross the network between multiprocessors, which is
// slower than L1 and no faster than L2 for so many warps. A multiprocessor holds one block, so only its
// threads hide latency. And shared memory takes its room from L1.
//
// The last barrier keeps every block alive until no other block reads from it.
#include "ladder/sample_quads.cuh"
#include "ptx_clusters.cuh"

using namespace msda;

namespace {

constexpr int CLUSTER = MSDA_CLUSTER;
constexpr int THREADS = 1024;
constexpr int ITEMS = THREADS / CHUNKS;  // of a block at a time
static_assert((CLUSTER & (CLUSTER - 1)) == 0, "ranks are low bits of a pixel's number");

MSDA_DEVICE bool is_resident(const ForwardParams& params, int level) {
    return (params.resident_levels >> level & 1) != 0;
}

// Pixels from the first of a level to its last, those between the rows included.
MSDA_DEVICE int span(const LevelGeometry& level) {
    return (level.height - 1) * level.row_pitch + level.width;
}

// This block's pixels of the resident levels, one after the other.
MSDA_DEVICE void stage(const ForwardParams& params, const unsigned char* pixels, unsigned rank) {
    int first = 0;
    for (int l = 0; l < LEVELS; ++l) {
        if (!is_resident(params, l)) continue;
        const LevelGeometry& level = params.level[l];
        const int count = span(level);
        // The level's first pixel here: the smallest i with (first + i) % CLUSTER == rank.
        const int skip = static_cast<int>((rank - static_cast<unsigned>(first)) % CLUSTER);
        for (int t = threadIdx.x; skip + t / CHUNKS * CLUSTER < count; t += THREADS) {
            const int i = skip + t / CHUNKS * CLUSTER, chunk = t % CHUNKS;
            copy_async<16>(shared_memory() + (first + i) / CLUSTER * PIXEL_BYTES + chunk * 16,
                           pixels + (level.origin + i) * PIXEL_BYTES + chunk * 16);
        }
        first += count;
    }
    copy_async_wait_all();
    // The memory model only needs the cluster's barrier after this call. This one is for racecheck, which
    // knows that copies are over at the block's own barrier.
    __syncthreads();
}

// The cell whose first pixel has number `top` in the cluster; neighbouring pixels lie in different blocks.
MSDA_DEVICE Corners load_spread_corners(unsigned window, unsigned top, int row_pitch) {
    const unsigned pixel[4] = {top, top + 1, top + row_pitch, top + row_pitch + 1};
    Corners corners;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
        load_cluster(corners.packet[c],
                     shared_address_in(window + pixel[c] / CLUSTER * PIXEL_BYTES, pixel[c] % CLUSTER));
    }
    return corners;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    fwd_distributed_cluster(const __grid_constant__ ForwardParams params) {
    const unsigned rank = cluster_rank();
    const int clusters = gridDim.x / CLUSTER, cluster = blockIdx.x / CLUSTER;
    const int slabs = params.batch * params.heads;
    const int shares = clusters / slabs;  // clusters of a slab; the host launches a multiple
    const int slab = cluster / shares, share = cluster % shares;
    stage(params, slab_pixels(params, slab), rank);
    cluster_sync();

    const int chunk = threadIdx.x % CHUNKS;
    const unsigned window = shared_address(shared_memory()) + chunk * 16;
    const int block = share * CLUSTER + static_cast<int>(rank), blocks = shares * CLUSTER;
    for (long long query = block * ITEMS + threadIdx.x / CHUNKS; query < params.queries;
         query += blocks * ITEMS) {
        const Item item = item_of(params, slab, static_cast<int>(query));
        const unsigned char* pixels = item.pixels + chunk * 16;
        float sums[CHUNK_ELEMENTS];
        clear(sums);
        int first = 0;
#pragma unroll 1
        for (int l = 0; l < LEVELS; ++l) {
            const LevelGeometry& level = params.level[l];
            if (is_resident(params, l)) {
                const unsigned shift = static_cast<unsigned>(first) - static_cast<unsigned>(level.origin);
                for_samples_of_level(params, item.row, l, [&](float x, float y, float attention) {
                    const Sample sample = place_sample(level, x, y, attention);
                    const unsigned top = sample.offset / (PIXEL_BYTES / 16) + shift;
                    add_corners(load_spread_corners(window, top, level.row_pitch), sample.weight, sums);
                });
                first += span(level);
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
    cluster_sync();
}
