// Tensor cores: the sum over corners as a matrix product, operands straight from the loads.
//
// For one item the output is w[1 x corners] * V[corners x 32]. An m16n8k16 product contracts over k, and a
// lane's A register is two neighbours along k. A half2 as loaded is two neighbouring channels. So let k be
// (corner, parity of the channel): A is what the loads brought, unchanged, and B keeps the parities apart,
//   B[(corner, parity), (.., parity')] = weight(corner) if parity == parity', else 0.
//
// Who owns what. A warp owns an item. Lane 4g + t loads 16 bytes, chunk 2 c1 + c0 of one corner of one
// sample:
//
//   lane bit   4 3        2     1     0         a quarter-warp (8 lanes) is both x corners, all four
//              sample,y   c0    c1    x         chunks: 128 neighbouring bytes, no bank conflict
//              [-- g --------]  [-- t --]
//
// Bits 0 and 1 are A's k, bits 2 to 4 its row. The x corner may be in k: it is summed. (sample, y) are rows,
// though they should be summed: columns of B tell them apart, each row meets its own weights only on the
// diagonal, and the four blocks of the diagonal are added once per item. c1 is in k, though it must not be
// summed: two products with B zeroed for the other c1. A lane needs the weight of the very corner that it
// loaded, in both roles.
//
// Why. fp32 accumulation for free, no unpacking of halves, few issue slots for arithmetic. Weights are
// rounded to half; SPLIT adds the products with the rounding errors.
//
// When it loses. Half of B is zeros by parity, half of the rest by c1, three quarters of the result is off
// the diagonal: 1/16 of the multiply-adds are used. A warp works on one item at a time: metadata comes by
// shuffles, the ends of items are not overlapped. Putting weights into B takes more instructions than the
// products save.
#include "ladder/rung.cuh"

using namespace msda;

