// Writes samples to the lists of tile_lists.cuh.
#pragma once

#include "list_entries.cuh"
#include "sample_tiles.cuh"

namespace msda {

// A coordinate in STEPS, counted from one pixel before the tile.
MSDA_DEVICE unsigned steps_from_tile(const AxisPlace& place) {
    const int pixel = static_cast<int>(place.before) + 1 - TILE_SIDE * place.tile;
    const float fraction = fmaf(place.position - place.before, STEPS, 8388608.0f);
    return static_cast<unsigned>(pixel) * STEPS + (float_to_bits(fraction) - float_to_bits(8388608.0f));
}
MSDA_DEVICE unsigned position_in_tile(const AxisPlace& place) {
    return float_to_bits(place.position - static_cast<float>(TILE_SIDE * place.tile));
}

MSDA_DEVICE EntryPacket pack_entry(unsigned query, const AxisPlace& x, const AxisPlace& y,
                                   unsigned attention_bits) {
    EntryPacket packet;
    if constexpr (ENTRY_BYTES == 8) {
        packet.word[0] = steps_from_tile(x) | steps_from_tile(y) << 15 | query << 30;
        packet.word[1] = EntryWeight::half_bits(attention_bits) | query >> 2 << 16;
    } else {
        packet.word[0] = query;
        packet.word[1] = EntryWeight::float_bits(attention_bits);
        packet.word[2] = position_in_tile(x);
        packet.word[3] = position_in_tile(y);
    }
    return packet;
}
// The same sample in the coordinates of the next tile to the right, below, or both.
MSDA_DEVICE EntryPacket shifted_entry(EntryPacket packet, bool across, bool down) {
    if constexpr (ENTRY_BYTES == 8) {
        packet.word[0] -= (across ? TILE_SIDE * STEPS : 0u) + (down ? TILE_SIDE * STEPS << 15 : 0u);
    } else {
        if (across) packet.word[2] = float_to_bits(bits_to_float(packet.word[2]) - TILE_SIDE);
        if (down) packet.word[3] = float_to_bits(bits_to_float(packet.word[3]) - TILE_SIDE);
    }
    return packet;
}

// Writes the samples of for_each_sample to the lists. The words at `cursors` hold each tile's next place.
template <int UNROLL>
MSDA_DEVICE void scatter_samples(const BackwardParams& params, int slab, int level, int first, int end,
                                 unsigned cursors, EntryPacket* entries) {
    const auto visit = [&](int query, const LevelTiles& tiles, float x, float y, unsigned attention,
                           bool exists) {
        const TileSpan span = tile_span(tiles, x, y, exists);
        const SpanCounters own = span_counters(span, tiles, cursors);
        const EntryPacket entry = pack_entry(query, span.x, span.y, attention);
        unsigned places[4];
        take_places(own, places);
#pragma unroll
        for (int c = 0; c < 4; ++c) {
            if (own.present[c]) store(entries + places[c], shifted_entry(entry, c % 2, c / 2));
        }
    };
    for_each_sample<UNROLL, true>(params, slab, level, first, end, visit);
}

}  // namespace msda
