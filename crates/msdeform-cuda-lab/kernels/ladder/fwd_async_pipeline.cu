// Asynchronous pipeline: corners travel to shared memory while earlier ones are added up.
//
// Who owns what. Four lanes own an item, as in fwd_vector_loads. A lane has STAGES slots of 64 bytes in
// shared memory, one per sample in flight; it copies its own chunks of the four corners there and reads them
// back itself, so that waiting for its own copies is the only synchronisation.
//
//   slot      0         1         2         3            STAGES = 4
//   sample  s: add    s + 1     s + 2     s + 3: copy
//           s + 4: copy  ...
//
// Why. A copy needs no register until it is used: the loads in flight are bounded by shared memory, not by
// the register file.
//
// When it loses. A 16-byte copy of this kind (cp.async.cg) goes past L1, so every corner comes from L2,
// neighbours' corners included: COPY_BYTES = 8 uses the form that L1 keeps, at twice the instructions. And
// every byte is moved twice more, into shared memory and out of it, on the data path that is the wall here.
#include "ladder/lane_groups.cuh"

using namespace msda;

namespace {

constexpr int THREADS = MSDA_THREADS;
constexpr int STAGES = MSDA_STAGES;
constexpr int COPY_BYTES = MSDA_COPY_BYTES;

// A lane's chunk of corner c in a slot: neighbouring lanes are adjacent, in different banks.
MSDA_DEVICE unsigned char* slot_chunk(int slot, int c) {
    return shared_memory() + ((slot * 4 + c) * THREADS + threadIdx.x) * 16;
}

MSDA_DEVICE void copy_chunk(unsigned char* shared, const unsigned char* global) {
#pragma unroll
    for (int at = 0; at < 16; at += COPY_BYTES) copy_async<COPY_BYTES>(shared + at, global + at);
}

MSDA_DEVICE void copy_corners(const unsigned char* pixels, unsigned offset, unsigned below, int slot) {
    const unsigned char* top = chunk_at(pixels, offset);
    const unsigned char* bottom = chunk_at(pixels, offset + below);
    copy_chunk(slot_chunk(slot, 0), top);
    copy_chunk(slot_chunk(slot, 1), top + PIXEL_BYTES);
    copy_chunk(slot_chunk(slot, 2), bottom);
    copy_chunk(slot_chunk(slot, 3), bottom + PIXEL_BYTES);
}

MSDA_DEVICE Corners corners_of_slot(int slot) {
    Corners corners;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
        corners.packet[c] = *reinterpret_cast<const Packet16*>(slot_chunk(slot, c));
    }
    return corners;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS)
    fwd_async_pipeline(const __grid_constant__ ForwardParams params) {
    const long long index = own_group_in_grid();
    if (index >= item_count(params)) return;
    const Item item = item_at(params, index);
    const unsigned char* pixels = item.pixels + own_chunk() * 16;

    Sample sample[STAGES];
    // Starts copying sample s into its slot, if there is such a sample. A group of copies is closed in any
    // case, so that the number of groups in flight tells which samples have arrived.
    const auto start = [&](int s, int slot) {
        if (s < SAMPLES) {
            sample[slot] = sample_of_pair(params, item.row, s);
            const unsigned below = row_below(params.level[level_of_sample(s)]);
            copy_corners(pixels, sample[slot].offset, below, slot);
        }
        copy_async_commit();
    };
#pragma unroll
    for (int s = 0; s < STAGES - 1; ++s) start(s, s);

    float sums[CHUNK_ELEMENTS];
    clear(sums);
#pragma unroll 1
    for (int first = 0; first < SAMPLES; first += STAGES) {
#pragma unroll
        for (int slot = 0; slot < STAGES; ++slot) {
            if (first + slot >= SAMPLES) break;
            // The slot that was read last is free.
            start(first + slot + STAGES - 1, (slot + STAGES - 1) % STAGES);
            copy_async_wait<STAGES - 1>();
            add_corners(corners_of_slot(slot), sample[slot].weight, sums);
        }
    }
    store_chunk(params, item, own_chunk(), sums);
}
