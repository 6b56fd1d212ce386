// The backward kernel that every public implementation descends from, in its own terms: one thread per
// channel of an output row, float atomics straight to the gradient of the values, a block-wide sum for
// every sample's location and weight. The baseline of the backward ladder.
//
// Who owns what: a block owns one output row (batch, query, head) and walks all samples of all levels;
// thread c owns channel c (and c + blockDim.x, ...) and adds to the four pixels of that channel. After
// each sample the block adds up three numbers in shared memory, and thread 0 writes them.
//
// Why it is slow: every pixel of every sample is an atomic request to L2 per 32 channels, two barriers
// and a tree per sample, all D threads repeat the arithmetic of the location.
//
// The original breaks the accuracy contract in half precision. This kernel therefore sums in fp32 for every
// dtype, in the workspace, and the step `convert` rounds the sums once at the end.
//
// Requires: blockDim.x is a power of two of at least 32, 3 * blockDim.x floats of shared memory, sums
// that are zero, every tensor below 2^31 elements (32-bit indices), all levels in params.level.
#include "gradients.cuh"
#include "numeric.cuh"
#include "params.cuh"

using namespace msda;

namespace {

constexpr bool SUMS_IN_PLACE = VALUE_DTYPE == F32;

MSDA_DEVICE float* value_sums(const BackwardParams& params) {
    return static_cast<float*>(SUMS_IN_PLACE ? params.grad_value : params.workspace);
}

// The contribution of one thread's channels to the gradients of one sample.
struct SampleGradient {
    float interpolated;  // gradient of the weight: the interpolated value
    float slope_x;       // gradient of the coordinates, without the weight
    float slope_y;
};

// One of the four pixels: its share and the derivatives of it.
MSDA_DEVICE void visit_corner(const BackwardParams& params, SampleGradient& gradient, bool inside,
                              int value_offset, int sum_offset, float upstream, float weight, float share,
                              float share_dx, float share_dy) {
    if (!inside) return;
    if constexpr (WANTS_GRAD_VALUE) {
        reduce_add(value_sums(params) + sum_offset, weight * share * upstream);
    }
    if constexpr (WANTS_GRAD_LOCATIONS || WANTS_GRAD_WEIGHTS) {
        const float product = upstream * load_element<ValueStorage>(params.value, value_offset);
        gradient.interpolated = fmaf(share, product, gradient.interpolated);
        gradient.slope_x = fmaf(share_dx, product, gradient.slope_x);
        gradient.slope_y = fmaf(share_dy, product, gradient.slope_y);
    }
}

// The four pixels of a sample that counts, this thread's channels.
MSDA_DEVICE void visit_sample(const BackwardParams& params, SampleGradient& gradient, const Position& at,
                              const LevelGeometry& level, int value_base, int sum_base, int upstream_base,
                              float weight) {
    const int value_pixel = static_cast<int>(params.value_pixel_stride);
    const int sum_pixel = static_cast<int>(params.grad_value_pixel_stride);
    const int upstream_channel = static_cast<int>(params.grad_output_channel_stride);
    const int pixel = static_cast<int>(level.origin) + at.top * level.row_pitch + at.left;
    const bool left = at.left >= 0, right = at.left + 1 < level.width;
    const bool top = at.top >= 0, bottom = at.top + 1 < level.height;
    const float right_share = at.right_share, left_share = 1.0f - at.right_share;
    const float bottom_share = at.bottom_share, top_share = 1.0f - at.bottom_share;

    for (int channel = static_cast<int>(threadIdx.x); channel < params.channels;
         channel += static_cast<int>(blockDim.x)) {
        const float upstream =
            load_element<ValueStorage>(params.grad_output, upstream_base + channel * upstream_channel);
        const int value = value_base + pixel * value_pixel + channel;
        const int sum = sum_base + pixel * sum_pixel + channel;
        const int value_below = value + level.row_pitch * value_pixel;
        const int sum_below = sum + level.row_pitch * sum_pixel;
        visit_corner(params, gradient, top && left, value, sum, upstream, weight, top_share * left_share,
                     -top_share, -left_share);
        visit_corner(params, gradient, top && right, value + value_pixel, sum + sum_pixel, upstream, weight,
                     top_share * right_share, top_share, -right_share);
        visit_corner(params, gradient, bottom && left, value_below, sum_below, upstream, weight,
                     bottom_share * left_share, -bottom_share, left_share);
        visit_corner(params, gradient, bottom && right, value_below + value_pixel, sum_below + sum_pixel,
                     upstream, weight, bottom_share * right_share, bottom_share, right_share);
    }
}

MSDA_DEVICE void store_gradients(const BackwardParams& params, const LevelGeometry& level, int sample,
                                 float weight, const SampleGradient& gradient) {
    using S = SamplingStorage;
    if constexpr (WANTS_GRAD_WEIGHTS) store_element<S>(params.grad_weights, sample, gradient.interpolated);
    if constexpr (WANTS_GRAD_LOCATIONS) {
        store_element<S>(params.grad_locations, 2 * sample,
                         weight * static_cast<float>(level.width) * gradient.slope_x);
        store_element<S>(params.grad_locations, 2 * sample + 1,
                         weight * static_cast<float>(level.height) * gradient.slope_y);
    }
}

// The sum over the block, in all threads.
MSDA_DEVICE SampleGradient block_sum(const SampleGradient& mine) {
    auto* sums = reinterpret_cast<SampleGradient*>(shared_memory());
    const unsigned thread = threadIdx.x;
    sums[thread] = mine;
    __syncthreads();
    for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
        if (thread < half) {
            sums[thread].interpolated += sums[thread + half].interpolated;
            sums[thread].slope_x += sums[thread + half].slope_x;
            sums[thread].slope_y += sums[thread + half].slope_y;
        }
        __syncthreads();
    }
    const SampleGradient sum = sums[0];
    // A thread may overwrite these sums with the next sample's only after all threads have read them.
    __syncthreads();
    return sum;
}

}  // namespace

