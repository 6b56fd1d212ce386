// The runtime's interface for emulated device code: the current thread, and the operations that make a thread
// wait for others. Deliberately free of standard library containers: this header is
// compiled once per kernel specialisation, the runtime behind it only once.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

namespace msda_emulator {

// The place in the kernel where a wait was entered. As a default argument it names the caller's line.
struct Site {
    const char* file;
    int line;
    static constexpr Site here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
        return Site{file, line};
    }
};

struct Index3 {
    unsigned x, y, z;
};

// A compiled library's description of an entry function (entry.cpp).
struct Kernel {
    size_t params_bytes;
    void (*run_thread)(const void* params);
};

// The part of a thread that kernels can see.
struct ThreadView {
    Index3 index;     // threadIdx
    unsigned linear;  // x fastest
    unsigned lane;    // linear % 32
};

// The running thread. Every fiber switch changes it.
extern ThreadView* current;
extern Index3 block_index, block_size, grid_size;

constexpr unsigned warp_lanes = 32;

// The kinds of faults. The numbers are exit codes, read by the Rust side (src/error.rs).
enum class Fault : int {
    protocol = 40,    // the request is malformed; nothing to do with the kernel
    divergence = 41,  // threads that must meet did not: one exited, or they met at different places
    deadlock = 42,    // no thread can go on
    misuse = 43,      // an operand the instruction forbids
    misaligned = 44,  // an access wider than its address allows
    trap = 45,        // the kernel gave up by itself
    timeout = 46,     // ran for longer than the launch allows
};

// Prints the fault with the block and thread it happened in, and ends the process.
[[noreturn]] void fail(Fault fault, Site site, const char* format, ...) __attribute__((format(printf, 3, 4)));

// ---- warps --------------------------------------------------------------------------------------

// One meeting of the lanes in `mask`; `lane[i]` is the data of lane i, null if i is not in it.
struct WarpMeeting {
    unsigned mask;
    void* lane[warp_lanes];
    Site site;
};
using Exchange = void (*)(const WarpMeeting&);

// Waits for every lane in `mask` to call this with the same mask and the same `exchange`, which then
// runs once with the data of all of them (and writes results back into it) before any lane goes on.
void meet_warp(const char* instruction, unsigned mask, void* brought, Exchange exchange, Site site);

// ---- barriers -----------------------------------------------------------------------------------

void sync_block(Site site);                                   // bar.sync 0
void sync_named(unsigned id, unsigned threads, Site site);    // bar.sync id, threads
void arrive_named(unsigned id, unsigned threads, Site site);  // bar.arrive id, threads

// Lets the other threads run; for loads and polls that a kernel may spin on. After a bounded number of
// fruitless spins the block is reported as deadlocked on `what`.
void spin(const char* what, Site site);

// ---- memory -------------------------------------------------------------------------------------

unsigned char* shared_base();
size_t shared_bytes();
// Shared-window addresses as PTX has them: small integers, 0 is never valid.
uint32_t shared_address(const void* pointer, Site site);
void* shared_pointer(uint32_t address, size_t bytes, Site site);
// Faults unless [pointer, pointer + bytes) lies in the block's shared memory.
void require_shared(const char* instruction, const void* pointer, size_t bytes, Site site);
void misaligned(const char* instruction, const void* pointer, size_t alignment, Site site);

inline void require_aligned(const char* instruction, const void* pointer, size_t alignment, Site site) {
    if (reinterpret_cast<uintptr_t>(pointer) % alignment != 0) {
        misaligned(instruction, pointer, alignment, site);
    }
}

// ---- asynchronous copies ------------------------------------------------------------------------
// The bytes are read when the copy is issued, the destination turns to poison at once, and the data
// arrives only when the kernel waits for it the way the hardware requires.

void cp_async(void* shared, const void* global, unsigned bytes, unsigned valid_bytes, Site site);
void cp_async_commit();
void cp_async_wait(unsigned pending_groups);  // ~0u: everything, uncommitted copies included

void mbarrier_init(void* barrier, unsigned arrivals, Site site);
void mbarrier_invalidate(void* barrier, Site site);
// Each returns the parity of the phase that the arrival belongs to.
unsigned mbarrier_arrive(void* barrier, unsigned arrivals, Site site);
unsigned mbarrier_arrive_expect_tx(void* barrier, unsigned bytes, Site site);
void mbarrier_expect_tx(void* barrier, unsigned bytes, Site site);
// cp.async.mbarrier.arrive: arrives once this thread's earlier cp.async copies are there.
void mbarrier_arrive_after_copies(void* barrier, bool counted_by_init, Site site);
// try_wait: may suspend the thread; true once the phase of that parity is complete.
bool mbarrier_try_wait(void* barrier, unsigned parity, Site site);
// test_wait: answers at once (after letting the others run).
bool mbarrier_test_wait(void* barrier, unsigned parity, Site site);

void bulk_load(void* shared, const void* global, unsigned bytes, void* barrier, Site site);

// The emulator's form of a CUtensorMap: same size and alignment, plain fields. The Rust side writes
// it (src/tensor_map.rs).
struct alignas(64) TensorMap {
    static constexpr uint64_t expected_magic = 0x4d53444154454e53ull;
    uint64_t magic;
    const unsigned char* base;
    uint32_t rank;
    uint32_t element_bytes;
    uint64_t stride_bytes[4];  // of dimensions 1.., dimension 0 is contiguous
    uint32_t size[5];
    uint32_t box[5];
    uint32_t reserved[8];
};
static_assert(sizeof(TensorMap) == 128, "a CUtensorMap has 128 bytes");

void tensor_load(void* shared, const TensorMap* map, const int* origin, unsigned rank, void* barrier,
                 Site site);

}  // namespace msda_emulator
