// Mistakes of kernels, one at a time (params.count); each must be reported with its kind.
#include "test_params.inc"

enum Fault {
    NO_FAULT,
    DIVERGENT_BARRIER,     // half of a warp skips __syncthreads
    SPLIT_BARRIER,         // the halves of a warp meet in different __syncthreads
    EXIT_BEFORE_BARRIER,   // one thread returns, the others wait for it
    MISSING_SHUFFLE_LANE,  // one lane does not take part
    SHUFFLE_AGAINST_VOTE,  // lanes of one warp in different instructions
    GLOBAL_OUT_OF_BOUNDS,  // one element past the input
    GLOBAL_BEFORE_START,   // one element before it
    SHARED_OUT_OF_BOUNDS,  // one element past the shared memory
    UNWRITTEN_SHARED,      // reads memory that no thread wrote
    MISSING_BARRIER,       // reads a word that another thread may not have written yet
    BARRIER_DEADLOCK,      // two warps wait on two named barriers, each for the other
    MBARRIER_DEADLOCK,     // no thread arrives
    FLAG_DEADLOCK,         // no thread sets the flag that all spin on
    MISALIGNED_LOAD,       // 16 bytes at a multiple of 4
    EARLY_READ,            // of a cp.async destination, before waiting
    UNFINISHED_COPY,       // a bulk copy that no thread waits for
    OVERWRITTEN_MBARRIER,  // data where the barrier is
    TOO_MANY_ARRIVALS,     // at an mbarrier
    WRITES_INPUT,          // through a cast
    ENDLESS_LOOP,          // without any wait in it
    GIVES_UP,              // trap
    SHIFT_TOO_FAR,         // undefined in C++
};

extern "C" __global__ void faults(const __grid_constant__ TestParams params) {
    const int fault = params.count;
    const int thread = static_cast<int>(threadIdx.x);
    const auto* input = static_cast<const float*>(params.input);
    auto* output = static_cast<float*>(params.output);
    auto* shared = reinterpret_cast<float*>(shared_memory());
    auto* barrier = reinterpret_cast<Mbarrier*>(shared_memory() + 512);
    float result = static_cast<float>(thread);

    if (fault == DIVERGENT_BARRIER) {
        if (thread % 32 < 16) __syncthreads();
    }
    if (fault == SPLIT_BARRIER) {
        if (thread % 32 < 16) {
            __syncthreads();
        } else {
            __syncthreads();
        }
    }
    if (fault == EXIT_BEFORE_BARRIER) {
        if (thread == 17) return;
        __syncthreads();
    }
    if (fault == MISSING_SHUFFLE_LANE) {
        if (thread % 32 != 9) result = shuffle_xor(result, 1);
    }
    if (fault == SHUFFLE_AGAINST_VOTE) {
        if (thread % 32 == 9) {
            result = any_lane(true);
        } else {
            result = shuffle_xor(result, 1);
        }
    }
    if (fault == GLOBAL_OUT_OF_BOUNDS) result = input[thread + 1];
    if (fault == GLOBAL_BEFORE_START) result = input[thread - 1];
    if (fault == SHARED_OUT_OF_BOUNDS) {
        shared[thread == 63 ? params.aux / 4 : thread] = result;
    }
    if (fault == UNWRITTEN_SHARED) {
        if (thread != 5) shared[thread] = result;
        __syncthreads();
        result = shared[thread];
    }
    if (fault == MISSING_BARRIER) {
        shared[thread] = result;
        result = shared[63 - thread];
    }
    if (fault == BARRIER_DEADLOCK) {
        barrier_sync(thread < 32 ? 1 : 2, 64);
    }
    if (fault == MBARRIER_DEADLOCK) {
        if (thread == 0) mbarrier_init(barrier, 65);
        __syncthreads();
        mbarrier_arrive(barrier);
        mbarrier_wait(barrier, 0);
    }
    if (fault == FLAG_DEADLOCK) {
        auto* flag = reinterpret_cast<unsigned*>(shared);
        if (thread == 0) *flag = 0;
        __syncthreads();
        while (load_acquire(flag) != 1) {
        }
    }
    if (fault == MISALIGNED_LOAD) {
        Packet<16> packet;
        load_readonly(packet, input + 1);
        result = bits_to_float(packet.word[0]);
    }
    if (fault == EARLY_READ) {
        shared[thread] = 0.0f;
        copy_async<4>(shared + thread, input + thread);
        copy_async_commit();
        result = shared[thread];
        copy_async_wait<0>();
    }
    if (fault == UNFINISHED_COPY) {
        if (thread == 0) {
            mbarrier_init(barrier, 1);
            mbarrier_arrive_expect_bytes(barrier, 64);
            copy_bulk(shared, input, 64, barrier);
        }
    }
    if (fault == OVERWRITTEN_MBARRIER) {
        if (thread == 0) {
            mbarrier_init(barrier, 1);
            shared[128] = 1.0f;
            mbarrier_arrive(barrier);
        }
    }
    if (fault == TOO_MANY_ARRIVALS) {
        if (thread == 0) mbarrier_init(barrier, 63);
        __syncthreads();
        if (thread != 0) mbarrier_arrive_expect_bytes(barrier, 16);
        __syncthreads();
        mbarrier_arrive(barrier);
    }
    if (fault == WRITES_INPUT) const_cast<float*>(input)[thread] = 7.0f;
    if (fault == ENDLESS_LOOP) {
        volatile int never = 0;
        while (never == 0) {
        }
    }
    if (fault == GIVES_UP) trap();
    if (fault == SHIFT_TOO_FAR) result = static_cast<float>(1 << (params.aux + thread));
    output[thread] = result;
}
