// Every way to load, store and add in global memory: thread t moves 16 bytes at a time into rows of the
// output that must all equal the input. Ends with a flag handed from the first warp to the others.
#include "test_params.inc"

MSDA_DEVICE void copy_by(int way, void* target, const void* source, CachePolicy policy) {
    Packet<16> packet;
    switch (way) {
        case 0: load_readonly(packet, source); break;
        case 1: load_streaming(packet, source); break;
        case 2: load_l2(packet, source); break;
        case 3: load_evict_last(packet, source); break;
        default: load_hinted(packet, source, policy); break;
    }
    if (way % 2 == 0) {
        store(target, packet);
    } else {
        store_streaming(target, packet);
    }
}

extern "C" __global__ void memory_wrappers(const __grid_constant__ TestParams params) {
    const int thread = static_cast<int>(threadIdx.x);
    const int threads = static_cast<int>(blockDim.x);
    const auto* source = static_cast<const float*>(params.input) + thread * 4;
    auto* target = static_cast<float*>(params.output) + thread * 4;
    prefetch_l1(source);
    prefetch_l2(source);
    const CachePolicy policy = thread % 2 == 0 ? policy_evict_first() : policy_evict_last();
    for (int way = 0; way < 5; ++way) copy_by(way, target + way * threads * 4, source, policy);

    // The sixth row starts at zero.
    float* sums = target + 5 * threads * 4;
    const float halves[4] = {0.5f * source[0], 0.5f * source[1], 0.5f * source[2], 0.5f * source[3]};
    const float first[2] = {halves[0], halves[1]};
    reduce_add(sums, halves);
    reduce_add(sums, first);
    reduce_add(sums + 2, halves[2]);
    reduce_add(sums + 3, halves[3]);

    // Small packets, and a flag that the other warps wait for.
    auto* flag = reinterpret_cast<unsigned*>(shared_memory());
    if (thread == 0) *flag = 0;
    __syncthreads();
    if (thread == 5) {
        Packet<2> two;
        Packet<4> four;
        Packet<8> eight;
        load_l2(two, source);
        load_evict_last(four, source);
        load_hinted(eight, source, policy);
        const bool same = two.word[0] == (four.word[0] & 0xffffu) && four.word[0] == eight.word[0];
        store_release_block(flag, same ? 7 : 8);
    }
    unsigned seen = 0;
    while (seen == 0) seen = load_acquire_block(flag);
    if (seen != 7) trap();
}
