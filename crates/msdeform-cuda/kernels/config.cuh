// The JIT macros, read once into typed constants. Nothing below this header looks at a macro.
//
// Sizes that are stable in a model are compiled in. Sizes that change with an image (H, W, N, Lq) are always
// in the parameters. A kernel that takes a size at run time is compiled with 0 for it.
#pragma once

#if !defined(MSDA_VALUE_DTYPE) || !defined(MSDA_SAMPLING_DTYPE)
#error "MSDA_VALUE_DTYPE and MSDA_SAMPLING_DTYPE are required: 0 f32, 1 f16, 2 bf16"
#endif

#ifndef MSDA_LEVELS
#error "MSDA_LEVELS is required: the entries of CallShape::level"
#endif

#ifndef MSDA_CHANNELS
#define MSDA_CHANNELS 0
#endif
#ifndef MSDA_SAMPLES
#define MSDA_SAMPLES 0
#endif
#ifndef MSDA_HEADS
#define MSDA_HEADS 0
#endif
#ifndef MSDA_LAYOUT
#define MSDA_LAYOUT -1
#endif

namespace msda {

enum DType : int { F32 = 0, F16 = 1, BF16 = 2 };
enum Layout : int { RUNTIME_LAYOUT = -1, INTERLEAVED = 0, HEAD_MAJOR = 1, HEAD_MAJOR_PADDED = 2 };

constexpr int VALUE_DTYPE = MSDA_VALUE_DTYPE;        // value and output
constexpr int SAMPLING_DTYPE = MSDA_SAMPLING_DTYPE;  // locations and weights, or offsets and logits
constexpr int CHANNELS = MSDA_CHANNELS;              // of one head; 0: params.channels
constexpr int HEADS = MSDA_HEADS;                    // 0: params.heads
constexpr int SAMPLES = MSDA_SAMPLES;                // points of all levels; 0: params.samples
constexpr int LAYOUT = MSDA_LAYOUT;                  // -1: given by the strides in params alone
constexpr int LEVELS = MSDA_LEVELS;                  // entries of params.level

static_assert(VALUE_DTYPE >= F32 && VALUE_DTYPE <= BF16, "unknown value dtype");
static_assert(SAMPLING_DTYPE >= F32 && SAMPLING_DTYPE <= BF16, "unknown sampling dtype");
static_assert(LEVELS >= 1, "CallShape needs room for at least one level");
static_assert(CHANNELS >= 0 && HEADS >= 0 && SAMPLES >= 0, "sizes are never negative");
static_assert(LAYOUT >= RUNTIME_LAYOUT && LAYOUT <= HEAD_MAJOR_PADDED, "unknown layout");

}  // namespace msda

#include "operator.cuh"

namespace msda {

#ifdef MSDA_POINT_OFFSETS
// Samples of level l are POINT_OFFSETS.at[l] .. POINT_OFFSETS.at[l + 1]. A struct, because device code
// may use the elements of a constexpr object in constant expressions but not a host array.
struct PointOffsets {
    int at[LEVELS + 1];
};
constexpr PointOffsets POINT_OFFSETS = {{MSDA_POINT_OFFSETS}};
static_assert(POINT_OFFSETS.at[0] == 0, "offsets start at 0");
static_assert(POINT_OFFSETS.at[LEVELS] == SAMPLES, "offsets end at the number of samples");
#endif

}  // namespace msda
