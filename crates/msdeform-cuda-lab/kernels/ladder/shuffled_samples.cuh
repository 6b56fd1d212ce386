// Metadata once per warp: a lane places one sample, and shuffles carry offset and weights to the four lanes
// that load and sum it.
#pragma once

#include "ladder/rounds.cuh"

namespace msda {

constexpr int WARP_SAMPLES = 32;

// This lane's sample of the batch that starts at `first`. A lane past the last sample has the batch's first
// one again, with weight zero.
MSDA_DEVICE SampleInputs load_inputs(const ForwardParams& params, long long row, int first, int lane) {
    const bool exists = first + lane < SAMPLES;
    SampleInputs inputs = load_sample(params, row * SAMPLES + first + (exists ? lane : 0));
    if (!exists) inputs.attention = 0.0f;
    return inputs;
}

// sums += up to 32 samples from `first` on. `chunk` is this lane's chunk of the slab's first pixel.
MSDA_DEVICE void add_shuffled(const ForwardParams& params, const unsigned char* chunk,
                              const SampleInputs& inputs, int first, int lane,
                              float (&sums)[CHUNK_ELEMENTS]) {
    const int own = first + lane < SAMPLES ? first + lane : first;
    const LevelGeometry& own_level = params.level[level_of_sample(own)];
    const Sample placed = place_sample(own_level, inputs.location.x, inputs.location.y, inputs.attention);
    const unsigned own_below = row_below(own_level);
    constexpr int POINTS = common_points();
#pragma unroll
    for (int from = 0; from < WARP_SAMPLES; from += ROUND_SAMPLES) {
        if (first + from >= SAMPLES) break;
        const int owner = from + lane / CHUNKS;
        // If a round lies within one level, all lanes know its row pitch without a shuffle.
        unsigned below;
        if constexpr (POINTS > 0 && POINTS % ROUND_SAMPLES == 0) {
            below = row_below(params.level[(first + from) / POINTS]);
        } else {
            below = shuffle(own_below, owner);
        }
        const Corners corners = load_corners(chunk, shuffle(placed.offset, owner), below);
        float weight[2][2];
#pragma unroll
        for (int c = 0; c < 4; ++c) weight[c / 2][c % 2] = shuffle(placed.weight[c / 2][c % 2], owner);
        add_corners(corners, weight, sums);
    }
}

}  // namespace msda
