// mma and ldmatrix: which element of a matrix each lane's registers hold, as the PTX manual draws it.
#pragma once

#include "half_precision.hpp"
#include "runtime.hpp"

namespace msda_emulator {

enum class MatrixFormat { half, bfloat };

inline double matrix_element(MatrixFormat format, unsigned pair, int index) {
    const auto bits = static_cast<uint16_t>(index == 0 ? pair : pair >> 16);
    return format == MatrixFormat::half ? half_to_double(bits) : bfloat_to_double(bits);
}

// A lane's part of D[16x8] = A[16xDEPTH] * B[DEPTHx8] + D; registers hold two elements each.
template <int DEPTH>
struct MatrixPart {
    float* sums;  // four, overwritten by the result
    unsigned a[DEPTH / 4];
    unsigned b[DEPTH / 8];
};

// Lane 4 * g + t holds, in pair i of its registers,
//   A: row g + 8 * (i % 2), columns 2 * t + 8 * (i / 2) and the next
//   B: column g, rows 2 * t + 8 * i and the next
//   D: row g + 8 * (i / 2), column 2 * t + i % 2.
template <int DEPTH, MatrixFormat FORMAT>
void multiply_matrices(const WarpMeeting& meeting) {
    double a[16][DEPTH], b[DEPTH][8];
    const auto part = [&](unsigned lane) { return static_cast<MatrixPart<DEPTH>*>(meeting.lane[lane]); };
    for (unsigned lane = 0; lane < warp_lanes; ++lane) {
        const int group = static_cast<int>(lane / 4), within = static_cast<int>(lane % 4);
        for (int i = 0; i < DEPTH / 4; ++i) {
            for (int e = 0; e < 2; ++e) {
                a[group + 8 * (i % 2)][2 * within + 8 * (i / 2) + e] =
                    matrix_element(FORMAT, part(lane)->a[i], e);
            }
        }
        for (int i = 0; i < DEPTH / 8; ++i) {
            for (int e = 0; e < 2; ++e) {
                b[2 * within + 8 * i + e][group] = matrix_element(FORMAT, part(lane)->b[i], e);
            }
        }
    }
    for (unsigned lane = 0; lane < warp_lanes; ++lane) {
        for (int i = 0; i < 4; ++i) {
            const unsigned row = lane / 4 + 8 * (static_cast<unsigned>(i) / 2);
            const unsigned column = 2 * (lane % 4) + static_cast<unsigned>(i) % 2;
            double sum = static_cast<double>(part(lane)->sums[i]);
            for (int k = 0; k < DEPTH; ++k) sum += a[row][k] * b[k][column];
            part(lane)->sums[i] = static_cast<float>(sum);
        }
    }
}

template <int DEPTH, MatrixFormat FORMAT>
void matrix_multiply_add(const char* instruction, float* sums, const unsigned* a, const unsigned* b,
                         Site site) {
    MatrixPart<DEPTH> part{sums, {}, {}};
    memcpy(part.a, a, sizeof part.a);
    memcpy(part.b, b, sizeof part.b);
    meet_warp(instruction, 0xffffffffu, &part, multiply_matrices<DEPTH, FORMAT>, site);
}

// tf32: one element per register, of which the low 13 bits are ignored. Lane 4 * g + t holds
//   A: row g + 8 * (i % 2), column t + 4 * (i / 2);  B: row t + 4 * i, column g;  D as above.
struct Tf32Part {
    float* sums;
    unsigned a[4];
    unsigned b[2];
};

inline void multiply_tf32(const WarpMeeting& meeting) {
    const auto element = [](unsigned bits) {
        bits &= 0xffffe000u;
        float value;
        memcpy(&value, &bits, sizeof value);
        return static_cast<double>(value);
    };
    double a[16][8], b[8][8];
    const auto part = [&](unsigned lane) { return static_cast<Tf32Part*>(meeting.lane[lane]); };
    for (unsigned lane = 0; lane < warp_lanes; ++lane) {
        const unsigned group = lane / 4, within = lane % 4;
        for (unsigned i = 0; i < 4; ++i) {
            a[group + 8 * (i % 2)][within + 4 * (i / 2)] = element(part(lane)->a[i]);
        }
        for (unsigned i = 0; i < 2; ++i) b[within + 4 * i][group] = element(part(lane)->b[i]);
    }
    for (unsigned lane = 0; lane < warp_lanes; ++lane) {
        for (unsigned i = 0; i < 4; ++i) {
            const unsigned row = lane / 4 + 8 * (i / 2), column = 2 * (lane % 4) + i % 2;
            double sum = static_cast<double>(part(lane)->sums[i]);
            for (int k = 0; k < 8; ++k) sum += a[row][k] * b[k][column];
            part(lane)->sums[i] = static_cast<float>(sum);
        }
    }
}

inline void multiply_add_tf32(float* sums, const unsigned* a, const unsigned* b, Site site) {
    Tf32Part part{sums, {}, {}};
    memcpy(part.a, a, sizeof part.a);
    memcpy(part.b, b, sizeof part.b);
    meet_warp("mma_tf32_16x8x8", 0xffffffffu, &part, multiply_tf32, site);
}

// ldmatrix: lane 8 * m + r points at row r (16 bytes) of 8x8 matrix m; every lane gets, of each
// matrix, the pair at row lane / 4, columns 2 * (lane % 4) and the next (transposed: of the transpose).
template <int COUNT>
struct MatrixRows {
    const void* row;
    unsigned words[COUNT];
};

template <int COUNT, bool TRANSPOSED>
void gather_matrices(const WarpMeeting& meeting) {
    for (int matrix = 0; matrix < COUNT; ++matrix) {
        uint16_t element[8][8];
        for (int row = 0; row < 8; ++row) {
            const auto* source = static_cast<MatrixRows<COUNT>*>(meeting.lane[8 * matrix + row]);
            require_shared("ldmatrix", source->row, 16, meeting.site);
            require_aligned("ldmatrix", source->row, 16, meeting.site);
            memcpy(element[row], source->row, 16);
        }
        for (unsigned lane = 0; lane < warp_lanes; ++lane) {
            const unsigned row = lane / 4, column = 2 * (lane % 4);
            const unsigned low = TRANSPOSED ? element[column][row] : element[row][column];
            const unsigned high = TRANSPOSED ? element[column + 1][row] : element[row][column + 1];
            static_cast<MatrixRows<COUNT>*>(meeting.lane[lane])->words[matrix] = low | high << 16;
        }
    }
}

template <int COUNT, bool TRANSPOSED>
void load_matrices(unsigned (&words)[COUNT], const void* row, Site site) {
    MatrixRows<COUNT> part{row, {}};
    meet_warp("ldmatrix", 0xffffffffu, &part, gather_matrices<COUNT, TRANSPOSED>, site);
    memcpy(words, part.words, sizeof words);
}

}  // namespace msda_emulator
