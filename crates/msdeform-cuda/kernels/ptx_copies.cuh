// Asynchronous copies, and the barriers that count them. Part of intrinsics.cuh.
#pragma once

#include "ptx_memory.cuh"

namespace msda {

// ---- asynchronous copies of a thread -----------------------------------------------------------
// Global to shared memory past the registers: 4, 8 or 16 bytes, both addresses multiples of that. A
// thread sees its own copies after copy_async_wait, the others' after a barrier on top.

template <int BYTES>
MSDA_DEVICE void copy_async(void* shared, const void* global) {
    if constexpr (BYTES == 16) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(shared)), "l"(global)
                     : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(shared_address(shared)), "l"(global),
                     "n"(BYTES)
                     : "memory");
    }
}
// Zeros unless `valid`; then `global` is not read, but must still be aligned.
template <int BYTES>
MSDA_DEVICE void copy_async_or_zero(void* shared, const void* global, bool valid) {
    const int valid_bytes = valid ? BYTES : 0;
    if constexpr (BYTES == 16) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)),
                     "l"(global), "r"(valid_bytes)
                     : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared_address(shared)),
                     "l"(global), "n"(BYTES), "r"(valid_bytes)
                     : "memory");
    }
}
// 16 bytes, the destination by 32-bit address.
MSDA_DEVICE void copy_async_or_zero(unsigned shared, const void* global, bool valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
                 "r"(valid ? 16 : 0)
                 : "memory");
}
MSDA_DEVICE void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most the newest PENDING_GROUPS groups are in flight.
template <int PENDING_GROUPS>
MSDA_DEVICE void copy_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING_GROUPS) : "memory");
}
MSDA_DEVICE void copy_async_wait_all() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// ---- mbarriers ---------------------------------------------------------------------------------
// A barrier in shared memory that counts arrivals and, from sm_90 on, bytes of copies. Phases have
// parity 0, 1, 0, ...; waiting for parity 1 on a fresh barrier succeeds at once.

using Mbarrier = unsigned long long;

MSDA_DEVICE void mbarrier_init(Mbarrier* barrier, int arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals)
                 : "memory");
}
MSDA_DEVICE void mbarrier_arrive(Mbarrier* barrier) {
    asm volatile(
        "{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0];\n}" ::"r"(shared_address(barrier))
        : "memory");
}
// Arrives when this thread's copy_async copies so far are complete; counts as one of the arrivals.
MSDA_DEVICE void mbarrier_arrive_after_copies(Mbarrier* barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
}
MSDA_DEVICE bool mbarrier_test_wait(Mbarrier* barrier, unsigned parity) {
    unsigned complete;
    asm volatile(
        "{\n.reg .pred complete;\n"
        "mbarrier.test_wait.parity.shared.b64 complete, [%1], %2;\n"
        "selp.u32 %0, 1, 0, complete;\n}"
        : "=r"(complete)
        : "r"(shared_address(barrier)), "r"(parity)
        : "memory");
    return complete != 0;
}
// May suspend the thread for a while before it answers.
MSDA_DEVICE bool mbarrier_try_wait(Mbarrier* barrier, unsigned parity) {
#if __CUDA_ARCH__ >= 900
    unsigned complete;
    asm volatile(
        "{\n.reg .pred complete;\n"
        "mbarrier.try_wait.parity.shared.b64 complete, [%1], %2;\n"
        "selp.u32 %0, 1, 0, complete;\n}"
        : "=r"(complete)
        : "r"(shared_address(barrier)), "r"(parity)
        : "memory");
    return complete != 0;
#else
    if (mbarrier_test_wait(barrier, parity)) return true;
    pause(20);
    return false;
#endif
}
// Bounded: a phase that never completes ends the kernel with an error instead of hanging the GPU.
MSDA_DEVICE void mbarrier_wait(Mbarrier* barrier, unsigned parity) {
    for (unsigned attempt = 0; !mbarrier_try_wait(barrier, parity); ++attempt) {
        if (attempt == 1u << 24) trap();
    }
}

// ---- bulk and tensor copies (sm_90) ------------------------------------------------------------
// One thread moves a block of memory; its bytes are counted by an mbarrier that was told to expect
// them. Addresses and sizes are multiples of 16; a tensor's destination is a multiple of 128.

// A CUtensorMap, made by the driver, passed inside the kernel's parameters.
struct alignas(64) TensorMap {
    unsigned long long opaque[16];
};

#if __CUDA_ARCH__ >= 900

// Makes initialised mbarriers visible to the copy engine.
MSDA_DEVICE void mbarrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
MSDA_DEVICE void mbarrier_expect_bytes(Mbarrier* barrier, int bytes) {
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
                 "r"(bytes)
                 : "memory");
}
MSDA_DEVICE void mbarrier_arrive_expect_bytes(Mbarrier* barrier, int bytes) {
    asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.expect_tx.shared::cta.b64 state, [%0], %1;\n}" ::"r"(
                     shared_address(barrier)),
                 "r"(bytes)
                 : "memory");
}
MSDA_DEVICE void copy_bulk(void* shared, const void* global, int bytes, Mbarrier* barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
            shared_address(shared)),
        "l"(global), "r"(bytes), "r"(shared_address(barrier))
        : "memory");
}
// Orders this thread's own accesses to shared memory before copies that are issued after it.
MSDA_DEVICE void fence_before_copy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
MSDA_DEVICE void prefetch_tensor_map(const TensorMap* map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
// Copies the box of the map at these coordinates, innermost first. Elements outside arrive as zeros.
MSDA_DEVICE void copy_tensor_2d(void* shared, const TensorMap* map, int x, int y, Mbarrier* barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3}], [%4];" ::"r"(shared_address(shared)),
        "l"(map), "r"(x), "r"(y), "r"(shared_address(barrier))
        : "memory");
}
MSDA_DEVICE void copy_tensor_3d(void* shared, const TensorMap* map, int x, int y, int z, Mbarrier* barrier) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(shared_address(shared)),
        "l"(map), "r"(x), "r"(y), "r"(z), "r"(shared_address(barrier))
        : "memory");
}
MSDA_DEVICE void copy_tensor_4d(void* shared, const TensorMap* map, int x, int y, int z, int w,
                                Mbarrier* barrier) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(shared_address(shared)),
        "l"(map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(shared_address(barrier))
        : "memory");
}

// Changes the number of registers of this warp group: producers need few, consumers many. All four warps call
// it. The number is a multiple of 8 from 24 to 256.
template <int REGISTERS>
MSDA_DEVICE void lower_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
template <int REGISTERS>
MSDA_DEVICE void raise_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

#endif  // __CUDA_ARCH__ >= 900

}  // namespace msda
