// Barriers in shared memory that count arrivals and the bytes of copies (mbarriers), barriers among some of a block's
// warps, and bulk copies. For sm_90 and later; addresses are shared-memory addresses.
#pragma once

#include "prelude.h"

#include "shared_address.h"

DEVICE void barrier_init(uint32_t at, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(arrivals) : "memory");
}
// Makes initialised barriers visible to the cluster and to the copy engine.
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
        "@done bra OVER;\nbra AGAIN;\nOVER:\n}" ::"r"(at), "r"(parity) : "memory");
}

// A barrier among `threads` threads (whole warps) of this block; `id` is 1 to 15.
DEVICE void named_barrier(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
// Counts towards such a barrier without waiting at it.
DEVICE void named_barrier_arrive(int id, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// `bytes` (a multiple of 16) from global memory; `barrier` counts them as they arrive.
DEVICE void copy_bulk(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
        "l"(from), "r"(bytes), "r"(barrier)
        : "memory");
}
