// Every half and bfloat16 through the conversions, and a fused multiply-add of neighbours: for bits i,
// six words of output.
#include "test_params.inc"

extern "C" __global__ void number_formats(const __grid_constant__ TestParams params) {
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= static_cast<unsigned>(params.count)) return;
    const auto bits = static_cast<unsigned short>(i);
    auto* row = static_cast<unsigned*>(params.output) + i * 6;
    const float input = static_cast<const float*>(params.input)[i];
    const auto* words = static_cast<const unsigned*>(params.input);
    row[0] = float_to_bits(half_to_float(bits));
    row[1] = float_to_bits(bfloat_to_float(bits));
    row[2] = floats_to_half2(input, -input);
    row[3] = floats_to_bfloat2(input, -input);
    const unsigned other = words[(i + 1) % static_cast<unsigned>(params.count)];
    row[4] = fma_half2(i | i << 16, other, words[i]);
    row[5] = fma_bfloat2(i | i << 16, other, words[i]);
}
