// The operator that a kernel is compiled for: its tensors, and the constants that kernels need.
//
//   ForwardTensors, BackwardTensors
//                            its tensors in the order of the library's Operator, the workspace, and strides.
//                            Flat structs, because NVRTC compiles nested ones to other code
//   Operator                 constants. In an enum, because NVRTC keeps other constants in the binary:
//     SHARES_ROWS              the lanes that read a row prepare it together (sample_source.cuh)
//     HAS_STEP_ROWS            a backward may have a step `rows`
//
// This is all that kernels know of operators. Each operator has headers of its own: its tensors (selected
// here), its samples and their gradients for kernels that know sizes at compile time (sample_source.cuh,
// sample_sink.cuh) and for those that take any size (any_samples.cuh, any_backward_samples.cuh,
// any_gradients.cuh), its samples for lists (sample_tiles.cuh), and weights in lists
// (list_entries.cuh).
#pragma once

#if MSDA_FROM_OFFSETS
#include "offset_tensors.cuh"
#else
#include "plain_tensors.cuh"
#endif
