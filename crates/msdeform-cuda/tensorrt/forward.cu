// The general forward kernel as TensorRT launches the PTX of a plugin: pointers to the inputs, integers, a
// pointer to the output.
//
// Who owns what: as in fwd_general.cu, whose text this file includes and inlines. What a plan computes on the
// host is computed here: one thread of each block reads the sizes of the levels, and each thread makes the
// parameter.
//
// When it loses: against a plan, whose levels lie in constant memory and whose kernels know their sizes.
//
// Requires: what fwd_general.cu requires. A plugin cannot return an error. Levels that do not lie inside of
// the value tensor, and pointers that are less aligned than VECTOR elements, make the whole output NaN.
//
// Macros besides those of fwd_general.cu:
//   MSDA_ENTRY         the name of the kernel
//   MSDA_INTEGER       the type of sizes and starts
//   MSDA_LEVEL_COUNT   levels
//   MSDA_FIRST_SAMPLES the first sample of each level
//   MSDA_ROW_SAMPLES, MSDA_ROW_HEADS, MSDA_ROW_CHANNELS
//   MSDA_LANES         lanes of a row
//   MSDA_REFERENCES    references of a query, of the fused operator
//   MSDA_OFFSET_SCALE  the bits of a float, of the fused operator
#include "params.cuh"

// All levels lie in the table. An index into the list would put the parameter on the stack.
#define level_geometry(shape, l) (shape).level_table[l]
#include "any_samples.cuh"

using namespace msda;

// Of fwd_general.cu, at the end of this file.
extern "C" __device__ __forceinline__ void fwd_general(const ForwardParams params);

namespace {

using Integer = MSDA_INTEGER;
using OutputOfRow = Storage<MSDA_OUTPUT_DTYPE>;
constexpr int BLOCK = MSDA_THREADS;
constexpr int LEVEL_COUNT = MSDA_LEVEL_COUNT;
constexpr int ROW_HEADS = MSDA_ROW_HEADS;
constexpr int ROW_CHANNELS = MSDA_ROW_CHANNELS;
constexpr int ROW_SAMPLES = MSDA_ROW_SAMPLES;

// In the shared memory of a block. src/tensorrt.rs reserves it.
struct Levels {
    LevelGeometry level[LEVEL_COUNT];
    int fit;  // whether all levels lie inside of the value tensor
};

MSDA_DEVICE const Levels& read_levels(const Integer* sizes, const Integer* starts, int pixels) {
    Levels& levels = *reinterpret_cast<Levels*>(shared_memory());
    if (threadIdx.x == 0) {
        const int first_samples[LEVEL_COUNT] = {MSDA_FIRST_SAMPLES};
        bool fit = true;
#pragma unroll
        for (int l = 0; l < LEVEL_COUNT; ++l) {
            const long long height = sizes[2 * l], width = sizes[2 * l + 1], start = starts[l];
            // Compared one by one, so that the product below cannot overflow.
            const bool is_small = height <= pixels && width <= pixels && start <= pixels;
            fit =
                fit && height > 0 && width > 0 && start >= 0 && is_small && start + height * width <= pixels;
            levels.level[l].height = static_cast<int>(height);
            levels.level[l].width = static_cast<int>(width);
            levels.level[l].row_pitch = static_cast<int>(width);
            levels.level[l].first_sample = first_samples[l];
            levels.level[l].origin = start;
        }
        levels.fit = fit;
    }
    __syncthreads();
    return levels;
}

MSDA_DEVICE bool is_aligned(const void* value, const void* output) {
    const auto bytes = [](const void* address) { return reinterpret_cast<unsigned long long>(address); };
    return bytes(value) % (MSDA_VECTOR * ValueStorage::BYTES) == 0 &&
           bytes(output) % (MSDA_VECTOR * OutputOfRow::BYTES) == 0;
}

MSDA_DEVICE void store_nan(void* output, long long elements) {
    const long long step = static_cast<long long>(gridDim.x) * BLOCK;
    for (long long at = static_cast<long long>(blockIdx.x) * BLOCK + threadIdx.x; at < elements; at += step) {
        store_element<OutputOfRow>(output, at, bits_to_float(0x7fc00000u));
    }
}

// All of the parameter but the inputs of the operator and the numbers that only one operator has.
MSDA_DEVICE ForwardParams params_of(const LevelGeometry* levels, int batch, int pixels, int queries,
                                    void* output) {
    ForwardParams params = {};
    params.output = output;
    params.lanes = MSDA_LANES;
    params.value_pixel_stride = ROW_HEADS * ROW_CHANNELS;
    params.value_head_stride = ROW_CHANNELS;
    params.value_batch_stride = pixels * params.value_pixel_stride;
    params.batch = batch;
    params.heads = ROW_HEADS;
    params.queries = queries;
    params.channels = ROW_CHANNELS;
    params.levels = LEVEL_COUNT;
    params.samples = ROW_SAMPLES;
    params.level_table = levels;
    return params;
}

MSDA_DEVICE void attend(const Levels& levels, const ForwardParams& params) {
    if (levels.fit && is_aligned(params.value, params.output)) {
        fwd_general(params);
    } else {
        store_nan(params.output,
                  static_cast<long long>(params.batch) * params.queries * (ROW_HEADS * ROW_CHANNELS));
    }
}

}  // namespace

#if MSDA_FROM_OFFSETS
// References of one image, or of one query, serve all of them.
extern "C" __global__ void __launch_bounds__(BLOCK, 8)
    MSDA_ENTRY(const void* value, const Integer* sizes, const Integer* starts, const void* references,
               const void* offsets, const void* logits, int batch, int pixels, int queries,
               int reference_images, int reference_queries, void* output) {
    constexpr int NUMBERS = MSDA_REFERENCES * REFERENCE_NUMBERS;
    const Levels& levels = read_levels(sizes, starts, pixels);
    ForwardParams params = params_of(levels.level, batch, pixels, queries, output);
    params.value = value;
    params.references = references;
    params.offsets = offsets;
    params.logits = logits;
    params.references_query_stride = reference_queries > 1 ? NUMBERS : 0;
    params.references_image_stride =
        reference_images > 1 ? static_cast<long long>(reference_queries) * NUMBERS : 0;
    params.logits_query_stride = ROW_HEADS * ROW_SAMPLES;
    params.logits_image_stride = queries * params.logits_query_stride;
    params.offsets_query_stride = 2 * params.logits_query_stride;
    params.offsets_image_stride = 2 * params.logits_image_stride;
    params.images_follow = params.references_image_stride == queries * params.references_query_stride;
    params.offset_scale = MSDA_OFFSET_SCALE;
    attend(levels, params);
}
#else
extern "C" __global__ void __launch_bounds__(BLOCK, 8)
    MSDA_ENTRY(const void* value, const Integer* sizes, const Integer* starts, const void* locations,
               const void* weights, int batch, int pixels, int queries, void* output) {
    const Levels& levels = read_levels(sizes, starts, pixels);
    ForwardParams params = params_of(levels.level, batch, pixels, queries, output);
    params.value = value;
    params.locations = locations;
    params.weights = weights;
    attend(levels, params);
}
#endif

// The kernel becomes a function that this file's kernel inlines. The words that make it a kernel have no
// meaning from here on.
#undef __global__
#undef __grid_constant__
#undef __launch_bounds__
#define __global__ __device__ __forceinline__
#define __grid_constant__
#define __launch_bounds__(...)
#include "fwd_general.cu"
