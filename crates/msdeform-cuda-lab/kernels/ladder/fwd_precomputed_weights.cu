// Precomputed weights: fwd_vector_loads, with all samples placed by a kernel that runs before it.
//
// Who owns what. The first kernel gives every sample a thread, which leaves offset and weights in the
// workspace. In the second, four lanes own an item as in the base; they read a record where the base read a
// location and did arithmetic.
//
// Why. Every sample is placed once instead of by four lanes. All lanes of a warp are busy with it, and no
// gather waits for it.
//
// When it loses. The records are 12 bytes a sample where locations and weights are six (fp16): written once,
// read once, through DRAM. For the seed workload 284 MB each way; at 4.3 TB/s that is 130 us, for work that
// the base hides behind its gather.
#include "ladder/sample_records.cuh"

using namespace msda;

extern "C" __global__ void __launch_bounds__(MSDA_THREADS)
    fwd_precomputed_weights_records(const __grid_constant__ ForwardParams params) {
    write_records(params);
}

extern "C" __global__ void __launch_bounds__(MSDA_THREADS)
    fwd_precomputed_weights(const __grid_constant__ ForwardParams params) {
    const long long index = own_group_in_grid();
    if (index >= item_count(params)) return;
    const Item item = item_at(params, index);
    const unsigned char* pixels = item.pixels + own_chunk() * 16;
    const long long first = item.row * SAMPLES;
    const auto* offsets = reinterpret_cast<const unsigned char*>(record_offsets(params) + first);
    const unsigned char* weights = record_weights(params) + first * sizeof(RecordWeights);

    float sums[CHUNK_ELEMENTS];
    clear(sums);
#pragma unroll 1
    for (int s = 0; s < SAMPLES; ++s) {
        Packet<4> offset;
        RecordWeights record;
        load_readonly(offset, offsets + s * 4);
        load_readonly(record, weights + s * sizeof(RecordWeights));
        float weight[2][2];
        unpack_weights(record, weight);
        const unsigned below = row_below(params.level[level_of_sample(s)]);
        add_corners(load_corners(pixels, offset.word[0], below), weight, sums);
    }
    store_chunk(params, item, own_chunk(), sums);
}
