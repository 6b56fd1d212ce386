// Shared and global memory: addresses, loads, stores, cache hints, sums and flags. Part of intrinsics.cuh.
#pragma once

extern __shared__ __align__(128) unsigned char msda_shared_bytes[];

namespace msda {

// The block's dynamic shared memory, aligned to 128 bytes. There is no static shared memory.
MSDA_DEVICE unsigned char* shared_memory() { return msda_shared_bytes; }

// Shared memory by 32-bit address, because such an address takes one register, not two.
MSDA_DEVICE unsigned shared_address(const void* shared) {
    return static_cast<unsigned>(__cvta_generic_to_shared(shared));
}
MSDA_DEVICE void store_shared(unsigned address, float value) {
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
}
MSDA_DEVICE void load_shared(Packet<4>& packet, unsigned address) {
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(packet.word[0]) : "r"(address) : "memory");
}
MSDA_DEVICE void load_shared(Packet<8>& packet, unsigned address) {
    asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];"
                 : "=r"(packet.word[0]), "=r"(packet.word[1])
                 : "r"(address)
                 : "memory");
}
MSDA_DEVICE void load_shared(Packet<16>& packet, unsigned address) {
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(packet.word[0]), "=r"(packet.word[1]), "=r"(packet.word[2]), "=r"(packet.word[3])
                 : "r"(address)
                 : "memory");
}

// Adds to a counter that many threads share, if `wanted`, without a branch. Returns the value before, or 0 if
// not `wanted`.
MSDA_DEVICE unsigned shared_add(unsigned address, unsigned amount, bool wanted) {
    unsigned old;
    asm volatile(
        "{\n.reg .pred wanted;\nsetp.ne.u32 wanted, %3, 0;\nmov.u32 %0, 0;\n"
        "@wanted atom.shared.add.u32 %0, [%1], %2;\n}"
        : "=r"(old)
        : "r"(address), "r"(amount), "r"(static_cast<unsigned>(wanted))
        : "memory");
    return old;
}
// Adds one and returns nothing.
MSDA_DEVICE void shared_increment(unsigned address, bool wanted) {
    asm volatile(
        "{\n.reg .pred wanted;\nsetp.ne.u32 wanted, %1, 0;\n"
        "@wanted red.shared.add.u32 [%0], 1;\n}" ::"r"(address),
        "r"(static_cast<unsigned>(wanted))
        : "memory");
}

// Returns its argument, but hides its origin from the compiler, which then keeps the value in a register
// instead of computing it again at every use.
MSDA_DEVICE unsigned kept(unsigned word) {
    asm volatile("" : "+r"(word));
    return word;
}
MSDA_DEVICE const unsigned char* kept(const unsigned char* pointer) {
    asm volatile("" : "+l"(pointer));
    return pointer;
}

// ---- global memory -----------------------------------------------------------------------------
// load_readonly: data that no thread writes during the kernel and that others will read again soon.
// load_streaming: data read once; does not push anything out of L1.
// store_streaming: results that this GPU does not read again soon; L2 evicts them first.

#define MSDA_LOAD(NAME, QUALIFIER)                                                                   \
    MSDA_DEVICE void NAME(Packet<2>& packet, const void* address) {                                  \
        asm("ld.global.nc" QUALIFIER ".b16 %0, [%1];" : "=h"(packet.word[0]) : "l"(address));        \
    }                                                                                                \
    MSDA_DEVICE void NAME(Packet<4>& packet, const void* address) {                                  \
        asm("ld.global.nc" QUALIFIER ".b32 %0, [%1];" : "=r"(packet.word[0]) : "l"(address));        \
    }                                                                                                \
    MSDA_DEVICE void NAME(Packet<8>& packet, const void* address) {                                  \
        asm("ld.global.nc" QUALIFIER ".v2.b32 {%0, %1}, [%2];"                                       \
            : "=r"(packet.word[0]), "=r"(packet.word[1])                                             \
            : "l"(address));                                                                         \
    }                                                                                                \
    MSDA_DEVICE void NAME(Packet<16>& packet, const void* address) {                                 \
        asm("ld.global.nc" QUALIFIER ".v4.b32 {%0, %1, %2, %3}, [%4];"                               \
            : "=r"(packet.word[0]), "=r"(packet.word[1]), "=r"(packet.word[2]), "=r"(packet.word[3]) \
            : "l"(address));                                                                         \
    }
