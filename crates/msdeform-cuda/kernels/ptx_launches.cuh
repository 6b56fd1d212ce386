// Launches that follow each other without a gap. Part of intrinsics.cuh.
//
// A launch whose geometry `overlaps` starts as soon as every block of the one before it has called
// let_next_launch_start or is done. Before compute capability 9.0 launches do not overlap and nothing is
// waited for.
#pragma once

namespace msda {

// What the launches before this one have written is there afterwards. Every thread of an overlapping launch
// calls it before it reads that; one that reads nothing of it, or waits for it in another way, before it
// ends: who waits for this launch then also waits for the one before. One block is enough for that.
MSDA_DEVICE void wait_for_launch_before() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// A hint, which promises nothing about memory. What must be there when the next launch starts needs a
// fence before.
MSDA_DEVICE void let_next_launch_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

}  // namespace msda
