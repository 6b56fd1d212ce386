// Vector loads: what fwd_simple does, with 16 bytes per lane and instruction instead of two.
//
// Who owns what. Four neighbouring lanes own an item, lane i its channels 8i to 8i + 7; a warp walks the
// samples of eight neighbouring queries together. A corner is one load: four lanes, 64 contiguous bytes.
// Nothing else changed: every lane still computes the places of its samples by itself (four lanes the same
// place), one sample after the other.
//
// Why. A warp of fwd_simple loads 64 bytes per instruction, this one 512. An item takes an eighth of
// the load instructions, of the address arithmetic and of the coordinates.
//
// When it loses. Eight lanes make one wavefront of the L1 data path, and here they hold two unrelated pixels:
// if both lie in the same half of a 128-byte line they conflict in the banks. Kernels that give a wavefront
// to two x neighbours instead (fwd_tile_gather) avoid that.
//
// The base of suite 2: fwd_smem_metadata, fwd_work_redistribution, fwd_loop_unroll, fwd_precomputed_weights,
// fwd_l2_hints and fwd_mixed_precision each change one point of this kernel.
#include "ladder/lane_groups.cuh"

using namespace msda;

extern "C" __global__ void __launch_bounds__(MSDA_THREADS)
    fwd_vector_loads(const __grid_constant__ ForwardParams params) {
    const long long index = own_group_in_grid();
    if (index >= item_count(params)) return;
    const Item item = item_at(params, index);
    const unsigned char* pixels = item.pixels + own_chunk() * 16;

    float sums[CHUNK_ELEMENTS];
    clear(sums);
#pragma unroll 1
    for (int s = 0; s < SAMPLES; ++s) {
        const Sample sample = sample_of_pair(params, item.row, s);
        const unsigned below = row_below(params.level[level_of_sample(s)]);
        add_corners(load_corners(pixels, sample.offset, below), sample.weight, sums);
    }
    store_chunk(params, item, own_chunk(), sums);
}
