// The C++ twin of every wrapper in kernels/intrinsics.cuh, under the same name and with the same
// meaning. If the instruction has a rule (an alignment, lanes that must take part), the twin checks it.
#pragma once

#include "half_precision.hpp"
#include "runtime.hpp"
#include "warp_matrix.hpp"

#define MSDA_DEVICE inline

namespace msda {

namespace emu = ::msda_emulator;
using emu::Site;

MSDA_DEVICE unsigned char* shared_memory() { return emu::shared_base(); }

MSDA_DEVICE unsigned shared_address(const void* shared, Site site = Site::here()) {
    return emu::shared_address(shared, site);
}
inline void* at_shared_address(const char* instruction, unsigned address, size_t bytes, Site site) {
    void* const found = emu::shared_pointer(address, bytes, site);
    emu::require_aligned(instruction, found, bytes, site);
    return found;
}
MSDA_DEVICE void store_shared(unsigned address, float value, Site site = Site::here()) {
    memcpy(at_shared_address("store_shared", address, sizeof value, site), &value, sizeof value);
}
template <int BYTES>
MSDA_DEVICE void load_shared(Packet<BYTES>& packet, unsigned address, Site site = Site::here()) {
    memcpy(&packet, at_shared_address("load_shared", address, sizeof packet, site), sizeof packet);
}
MSDA_DEVICE unsigned shared_add(unsigned address, unsigned amount, bool wanted, Site site = Site::here()) {
    if (!wanted) return 0;
    auto* const counter =
        static_cast<unsigned*>(at_shared_address("shared_add", address, sizeof amount, site));
    const unsigned old = *counter;
    *counter += amount;
    return old;
}
MSDA_DEVICE void shared_increment(unsigned address, bool wanted, Site site = Site::here()) {
    shared_add(address, 1, wanted, site);
}

MSDA_DEVICE unsigned kept(unsigned word) { return word; }
MSDA_DEVICE const unsigned char* kept(const unsigned char* pointer) { return pointer; }

// ---- number formats -----------------------------------------------------------------------------

MSDA_DEVICE float bits_to_float(unsigned bits) { return __uint_as_float(bits); }
MSDA_DEVICE unsigned float_to_bits(float value) { return __float_as_uint(value); }
MSDA_DEVICE float half_to_float(unsigned short half) { return emu::half_to_float(half); }
MSDA_DEVICE unsigned short float_to_half(float value) {
    return emu::double_to_half(static_cast<double>(value));
}
MSDA_DEVICE float bfloat_to_float(unsigned short bfloat) {
    return bits_to_float(static_cast<unsigned>(bfloat) << 16);
}
MSDA_DEVICE unsigned short float_to_bfloat(float value) {
    return emu::double_to_bfloat(static_cast<double>(value));
}
MSDA_DEVICE unsigned floats_to_half2(float low, float high) {
    return float_to_half(low) | static_cast<unsigned>(float_to_half(high)) << 16;
}
MSDA_DEVICE unsigned floats_to_bfloat2(float low, float high) {
    return float_to_bfloat(low) | static_cast<unsigned>(float_to_bfloat(high)) << 16;
}
MSDA_DEVICE unsigned fma_half2(unsigned a, unsigned b, unsigned c) {
    const auto one = [&](int shift) -> unsigned {
        const auto part = [&](unsigned word) {
            return emu::half_to_double(static_cast<unsigned short>(word >> shift));
        };
        return static_cast<unsigned>(emu::double_to_half(emu::fma_round_to_odd(part(a), part(b), part(c))))
               << shift;
    };
    return one(0) | one(16);
}
MSDA_DEVICE unsigned fma_bfloat2(unsigned a, unsigned b, unsigned c) {
    const auto one = [&](int shift) -> unsigned {
        const auto part = [&](unsigned word) {
            return emu::bfloat_to_double(static_cast<unsigned short>(word >> shift));
        };
        return static_cast<unsigned>(emu::double_to_bfloat(emu::fma_round_to_odd(part(a), part(b), part(c))))
               << shift;
    };
    return one(0) | one(16);
}
// The product rounded once: adding -0 changes nothing.
MSDA_DEVICE unsigned multiply_half2(unsigned a, unsigned b) { return fma_half2(a, b, 0x80008000u); }
MSDA_DEVICE unsigned add_half2(unsigned a, unsigned b) { return fma_half2(a, 0x3c003c00u, b); }
MSDA_DEVICE unsigned duplicate_low(unsigned pair) { return (pair & 0xffffu) * 0x10001u; }
MSDA_DEVICE unsigned duplicate_high(unsigned pair) { return (pair >> 16) * 0x10001u; }
MSDA_DEVICE float saturate(float value) { return __saturatef(value); }
MSDA_DEVICE float floor_near(float value) { return floorf(value); }
// Subnormal results are zero, as on the GPU.
MSDA_DEVICE float exp2_near(float exponent) {
    const float power = exp2f(exponent);
    return power < 1.17549435e-38f ? 0.0f : power;
}
MSDA_DEVICE float reciprocal_near(float number) { return 1.0f / number; }
MSDA_DEVICE float add_saturating(float a, float b) {
    const float sum = a + b;
    return sum > 0.0f ? (sum < 1.0f ? sum : 1.0f) : 0.0f;
}
MSDA_DEVICE unsigned value_if(bool wanted, unsigned value) { return wanted ? value : 0; }
MSDA_DEVICE int value_if(bool wanted, int value) { return wanted ? value : 0; }
MSDA_DEVICE const unsigned char* opaque_address(const unsigned char* address) { return address; }

// ---- global memory ------------------------------------------------------------------------------

template <int BYTES>
inline void load_packet(const char* instruction, Packet<BYTES>& packet, const void* address, Site site) {
    emu::require_aligned(instruction, address, BYTES, site);
    memcpy(&packet, address, BYTES);
}
template <int BYTES>
inline void store_packet(const char* instruction, void* address, const Packet<BYTES>& packet, Site site) {
    emu::require_aligned(instruction, address, BYTES, site);
    memcpy(address, &packet, BYTES);
}

template <int BYTES>
MSDA_DEVICE void load_readonly(Packet<BYTES>& packet, const void* address, Site site = Site::here()) {
    load_packet("load_readonly", packet, address, site);
}
template <int BYTES>
MSDA_DEVICE void load_streaming(Packet<BYTES>& packet, const void* address, Site site = Site::here()) {
    load_packet("load_streaming", packet, address, site);
}
template <int BYTES>
MSDA_DEVICE void store(void* address, const Packet<BYTES>& packet, Site site = Site::here()) {
    store_packet("store", address, packet, site);
}
template <int BYTES>
MSDA_DEVICE void store_streaming(void* address, const Packet<BYTES>& packet, Site site = Site::here()) {
    store_packet("store_streaming", address, packet, site);
}

// ---- warps --------------------------------------------------------------------------------------

constexpr unsigned ALL_LANES = 0xffffffffu;

enum class ShuffleFrom { lane, lane_xor, lane_above, lane_below };

template <typename T>
struct ShufflePart {
    T word;
    T result;
    int operand;
    int width;
};

// Groups of `width` lanes; a source outside of the group gives the caller's own word, as in CUDA.
template <typename T, ShuffleFrom FROM>
inline void exchange_words(const emu::WarpMeeting& meeting) {
    for (int lane = 0; lane < 32; ++lane) {
        auto* self = static_cast<ShufflePart<T>*>(meeting.lane[lane]);
        if (self == nullptr) continue;
        const int width = self->width;
        if (width < 1 || width > 32 || (width & (width - 1)) != 0) {
            emu::fail(emu::Fault::misuse, meeting.site, "shuffle: width %d is not a power of two up to 32",
                      width);
        }
        const int first = lane / width * width, within = lane % width, by = self->operand;
        int source = lane;
        switch (FROM) {
            case ShuffleFrom::lane: source = first + (by & (width - 1)); break;
            // Reaches into lower groups, never into higher ones.
            case ShuffleFrom::lane_xor: source = (lane ^ by) < first + width ? lane ^ by : lane; break;
            case ShuffleFrom::lane_above: source = within + by < width ? lane + by : lane; break;
            case ShuffleFrom::lane_below: source = within - by >= 0 ? lane - by : lane; break;
        }
        if (source < 0 || source > 31 || meeting.lane[source] == nullptr) {
            emu::fail(emu::Fault::divergence, meeting.site,
                      "shuffle with mask 0x%08x: lane %d reads lane %d, which takes no part", meeting.mask,
                      lane, source);
        }
        self->result = static_cast<ShufflePart<T>*>(meeting.lane[source])->word;
    }
}

template <typename T, ShuffleFrom FROM>
inline T shuffle_words(const char* instruction, unsigned mask, T word, int operand, int width, Site site) {
    ShufflePart<T> part{word, word, operand, width};
    emu::meet_warp(instruction, mask, &part, exchange_words<T, FROM>, site);
    return part.result;
}

#define MSDA_SHUFFLE(NAME, FROM, TYPE)                                                               \
    MSDA_DEVICE TYPE NAME(TYPE word, int operand, int width = 32, Site site = Site::here()) {        \
        return shuffle_words<TYPE, ShuffleFrom::FROM>(#NAME, ALL_LANES, word, operand, width, site); \
    }
#define MSDA_SHUFFLES(NAME, FROM)      \
    MSDA_SHUFFLE(NAME, FROM, unsigned) \
    MSDA_SHUFFLE(NAME, FROM, int)      \
    MSDA_SHUFFLE(NAME, FROM, float)    \
    MSDA_SHUFFLE(NAME, FROM, long long)
MSDA_SHUFFLES(shuffle, lane)
MSDA_SHUFFLES(shuffle_xor, lane_xor)
MSDA_SHUFFLES(shuffle_down, lane_above)
MSDA_SHUFFLES(shuffle_up, lane_below)
#undef MSDA_SHUFFLES
#undef MSDA_SHUFFLE

struct VotePart {
    bool vote;
    unsigned ballot;
};

inline void count_votes(const emu::WarpMeeting& meeting) {
    unsigned ballot = 0;
    for (unsigned lane = 0; lane < 32; ++lane) {
        const auto* part = static_cast<VotePart*>(meeting.lane[lane]);
        if (part != nullptr && part->vote) ballot |= 1u << lane;
    }
    for (void* lane : meeting.lane) {
        if (lane != nullptr) static_cast<VotePart*>(lane)->ballot = ballot;
    }
}

MSDA_DEVICE unsigned ballot_lanes(bool vote, Site site = Site::here()) {
    VotePart part{vote, 0};
    emu::meet_warp("ballot_lanes", ALL_LANES, &part, count_votes, site);
    return part.ballot;
}
MSDA_DEVICE bool any_lane(bool vote, Site site = Site::here()) { return ballot_lanes(vote, site) != 0; }
MSDA_DEVICE bool all_lanes(bool vote, Site site = Site::here()) {
    return ballot_lanes(vote, site) == ALL_LANES;
}

struct MatchPart {
    unsigned word;
    unsigned peers;
};

inline void match_words(const emu::WarpMeeting& meeting) {
    const auto part = [&](unsigned lane) { return static_cast<MatchPart*>(meeting.lane[lane]); };
    for (unsigned lane = 0; lane < 32; ++lane) {
        part(lane)->peers = 0;
        for (unsigned other = 0; other < 32; ++other) {
            if (part(other)->word == part(lane)->word) part(lane)->peers |= 1u << other;
        }
    }
}

MSDA_DEVICE unsigned match_lanes(unsigned word, Site site = Site::here()) {
    MatchPart part{word, 0};
    emu::meet_warp("match_lanes", ALL_LANES, &part, match_words, site);
    return part.peers;
}
MSDA_DEVICE int count_bits(unsigned word) { return __popc(word); }
MSDA_DEVICE int first_bit(unsigned word) { return __ffs(static_cast<int>(word)) - 1; }
MSDA_DEVICE void sync_warp(unsigned mask = ALL_LANES, Site site = Site::here()) { __syncwarp(mask, site); }

// ---- named barriers -----------------------------------------------------------------------------

MSDA_DEVICE void barrier_sync(int id, int threads, Site site = Site::here()) {
    emu::sync_named(static_cast<unsigned>(id), static_cast<unsigned>(threads), site);
}
MSDA_DEVICE void barrier_arrive(int id, int threads, Site site = Site::here()) {
    emu::arrive_named(static_cast<unsigned>(id), static_cast<unsigned>(threads), site);
}

// ---- flags and counters ------------------------------------------------------------------------

MSDA_DEVICE unsigned load_acquire(const unsigned* flag, Site site = Site::here()) {
    emu::spin("load_acquire", site);
    return *flag;
}
MSDA_DEVICE unsigned long long load_acquire(const unsigned long long* flag, Site site = Site::here()) {
    emu::spin("load_acquire", site);
    return *flag;
}
MSDA_DEVICE void store_release(unsigned* flag, unsigned value) { *flag = value; }
MSDA_DEVICE void fence_device() {}
MSDA_DEVICE void store_flag(unsigned long long* flag, unsigned long long value) { *flag = value; }
MSDA_DEVICE unsigned load_acquire_block(const unsigned* flag, Site site = Site::here()) {
    return load_acquire(flag, site);
}
MSDA_DEVICE void store_release_block(unsigned* flag, unsigned value) { *flag = value; }
MSDA_DEVICE void reduce_add(float* address, float value) { *address += value; }
MSDA_DEVICE void reduce_add(float* address, const float (&values)[2], Site site = Site::here()) {
    emu::require_aligned("red.v2", address, 8, site);
    for (int i = 0; i < 2; ++i) address[i] += values[i];
}
MSDA_DEVICE void reduce_add(float* address, const float (&values)[4], Site site = Site::here()) {
    emu::require_aligned("red.v4", address, 16, site);
    for (int i = 0; i < 4; ++i) address[i] += values[i];
}
MSDA_DEVICE unsigned fetch_add(unsigned* counter, unsigned amount, Site site = Site::here()) {
    emu::require_aligned("fetch_add", counter, sizeof *counter, site);
    const unsigned old = *counter;
    *counter += amount;
    return old;
}
// Launches run one after the other.
MSDA_DEVICE void wait_for_launch_before() {}
MSDA_DEVICE void let_next_launch_start() {}

[[noreturn]] MSDA_DEVICE void trap(Site site = Site::here()) {
    emu::fail(emu::Fault::trap, site, "the kernel trapped");
}
MSDA_DEVICE void pause(unsigned, Site site = Site::here()) { emu::spin("pause", site); }

// ---- cache hints --------------------------------------------------------------------------------

using CachePolicy = unsigned long long;
MSDA_DEVICE CachePolicy policy_evict_first() { return 1; }
MSDA_DEVICE CachePolicy policy_evict_last() { return 2; }
template <int BYTES>
MSDA_DEVICE void load_hinted(Packet<BYTES>& packet, const void* address, CachePolicy,
                             Site site = Site::here()) {
    load_packet("load_hinted", packet, address, site);
}
template <int BYTES>
MSDA_DEVICE void load_l2(Packet<BYTES>& packet, const void* address, Site site = Site::here()) {
    load_packet("load_l2", packet, address, site);
}
template <int BYTES>
MSDA_DEVICE void load_evict_last(Packet<BYTES>& packet, const void* address, Site site = Site::here()) {
    load_packet("load_evict_last", packet, address, site);
}
// A prefetch may miss every allocation without harm; there is nothing to check.
MSDA_DEVICE void prefetch_l1(const void*) {}
MSDA_DEVICE void prefetch_l2(const void*) {}

// ---- asynchronous copies of a thread -----------------------------------------------------------

template <int BYTES>
MSDA_DEVICE void copy_async(void* shared, const void* global, Site site = Site::here()) {
    emu::cp_async(shared, global, BYTES, BYTES, site);
}
template <int BYTES>
MSDA_DEVICE void copy_async_or_zero(void* shared, const void* global, bool valid, Site site = Site::here()) {
    emu::cp_async(shared, global, BYTES, valid ? BYTES : 0, site);
}
MSDA_DEVICE void copy_async_or_zero(unsigned shared, const void* global, bool valid,
                                    Site site = Site::here()) {
    emu::cp_async(emu::shared_pointer(shared, 16, site), global, 16, valid ? 16 : 0, site);
}
MSDA_DEVICE void copy_async_commit() { emu::cp_async_commit(); }
template <int PENDING_GROUPS>
MSDA_DEVICE void copy_async_wait() {
    emu::cp_async_wait(PENDING_GROUPS);
}
MSDA_DEVICE void copy_async_wait_all() { emu::cp_async_wait(~0u); }

// ---- mbarriers ----------------------------------------------------------------------------------

using Mbarrier = unsigned long long;

MSDA_DEVICE void mbarrier_init(Mbarrier* barrier, int arrivals, Site site = Site::here()) {
    emu::mbarrier_init(barrier, static_cast<unsigned>(arrivals), site);
}
MSDA_DEVICE void mbarrier_init_fence() {}
MSDA_DEVICE void mbarrier_arrive(Mbarrier* barrier, Site site = Site::here()) {
    emu::mbarrier_arrive(barrier, 1, site);
}
MSDA_DEVICE void mbarrier_arrive_expect_bytes(Mbarrier* barrier, int bytes, Site site = Site::here()) {
    emu::mbarrier_arrive_expect_tx(barrier, static_cast<unsigned>(bytes), site);
}
MSDA_DEVICE void mbarrier_expect_bytes(Mbarrier* barrier, int bytes, Site site = Site::here()) {
    emu::mbarrier_expect_tx(barrier, static_cast<unsigned>(bytes), site);
}
MSDA_DEVICE void mbarrier_arrive_after_copies(Mbarrier* barrier, Site site = Site::here()) {
    emu::mbarrier_arrive_after_copies(barrier, true, site);
}
MSDA_DEVICE bool mbarrier_try_wait(Mbarrier* barrier, unsigned parity, Site site = Site::here()) {
    return emu::mbarrier_try_wait(barrier, parity, site);
}
MSDA_DEVICE bool mbarrier_test_wait(Mbarrier* barrier, unsigned parity, Site site = Site::here()) {
    return emu::mbarrier_test_wait(barrier, parity, site);
}
MSDA_DEVICE void mbarrier_wait(Mbarrier* barrier, unsigned parity, Site site = Site::here()) {
    while (!emu::mbarrier_try_wait(barrier, parity, site)) {
    }
}

// ---- bulk and tensor copies ---------------------------------------------------------------------

using TensorMap = emu::TensorMap;

MSDA_DEVICE void copy_bulk(void* shared, const void* global, int bytes, Mbarrier* barrier,
                           Site site = Site::here()) {
    emu::bulk_load(shared, global, static_cast<unsigned>(bytes), barrier, site);
}
MSDA_DEVICE void fence_before_copy() {}
MSDA_DEVICE void prefetch_tensor_map(const TensorMap*) {}
MSDA_DEVICE void copy_tensor_2d(void* shared, const TensorMap* map, int x, int y, Mbarrier* barrier,
                                Site site = Site::here()) {
    const int origin[] = {x, y};
    emu::tensor_load(shared, map, origin, 2, barrier, site);
}
MSDA_DEVICE void copy_tensor_3d(void* shared, const TensorMap* map, int x, int y, int z, Mbarrier* barrier,
                                Site site = Site::here()) {
    const int origin[] = {x, y, z};
    emu::tensor_load(shared, map, origin, 3, barrier, site);
}
MSDA_DEVICE void copy_tensor_4d(void* shared, const TensorMap* map, int x, int y, int z, int w,
                                Mbarrier* barrier, Site site = Site::here()) {
    const int origin[] = {x, y, z, w};
    emu::tensor_load(shared, map, origin, 4, barrier, site);
}

// The warp meets here; the rest of the warp group is not modelled.
template <int REGISTERS>
MSDA_DEVICE void lower_registers(Site site = Site::here()) {
    static_assert(REGISTERS >= 24 && REGISTERS <= 256 && REGISTERS % 8 == 0, "setmaxnreg");
    __syncwarp(ALL_LANES, site);
}
template <int REGISTERS>
MSDA_DEVICE void raise_registers(Site site = Site::here()) {
    lower_registers<REGISTERS>(site);
}

// ---- tensor cores -------------------------------------------------------------------------------

MSDA_DEVICE void mma_f16_16x8x16(float (&sums)[4], const unsigned (&a)[4], const unsigned (&b)[2],
                                 Site site = Site::here()) {
    emu::matrix_multiply_add<16, emu::MatrixFormat::half>("mma_f16_16x8x16", sums, a, b, site);
}
MSDA_DEVICE void mma_bf16_16x8x16(float (&sums)[4], const unsigned (&a)[4], const unsigned (&b)[2],
                                  Site site = Site::here()) {
    emu::matrix_multiply_add<16, emu::MatrixFormat::bfloat>("mma_bf16_16x8x16", sums, a, b, site);
}
MSDA_DEVICE void mma_f16_16x8x8(float (&sums)[4], const unsigned (&a)[2], const unsigned (&b)[1],
                                Site site = Site::here()) {
    emu::matrix_multiply_add<8, emu::MatrixFormat::half>("mma_f16_16x8x8", sums, a, b, site);
}
MSDA_DEVICE void mma_bf16_16x8x8(float (&sums)[4], const unsigned (&a)[2], const unsigned (&b)[1],
                                 Site site = Site::here()) {
    emu::matrix_multiply_add<8, emu::MatrixFormat::bfloat>("mma_bf16_16x8x8", sums, a, b, site);
}
MSDA_DEVICE void mma_tf32_16x8x8(float (&sums)[4], const unsigned (&a)[4], const unsigned (&b)[2],
                                 Site site = Site::here()) {
    emu::multiply_add_tf32(sums, a, b, site);
}
template <int COUNT>
MSDA_DEVICE void load_matrices(unsigned (&words)[COUNT], const void* row, Site site = Site::here()) {
    emu::load_matrices<COUNT, false>(words, row, site);
}
template <int COUNT>
MSDA_DEVICE void load_matrices_transposed(unsigned (&words)[COUNT], const void* row,
                                          Site site = Site::here()) {
    emu::load_matrices<COUNT, true>(words, row, site);
}

MSDA_DEVICE void load_matrices_transposed(unsigned (&words)[4], unsigned row, Site site = Site::here()) {
    emu::load_matrices<4, true>(words, emu::shared_pointer(row, 16, site), site);
}

}  // namespace msda
