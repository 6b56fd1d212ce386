// D[16x8] = A[16x16] * B[16x8] + 1 twice: operands gathered by hand from the layout in intrinsics.cuh,
// and by ldmatrix from shared memory. A and B are stored by rows, one after the other.
#include "test_params.inc"

constexpr bool BFLOAT = MSDA_TEST_BFLOAT;

MSDA_DEVICE void multiply(float (&sums)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    if constexpr (BFLOAT) {
        mma_bf16_16x8x16(sums, a, b);
    } else {
        mma_f16_16x8x16(sums, a, b);
    }
}

MSDA_DEVICE void store_sums(float* output, const float (&sums)[4]) {
    const int group = static_cast<int>(threadIdx.x) / 4, within = static_cast<int>(threadIdx.x) % 4;
    for (int i = 0; i < 4; ++i) output[(group + 8 * (i / 2)) * 8 + 2 * within + i % 2] = sums[i];
}

extern "C" __global__ void matrix_product(const __grid_constant__ TestParams params) {
    const auto* a = static_cast<const unsigned short*>(params.input);
    const unsigned short* b = a + 16 * 16;
    auto* output = static_cast<float*>(params.output);
    const int group = static_cast<int>(threadIdx.x) / 4, within = static_cast<int>(threadIdx.x) % 4;

    unsigned a_words[4], b_words[2];
    for (int i = 0; i < 4; ++i) {
        const int at = (group + 8 * (i % 2)) * 16 + 2 * within + 8 * (i / 2);
        a_words[i] = a[at] | static_cast<unsigned>(a[at + 1]) << 16;
    }
    for (int i = 0; i < 2; ++i) {
        const int row = 2 * within + 8 * i;
        b_words[i] = b[row * 8 + group] | static_cast<unsigned>(b[(row + 1) * 8 + group]) << 16;
    }
    float sums[4] = {1.0f, 1.0f, 1.0f, 1.0f};
    multiply(sums, a_words, b_words);
    store_sums(output, sums);

    auto* shared = reinterpret_cast<unsigned short*>(shared_memory());
    for (int i = static_cast<int>(threadIdx.x); i < 16 * 16 + 16 * 8; i += 32) shared[i] = a[i];
    __syncwarp();
    const int lane = static_cast<int>(threadIdx.x);
    // Matrices of A in register order: top left, bottom left, top right, bottom right.
    load_matrices(a_words, shared + (lane % 16) * 16 + lane / 16 * 8);
    load_matrices_transposed(b_words, shared + 16 * 16 + (lane % 16) * 8);
    float again[4] = {1.0f, 1.0f, 1.0f, 1.0f};
    multiply(again, a_words, b_words);
    store_sums(output + 16 * 8, again);
}