MSDA_LOAD(load_readonly, "")
MSDA_LOAD(load_streaming, ".L1::no_allocate")
#undef MSDA_LOAD

#define MSDA_STORE(NAME, QUALIFIER)                                                                          \
    MSDA_DEVICE void NAME(void* address, const Packet<2>& packet) {                                          \
        asm volatile("st.global" QUALIFIER ".b16 [%0], %1;" ::"l"(address), "h"(packet.word[0]) : "memory"); \
    }                                                                                                        \
    MSDA_DEVICE void NAME(void* address, const Packet<4>& packet) {                                          \
        asm volatile("st.global" QUALIFIER ".b32 [%0], %1;" ::"l"(address), "r"(packet.word[0]) : "memory"); \
    }                                                                                                        \
    MSDA_DEVICE void NAME(void* address, const Packet<8>& packet) {                                          \
        asm volatile("st.global" QUALIFIER ".v2.b32 [%0], {%1, %2};" ::"l"(address), "r"(packet.word[0]),    \
                     "r"(packet.word[1])                                                                     \
                     : "memory");                                                                            \
    }                                                                                                        \
    MSDA_DEVICE void NAME(void* address, const Packet<16>& packet) {                                         \
        asm volatile("st.global" QUALIFIER ".v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(address),                 \
                     "r"(packet.word[0]), "r"(packet.word[1]), "r"(packet.word[2]), "r"(packet.word[3])      \
                     : "memory");                                                                            \
    }
MSDA_STORE(store, "")
MSDA_STORE(store_streaming, ".cs")
#undef MSDA_STORE

// ---- cache hints -------------------------------------------------------------------------------
// load_l2: past L1. load_evict_last: stays in L1 longest. load_hinted: L2 follows a policy, made once
// per thread.

using CachePolicy = unsigned long long;

MSDA_DEVICE CachePolicy policy_evict_first() {
    CachePolicy policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
MSDA_DEVICE CachePolicy policy_evict_last() {
    CachePolicy policy;
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

#define MSDA_LOAD(NAME, INSTRUCTION)                                                                 \
    MSDA_DEVICE void NAME(Packet<2>& packet, const void* address) {                                  \
        asm(INSTRUCTION ".b16 %0, [%1];" : "=h"(packet.word[0]) : "l"(address));                     \
    }                                                                                                \
    MSDA_DEVICE void NAME(Packet<4>& packet, const void* address) {                                  \
        asm(INSTRUCTION ".b32 %0, [%1];" : "=r"(packet.word[0]) : "l"(address));                     \
    }                                                                                                \
    MSDA_DEVICE void NAME(Packet<8>& packet, const void* address) {                                  \
        asm(INSTRUCTION ".v2.b32 {%0, %1}, [%2];"                                                    \
            : "=r"(packet.word[0]), "=r"(packet.word[1])                                             \
            : "l"(address));                                                                         \
    }                                                                                                \
    MSDA_DEVICE void NAME(Packet<16>& packet, const void* address) {                                 \
        asm(INSTRUCTION ".v4.b32 {%0, %1, %2, %3}, [%4];"                                            \
            : "=r"(packet.word[0]), "=r"(packet.word[1]), "=r"(packet.word[2]), "=r"(packet.word[3]) \
            : "l"(address));                                                                         \
    }
MSDA_LOAD(load_l2, "ld.global.cg")
MSDA_LOAD(load_evict_last, "ld.global.nc.L1::evict_last")
#undef MSDA_LOAD

MSDA_DEVICE void load_hinted(Packet<4>& packet, const void* address, CachePolicy policy) {
    asm("ld.global.nc.L2::cache_hint.b32 %0, [%1], %2;" : "=r"(packet.word[0]) : "l"(address), "l"(policy));
}
MSDA_DEVICE void load_hinted(Packet<8>& packet, const void* address, CachePolicy policy) {
    asm("ld.global.nc.L2::cache_hint.v2.b32 {%0, %1}, [%2], %3;"
        : "=r"(packet.word[0]), "=r"(packet.word[1])
        : "l"(address), "l"(policy));
}
MSDA_DEVICE void load_hinted(Packet<16>& packet, const void* address, CachePolicy policy) {
    asm("ld.global.nc.L2::cache_hint.v4.b32 {%0, %1, %2, %3}, [%4], %5;"
        : "=r"(packet.word[0]), "=r"(packet.word[1]), "=r"(packet.word[2]), "=r"(packet.word[3])
        : "l"(address), "l"(policy));
}

// One line; an address outside of every allocation does no harm.
MSDA_DEVICE void prefetch_l1(const void* address) { asm volatile("prefetch.global.L1 [%0];" ::"l"(address)); }
MSDA_DEVICE void prefetch_l2(const void* address) { asm volatile("prefetch.global.L2 [%0];" ::"l"(address)); }

// ---- flags, sums and traps ---------------------------------------------------------------------

// A thread that loads with load_acquire a value stored with store_release sees everything that was written
// before that store. Shared or global memory, within the GPU.
MSDA_DEVICE unsigned load_acquire(const unsigned* flag) {
    unsigned value;
    asm volatile("ld.acquire.gpu.b32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
    return value;
}
MSDA_DEVICE unsigned long long load_acquire(const unsigned long long* flag) {
    unsigned long long value;
    asm volatile("ld.acquire.gpu.b64 %0, [%1];" : "=l"(value) : "l"(flag) : "memory");
    return value;
}
MSDA_DEVICE void store_release(unsigned* flag, unsigned value) {
    asm volatile("st.release.gpu.b32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}

// A release in two parts, for many flags. A thread that sees a value stored by store_flag after a fence sees
// everything that this thread wrote before the fence, and its block before a barrier before the fence.
MSDA_DEVICE void fence_device() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }
MSDA_DEVICE void store_flag(unsigned long long* flag, unsigned long long value) {
    asm volatile("st.relaxed.gpu.b64 [%0], %1;" ::"l"(flag), "l"(value) : "memory");
}

// The same within a block: cheaper, enough for flags in shared memory.
MSDA_DEVICE unsigned load_acquire_block(const unsigned* flag) {
    unsigned value;
    asm volatile("ld.acquire.cta.b32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
    return value;
}
MSDA_DEVICE void store_release_block(unsigned* flag, unsigned value) {
    asm volatile("st.release.cta.b32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}

// Adds in global memory and returns nothing. Pairs and quadruples are one request from sm_90 on.
MSDA_DEVICE void reduce_add(float* address, float value) {
    asm volatile("red.global.add.f32 [%0], %1;" ::"l"(address), "f"(value) : "memory");
}
MSDA_DEVICE void reduce_add(float* address, const float (&values)[2]) {
#if __CUDA_ARCH__ >= 900
    asm volatile("red.global.add.v2.f32 [%0], {%1, %2};" ::"l"(address), "f"(values[0]), "f"(values[1])
                 : "memory");
#else
    for (int i = 0; i < 2; ++i) reduce_add(address + i, values[i]);
#endif
}
MSDA_DEVICE void reduce_add(float* address, const float (&values)[4]) {
#if __CUDA_ARCH__ >= 900
    asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(address), "f"(values[0]),
                 "f"(values[1]), "f"(values[2]), "f"(values[3])
                 : "memory");
#else
    for (int i = 0; i < 4; ++i) reduce_add(address + i, values[i]);
#endif
}

// Adds to a counter in global memory and returns its value before. The order of threads is not defined.
MSDA_DEVICE unsigned fetch_add(unsigned* counter, unsigned amount) {
    unsigned old;
    asm volatile("atom.global.add.u32 %0, [%1], %2;" : "=r"(old) : "l"(counter), "r"(amount) : "memory");
    return old;
}

// Ends the kernel with an error. A wait calls it when it has lasted too long.
MSDA_DEVICE void trap() { asm volatile("trap;"); }
MSDA_DEVICE void pause(unsigned nanoseconds) { asm volatile("nanosleep.u32 %0;" ::"r"(nanoseconds)); }

}  // namespace msda
