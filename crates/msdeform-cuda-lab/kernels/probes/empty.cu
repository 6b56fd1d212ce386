// An empty kernel: the cost of a launch by itself.
extern "C" __global__ void empty(const __grid_constant__ int) {}
