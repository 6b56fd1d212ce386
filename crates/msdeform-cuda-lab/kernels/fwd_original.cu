// One thread computes one output element: the kernel of 2018-2020 that every public CUDA
// implementation still carries, kept as the rung that the others are measured against.
//
// Who owns what: thread i of the grid owns channel c of (batch, query, head), channels fastest, in a
// grid-stride loop. It walks all levels and points alone, with scalar loads.
//
// Why that was chosen: nothing to synchronise, any number of channels, neighbouring threads read
// neighbouring channels. Why it is slow: all D threads of a head repeat the same location loads and
// coordinate arithmetic, and each moves 2 or 4 bytes per instruction, so the load/store unit sees 8
// times the requests that 16-byte loads would need.
//
// When it loses: always, except on problems too small for the kernel to matter.
//
// Requires: every tensor below 2^31 elements. As in the original all indices are int; the original
// overflowed silently, here the plan refuses (src/fwd_original.rs).
//
// Arithmetic is fp32. The historic half-precision instance also computed coordinates and sums in half
// and was off by 2 to 6 %; this one keeps the accuracy contract, so it measures the mechanism alone.
#include "numeric.cuh"
#include "params.cuh"

using namespace msda;

namespace {

// Interpolates between the existing pixels of the four around a sample; `corner` is the first of them.
MSDA_DEVICE float interpolate(const void* value, const Position& at, const LevelGeometry& level, int corner,
                              int pixel_stride, int row_stride) {
    const bool left_inside = at.left >= 0;
    const bool right_inside = at.left + 1 < level.width;
    float interpolated = 0.0f;
    if (at.top >= 0) {
        const float share = 1.0f - at.bottom_share;
        if (left_inside) {
            interpolated += share * (1.0f - at.right_share) * load_element<ValueStorage>(value, corner);
        }
        if (right_inside) {
            interpolated += share * at.right_share * load_element<ValueStorage>(value, corner + pixel_stride);
        }
    }
    if (at.top + 1 < level.height) {
        const float share = at.bottom_share;
        const int below = corner + row_stride;
        if (left_inside) {
            interpolated += share * (1.0f - at.right_share) * load_element<ValueStorage>(value, below);
        }
        if (right_inside) {
            interpolated += share * at.right_share * load_element<ValueStorage>(value, below + pixel_stride);
        }
    }
    return interpolated;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(1024)
    fwd_original(const __grid_constant__ ForwardParams params) {
    const int channels = params.channels;
    const int heads = params.heads;
    const int samples = params.samples;
    const int elements = params.batch * params.queries * heads * channels;
    const int pixel_stride = static_cast<int>(params.value_pixel_stride);

    // Unsigned: the last step may pass 2^31.
    for (unsigned index = blockIdx.x * blockDim.x + threadIdx.x; index < static_cast<unsigned>(elements);
         index += gridDim.x * blockDim.x) {
        const int row = static_cast<int>(index) / channels;  // (batch, query, head)
        const int channel = static_cast<int>(index) % channels;
        const int head = row % heads;
        const int batch = row / heads / params.queries;
        const int head_base = batch * static_cast<int>(params.value_batch_stride) +
                              head * static_cast<int>(params.value_head_stride) + channel;

        float sum = 0.0f;
        for (int l = 0; l < params.levels; ++l) {
            const LevelGeometry& level = params.level[l];
            const int last = l + 1 < params.levels ? params.level[l + 1].first_sample : samples;
            const int level_base = head_base + static_cast<int>(level.origin) * pixel_stride;
            const int row_stride = level.row_pitch * pixel_stride;

            for (int s = level.first_sample; s < last; ++s) {
                const int sample = row * samples + s;
                const Position at = locate(load_element<SamplingStorage>(params.locations, 2 * sample),
                                           load_element<SamplingStorage>(params.locations, 2 * sample + 1),
                                           level.height, level.width);
                if (!at.counts) continue;

                const int corner = level_base + at.top * row_stride + at.left * pixel_stride;
                const float interpolated =
                    interpolate(params.value, at, level, corner, pixel_stride, row_stride);
                sum += load_element<SamplingStorage>(params.weights, sample) * interpolated;
            }
        }
        store_element<ValueStorage>(params.output, static_cast<int>(index), sum);
    }
}
