// The JIT macros, read once into typed constants. Nothing below this header looks at a macro.
//
// What is stable in a model is compiled in; what changes with an image (H, W, N, Lq) never is and
// comes in the parameters. A kernel that takes a size at run time is compiled with 0 for it.
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
#ifndef MSDA_GRADIENTS
#define MSDA_GRADIENTS 0
#endif

namespace msda {

enum DType : int { F32 = 0, F16 = 1, BF16 = 2 };
enum Layout : int { RUNTIME_LAYOUT = -1, INTERLEAVED = 0, HEAD_MAJOR = 1, HEAD_MAJOR_PADDED = 2 };

constexpr int VALUE_DTYPE = MSDA_VALUE_DTYPE;        // value and output
constexpr int SAMPLING_DTYPE = MSDA_SAMPLING_DTYPE;  // locations and weights
constexpr int CHANNELS = MSDA_CHANNELS;              // of one head; 0: params.channels
constexpr int HEADS = MSDA_HEADS;                    // 0: params.heads
constexpr int SAMPLES = MSDA_SAMPLES;                // points of all levels; 0: params.samples
constexpr int LAYOUT = MSDA_LAYOUT;                  // -1: only the strides in params say
constexpr int LEVELS = MSDA_LEVELS;                  // entries of params.level

// Which gradients a backward kernel computes; none in a forward kernel.
constexpr bool WANTS_GRAD_VALUE = (MSDA_GRADIENTS & 1) != 0;
constexpr bool WANTS_GRAD_LOCATIONS = (MSDA_GRADIENTS & 2) != 0;
constexpr bool WANTS_GRAD_WEIGHTS = (MSDA_GRADIENTS & 4) != 0;

static_assert(VALUE_DTYPE >= F32 && VALUE_DTYPE <= BF16, "unknown value dtype");
static_assert(SAMPLING_DTYPE >= F32 && SAMPLING_DTYPE <= BF16, "unknown sampling dtype");
static_assert(LEVELS >= 1, "CallShape needs room for at least one level");
#if MSDA_FROM_OFFSETS
static_assert(MSDA_GRADIENTS >= 0 && MSDA_GRADIENTS <= 15, "and 8 references");
#else
static_assert(MSDA_GRADIENTS >= 0 && MSDA_GRADIENTS <= 7, "1 value, 2 locations, 4 weights");
#endif
static_assert(CHANNELS >= 0 && HEADS >= 0 && SAMPLES >= 0, "sizes are never negative");
static_assert(LAYOUT >= RUNTIME_LAYOUT && LAYOUT <= HEAD_MAJOR_PADDED, "unknown layout");

#if MSDA_FROM_OFFSETS
// Samples follow from offsets and logits (offset_rows.cuh): which rule of src/offsets.rs in the library.
enum ReferenceOf : int { OF_LEVEL = 0, OF_QUERY = 1, OF_ANCHOR = 2 };
constexpr int REFERENCE_DTYPE = MSDA_REFERENCE_DTYPE;
constexpr int REFERENCE_OF = MSDA_REFERENCE_OF;  // which of a query's references a sample starts from
constexpr int ANCHORS = MSDA_ANCHORS;            // that points take in turn; 0 where there are none
constexpr bool BOXES = MSDA_BOXES != 0;          // references are boxes, else points
constexpr int REFERENCE_NUMBERS = BOXES ? 4 : 2;
constexpr bool SOFTMAX = MSDA_SOFTMAX != 0;  // of the logits; else they are the weights
constexpr bool NEAREST = MSDA_NEAREST != 0;  // pixels are not interpolated
constexpr bool WANTS_GRAD_REFERENCES = (MSDA_GRADIENTS & 8) != 0;
#ifdef MSDA_WHOLE_QUADS
constexpr bool WHOLE_QUADS = MSDA_WHOLE_QUADS != 0;  // aligned, in offsets, logits and their gradients
constexpr bool WHOLE_REFERENCES = MSDA_WHOLE_REFERENCES != 0;
static_assert(!WHOLE_QUADS || SAMPLES % 4 == 0, "a quad that is cut is not whole");
#else
constexpr bool WHOLE_QUADS = false, WHOLE_REFERENCES = false;  // kernels that take numbers at any address
#endif
static_assert(REFERENCE_DTYPE >= F32 && REFERENCE_DTYPE <= BF16, "unknown reference dtype");
static_assert(REFERENCE_OF >= OF_LEVEL && REFERENCE_OF <= OF_ANCHOR, "unknown rule");
static_assert((REFERENCE_OF == OF_ANCHOR) == (ANCHORS > 0), "anchors where points take them in turn");
#endif

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
