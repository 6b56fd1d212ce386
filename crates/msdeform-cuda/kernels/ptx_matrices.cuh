// Tensor cores. Part of intrinsics.cuh.
#pragma once

#include "ptx_memory.cuh"

namespace msda {

// ---- tensor cores ------------------------------------------------------------------------------
// sums[16x8] += a[16xK] * b[Kx8], products exact, sums fp32. A register holds two neighbours along K;
// lane 4g + t holds
//   a[i]: row g + 8 (i % 2), columns 2t + 8 (i / 2) and the next
//   b[i]: column g, rows 2t + 8i and the next
//   sums[i]: row g + 8 (i / 2), column 2t + i % 2.

#define MSDA_MMA(NAME, FORMAT)                                                                          \
    MSDA_DEVICE void NAME##_16x8x16(float (&sums)[4], const unsigned (&a)[4], const unsigned (&b)[2]) { \
        asm("mma.sync.aligned.m16n8k16.row.col.f32." FORMAT "." FORMAT                                  \
            ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                      \
            : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])                                \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));                        \
    }                                                                                                   \
    MSDA_DEVICE void NAME##_16x8x8(float (&sums)[4], const unsigned (&a)[2], const unsigned (&b)[1]) {  \
        asm("mma.sync.aligned.m16n8k8.row.col.f32." FORMAT "." FORMAT                                   \
            ".f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"                                  \
            : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])                                \
            : "r"(a[0]), "r"(a[1]), "r"(b[0]));                                                         \
    }
MSDA_MMA(mma_f16, "f16")
MSDA_MMA(mma_bf16, "bf16")
#undef MSDA_MMA

// sums[16x8] += a[16x8] * b[8x8] of floats whose low 13 bits are ignored. Lane 4g + t holds
//   a[i]: row g + 8 (i % 2), column t + 4 (i / 2)
//   b[i]: row t + 4i, column g; sums as above.
MSDA_DEVICE void mma_tf32_16x8x8(float (&sums)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Lane 8m + r points at row r (16 bytes of shared memory) of 8x8 matrix m. Every lane gets, of each
// matrix, the pair at row lane / 4, columns 2 (lane % 4) and the next; transposed: of the transpose.
#define MSDA_LDMATRIX(NAME, TRANS)                                                               \
    MSDA_DEVICE void NAME(unsigned (&words)[1], const void* row) {                               \
        asm volatile("ldmatrix.sync.aligned.m8n8.x1" TRANS ".shared.b16 {%0}, [%1];"             \
                     : "=r"(words[0])                                                            \
                     : "r"(shared_address(row))                                                  \
                     : "memory");                                                                \
    }                                                                                            \
    MSDA_DEVICE void NAME(unsigned (&words)[2], const void* row) {                               \
        asm volatile("ldmatrix.sync.aligned.m8n8.x2" TRANS ".shared.b16 {%0, %1}, [%2];"         \
                     : "=r"(words[0]), "=r"(words[1])                                            \
                     : "r"(shared_address(row))                                                  \
                     : "memory");                                                                \
    }                                                                                            \
    MSDA_DEVICE void NAME(unsigned (&words)[4], const void* row) {                               \
        asm volatile("ldmatrix.sync.aligned.m8n8.x4" TRANS ".shared.b16 {%0, %1, %2, %3}, [%4];" \
                     : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])            \
                     : "r"(shared_address(row))                                                  \
                     : "memory");                                                                \
    }
MSDA_LDMATRIX(load_matrices, "")
MSDA_LDMATRIX(load_matrices_transposed, ".trans")
#undef MSDA_LDMATRIX
// Loads four matrices, the row by 32-bit address.
MSDA_DEVICE void load_matrices_transposed(unsigned (&words)[4], unsigned row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(row)
                 : "memory");
}

}  // namespace msda
