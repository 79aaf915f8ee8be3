// Thread block clusters (sm_90): blocks that run at once, read each other's shared memory and share barriers.
#pragma once

#include "prelude.h"

// This block's rank in its cluster. Not volatile: asm volatile costs the row kernels 8 bytes of stack (2026-11-22).
DEVICE int cluster_rank() {
    int rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// The address, in the cluster's shared-memory window, of `at` in block `rank`'s shared memory.
DEVICE uint32_t map_shared_rank(uint32_t at, int rank) {
    uint32_t remote;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(at), "r"(rank));
    return remote;
}

// All threads of the cluster; writes before it are visible after it.
DEVICE void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}
// Its first half: this thread's accesses are complete.
DEVICE void cluster_arrive() { asm volatile("barrier.cluster.arrive.release;" ::: "memory"); }
// The same barrier in two halves and without ordering of memory: a release waits for every access of the block in
// flight (about 1 us, 2026-11-21).
DEVICE void cluster_arrive_relaxed() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
DEVICE void cluster_wait() { asm volatile("barrier.cluster.wait.aligned;" ::: "memory"); }
