// Tiles: the four corners of a sample as one block of 2 x 2 pixels x 32 channels, 256 bytes in shared
// memory, top left, top right, bottom left, bottom right.
#pragma once

#include "ladder/rounds.cuh"

namespace msda {

constexpr int TILE_BYTES = 4 * PIXEL_BYTES;
constexpr int TILE_PACKETS = TILE_BYTES / 16;
constexpr int ROUND_BYTES = ROUND_SAMPLES * TILE_BYTES;

// Tiles are 256 bytes apart, so that the same corner of neighbouring tiles lies in the same banks, and
// eight lanes that read it at once would wait for each other. Lanes of odd samples therefore read left and
// right the other way round: corner c ^ flip. There is no padding, which the copy engine could not write.
MSDA_DEVICE int corner_flip(int sample) { return sample % 2; }

// Weights in the order in which the lanes of a sample read its corners.
struct CornerWeights {
    float corner[4];
};
MSDA_DEVICE CornerWeights flipped(const float (&weight)[2][2], int flip) {
    CornerWeights weights;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
        weights.corner[c] = flip ? weight[c / 2][1 - c % 2] : weight[c / 2][c % 2];
    }
    return weights;
}

// sums += this lane's chunk of a tile, corner by corner, in fp32.
MSDA_DEVICE void add_tile(const Packet16* tile, int chunk, int flip, const CornerWeights& weights,
                          float (&sums)[CHUNK_ELEMENTS]) {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
        const Packet16 packet = tile[(c ^ flip) * CHUNKS + chunk];
        float values[CHUNK_ELEMENTS];
        unpack<ValueStorage, CHUNK_ELEMENTS>(packet, values);
#pragma unroll
        for (int w = 0; w < CHUNK_ELEMENTS; ++w) {
            sums[w] = fmaf(weights.corner[c], values[w], sums[w]);
        }
    }
}

}  // namespace msda
