// Barriers in shared memory that count arrivals and the bytes of asynchronous copies (mbarrier, sm_90), and named
// barriers among some of a block's warps. Addresses are shared-memory addresses.
#pragma once

#include "prelude.h"

#include "shared_address.h"

DEVICE void mbarrier_init(uint32_t at, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(arrivals) : "memory");
}
// Makes initialised barriers visible to the cluster and to TMA.
DEVICE void mbarrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

// Arrives and adds `bytes` to what the current phase expects of copies.
DEVICE void mbarrier_arrive_expect_tx(uint32_t at, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
}
DEVICE void mbarrier_arrive(uint32_t at) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory");
}
// Arrives at the mbarrier at the same address in block `rank` of the cluster.
DEVICE void mbarrier_arrive_cluster(uint32_t at, int rank) {
    asm volatile(
        "{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [remote];\n}" ::"r"(at), "r"(rank) : "memory");
}
// Waits until the phase of parity `phase` is complete.
DEVICE void mbarrier_wait(uint32_t at, uint32_t phase) {
    asm volatile(
        "{\n.reg .pred done;\nAGAIN:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra OVER;\nbra AGAIN;\nOVER:\n}" ::"r"(at), "r"(phase) : "memory");
}

// A barrier among `threads` threads (whole warps) of this block; `id` is 1 to 15.
DEVICE void named_barrier_sync(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
// Arrives at such a barrier without waiting.
DEVICE void named_barrier_arrive(int id, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
