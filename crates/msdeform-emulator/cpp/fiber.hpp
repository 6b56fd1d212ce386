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

    // The next switch to it starts `body(argument)`, which returns the fiber to hand over to, as for
    // suspend(). May be called again once that body has returned.
    void start(Fiber* (*body)(void*), void* argument);
    // Called by the scheduler: runs the fiber, and those that it hands over to, until one comes back.
    void resume();
    // Called on a fiber: hands over to another one, or back to the scheduler if that is null.
    void suspend(Fiber* next);

private:
    static void enter(Fiber* self);
    void leave(Fiber* next, bool for_good);

    void* stack_pointer_ = nullptr;
    void* stack_ = nullptr;  // lowest usable address
    Fiber* (*body_)(void*) = nullptr;
    void* argument_ = nullptr;
    void* sanitizer_state_ = nullptr;
#if !defined(__x86_64__) || defined(MSDA_FIBER_UCONTEXT)
    void* context_ = nullptr;  // ucontext_t of the fiber
    friend void enter_ucontext(unsigned, unsigned);
#endif
};

}  // namespace msda_emulator
