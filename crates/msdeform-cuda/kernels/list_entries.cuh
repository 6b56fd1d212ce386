// What stands in the lists of tile_lists.cuh: a sample as a tile sees it.
#pragma once

#include "tile_lists.cuh"

namespace msda {

constexpr int ENTRY_BYTES = MSDA_ENTRY_BYTES;

// A sample as a tile sees it: coordinates from its first pixel, -1 to 4.
struct Entry {
    unsigned query;
    float x;
    float y;
    float attention;
};

// Where samples are stored in half precision an entry is 8 bytes: coordinates in steps of 2^-12 pixel, the
// attention weight as it came, 18 bits of query. Else 16 bytes, nothing lost.
constexpr unsigned STEPS = 4096;  // to a pixel
using EntryPacket = Packet<ENTRY_BYTES>;
#if MSDA_FROM_OFFSETS
// Attention weights come in fp32. Behind a softmax they are at most 1, where f16 has three more bits than
// bf16.
using EntryWeight = Storage<SOFTMAX ? F16 : SAMPLING_DTYPE>;
#endif

MSDA_DEVICE EntryPacket* entries_of_slab(const TileLists& lists, int slab) {
    return reinterpret_cast<EntryPacket*>(lists.entries) + slab * lists.max_entries;
}

// Lists that are not cut are written while those who read them are already running.
MSDA_DEVICE void load_entry(EntryPacket& packet, const EntryPacket* entry) {
    if constexpr (PIECE_ENTRIES > 0) {
        load_streaming(packet, entry);
    } else {
        load_l2(packet, entry);
    }
}

MSDA_DEVICE float coordinate(unsigned steps) {
    // 2^23 + n has n in its low mantissa bits; both the product and the difference are exact.
    return fmaf(bits_to_float(steps | 0x4b000000u), 1.0f / STEPS, -8388608.0f / STEPS - 1.0f);
}

MSDA_DEVICE Entry unpack_entry(const EntryPacket& packet) {
    Entry entry;
    if constexpr (ENTRY_BYTES == 8) {
        entry.query = packet.word[0] >> 30 | packet.word[1] >> 16 << 2;
        entry.x = coordinate(packet.word[0] & 0x7fffu);
        entry.y = coordinate(packet.word[0] >> 15 & 0x7fffu);
#if MSDA_FROM_OFFSETS
        entry.attention =
            EntryWeight::to_float(static_cast<typename EntryWeight::Bits>(packet.word[1] & 0xffffu));
#else
        entry.attention =
            SamplingStorage::to_float(static_cast<typename SamplingStorage::Bits>(packet.word[1] & 0xffffu));
#endif
    } else {
        entry.query = packet.word[0];
        entry.attention = bits_to_float(packet.word[1]);
        entry.x = bits_to_float(packet.word[2]);
        entry.y = bits_to_float(packet.word[3]);
    }
    return entry;
}

// From one pixel before the tile.
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
#if MSDA_FROM_OFFSETS
        packet.word[1] = EntryWeight::from_float(bits_to_float(attention_bits)) | query >> 2 << 16;
#else
        packet.word[1] = attention_bits | query >> 2 << 16;
#endif
    } else {
#if MSDA_FROM_OFFSETS
        packet.word[0] = query;
        packet.word[1] = attention_bits;
#else
        const auto bits = static_cast<typename SamplingStorage::Bits>(attention_bits);
        packet.word[0] = query;
        packet.word[1] = float_to_bits(SamplingStorage::to_float(bits));
#endif
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

// Writes those samples to the lists. The words at `cursors` say where each tile's next entry goes.
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
