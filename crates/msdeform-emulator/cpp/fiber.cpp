#include "fiber.hpp"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <sanitizer/common_interface_defs.h>

namespace msda_emulator {
namespace {

// Sanitized frames are large; untouched pages of a stack cost nothing.
constexpr size_t stack_bytes = 256 * 1024;

// There is one scheduler, on the process's own stack.
struct Scheduler {
    void* stack_pointer = nullptr;
    const void* stack = nullptr;
    size_t stack_size = 0;
    void* sanitizer_state = nullptr;
} scheduler;

// Switches from a fiber to the one with this stack or, if it is null, to the scheduler. With a null slot the
// sanitizer frees its data of the fiber that is left.
void announce_leave(void** save, const void* next_stack) {
    if (next_stack == nullptr) {
        __sanitizer_start_switch_fiber(save, scheduler.stack, scheduler.stack_size);
    } else {
        __sanitizer_start_switch_fiber(save, next_stack, stack_bytes);
    }
}

void* map_stack() {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    void* memory = mmap(nullptr, stack_bytes + page, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    // The lowest page turns an overflow into a fault; otherwise it would change another thread's stack.
    if (memory == MAP_FAILED || mprotect(memory, page, PROT_NONE) != 0) {
        perror("msda-emulator: cannot map a fiber stack");
        abort();
    }
    return static_cast<unsigned char*>(memory) + page;
}

}  // namespace

#if defined(__x86_64__) && !defined(MSDA_FIBER_UCONTEXT)

// swapcontext would do, but costs a system call per switch, and a shuffle is 32 switches.
extern "C" void msda_switch_stacks(void** save, void* load);
asm(R"(
    .text
    .globl msda_switch_stacks
    .type msda_switch_stacks, @function
msda_switch_stacks:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size msda_switch_stacks, .-msda_switch_stacks
    .globl msda_fiber_start
    .type msda_fiber_start, @function
msda_fiber_start:
    movq %rbx, %rdi
    callq *%rbp
    ud2
    .size msda_fiber_start, .-msda_fiber_start
)");
extern "C" void msda_fiber_start();

void Fiber::start(Fiber* (*body)(void*), void* argument) {
    if (stack_ == nullptr) stack_ = map_stack();
    body_ = body;
    argument_ = argument;
    sanitizer_state_ = nullptr;
    auto* top = reinterpret_cast<uintptr_t*>(static_cast<unsigned char*>(stack_) + stack_bytes);
    // What msda_switch_stacks pops, lowest first: r15 r14 r13 r12 rbx rbp, then the return address.
    // Two words above keep the stack aligned to 16 bytes at the call in msda_fiber_start.
    uintptr_t* frame = top - 9;
    for (int i = 0; i < 9; ++i) frame[i] = 0;
    frame[4] = reinterpret_cast<uintptr_t>(this);
    frame[5] = reinterpret_cast<uintptr_t>(&Fiber::enter);
    frame[6] = reinterpret_cast<uintptr_t>(&msda_fiber_start);
    stack_pointer_ = frame;
}

void Fiber::resume() {
    __sanitizer_start_switch_fiber(&scheduler.sanitizer_state, stack_, stack_bytes);
    msda_switch_stacks(&scheduler.stack_pointer, stack_pointer_);
    __sanitizer_finish_switch_fiber(scheduler.sanitizer_state, nullptr, nullptr);
}

void Fiber::leave(Fiber* next, bool for_good) {
    announce_leave(for_good ? nullptr : &sanitizer_state_, next == nullptr ? nullptr : next->stack_);
    msda_switch_stacks(&stack_pointer_, next == nullptr ? scheduler.stack_pointer : next->stack_pointer_);
}

Fiber::~Fiber() = default;

#else

#include <ucontext.h>

static ucontext_t scheduler_context;

void enter_ucontext(unsigned low, unsigned high) {
    Fiber::enter(
        reinterpret_cast<Fiber*>(static_cast<uintptr_t>(low) | (static_cast<uintptr_t>(high) << 16 << 16)));
}

void Fiber::start(Fiber* (*body)(void*), void* argument) {
    if (stack_ == nullptr) stack_ = map_stack();
    if (context_ == nullptr) context_ = new ucontext_t;
    body_ = body;
    argument_ = argument;
    sanitizer_state_ = nullptr;
    auto* context = static_cast<ucontext_t*>(context_);
    getcontext(context);
    context->uc_stack.ss_sp = stack_;
    context->uc_stack.ss_size = stack_bytes;
    context->uc_link = nullptr;
    const auto self = reinterpret_cast<uintptr_t>(this);
    makecontext(context, reinterpret_cast<void (*)()>(&enter_ucontext), 2, static_cast<unsigned>(self),
                static_cast<unsigned>(self >> 16 >> 16));
}

void Fiber::resume() {
    __sanitizer_start_switch_fiber(&scheduler.sanitizer_state, stack_, stack_bytes);
    swapcontext(&scheduler_context, static_cast<ucontext_t*>(context_));
    __sanitizer_finish_switch_fiber(scheduler.sanitizer_state, nullptr, nullptr);
}

void Fiber::leave(Fiber* next, bool for_good) {
    announce_leave(for_good ? nullptr : &sanitizer_state_, next == nullptr ? nullptr : next->stack_);
    swapcontext(static_cast<ucontext_t*>(context_),
                next == nullptr ? &scheduler_context : static_cast<ucontext_t*>(next->context_));
}

Fiber::~Fiber() { delete static_cast<ucontext_t*>(context_); }

#endif

void Fiber::suspend(Fiber* next) {
    leave(next, false);
    __sanitizer_finish_switch_fiber(sanitizer_state_, nullptr, nullptr);
}

void Fiber::enter(Fiber* self) {
    // The process's first fiber is started by the scheduler, whose stack stays where it is.
    if (scheduler.stack == nullptr) {
        __sanitizer_finish_switch_fiber(nullptr, &scheduler.stack, &scheduler.stack_size);
    } else {
        __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
    }
    self->leave(self->body_(self->argument_), true);
    abort();  // a finished fiber is never resumed
}

}  // namespace msda_emulator
