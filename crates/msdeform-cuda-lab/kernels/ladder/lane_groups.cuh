// Four lanes, one item: each lane owns 16 bytes (8 channels) of every pixel, so a corner is one 16-byte load
// and a warp serves eight items at once. The rungs built on fwd_vector_loads share this and what follows.
#pragma once

#include "ladder/rung.cuh"

namespace msda {

constexpr int GROUP_LANES = CHUNKS;
constexpr int GROUPS = 32 / GROUP_LANES;  // of a warp
static_assert(GROUP_LANES == 4, "32 channels of fp16");

// This lane's chunk of a pixel.
MSDA_DEVICE int own_chunk() { return threadIdx.x % GROUP_LANES; }
// This lane's group in its block.
MSDA_DEVICE int own_group() { return threadIdx.x / GROUP_LANES; }
// This lane's group in the grid.
MSDA_DEVICE long long own_group_in_grid() {
    return static_cast<long long>(blockIdx.x) * (blockDim.x / GROUP_LANES) + own_group();
}

// Where sample s of a row lies, from one load for both coordinates.
MSDA_DEVICE Sample sample_of_pair(const ForwardParams& params, long long row, int s) {
    const long long index = row * SAMPLES + s;
    Packet<2 * SamplingStorage::BYTES> location;
    load_readonly(location, element_address<SamplingStorage>(params.locations, 2 * index));
    float xy[2];
    unpack<SamplingStorage, 2>(location, xy);
    return place_sample(params.level[level_of_sample(s)], xy[0], xy[1],
                        load_element<SamplingStorage>(params.weights, index));
}

// As many samples as one 16-byte load of locations holds (four of fp16, two of fp32); one where rows are no
// multiple of that.
constexpr int LOCATIONS_PER_LOAD = 16 / (2 * SamplingStorage::BYTES);
constexpr int RUN = SAMPLES % LOCATIONS_PER_LOAD == 0 ? LOCATIONS_PER_LOAD : 1;
constexpr int RUNS = SAMPLES / RUN;

using RunLocations = Packet<2 * RUN * SamplingStorage::BYTES>;
using RunWeights = Packet<RUN * SamplingStorage::BYTES>;

struct SampleRun {
    float xy[2 * RUN];
    float attention[RUN];
};
MSDA_DEVICE SampleRun unpack_run(const RunLocations& locations, const RunWeights& weights) {
    SampleRun found;
    unpack<SamplingStorage, 2 * RUN>(locations, found.xy);
    unpack<SamplingStorage, RUN>(weights, found.attention);
    return found;
}
MSDA_DEVICE SampleRun load_run(const ForwardParams& params, long long row, int run) {
    const long long index = row * SAMPLES + run * RUN;
    RunLocations locations;
    RunWeights weights;
    load_readonly(locations, element_address<SamplingStorage>(params.locations, 2 * index));
    load_readonly(weights, element_address<SamplingStorage>(params.weights, index));
    return unpack_run(locations, weights);
}
MSDA_DEVICE Sample sample_of_run(const LevelGeometry& level, const SampleRun& run, int i) {
    return place_sample(level, run.xy[2 * i], run.xy[2 * i + 1], run.attention[i]);
}

}  // namespace msda
