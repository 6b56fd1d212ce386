// The parameter of a launch. Mirrored by src/params.rs (`#[repr(C)]`); a test there compiles this header
// and compares every offset.
//
// Strides count elements and are 64-bit: a tensor may have more than 2^31 elements. The kernel's one
// parameter is a __grid_constant__, so reading a field is a constant-bank access, also with a
// run-time index into `level`.
#pragma once

#include "config.cuh"

namespace msda {

struct LevelGeometry {
    int height;
    int width;
    int row_pitch;     // pixels from one row to the next (width, plus 2 with a border)
    int first_sample;  // samples of this level start here; they end where the next level starts
    long long origin;  // pixel (0, 0), in pixels from the start of the (batch, head)
};

// Numbers that the host computes for the kernels of this variant, by name; some variants have none. Each is
// one word, so that the host needs no rule for their layout (src/derived.rs).
#ifndef MSDA_DERIVED
#define MSDA_DERIVED
#endif
#define COUNT(name) alignas(8) int name;
#define SIZE(name) alignas(8) long long name;
#define COUNT_OF_LEVELS(name) alignas(8) int name[LEVELS];

// The part of the parameter that both directions share. Ends in an array whose length is compiled in, so it
// is the last base of both parameters.
struct CallShape {
    MSDA_DERIVED

    alignas(8) long long value_batch_stride;
    long long value_head_stride;
    long long value_pixel_stride;

    int batch;
    int heads;
    int queries;
    int channels;
    int levels;
    int samples;

    // All levels in device memory, for kernels that take any number of levels; null if `level` holds them
    // all.
    const LevelGeometry* level_table;
    LevelGeometry level[LEVELS];
};
#undef COUNT
#undef SIZE
#undef COUNT_OF_LEVELS

// Level `l`, from the parameter or from device memory.
__device__ __forceinline__ LevelGeometry level_geometry(const CallShape& shape, int l) {
    return shape.level_table == nullptr ? shape.level[l] : shape.level_table[l];
}

struct ForwardParams : ForwardTensors, CallShape {};

struct BackwardParams : BackwardTensors, CallShape {};

// The part of the workspace that starts at byte `offset`.
template <typename T, typename Tensors>
__device__ __forceinline__ T* workspace_part(const Tensors& tensors, long long offset) {
    return reinterpret_cast<T*>(static_cast<unsigned char*>(tensors.workspace) + offset);
}

}  // namespace msda
