// cp.async, mbarriers, bulk and tensor copies.
//
// The hardware may deliver a copy at any time between its issue and the wait for it. The emulator
// takes the latest possible moment and fills the destination with poison until then, so that a kernel
// that reads too early, or waits for the wrong group or phase, computes NaN instead of the right
// answer by luck.
#include <deque>
#include <map>

#include "scheduler.hpp"

namespace msda_emulator {
namespace {

// In memory an mbarrier is only this word. The next operation on it detects that a kernel has overwritten or
// never initialised it.
constexpr uint64_t cookie = 0x6d62617272696572ull;
constexpr unsigned most_arrivals = (1u << 20) - 1;
constexpr int64_t most_tx_bytes = (1 << 20) - 1;
constexpr unsigned char poison = 0xFF;

struct Mbarrier {
    unsigned arrivals;     // per phase
    unsigned pending;      // still missing in this phase
    int64_t tx_bytes = 0;  // announced and not yet arrived
    unsigned parity = 0;   // of the phase in progress
};

// A copy that completes on an mbarrier.
struct Delivery {
    std::vector<PendingCopy> copies;
    void* barrier;
    unsigned arrivals;
    int64_t tx_bytes;
    const Thread* owner;  // whose cp.async copies these are; null for bulk and tensor copies
    Site site;
};

std::map<void*, Mbarrier> mbarriers;
std::deque<Delivery> in_flight;

Mbarrier& find(const char* instruction, void* barrier, Site site) {
    require_shared(instruction, barrier, sizeof cookie, site);
    require_aligned(instruction, barrier, alignof(uint64_t), site);
    const auto found = mbarriers.find(barrier);
    uint64_t word;
    memcpy(&word, barrier, sizeof word);
    if (found == mbarriers.end() || word != cookie) {
        fail(Fault::misuse, site, "%s: the mbarrier at shared+%zu %s", instruction,
             static_cast<size_t>(static_cast<unsigned char*>(barrier) - shared_base()),
             found == mbarriers.end() ? "was never initialised" : "has been overwritten");
    }
    return found->second;
}

void settle(void* address, Mbarrier& barrier) {
    if (barrier.pending != 0 || barrier.tx_bytes != 0) return;
    barrier.parity ^= 1u;
    barrier.pending = barrier.arrivals;
    note_progress();
    for (Thread* thread : block_threads()) {
        if (thread->activity == Activity::on_mbarrier && thread->mbarrier == address) {
            thread->activity = Activity::ready;
        }
    }
}

void announce(const char* instruction, Mbarrier& barrier, unsigned bytes, Site site) {
    barrier.tx_bytes += bytes;
    if (barrier.tx_bytes > most_tx_bytes) {
        fail(Fault::misuse, site, "%s: %lld bytes in flight; an mbarrier counts to %lld", instruction,
             static_cast<long long>(barrier.tx_bytes), static_cast<long long>(most_tx_bytes));
    }
}

unsigned arrive(const char* instruction, Mbarrier& barrier, unsigned arrivals, Site site) {
    if (arrivals == 0 || arrivals > barrier.pending) {
        fail(Fault::misuse, site, "%s: %u arrivals, but the phase waits for %u of %u", instruction, arrivals,
             barrier.pending, barrier.arrivals);
    }
    barrier.pending -= arrivals;
    return barrier.parity;
}

void put(const PendingCopy& copy) { memcpy(copy.destination, copy.bytes.data(), copy.bytes.size()); }

void deliver(size_t index) {
    const Delivery delivery = in_flight[index];
    in_flight.erase(in_flight.begin() + static_cast<ptrdiff_t>(index));
    for (const PendingCopy& copy : delivery.copies) put(copy);
    Mbarrier& barrier = find("completion of a copy", delivery.barrier, delivery.site);
    barrier.tx_bytes -= delivery.tx_bytes;
    if (delivery.arrivals != 0) arrive("cp.async.mbarrier.arrive", barrier, delivery.arrivals, delivery.site);
    settle(delivery.barrier, barrier);
}

}  // namespace

void reset_async_copies() {
    mbarriers.clear();
    in_flight.clear();
}

void require_copies_done() {
    for (const Delivery& delivery : in_flight) {
        if (delivery.owner == nullptr) {
            fail(Fault::misuse, delivery.site,
                 "the block ended while this copy was still writing its shared memory");
        }
    }
}

bool deliver_async_copies() {
    if (in_flight.empty()) return false;
    deliver(0);
    return true;
}

void cp_async(void* shared, const void* global, unsigned bytes, unsigned valid_bytes, Site site) {
    if ((bytes != 4 && bytes != 8 && bytes != 16) || valid_bytes > bytes) {
        fail(Fault::misuse, site, "cp.async: %u of %u bytes; 4, 8 or 16 can be copied", valid_bytes, bytes);
    }
    require_shared("cp.async", shared, bytes, site);
    require_aligned("cp.async", shared, bytes, site);
    require_aligned("cp.async", global, bytes, site);
    PendingCopy copy{static_cast<unsigned char*>(shared), std::vector<unsigned char>(bytes, 0)};
    memcpy(copy.bytes.data(), global, valid_bytes);
    memset(shared, poison, bytes);
    this_thread().copy_groups.back().push_back(std::move(copy));
}

void cp_async_commit() { this_thread().copy_groups.emplace_back(); }

void cp_async_wait(unsigned pending_groups) {
    Thread& self = this_thread();
    auto& groups = self.copy_groups;
    const size_t committed = groups.size() - 1;
    const bool all = pending_groups == ~0u;
    const size_t done =
        all ? groups.size() : committed - (pending_groups < committed ? pending_groups : committed);
    for (size_t i = 0; i < done; ++i) {
        for (const PendingCopy& copy : groups[i]) put(copy);
    }
    groups.erase(groups.begin(), groups.begin() + static_cast<ptrdiff_t>(done));
    if (groups.empty()) groups.emplace_back();
    if (!all) return;
    for (size_t i = 0; i < in_flight.size();) {
        if (in_flight[i].owner == &self) {
            deliver(i);
        } else {
            ++i;
        }
    }
}

void mbarrier_init(void* barrier, unsigned arrivals, Site site) {
    require_shared("mbarrier.init", barrier, sizeof cookie, site);
    require_aligned("mbarrier.init", barrier, alignof(uint64_t), site);
    if (arrivals == 0 || arrivals > most_arrivals) {
        fail(Fault::misuse, site, "mbarrier.init: %u arrivals; 1 to %u are possible", arrivals,
             most_arrivals);
    }
    memcpy(barrier, &cookie, sizeof cookie);
    mbarriers[barrier] = Mbarrier{arrivals, arrivals};
}

void mbarrier_invalidate(void* barrier, Site site) {
    find("mbarrier.inval", barrier, site);
    mbarriers.erase(barrier);
    memset(barrier, poison, sizeof cookie);
}

unsigned mbarrier_arrive(void* barrier, unsigned arrivals, Site site) {
    Mbarrier& found = find("mbarrier.arrive", barrier, site);
    const unsigned parity = arrive("mbarrier.arrive", found, arrivals, site);
    settle(barrier, found);
    return parity;
}

unsigned mbarrier_arrive_expect_tx(void* barrier, unsigned bytes, Site site) {
    Mbarrier& found = find("mbarrier.arrive.expect_tx", barrier, site);
    announce("mbarrier.arrive.expect_tx", found, bytes, site);
    const unsigned parity = arrive("mbarrier.arrive.expect_tx", found, 1, site);
    settle(barrier, found);
    return parity;
}

void mbarrier_expect_tx(void* barrier, unsigned bytes, Site site) {
    announce("mbarrier.expect_tx", find("mbarrier.expect_tx", barrier, site), bytes, site);
}

void mbarrier_arrive_after_copies(void* barrier, bool counted_by_init, Site site) {
    Mbarrier& found = find("cp.async.mbarrier.arrive", barrier, site);
    if (!counted_by_init) found.pending += 1;
    Thread& self = this_thread();
    Delivery delivery{{}, barrier, 1, 0, &self, site};
    for (auto& group : self.copy_groups) {
        for (PendingCopy& copy : group) delivery.copies.push_back(std::move(copy));
        group.clear();
    }
    in_flight.push_back(std::move(delivery));
}

bool mbarrier_try_wait(void* barrier, unsigned parity, Site site) {
    if (find("mbarrier.try_wait", barrier, site).parity != parity) return true;
    Thread& self = this_thread();
    self.mbarrier = barrier;
    self.parity = parity;
    wait_as(Activity::on_mbarrier, "mbarrier.try_wait", site);
    return find("mbarrier.try_wait", barrier, site).parity != parity;
}

bool mbarrier_test_wait(void* barrier, unsigned parity, Site site) {
    spin("mbarrier.test_wait", site);
    return find("mbarrier.test_wait", barrier, site).parity != parity;
}

void bulk_load(void* shared, const void* global, unsigned bytes, void* barrier, Site site) {
    find("cp.async.bulk", barrier, site);
    require_shared("cp.async.bulk", shared, bytes, site);
    require_aligned("cp.async.bulk", shared, 16, site);
    require_aligned("cp.async.bulk", global, 16, site);
    if (bytes % 16 != 0) fail(Fault::misuse, site, "cp.async.bulk: %u bytes, not a multiple of 16", bytes);
    PendingCopy copy{static_cast<unsigned char*>(shared), std::vector<unsigned char>(bytes)};
    memcpy(copy.bytes.data(), global, bytes);
    memset(shared, poison, bytes);
    Delivery delivery{{}, barrier, 0, bytes, nullptr, site};
    delivery.copies.push_back(std::move(copy));
    in_flight.push_back(std::move(delivery));
}

void tensor_load(void* shared, const TensorMap* map, const int* origin, unsigned rank, void* barrier,
                 Site site) {
    const char* const name = "cp.async.bulk.tensor";
    require_aligned(name, map, alignof(TensorMap), site);
    if (map->magic != TensorMap::expected_magic || map->rank != rank || rank == 0 || rank > 5) {
        fail(Fault::misuse, site, "%s: rank %u asked of a tensor map of rank %u%s", name, rank, map->rank,
             map->magic != TensorMap::expected_magic ? " that is no tensor map" : "");
    }
    const unsigned row_bytes = map->box[0] * map->element_bytes;
    if (row_bytes % 16 != 0) {
        fail(Fault::misuse, site, "%s: box rows of %u bytes, not a multiple of 16", name, row_bytes);
    }
    size_t rows = 1;
    for (unsigned d = 1; d < rank; ++d) rows *= map->box[d];
    const size_t bytes = rows * row_bytes;
    find(name, barrier, site);
    require_shared(name, shared, bytes, site);
    require_aligned(name, shared, 128, site);
    require_aligned(name, map->base, 16, site);
    // Elements outside of the tensor arrive as zeros and count as bytes too.
    PendingCopy copy{static_cast<unsigned char*>(shared), std::vector<unsigned char>(bytes, 0)};
    for (size_t row = 0; row < rows; ++row) {
        const unsigned char* source = map->base;
        bool inside = true;
        size_t rest = row;
        for (unsigned d = 1; d < rank; ++d) {
            const int64_t at = origin[d] + static_cast<int64_t>(rest % map->box[d]);
            rest /= map->box[d];
            inside = inside && at >= 0 && at < map->size[d];
            if (inside) source += static_cast<uint64_t>(at) * map->stride_bytes[d - 1];
        }
        for (unsigned x = 0; inside && x < map->box[0]; ++x) {
            const int64_t at = origin[0] + static_cast<int64_t>(x);
            if (at < 0 || at >= map->size[0]) continue;
            memcpy(copy.bytes.data() + row * row_bytes + size_t{x} * map->element_bytes,
                   source + static_cast<uint64_t>(at) * map->element_bytes, map->element_bytes);
        }
    }
    memset(shared, poison, bytes);
    Delivery delivery{{}, barrier, 0, static_cast<int64_t>(bytes), nullptr, site};
    delivery.copies.push_back(std::move(copy));
    in_flight.push_back(std::move(delivery));
}

}  // namespace msda_emulator
