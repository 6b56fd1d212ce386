// Runs one block after another, each thread a fiber. Only the runtime's own files include this.
#pragma once

#include <vector>

#include "fiber.hpp"
#include "runtime.hpp"

namespace msda_emulator {

// The order in which the threads of a block, or the blocks of a grid, get their turns. It does not change the
// result of a correct kernel. A kernel that misses a barrier, or adds up in the order of arrival, usually
// gives another result in at least one of them.
enum class Order : uint32_t { ascending = 0, descending = 1, shuffled = 2 };

struct LaunchShape {
    Index3 grid, block;
    size_t shared_bytes;
    Order order;        // of the threads of a block
    Order block_order;  // of the blocks
};

// What a suspended thread waits for.
enum class Activity { ready, in_warp_meeting, at_barrier, spinning, on_mbarrier, exited };

// Source bytes of a copy that was issued and has not arrived.
struct PendingCopy {
    unsigned char* destination;
    std::vector<unsigned char> bytes;
};

struct Thread : ThreadView {
    Fiber fiber;
    Activity activity = Activity::ready;
    // The reason for its wait, for reports.
    const char* instruction = "";
    Site site{"", 0};
    unsigned mask = 0;     // of the warp meeting
    unsigned barrier = 0;  // number of the named barrier
    void* mbarrier = nullptr;
    unsigned parity = 0;
    bool polls = false;  // resumed from an mbarrier whose phase is not complete
    bool spun = false;   // its turn began in the middle of a spin
    // cp.async groups, oldest first; the last one is still open.
    std::vector<std::vector<PendingCopy>> copy_groups{1};
};

Thread& this_thread();
// Suspends the current thread with the given activity until something sets it to ready.
void wait_as(Activity activity, const char* instruction, Site site);
// Reports an event that may let other threads go on.
void note_progress();
// Every thread of the block, in linear order.
std::vector<Thread*>& block_threads();

// Called once per launch; `kernel(arguments)` is one thread's work.
void run_grid(const LaunchShape& shape, void (*kernel)(const void*), const void* arguments);

// Hooks of the asynchronous copy unit (async_copy.cpp).
void reset_async_copies();    // a block begins
void require_copies_done();   // a block has ended
bool deliver_async_copies();  // nothing else can run; true if something arrived

// " in block (x, y, z) thread (x, y, z)", or nothing outside of a kernel. Async-signal-safe.
void describe_position(char* text, size_t size);

}  // namespace msda_emulator