#if MSDA_STEP_MAIN
extern "C" __global__ void __launch_bounds__(1024)
    bwd_original(const __grid_constant__ BackwardParams params) {
    const int rows = params.batch * params.queries * params.heads;

    // Unsigned: the last step may pass 2^31.
    for (unsigned block_row = blockIdx.x; block_row < static_cast<unsigned>(rows); block_row += gridDim.x) {
        const int row = static_cast<int>(block_row);
        const int head = row % params.heads;
        const int query = row / params.heads % params.queries;
        const int batch = row / params.heads / params.queries;
        const int value_base = batch * static_cast<int>(params.value_batch_stride) +
                               head * static_cast<int>(params.value_head_stride);
        const int sum_base = batch * static_cast<int>(params.grad_value_batch_stride) +
                             head * static_cast<int>(params.grad_value_head_stride);
        const int upstream_base = batch * static_cast<int>(params.grad_output_batch_stride) +
                                  query * static_cast<int>(params.grad_output_query_stride) +
                                  head * static_cast<int>(params.grad_output_head_stride);

        for (int l = 0; l < params.levels; ++l) {
            const LevelGeometry& level = params.level[l];
            const int last = l + 1 < params.levels ? params.level[l + 1].first_sample : params.samples;

            for (int s = level.first_sample; s < last; ++s) {
                const int sample = row * params.samples + s;
                const Position at = locate(load_element<SamplingStorage>(params.locations, 2 * sample),
                                           load_element<SamplingStorage>(params.locations, 2 * sample + 1),
                                           level.height, level.width);
                SampleGradient gradient = {};
                float weight = 0.0f;
                // The same in all threads of the block.
                if (at.counts) {
                    weight = load_element<SamplingStorage>(params.weights, sample);
                    visit_sample(params, gradient, at, level, value_base, sum_base, upstream_base, weight);
                    if constexpr (WANTS_GRAD_LOCATIONS || WANTS_GRAD_WEIGHTS) {
                        gradient = block_sum(gradient);
                    }
                }
                if (threadIdx.x != 0) continue;
                store_gradients(params, level, sample, weight, gradient);
            }
        }
    }
}
#endif

#if MSDA_STEP_CONVERT
// Half precision: rounds the sums, once.
extern "C" __global__ void __launch_bounds__(256)
    bwd_original_convert(const __grid_constant__ BackwardParams params) {
    const unsigned elements = static_cast<unsigned>(params.batch * params.grad_value_batch_stride);
    for (unsigned index = blockIdx.x * blockDim.x + threadIdx.x; index < elements;
         index += gridDim.x * blockDim.x) {
        store_element<ValueStorage>(params.grad_value, index, value_sums(params)[index]);
    }
}
#endif
