// Every kind of shuffle and vote: thread t writes its results to columns of row t.
#include "test_params.inc"

extern "C" __global__ void warp_exchange(const __grid_constant__ TestParams params) {
    const int thread = static_cast<int>(threadIdx.x);
    const int lane = thread % 32;
    int* row = static_cast<int*>(params.output) + thread * 11;
    const int word = 100 + thread;
    row[0] = shuffle(word, 5);
    row[1] = shuffle(word, lane + 1, 8);
    row[2] = shuffle_xor(word, 3);
    row[3] = shuffle_up(word, 2, 16);
    row[4] = shuffle_down(word, 1, 4);
    row[5] = static_cast<int>(ballot_lanes(lane % 3 == 0));
    row[6] = any_lane(thread == 40);
    row[7] = all_lanes(thread < 64);
    row[8] = static_cast<int>(shuffle(static_cast<long long>(word) << 32, 7) >> 32);
    // The halves of the warp meet among themselves, one of them more often.
    auto* words = reinterpret_cast<int*>(shared_memory());
    if (lane < 16) {
        words[thread] = word;
        sync_warp(0x0000ffffu);
        row[10] = words[thread ^ 15];
    } else {
        words[thread] = word;
        sync_warp(0xffff0000u);
        const int other = words[thread ^ 1];
        sync_warp(0xffff0000u);
        words[thread] = other;
        sync_warp(0xffff0000u);
        row[10] = words[thread ^ 1];
    }
    row[9] = static_cast<int>(shuffle_xor(static_cast<float>(word), 16));
}
