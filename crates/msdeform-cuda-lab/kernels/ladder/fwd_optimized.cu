// Shared memory for the coordinates that every lane reads, vector loads for everything.
//
// Who owns what. Four lanes own an item; a block owns THREADS / 4 neighbouring items. The block first copies
// their locations and weights to shared memory, 16 bytes per lane and instruction; then every group walks its
// samples, four at a time, and reads their coordinates from there, all four lanes the same 16 bytes.
//
//   shared memory    [item][locations of the row, 16 bytes of padding]
//                    [item][weights of the row, 16 bytes of padding]
//
// The padding: the groups of a warp read the same samples of eight rows. Rows of 128 bytes would all start at
// bank 0; with the padding they start four banks apart.
//
// Why. The base of the ladder reads coordinates two bytes at a time through L1, where they compete with
// pixels. Here a row is read from L2 once, in one burst, and pixels have the cache for themselves.
//
// When it loses. The gather starts only when the rows of the whole block are there: a barrier after a round
// trip to DRAM, hidden only by other blocks. Shared memory for the rows (224 bytes an item) is taken from L1.
#include "ladder/lane_groups.cuh"

using namespace msda;

namespace {

constexpr int ITEMS = MSDA_THREADS / GROUP_LANES;  // of a block
constexpr int PADDING = 16;

// The widest packet that divides a row.
MSDA_DEVICE constexpr int packet_bytes(int row_bytes) {
    int bytes = 16;
    while (row_bytes % bytes != 0) bytes /= 2;
    return bytes;
}
constexpr int LOCATION_ROW = SAMPLES * 2 * SamplingStorage::BYTES;
constexpr int WEIGHT_ROW = SAMPLES * SamplingStorage::BYTES;
MSDA_DEVICE constexpr int pitch(int row_bytes) { return (row_bytes + 15) / 16 * 16 + PADDING; }

// Copies the rows of the block's items, a packet per lane.
template <int ROW>
MSDA_DEVICE void stage_rows(const ForwardParams& params, const void* rows, long long first, int items,
                            unsigned char* staged) {
    constexpr int BYTES = packet_bytes(ROW);
    constexpr int PACKETS = ROW / BYTES;
    for (int i = threadIdx.x; i < items * PACKETS; i += MSDA_THREADS) {
        const int item = i / PACKETS, at = i % PACKETS * BYTES;
        const long long row = item_at(params, first + item).row;
        Packet<BYTES> packet;
        load_streaming(packet, static_cast<const unsigned char*>(rows) + row * ROW + at);
        *reinterpret_cast<Packet<BYTES>*>(staged + item * pitch(ROW) + at) = packet;
    }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(MSDA_THREADS)
    fwd_optimized(const __grid_constant__ ForwardParams params) {
    const long long first = static_cast<long long>(blockIdx.x) * ITEMS;
    const long long left = item_count(params) - first;
    const int items = left < ITEMS ? static_cast<int>(left) : ITEMS;
    unsigned char* locations = shared_memory();
    unsigned char* weights = locations + ITEMS * pitch(LOCATION_ROW);
    stage_rows<LOCATION_ROW>(params, params.locations, first, items, locations);
    stage_rows<WEIGHT_ROW>(params, params.weights, first, items, weights);
    __syncthreads();

    if (own_group() >= items) return;
    const Item item = item_at(params, first + own_group());
    const unsigned char* pixels = item.pixels + own_chunk() * 16;
    const auto* own_locations =
        reinterpret_cast<const RunLocations*>(locations + own_group() * pitch(LOCATION_ROW));
    const auto* own_weights = reinterpret_cast<const RunWeights*>(weights + own_group() * pitch(WEIGHT_ROW));

    float sums[CHUNK_ELEMENTS];
    clear(sums);
#pragma unroll 1
    for (int run = 0; run < RUNS; ++run) {
        const SampleRun found = unpack_run(own_locations[run], own_weights[run]);
#pragma unroll
        for (int i = 0; i < RUN; ++i) {
            const LevelGeometry& level = params.level[level_of_sample(run * RUN + i)];
            const Sample sample = sample_of_run(level, found, i);
            add_corners(load_corners(pixels, sample.offset, row_below(level)), sample.weight, sums);
        }
    }
    store_chunk(params, item, own_chunk(), sums);
}
