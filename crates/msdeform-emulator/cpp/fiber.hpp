// Fibers: a stack each and a switch, known to AddressSanitizer.
#pragma once

#include <stddef.h>

namespace msda_emulator {

class Fiber {
public:
    Fiber() = default;
    ~Fiber();
    Fiber(const Fiber&) = delete;
    Fiber& operator=(const Fiber&) = delete;

    // The next resume() starts `body(argument)`. May be called again once that body has returned.
    void start(void (*body)(void*), void* argument);
    // Called by the scheduler: runs the fiber until it suspends or its body returns.
    void resume();
    // Called on a fiber: back to the scheduler.
    void suspend();

private:
    static void enter(Fiber* self);
    void leave(bool for_good);

    void* stack_pointer_ = nullptr;
    void* stack_ = nullptr;  // lowest usable address
    void (*body_)(void*) = nullptr;
    void* argument_ = nullptr;
    void* sanitizer_state_ = nullptr;
#if !defined(__x86_64__) || defined(MSDA_FIBER_UCONTEXT)
    void* context_ = nullptr;  // ucontext_t of the fiber
    friend void enter_ucontext(unsigned, unsigned);
#endif
};

}  // namespace msda_emulator
