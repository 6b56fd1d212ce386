// cp.async with two buffers: the next samples' corners are copied while the current ones are added up.
//
// Who owns what. Four lanes own the chunks of an item, a warp eight items, as in fwd_distributed. A stage is
// POINTS samples of every item, a level if levels have that many: the four corners of each, 64 bytes each,
// lie in shared memory as a tile per item. A lane copies its own 16 bytes of each corner and reads only those
// back, so lanes never wait for each other: cp.async.wait_group is the only synchronisation.
//
//   stage 0:  copy | ------------- | add  | copy            |
//   stage 1:       | copy          |      | --------- | add |      (time runs to the right)
//
// Why the padding. A tile is POINTS x 4 x 64 bytes, a multiple of 128: the two items of a quarter-warp would
// start in the same bank and every access would take two turns. With 32 channels (64 bytes) of PADDING after
// every tile they take one. The report pads pixels by two channels; rows of 68 bytes would forbid copies of
// 16.
//
// When it loses. Registers would have held the same bytes: a load that is not used at once is just as
// asynchronous, and does not go through shared memory's banks twice more (in, and out). A thread in flight
// takes POINTS x 128 bytes from L1, because L1 and shared memory are one memory.
#include "ladder/sample_quads.cuh"

using namespace msda;

namespace {

constexpr int THREADS = 128;
constexpr int POINTS = MSDA_POINTS;
static_assert(POINTS % 4 == 0, "stages are whole quads");
constexpr int TILE_BYTES = POINTS * 4 * PIXEL_BYTES + MSDA_PADDING * ValueStorage::BYTES;
constexpr int STAGE_BYTES = THREADS / CHUNKS * TILE_BYTES;
constexpr int STAGES = (SAMPLES + POINTS - 1) / POINTS;

struct StageWeights {
    float of[POINTS][2][2];
};

// Starts the copies of a stage and keeps the weights of its corners. Past the last sample: no copy, weight 0.
MSDA_DEVICE void start(const ForwardParams& params, const Item& item, const unsigned char* pixels, int stage,
                       unsigned char* tile, StageWeights& weights) {
    Quad quad;
#pragma unroll
    for (int p = 0; p < POINTS; ++p) {
        const int s = stage * POINTS + p;
        if (s >= SAMPLES) break;
        if (p % 4 == 0) quad = load_quad(params, item.row, s);
        const LevelGeometry& level = params.level[level_of_sample(s)];
        const Sample sample = place_sample(level, quad.x[p % 4], quad.y[p % 4], quad.attention[p % 4]);
        const unsigned char* top = chunk_at(pixels, sample.offset);
        const unsigned char* bottom = chunk_at(pixels, sample.offset + row_below(level));
        unsigned char* corners = tile + p * 4 * PIXEL_BYTES;
        copy_async<16>(corners, top);
        copy_async<16>(corners + PIXEL_BYTES, top + PIXEL_BYTES);
        copy_async<16>(corners + 2 * PIXEL_BYTES, bottom);
        copy_async<16>(corners + 3 * PIXEL_BYTES, bottom + PIXEL_BYTES);
#pragma unroll
        for (int c = 0; c < 4; ++c) weights.of[p][c / 2][c % 2] = sample.weight[c / 2][c % 2];
    }
}

MSDA_DEVICE void add_stage(int stage, const unsigned char* tile, const StageWeights& weights,
                           float (&sums)[CHUNK_ELEMENTS]) {
#pragma unroll
    for (int p = 0; p < POINTS; ++p) {
        if (stage * POINTS + p >= SAMPLES) break;
        Corners corners;
#pragma unroll
        for (int c = 0; c < 4; ++c) {
            load_shared(corners.packet[c], shared_address(tile + (p * 4 + c) * PIXEL_BYTES));
        }
        add_corners(corners, weights.of[p], sums);
    }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS)
    fwd_async_double_buffer(const __grid_constant__ ForwardParams params) {
    const long long thread = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x;
    if (thread / CHUNKS >= item_count(params)) return;
    const Item item = item_at(params, thread / CHUNKS);
    const int chunk = threadIdx.x % CHUNKS;
    const unsigned char* pixels = item.pixels + chunk * 16;
    unsigned char* tile = shared_memory() + threadIdx.x / CHUNKS * TILE_BYTES + chunk * 16;

    float sums[CHUNK_ELEMENTS];
    clear(sums);
    StageWeights next;
    start(params, item, pixels, 0, tile, next);
    copy_async_commit();
#pragma unroll 2
    for (int stage = 0; stage < STAGES; ++stage) {
        const StageWeights now = next;
        if (stage + 1 < STAGES) {
            start(params, item, pixels, stage + 1, tile + (stage + 1) % 2 * STAGE_BYTES, next);
        }
        copy_async_commit();  // one group per stage, an empty one at the end
        copy_async_wait<1>();
        add_stage(stage, tile + stage % 2 * STAGE_BYTES, now, sums);
    }
    store_chunk(params, item, chunk, sums);
}
