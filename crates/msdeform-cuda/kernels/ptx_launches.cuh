// Launches that follow each other without a gap. Part of intrinsics.cuh.
//
// A launch whose geometry `overlaps` starts as soon as every block of the one before it has called
// let_next_launch_start or has ended. Before compute capability 9.0 launches do not overlap, and these
// functions do nothing.
#pragma once

namespace msda {

// Waits until the writes of all launches before this one are visible. Every thread of an overlapping launch
// calls it before it reads them. A launch that does not read them, or waits for them in another way, calls it
// in at least one block before it ends, because a launch that waits for this one also relies on the one
// before.
MSDA_DEVICE void wait_for_launch_before() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// A hint that orders no memory accesses. If the next launch must see a write when it starts, call a fence
// before.
MSDA_DEVICE void let_next_launch_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

}  // namespace msda
