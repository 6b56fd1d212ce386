// The entries of the lists of tile_lists.cuh: a sample as a tile sees it.
#pragma once

#include "tile_lists.cuh"

// The operator's EntryWeight: the bits of a weight in an entry, in half precision or in fp32.
#if MSDA_FROM_OFFSETS
#include "offset_weights.cuh"
#else
#include "plain_weights.cuh"
#endif

namespace msda {

constexpr int ENTRY_BYTES = MSDA_ENTRY_BYTES;

// A sample as a tile sees it: coordinates from its first pixel, -1 to 4.
struct Entry {
    unsigned query;
    float x;
    float y;
    float attention;
};

// If samples are stored in half precision, an entry is 8 bytes: coordinates in steps of 2^-12 pixel, the
// attention weight in half precision, 18 bits of query. Otherwise it is 16 bytes without any rounding.
constexpr unsigned STEPS = 4096;  // to a pixel
using EntryPacket = Packet<ENTRY_BYTES>;

MSDA_DEVICE EntryPacket* entries_of_slab(const TileLists& lists, int slab) {
    return reinterpret_cast<EntryPacket*>(lists.entries) + slab * lists.max_entries;
}

// Lists that are not cut are written while the launch that reads them is running, so L1 must not serve them.
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
        entry.attention = EntryWeight::of_half_bits(packet.word[1] & 0xffffu);
    } else {
        entry.query = packet.word[0];
        entry.attention = bits_to_float(packet.word[1]);
        entry.x = bits_to_float(packet.word[2]);
        entry.y = bits_to_float(packet.word[3]);
    }
    return entry;
}

}  // namespace msda