namespace {

constexpr int WARPS = MSDA_WARPS;
constexpr bool SPLIT = MSDA_SPLIT != 0;
constexpr int ITEMS = 8;          // of a warp, one after the other
constexpr int BATCH = 16;         // samples whose metadata a warp computes at once, (sample, y) a lane
constexpr int LOADS = BATCH / 2;  // of a batch: two samples each

// A lane's part of the metadata: one row of two corners of one sample.
struct RowRecord {
    unsigned offset;
    unsigned high;  // weights of the left and the right corner
    unsigned low;   // their rounding errors
};

MSDA_DEVICE RowRecord row_record(const ForwardParams& params, long long row, int s, int y) {
    const bool exists = s < SAMPLES;
    s = exists ? s : SAMPLES - 1;
    const Sample sample = sample_of(params, row, s);
    const float left = exists ? sample.weight[y][0] : 0.0f, right = exists ? sample.weight[y][1] : 0.0f;
    RowRecord record;
    record.offset = sample.offset + (y != 0 ? row_below(params.level[level_of_sample(s)]) : 0u);
    record.high = floats_to_half2(left, right);
    record.low = floats_to_half2(left - half_to_float(static_cast<unsigned short>(record.high)),
                                 right - half_to_float(static_cast<unsigned short>(record.high >> 16)));
    return record;
}

// Keeps one of two sums and gives the other away: this lane's, plus what the partner lane has of the same
// one.
MSDA_DEVICE float exchange(float first, float second, int partner_mask, int keep) {
    const float kept = keep != 0 ? second : first, given = keep != 0 ? first : second;
    return kept + shuffle_xor(given, partner_mask);
}

// Writes words 2 y and 2 y + 1 of a chunk. Zeros of B times a value that is not finite are NaN, also for
// channels that do not use it: such sums are computed again.
MSDA_DEVICE void store_words(const ForwardParams& params, const Item& item, int chunk, int y,
                             float (&sums)[4]) {
    float zero = 0.0f;  // NaN if any sum is not finite
#pragma unroll
    for (int i = 0; i < 4; ++i) zero = fmaf(sums[i], 0.0f, zero);
    if (!(zero == 0.0f)) {
        float exact[CHUNK_ELEMENTS];
        recompute_exactly(params, item.pixels + chunk * 16, item.row, exact);
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[i] = y != 0 ? exact[4 + i] : exact[i];
    }
    Packet<8> packet;
    pack<ValueStorage, 4>(sums, packet);
    store(element_address<ValueStorage>(params.output, item.row * CHANNELS) + chunk * 16 + y * 8, packet);
}

// [c1][words 0 and 1, or 2 and 3 of the chunk][row, parity]
using Products = float[2][2][4];

// The products of loaded corners with their weights, two loads at a time: B is zero for the other c1.
MSDA_DEVICE void add_products(const Packet16 (&loaded)[LOADS], const unsigned (&high)[LOADS],
                              const unsigned (&low)[LOADS], int c1, Products& product) {
#pragma unroll
    for (int j = 0; j < LOADS; j += 2) {
#pragma unroll
        for (int words = 0; words < 2; ++words) {
            const unsigned a[4] = {loaded[j].word[2 * words], loaded[j].word[2 * words + 1],
                                   loaded[j + 1].word[2 * words], loaded[j + 1].word[2 * words + 1]};
#pragma unroll
            for (int c = 0; c < 2; ++c) {
                const bool mine = c1 == c;
                const unsigned b[2] = {mine ? high[j] : 0u, mine ? high[j + 1] : 0u};
                mma_f16_16x8x16(product[c][words], a, b);
                if constexpr (SPLIT) {
                    const unsigned rest[2] = {mine ? low[j] : 0u, mine ? low[j + 1] : 0u};
                    mma_f16_16x8x16(product[c][words], a, rest);
                }
            }
        }
    }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(WARPS * 32)
    fwd_tensor_core(const __grid_constant__ ForwardParams params) {
    const int lane = threadIdx.x % 32;
    const long long warp = static_cast<long long>(blockIdx.x) * WARPS + threadIdx.x / 32;
    const int x = lane & 1, c1 = lane >> 1 & 1, c0 = lane >> 2 & 1, y = lane >> 3 & 1, sample = lane >> 4;
    // Finding an item takes 64-bit divisions; the next one is the next query.
    Item item;
    for (int turn = 0; turn < ITEMS && warp * ITEMS + turn < item_count(params); ++turn) {
        if (turn == 0 || item.query + 1 == params.queries) {
            item = item_at(params, warp * ITEMS + turn);
        } else {
            ++item.query;
            item.row += params.heads;
        }
        const unsigned char* corner = item.pixels + x * PIXEL_BYTES + (2 * c1 + c0) * 16;

        Products product = {};
#pragma unroll 1
        for (int first = 0; first < SAMPLES; first += BATCH) {
            const RowRecord record = row_record(params, item.row, first + lane / 2, lane % 2);
            Packet16 loaded[LOADS];
            unsigned high[LOADS], low[LOADS];
#pragma unroll
            for (int j = 0; j < LOADS; ++j) {
                const int source = 2 * (2 * j + sample) + y;
                load_readonly(loaded[j], chunk_at(corner, shuffle(record.offset, source)));
                // The weight of this lane's corner, at the place of this lane's column's parity (bit 0 of g).
                high[j] = (shuffle(record.high, source) >> 16 * x & 0xffffu) << 16 * c0;
                if constexpr (SPLIT) low[j] = (shuffle(record.low, source) >> 16 * x & 0xffffu) << 16 * c0;
            }
            add_products(loaded, high, low, c1, product);
        }

        // Row g and column 2t + parity: on the diagonal where t is (sample, y) of the row. The four lanes
        // that hold the same channels there add up: the other sample's differ in bits 4 and 1, the other y's
        // in bits 3 and 0.
        float sums[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float low_words = exchange(product[0][0][i], product[1][0][i], 18, sample);
            const float high_words = exchange(product[0][1][i], product[1][1][i], 18, sample);
            sums[i] = exchange(low_words, high_words, 9, y);
        }
        // This lane kept c1 == sample, and words 2 y and 2 y + 1.
        if ((lane & 3) == lane >> 3) store_words(params, item, 2 * sample + c0, y, sums);
        sync_warp();
    }
}
