// Metadata in shared memory: fwd_vector_loads, with every sample placed once instead of four times.
//
// Who owns what. Four lanes own an item, as in the base, but a sample is placed by one of them: for eight
// samples at a time each lane places two and leaves offset and weights (20 bytes) in shared memory, where all
// four lanes of the group read them back. Each warp has its own records, so warps never wait for each other.
//
//   words of a stage      weights  [sample][group ^ twist]  16 bytes, read by four lanes at once
//                         offsets  [sample][group ^ twist]   4 bytes
//
// The twist keeps the writers apart: four lanes of a group write samples that lie 128 bytes from each other,
// in the same bank, unless their groups use different columns. Readers are eight groups of one row, which
// never conflict.
//
// Why. Placing a sample is about 25 instructions and two loads; a quarter of the lanes now do it.
//
// When it loses. Records cost shared-memory wavefronts: two to write and three to read per sample of eight
// groups, on the same data path that the gather needs.
#include "ladder/lane_groups.cuh"

using namespace msda;

namespace {

constexpr int STAGE = 8;  // samples of an item per stage
constexpr int WARP_BYTES = STAGE * GROUPS * 20;
static_assert(STAGE % GROUP_LANES == 0, "equal shares");

MSDA_DEVICE int column(int group, int sample) { return (group ^ (2 * sample)) % GROUPS; }

}  // namespace

extern "C" __global__ void __launch_bounds__(MSDA_THREADS)
    fwd_smem_metadata(const __grid_constant__ ForwardParams params) {
    // A group past the end repeats the last item, without storing it: its warp needs all lanes.
    const long long index = own_group_in_grid(), last = item_count(params) - 1;
    const Item item = item_at(params, index < last ? index : last);
    const unsigned char* pixels = item.pixels + own_chunk() * 16;
    const int group = threadIdx.x % 32 / GROUP_LANES;
    unsigned char* records = shared_memory() + threadIdx.x / 32 * WARP_BYTES;
    auto* weights = reinterpret_cast<Packet16*>(records);
    auto* offsets = reinterpret_cast<unsigned*>(records + STAGE * GROUPS * 16);

    float sums[CHUNK_ELEMENTS];
    clear(sums);
#pragma unroll 1
    for (int first = 0; first < SAMPLES; first += STAGE) {
        const int samples = at_most(SAMPLES - first, STAGE);
        sync_warp();  // the records of the stage before have been read
#pragma unroll
        for (int j = own_chunk(); j < STAGE; j += GROUP_LANES) {
            if (j >= samples) break;
            const Sample sample = sample_of_pair(params, item.row, first + j);
            Packet16 packet;
#pragma unroll
            for (int c = 0; c < 4; ++c) packet.word[c] = float_to_bits(sample.weight[c / 2][c % 2]);
            weights[j * GROUPS + column(group, j)] = packet;
            offsets[j * GROUPS + column(group, j)] = sample.offset;
        }
        sync_warp();
#pragma unroll 1
        for (int j = 0; j < samples; ++j) {
            const Packet16 packet = weights[j * GROUPS + column(group, j)];
            const unsigned offset = offsets[j * GROUPS + column(group, j)];
            float weight[2][2];
#pragma unroll
            for (int c = 0; c < 4; ++c) weight[c / 2][c % 2] = bits_to_float(packet.word[c]);
            const unsigned below = row_below(params.level[level_of_sample(first + j)]);
            add_corners(load_corners(pixels, offset, below), weight, sums);
        }
    }
    if (index <= last) store_chunk(params, item, own_chunk(), sums);
}
