#include "scheduler.hpp"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <string>

namespace msda_emulator {

ThreadView* current = nullptr;
Index3 block_index, block_size, grid_size;

namespace {

constexpr unsigned named_barriers = 16;
constexpr unsigned most_warps = 32;  // of a block
// Turns that end in a spin, with nothing else happening in the block, before it counts as stuck.
constexpr unsigned long spin_budget = 2'000'000;
// A try_wait gives up only when no other thread can run. After this many times in a row it is a deadlock.
constexpr unsigned long most_idle_polls = 64;
// Every address a kernel holds is an offset from here, so that 0 stays invalid.
constexpr uint32_t shared_window = 0x400;

struct Barrier {
    unsigned expected = 0;  // threads; 0 until the first arrives
    unsigned arrived = 0;
    std::vector<Thread*> waiting;

    // Keeps its memory: threads meet here all the time, and the sanitizer's allocator is slow.
    void clear() {
        expected = arrived = 0;
        waiting.clear();
    }
};

// Lanes that wait in one warp-wide instruction.
struct OpenMeeting {
    WarpMeeting meeting;
    const char* instruction;
    Exchange exchange;
    unsigned arrived;  // lanes
};

struct Warp {
    unsigned lanes;  // that exist
    unsigned exited;
    const Thread* last_to_sync;  // came last to barrier 0; may have gone on since
    // Subsets of the lanes meet separately, each lane in one of them. Rarely more than one.
    OpenMeeting open[warp_lanes];
    unsigned open_count;
};

struct Block {
    std::vector<std::unique_ptr<Thread>> pool;  // stacks are reused from block to block
    std::vector<Thread*> threads;
    std::vector<Thread*> order;  // in which they get their turns, round after round
    size_t next_turn = 0;        // position in it
    Warp warps[most_warps];
    Barrier barriers[named_barriers];
    unsigned char* shared = nullptr;
    size_t shared_bytes = 0;
    unsigned exited = 0;
    bool moved = false;            // something other than a spin happened since it was last cleared
    unsigned long vain_turns = 0;  // since something moved
    void (*kernel)(const void*) = nullptr;
    const void* arguments = nullptr;
} block;

// "0-3, 7" of a set of thread numbers in ascending order.
std::string ranges(const std::vector<unsigned>& numbers) {
    std::string text;
    for (size_t i = 0; i < numbers.size();) {
        size_t end = i;
        while (end + 1 < numbers.size() && numbers[end + 1] == numbers[end] + 1) ++end;
        if (!text.empty()) text += ", ";
        text += std::to_string(numbers[i]);
        if (end > i) text += "-" + std::to_string(numbers[end]);
        i = end + 1;
    }
    return text;
}

const char* base_name(const char* path) {
    const char* slash = strrchr(path, '/');
    return slash != nullptr ? slash + 1 : path;
}

// Names of one file have one address in one library, so that the sanitized strcmp is rarely needed.
bool same_site(Site a, Site b) {
    return a.line == b.line && (a.file == b.file || strcmp(a.file, b.file) == 0);
}

std::string describe_wait(const Thread& thread) {
    char text[256];
    switch (thread.activity) {
        case Activity::exited: return "exited";
        case Activity::ready: return "can run";
        case Activity::in_warp_meeting:
            snprintf(text, sizeof text, "wait in %s with mask 0x%08x at %s:%d", thread.instruction,
                     thread.mask, base_name(thread.site.file), thread.site.line);
            return text;
        case Activity::at_barrier:
            snprintf(text, sizeof text, "wait in %s on barrier %u at %s:%d", thread.instruction,
                     thread.barrier, base_name(thread.site.file), thread.site.line);
            return text;
        case Activity::on_mbarrier:
            snprintf(text, sizeof text, "wait in %s on shared+%zu for parity %u at %s:%d", thread.instruction,
                     static_cast<size_t>(static_cast<unsigned char*>(thread.mbarrier) - block.shared),
                     thread.parity, base_name(thread.site.file), thread.site.line);
            return text;
        case Activity::spinning:
            snprintf(text, sizeof text, "spin on %s at %s:%d", thread.instruction,
                     base_name(thread.site.file), thread.site.line);
            return text;
    }
    return "";
}

// One line per thing waited for, with the threads that wait for it.
std::string describe_block() {
    std::map<std::string, std::vector<unsigned>> groups;
    for (const Thread* thread : block.threads) {
        groups[describe_wait(*thread)].push_back(thread->linear);
    }
    std::string text;
    for (const auto& [wait, threads] : groups) {
        text += "\n  threads " + ranges(threads) + ": " + wait;
    }
    return text;
}

std::vector<unsigned> threads_with(Activity activity) {
    std::vector<unsigned> found;
    for (const Thread* thread : block.threads) {
        if (thread->activity == activity) found.push_back(thread->linear);
    }
    return found;
}

Warp& warp_of(const Thread& thread) { return block.warps[thread.linear / warp_lanes]; }

Thread* warp_lane(const Thread& of, unsigned lane) {
    const unsigned linear = of.linear - of.lane + lane;
    return linear < block.threads.size() ? block.threads[linear] : nullptr;
}

std::string lane_ranges(unsigned mask) {
    std::vector<unsigned> lanes;
    for (unsigned lane = 0; lane < warp_lanes; ++lane) {
        if ((mask >> lane & 1u) != 0) lanes.push_back(lane);
    }
    return ranges(lanes);
}

void release(Barrier& barrier) {
    for (Thread* thread : barrier.waiting) thread->activity = Activity::ready;
    barrier.clear();
    block.moved = true;
}

// The error paths of functions that every thread calls all the time are functions of their own, here and
// below: inline, the sanitizer would poison and clean their temporaries on every call.

[[noreturn, gnu::noinline]] void refuse_count(unsigned id, unsigned threads, const char* instruction,
                                              Site site) {
    fail(Fault::divergence, site, "%s %u: %u threads expected here, %u by those that wait%s", instruction, id,
         threads, block.barriers[id].expected, describe_block().c_str());
}

[[noreturn, gnu::noinline]] void refuse_exit_from_meeting(const Thread& self, const OpenMeeting& other) {
    fail(Fault::divergence, other.meeting.site,
         "lane %u exited while lane %s wait for it in %s with mask 0x%08x", self.lane,
         lane_ranges(other.arrived).c_str(), other.instruction, other.meeting.mask);
}

[[noreturn, gnu::noinline]] void refuse_exit_from_barrier(const Thread& self, const Barrier& barrier) {
    fail(Fault::divergence, barrier.waiting.front()->site,
         "thread %u exited while others wait in __syncthreads%s", self.linear, describe_block().c_str());
}

[[noreturn, gnu::noinline]] void refuse_sync_after_exit(Site site) {
    fail(Fault::divergence, site, "__syncthreads, but threads %s have exited",
         ranges(threads_with(Activity::exited)).c_str());
}

[[noreturn, gnu::noinline]] void refuse_split_sync(const Thread& self, const Thread& other, Site site) {
    fail(Fault::divergence, site,
         "thread %u is in this __syncthreads, thread %u of the same warp in the one at %s:%d", self.linear,
         other.linear, base_name(other.site.file), other.site.line);
}

void join_barrier(unsigned id, unsigned threads, bool waits, const char* instruction, Site site) {
    if (id >= named_barriers) fail(Fault::misuse, site, "%s: there is no barrier %u", instruction, id);
    Barrier& barrier = block.barriers[id];
    if (barrier.expected == 0) {
        barrier.expected = threads;
    } else if (barrier.expected != threads) {
        refuse_count(id, threads, instruction, site);
    }
    barrier.arrived += 1;
    if (barrier.arrived == barrier.expected) {
        release(barrier);
        return;
    }
    if (waits) {
        Thread& self = this_thread();
        self.barrier = id;
        barrier.waiting.push_back(&self);
        if (id == 0) warp_of(self).last_to_sync = &self;
        wait_as(Activity::at_barrier, instruction, site);
    }
}

void check_named(const char* instruction, unsigned id, unsigned threads, Site site) {
    if (threads == 0 || threads % warp_lanes != 0 || threads > block.threads.size()) {
        fail(Fault::misuse, site,
             "%s %u: %u threads; must be a multiple of the warp size, at most the block's %zu", instruction,
             id, threads, block.threads.size());
    }
}

// Starts the turn of the round's next thread that can run; null if no thread is left. Threads hand over to
// each other, which takes half the switches of going through the scheduler each time.
Fiber* next_fiber() {
    while (block.next_turn < block.order.size()) {
        Thread& thread = *block.order[block.next_turn++];
        if (thread.activity != Activity::ready && thread.activity != Activity::spinning) continue;
        thread.spun = thread.activity == Activity::spinning;
        thread.activity = Activity::ready;
        current = &thread;
        return &thread.fiber;
    }
    return nullptr;
}

// Notes whether the turn made progress or only polled once more.
void end_turn(Thread& thread) {
    const bool polled = thread.polls && thread.activity == Activity::on_mbarrier;
    thread.polls = false;
    if (!polled && !(thread.spun && thread.activity == Activity::spinning)) block.moved = true;
    block.vain_turns += 1;
    current = nullptr;
}

Fiber* thread_body(void* argument) {
    auto* self = static_cast<Thread*>(argument);
    block.kernel(block.arguments);
    self->activity = Activity::exited;
    block.exited += 1;
    block.moved = true;
    Warp& warp = warp_of(*self);
    warp.exited |= 1u << self->lane;
    for (unsigned i = 0; i < warp.open_count; ++i) {
        if ((warp.open[i].meeting.mask >> self->lane & 1u) != 0) {
            refuse_exit_from_meeting(*self, warp.open[i]);
        }
    }
    // The hardware forgives a thread that leaves while others wait in __syncthreads; the rule here is
    // that every thread a barrier counts reaches it the same number of times.
    const Barrier& barrier = block.barriers[0];
    if (barrier.expected == block.threads.size() && !barrier.waiting.empty()) {
        refuse_exit_from_barrier(*self, barrier);
    }
    end_turn(*self);
    return next_fiber();
}

// Changes a list in ascending order into another order.
template <typename T>
void arrange(std::vector<T>& ascending, Order order, std::mt19937& random) {
    if (order == Order::descending) std::reverse(ascending.begin(), ascending.end());
    if (order == Order::shuffled) std::shuffle(ascending.begin(), ascending.end(), random);
}

// Threads for all blocks of a launch: their stacks are reused from block to block.
void gather_threads(const LaunchShape& shape) {
    const size_t count = static_cast<size_t>(shape.block.x) * shape.block.y * shape.block.z;
    while (block.pool.size() < count) block.pool.push_back(std::make_unique<Thread>());
    block.threads.clear();
    for (size_t i = 0; i < count; ++i) {
        Thread& thread = *block.pool[i];
        const auto linear = static_cast<unsigned>(i);
        thread.index = {linear % shape.block.x, linear / shape.block.x % shape.block.y,
                        linear / shape.block.x / shape.block.y};
        thread.linear = linear;
        thread.lane = linear % warp_lanes;
        block.threads.push_back(&thread);
    }
}

void begin_block(const LaunchShape& shape, std::mt19937& random) {
    const size_t count = block.threads.size();
    for (size_t i = 0; i < count; ++i) {
        Thread& thread = *block.threads[i];
        thread.activity = Activity::ready;
        const bool copied = thread.copy_groups.size() > 1 || !thread.copy_groups.front().empty();
        if (copied) thread.copy_groups.assign(1, {});
        thread.fiber.start(thread_body, &thread);
    }
    for (size_t first = 0; first < count; first += warp_lanes) {
        Warp& warp = block.warps[first / warp_lanes];
        const size_t lanes = std::min<size_t>(count - first, warp_lanes);
        warp.lanes = lanes == warp_lanes ? ~0u : (1u << lanes) - 1u;
        warp.exited = 0;
        warp.last_to_sync = nullptr;
        warp.open_count = 0;
    }
    for (Barrier& barrier : block.barriers) barrier.clear();
    block.exited = 0;
    memset(block.shared, 0xFF, shape.shared_bytes);
    reset_async_copies();
    block.order = block.threads;
    arrange(block.order, shape.order, random);
}

// Lets every try_wait return false once, as the hardware's time limit would.
bool wake_mbarrier_polls() {
    bool any = false;
    for (Thread* thread : block.threads) {
        if (thread->activity != Activity::on_mbarrier) continue;
        thread->activity = Activity::ready;
        thread->polls = any = true;
    }
    return any;
}

void run_block() {
    unsigned long idle_polls = 0;
    block.vain_turns = 0;
    while (block.exited < block.threads.size()) {
        block.moved = false;
        block.next_turn = 0;
        Fiber* first = next_fiber();
        if (first != nullptr) first->resume();
        if (block.moved || deliver_async_copies()) {
            block.vain_turns = 0;
            idle_polls = 0;
            continue;
        }
        const bool polls = idle_polls++ < most_idle_polls && wake_mbarrier_polls();
        if ((first == nullptr && !polls) || block.vain_turns > spin_budget) {
            fail(Fault::deadlock, Site::here(), "no thread of the block can go on%s",
                 describe_block().c_str());
        }
    }
    require_copies_done();
}

// The rare parts of meet_warp.

[[noreturn, gnu::noinline]] void refuse_mask(const Thread& self, const Warp& warp, const char* instruction,
                                             unsigned mask, Site site) {
    if ((mask >> self.lane & 1u) == 0) {
        fail(Fault::misuse, site, "%s: lane %u calls it but is not in its mask 0x%08x", instruction,
             self.lane, mask);
    }
    const unsigned missing = mask & (warp.exited | ~warp.lanes);
    fail(Fault::divergence, site, "%s with mask 0x%08x: lane %s %s", instruction, mask,
         lane_ranges(missing).c_str(),
         (missing & warp.exited) != 0 ? "has exited" : "does not exist in this block");
}

// Each waits for the other in another instruction: neither can ever complete.
[[noreturn, gnu::noinline]] void refuse_mixture(const Thread& self, const OpenMeeting& other,
                                                const char* instruction, unsigned mask, Site site) {
    fail(Fault::divergence, site,
         "lane %u is in %s with mask 0x%08x, lane %s in %s with mask 0x%08x at %s:%d", self.lane, instruction,
         mask, lane_ranges(other.arrived).c_str(), other.instruction, other.meeting.mask,
         base_name(other.meeting.site.file), other.meeting.site.line);
}

[[gnu::noinline]] OpenMeeting* open_meeting(Warp& warp, const char* instruction, unsigned mask,
                                            Exchange exchange, Site site) {
    OpenMeeting* meeting = &warp.open[warp.open_count++];
    *meeting = OpenMeeting{WarpMeeting{mask, {}, site}, instruction, exchange, 0};
    return meeting;
}

[[gnu::noinline]] void close_meeting(const Thread& self, Warp& warp, OpenMeeting& complete) {
    complete.exchange(complete.meeting);
    for (unsigned lane = 0; lane < warp_lanes; ++lane) {
        if ((complete.arrived >> lane & 1u) != 0) warp_lane(self, lane)->activity = Activity::ready;
    }
    const OpenMeeting* last = &warp.open[--warp.open_count];
    if (&complete != last) complete = *last;
    block.moved = true;
}

}  // namespace

Thread& this_thread() { return *static_cast<Thread*>(current); }

std::vector<Thread*>& block_threads() { return block.threads; }

void note_progress() { block.moved = true; }

void wait_as(Activity activity, const char* instruction, Site site) {
    Thread& self = this_thread();
    self.activity = activity;
    self.instruction = instruction;
    self.site = site;
    end_turn(self);
    self.fiber.suspend(next_fiber());
}

void meet_warp(const char* instruction, unsigned mask, void* brought, Exchange exchange, Site site) {
    Thread& self = this_thread();
    Warp& warp = warp_of(self);
    const unsigned self_bit = 1u << self.lane;
    if ((mask & self_bit) == 0 || (mask & (warp.exited | ~warp.lanes)) != 0) {
        refuse_mask(self, warp, instruction, mask, site);
    }
    OpenMeeting* joined = nullptr;
    for (unsigned i = 0; i < warp.open_count; ++i) {
        OpenMeeting& other = warp.open[i];
        if (other.meeting.mask == mask && other.exchange == exchange) {
            joined = &other;
        } else if ((other.meeting.mask & self_bit) != 0 && (other.arrived & mask) != 0) {
            refuse_mixture(self, other, instruction, mask, site);
        }
    }
    if (joined == nullptr) joined = open_meeting(warp, instruction, mask, exchange, site);
    joined->meeting.lane[self.lane] = brought;
    joined->arrived |= self_bit;
    if (joined->arrived == mask) {
        close_meeting(self, warp, *joined);
    } else {
        self.mask = mask;
        wait_as(Activity::in_warp_meeting, instruction, site);
    }
}

void sync_block(Site site) {
    if (block.exited != 0) refuse_sync_after_exit(site);
    // A warp must execute one and the same barrier instruction (bar.sync is `.aligned`). Lanes that wait
    // have been compared with each other and leave together, so comparing with one of them is enough.
    const Thread& self = this_thread();
    const Thread* other = warp_of(self).last_to_sync;
    if (other != nullptr && other->activity == Activity::at_barrier && other->barrier == 0 &&
        !same_site(other->site, site)) {
        refuse_split_sync(self, *other, site);
    }
    join_barrier(0, static_cast<unsigned>(block.threads.size()), true, "__syncthreads", site);
}

void sync_named(unsigned id, unsigned threads, Site site) {
    check_named("bar.sync", id, threads, site);
    join_barrier(id, threads, true, "bar.sync", site);
}

void arrive_named(unsigned id, unsigned threads, Site site) {
    check_named("bar.arrive", id, threads, site);
    join_barrier(id, threads, false, "bar.arrive", site);
}

void spin(const char* what, Site site) { wait_as(Activity::spinning, what, site); }

unsigned char* shared_base() { return block.shared; }
size_t shared_bytes() { return block.shared_bytes; }

void require_shared(const char* instruction, const void* pointer, size_t bytes, Site site) {
    const auto begin = reinterpret_cast<uintptr_t>(block.shared);
    const auto address = reinterpret_cast<uintptr_t>(pointer);
    if (address < begin || address + bytes > begin + block.shared_bytes) {
        fail(Fault::misuse, site, "%s: %p (%zu bytes) is not in the block's %zu bytes of shared memory",
             instruction, pointer, bytes, block.shared_bytes);
    }
}

uint32_t shared_address(const void* pointer, Site site) {
    require_shared("a shared address", pointer, 0, site);
    return shared_window + static_cast<uint32_t>(static_cast<const unsigned char*>(pointer) - block.shared);
}

void* shared_pointer(uint32_t address, size_t bytes, Site site) {
    if (address < shared_window || address - shared_window + bytes > block.shared_bytes) {
        fail(Fault::misuse, site, "shared address 0x%x (%zu bytes) is not in the block's %zu bytes", address,
             bytes, block.shared_bytes);
    }
    return block.shared + (address - shared_window);
}

void misaligned(const char* instruction, const void* pointer, size_t alignment, Site site) {
    fail(Fault::misaligned, site, "%s: address %p is not a multiple of %zu", instruction, pointer, alignment);
}

void describe_position(char* text, size_t size) {
    if (current == nullptr) {
        text[0] = '\0';
        return;
    }
    snprintf(text, size, " in block (%u, %u, %u) thread (%u, %u, %u)", block_index.x, block_index.y,
             block_index.z, current->index.x, current->index.y, current->index.z);
}

void fail(Fault fault, Site site, const char* format, ...) {
    char position[128];
    describe_position(position, sizeof position);
    fprintf(stderr, "msda-emulator:%s %s:%d: ", position, base_name(site.file), site.line);
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    fflush(stderr);
    _exit(static_cast<int>(fault));
}

void run_grid(const LaunchShape& shape, void (*kernel)(const void*), const void* arguments) {
    block.kernel = kernel;
    block.arguments = arguments;
    block.shared_bytes = shape.shared_bytes;
    // An allocation of its own and of the exact size: AddressSanitizer guards both ends.
    void* shared = nullptr;
    if (posix_memalign(&shared, 1024, shape.shared_bytes) != 0) {
        fail(Fault::protocol, Site::here(), "no memory for %zu shared bytes", shape.shared_bytes);
    }
    block.shared = static_cast<unsigned char*>(shared);
    block_size = shape.block;
    grid_size = shape.grid;
    std::mt19937 random(1);
    std::vector<uint64_t> blocks(uint64_t{shape.grid.x} * shape.grid.y * shape.grid.z);
    std::iota(blocks.begin(), blocks.end(), uint64_t{0});
    arrange(blocks, shape.block_order, random);
    gather_threads(shape);
    for (const uint64_t index : blocks) {
        block_index = {static_cast<unsigned>(index % shape.grid.x),
                       static_cast<unsigned>(index / shape.grid.x % shape.grid.y),
                       static_cast<unsigned>(index / shape.grid.x / shape.grid.y)};
        begin_block(shape, random);
        run_block();
    }
    free(shared);
    block.shared = nullptr;
}

}  // namespace msda_emulator
