// Tiles that the lanes of a warp copy together: two tiles per instruction, 16 bytes per lane, through
// registers into shared memory.
#pragma once

#include "ladder/tiles.cuh"

namespace msda {

// One item by one warp, whose `tiles` are ROUND_BYTES of shared memory, a multiple of 128.
MSDA_DEVICE void compute_with_cooperative_tiles(const ForwardParams& params, const Item& item,
                                                Packet16* tiles, int lane) {
    constexpr int COPIES = ROUND_SAMPLES * TILE_PACKETS / 32;
    const int sample = lane / CHUNKS, chunk = lane % CHUNKS, flip = corner_flip(sample);
    const unsigned char* pixels = item.pixels + chunk * 16;
    // As a copier, a lane has one chunk of one corner: eight lanes read both pixels of a row, 128 bytes.
    const int corner = lane / CHUNKS % 4;

    float sums[CHUNK_ELEMENTS];
    clear(sums);
#pragma unroll UNROLL_ROUNDS
    for (int round = 0; round < ROUNDS; ++round) {
        const int s = round * ROUND_SAMPLES + sample;
        const bool exists = sample < samples_of_round(round);
        // Lanes without a sample copy the round's first one again and add nothing.
        const int placed = exists ? s : round * ROUND_SAMPLES;
        const LevelGeometry& level = params.level[level_of_sample(placed)];
        const long long index = item.row * SAMPLES + placed;
        const Location location = load_location(params, index);
        const Sample at = place_sample(level, location.x, location.y, load_attention(params, index));
        const unsigned below = row_below(level);

        Packet16 copied[COPIES];
#pragma unroll
        for (int c = 0; c < COPIES; ++c) {
            const int owner = (2 * c + lane / TILE_PACKETS) * CHUNKS;  // a lane of the tile's sample
            const unsigned top = shuffle(at.offset, owner), pitch = shuffle(below, owner);
            const unsigned offset = top + (corner / 2 ? pitch : 0u);
            load_readonly(copied[c], chunk_at(pixels, offset) + corner % 2 * PIXEL_BYTES);
        }
        sync_warp();  // the tiles of the last round have been read
#pragma unroll
        for (int c = 0; c < COPIES; ++c) tiles[c * 32 + lane] = copied[c];
        sync_warp();  // and the new ones are complete
        if (exists) {
            add_tile(tiles + sample * TILE_PACKETS, chunk, flip, flipped(at.weight, flip), sums);
        }
    }
    store_item(params, item, lane, combine_samples(sums, lane));
}

}  // namespace msda
