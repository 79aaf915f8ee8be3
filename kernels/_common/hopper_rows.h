// What Hopper adds to rows: a cluster of blocks that share one row and exchange sums through each other's
// shared memory, and bulk copies of rows into shared memory that run ahead of the arithmetic (sm_90).
#pragma once

#include "prelude.h"

DEVICE uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

// --- clusters ---

DEVICE int cluster_rank() {
    int rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
// Relaxed: a release waits for every access of the block that is under way (about 1 us, 2026-11-21).
DEVICE void cluster_arrive() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
DEVICE void cluster_wait() { asm volatile("barrier.cluster.wait.aligned;" ::: "memory"); }

// Writes COUNT floats to the same place in block `rank` of the cluster, whose mbarrier counts the bytes. One
// message: the mbarrier takes them one by one.
template <int COUNT>
DEVICE void send(const float* place, const float (&value)[COUNT], uint64_t* arrived, int rank) {
#define ST_ASYNC "st.async.shared::cluster.mbarrier::complete_tx::bytes"
    uint32_t to, done;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(to) : "r"(shared_address(place)), "r"(rank));
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(done) : "r"(shared_address(arrived)), "r"(rank));
    if constexpr (COUNT == 4) {
        asm volatile(ST_ASYNC ".v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to), "r"(bits_of(value[0])),
                     "r"(bits_of(value[1])), "r"(bits_of(value[2])), "r"(bits_of(value[3])), "r"(done)
                     : "memory");
    } else if constexpr (COUNT == 2) {
        asm volatile(ST_ASYNC ".v2.b32 [%0], {%1, %2}, [%3];" ::"r"(to), "r"(bits_of(value[0])),
                     "r"(bits_of(value[1])), "r"(done)
                     : "memory");
    } else {
        asm volatile(ST_ASYNC ".b32 [%0], %1, [%2];" ::"r"(to), "r"(bits_of(value[0])), "r"(done) : "memory");
    }
#undef ST_ASYNC
}

// --- mbarriers and bulk copies; addresses are shared-memory addresses ---

DEVICE void barrier_init(uint32_t at, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(arrivals) : "memory");
}
// Makes initialised barriers visible to the copy engine.
DEVICE void barrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
// Arrives and announces bytes that copies will bring.
DEVICE void barrier_expect(uint32_t at, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
}
DEVICE void barrier_arrive(uint32_t at) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory");
}
// Waits until the phase of that parity is over.
DEVICE void barrier_wait(uint32_t at, uint32_t parity) {
    asm volatile(
        "{\n.reg .pred done;\nAGAIN:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra OVER;\nbra AGAIN;\nOVER:\n}" ::"r"(at),
        "r"(parity)
        : "memory");
}
// Of `threads` threads of the block some arrive and go on, the others wait for all. All lanes of a warp.
DEVICE void named_arrive(int name, int threads) {
    asm volatile("barrier.cta.arrive.aligned %0, %1;" ::"r"(name), "r"(threads) : "memory");
}
DEVICE void named_wait(int name, int threads) {
    asm volatile("barrier.cta.sync.aligned %0, %1;" ::"r"(name), "r"(threads) : "memory");
}
// `bytes` (a multiple of 16) from global memory; `barrier` counts them as they arrive.
DEVICE void copy_bulk(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
        "l"(from), "r"(bytes), "r"(barrier)
        : "memory");
}
DEVICE words<16> load_shared(uint32_t from) {
    words<16> value;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.w[0]), "=r"(value.w[1]), "=r"(value.w[2]), "=r"(value.w[3])
                 : "r"(from)
                 : "memory");
    return value;
}
