// Queries in the order of a space-filling curve: neighbours in the image are neighbours in time.
//
// Steps. The workspace holds the order (a word per item), then the keys (two bytes per item), slab after
// slab.
//   _keys      eight lanes average the locations of an item; the mean's cell of a 64 x 64 grid gives its key,
//              the cell's number along a Morton or a Hilbert curve (CURVE)
//   _sort      a block counts the keys of a slab in shared memory, sums the counts up, and deals the queries
//              out: a counting sort in two passes over keys
//   (gather)   as fwd_distributed, the item at a place being the query that the order has there
//
// Queries with equal keys come in any order. The order decides when a query is computed, never its result.
//
// Why. Queries that run at the same time on a multiprocessor share L1. In raster order they are a row of the
// image, a pixel high; along the curve they are a patch, whose corners are fewer lines.
//
//   raster   1 2 3 4 5 6 ...       Morton   1 2 5 6       Hilbert   1 2 15 16
//                                           3 4 7 8                 4 3 14 13
//                                           9 ...                   5 8 9 12
//
// When it loses. All locations are read once more for the keys, a block per slab sorts while other
// multiprocessors idle, and the order must be made again for every call: locations are a layer's output.
// If locations are not local (uniform), means have no information and the order is only a permutation.
#include "ladder/sample_quads.cuh"

using namespace msda;

namespace {

constexpr int THREADS = 128;
constexpr int KEY_LANES = 8;  // of an item
constexpr int SORT_THREADS = 1024;
constexpr bool HILBERT = MSDA_CURVE != 0;
constexpr int GRID_BITS = 6;
constexpr int GRID = 1 << GRID_BITS;
constexpr int KEYS = GRID * GRID;
constexpr int KEYS_PER_THREAD = KEYS / SORT_THREADS;

MSDA_DEVICE unsigned char* order_at(const ForwardParams& params, long long place) {
    return workspace_part<unsigned char>(params, params.order_at) + place * 4;
}
MSDA_DEVICE unsigned char* key_at(const ForwardParams& params, long long place) {
    return workspace_part<unsigned char>(params, params.keys_at) + place * 2;
}

// The number of a cell along the curve. Morton interleaves the bits of row and column; Hilbert also turns
// every quarter so that the curve never jumps.
MSDA_DEVICE unsigned curve_key(unsigned x, unsigned y) {
    unsigned key = 0;
#pragma unroll
    for (int bit = GRID_BITS - 1; bit >= 0; --bit) {
        const unsigned right = x >> bit & 1u, lower = y >> bit & 1u;
        if constexpr (HILBERT) {
            key = key * 4 + ((3u * right) ^ lower);
            if (lower == 0) {
                if (right != 0) {
                    x = GRID - 1 - x;
                    y = GRID - 1 - y;
                }
                const unsigned swapped = x;
                x = y;
                y = swapped;
            }
        } else {
            key = key * 4 + 2 * lower + right;
        }
    }
    return key;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS)
    fwd_spatial_sort_keys(const __grid_constant__ ForwardParams params) {
    const int lane = threadIdx.x % KEY_LANES;
    const long long thread = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x;
    const long long place = thread / KEY_LANES;
    const bool exists = place < item_count(params);
    const Item item = item_at(params, exists ? place : 0);
    float mean[2] = {};
    for (int s = lane; s < SAMPLES; s += KEY_LANES) {
        Packet<2 * SamplingStorage::BYTES> packet;
        float at[2];
        load_streaming(packet,
                       element_address<SamplingStorage>(params.locations, 2 * (item.row * SAMPLES + s)));
        unpack<SamplingStorage, 2>(packet, at);
        for (int axis = 0; axis < 2; ++axis) mean[axis] += saturate(at[axis]) / SAMPLES;  // NaN: 0
    }
    unsigned cell[2];
#pragma unroll
    for (int axis = 0; axis < 2; ++axis) {
#pragma unroll
        for (int distance = KEY_LANES / 2; distance > 0; distance /= 2) {
            mean[axis] += shuffle_xor(mean[axis], distance);
        }
        cell[axis] = min(static_cast<unsigned>(mean[axis] * GRID), static_cast<unsigned>(GRID - 1));
    }
    if (lane != 0 || !exists) return;
    Packet<2> key;
    key.word[0] = static_cast<unsigned short>(curve_key(cell[0], cell[1]));
    store(key_at(params, place), key);
}

extern "C" __global__ void __launch_bounds__(SORT_THREADS)
    fwd_spatial_sort_sort(const __grid_constant__ ForwardParams params) {
    unsigned* counts =
        reinterpret_cast<unsigned*>(shared_memory());  // later: the place of a key's next query
    unsigned* of_warp = counts + KEYS;
    const long long first = static_cast<long long>(blockIdx.x) * params.queries;
    const int thread = threadIdx.x, lane = thread % 32;
    const auto key_of = [&](long long query) {
        Packet<2> key;
        load_readonly(key, key_at(params, first + query));
        return shared_address(counts + key.word[0]);
    };

    for (int k = thread; k < KEYS; k += SORT_THREADS) counts[k] = 0;
    __syncthreads();
    for (long long query = thread; query < params.queries; query += SORT_THREADS) {
        shared_increment(key_of(query), true);
    }
    __syncthreads();

    // Each thread sums its keys, each warp the sums of its threads, and every thread the warps before its
    // own.
    unsigned mine[KEYS_PER_THREAD], total = 0;
#pragma unroll
    for (int k = 0; k < KEYS_PER_THREAD; ++k) {
        mine[k] = total;
        total += counts[thread * KEYS_PER_THREAD + k];
    }
    unsigned up_to = total;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
        const unsigned before = shuffle_up(up_to, distance);
        up_to += lane >= distance ? before : 0u;
    }
    if (lane == 31) of_warp[thread / 32] = up_to;
    __syncthreads();
    unsigned start = up_to - total;
    for (int warp = 0; warp < thread / 32; ++warp) start += of_warp[warp];
#pragma unroll
    for (int k = 0; k < KEYS_PER_THREAD; ++k) counts[thread * KEYS_PER_THREAD + k] = start + mine[k];
    __syncthreads();

    for (long long query = thread; query < params.queries; query += SORT_THREADS) {
        Packet<4> entry;
        entry.word[0] = static_cast<unsigned>(query);
        store(order_at(params, first + shared_add(key_of(query), 1, true)), entry);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    fwd_spatial_sort(const __grid_constant__ ForwardParams params) {
    const long long thread = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x;
    const long long place = thread / CHUNKS;
    if (place >= item_count(params)) return;
    Packet<4> query;
    load_readonly(query, order_at(params, place));
    const Item item =
        item_of(params, static_cast<int>(place / params.queries), static_cast<int>(query.word[0]));
    const int chunk = static_cast<int>(thread % CHUNKS);
    const unsigned char* pixels = item.pixels + chunk * 16;

    float sums[CHUNK_ELEMENTS];
    clear(sums);
#pragma unroll 1
    for (int l = 0; l < LEVELS; ++l) {
        const LevelGeometry& level = params.level[l];
        const unsigned below = row_below(level);
        for_samples_of_level(params, item.row, l, [&](float x, float y, float attention) {
            const Sample sample = place_sample(level, x, y, attention);
            add_corners(load_corners(pixels, sample.offset, below), sample.weight, sums);
        });
    }
    store_chunk(params, item, chunk, sums);
}
