// One box of a tensor with its zero border, by the copy engine, at every block's coordinates.
#include "test_params.inc"

struct TileParams {
    TensorMap map;
    void* output;
    int box_bytes;
    int reserved;
};

extern "C" __global__ void tensor_tile(const __grid_constant__ TileParams params) {
    unsigned char* tile = shared_memory();
    auto* arrived = reinterpret_cast<Mbarrier*>(tile + params.box_bytes);
    if (threadIdx.x == 0) {
        mbarrier_init(arrived, 1);
        mbarrier_init_fence();
        mbarrier_arrive_expect_bytes(arrived, params.box_bytes);
        copy_tensor_3d(tile, &params.map, 0, static_cast<int>(blockIdx.x) - 1,
                       static_cast<int>(blockIdx.y) - 1, arrived);
    }
    __syncthreads();
    mbarrier_wait(arrived, 0);
    const unsigned block = blockIdx.y * gridDim.x + blockIdx.x;
    for (unsigned i = threadIdx.x; i < static_cast<unsigned>(params.box_bytes); i += blockDim.x) {
        static_cast<unsigned char*>(params.output)[block * params.box_bytes + i] = tile[i];
    }
}
