// Clusters: blocks on neighbouring multiprocessors that read each other's shared memory (sm_90). Included by
// the kernels that need it; the emulator has no clusters and no twins of these.
#pragma once

#include "intrinsics.cuh"

namespace msda {

// The number of this block within its cluster.
MSDA_DEVICE unsigned cluster_rank() {
    unsigned rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// The address in block `rank` of the cluster that corresponds to `address` in this block's shared memory.
MSDA_DEVICE unsigned shared_address_in(unsigned address, unsigned rank) {
    unsigned mapped;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(rank));
    return mapped;
}

// An address of shared_address_in.
MSDA_DEVICE void load_cluster(Packet<16>& packet, unsigned address) {
    asm volatile("ld.shared::cluster.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(packet.word[0]), "=r"(packet.word[1]), "=r"(packet.word[2]), "=r"(packet.word[3])
                 : "r"(address)
                 : "memory");
}

// A barrier for every thread of every block of the cluster; afterwards all of them see what was written
// before. It also waits for the last reader, because a block's shared memory is gone when the block exits.
MSDA_DEVICE void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
}

}  // namespace msda
