// The Tensor Memory Accelerator (TMA): asynchronous copies of 4-D boxes between global and shared memory, described by
// tensor maps (CUtensorMap). Needs sm_90. Coordinates run from the innermost dimension; addresses are shared-memory
// addresses.
#pragma once

#include "prelude.h"

#include "mbarrier.h"

// What cuTensorMapEncodeTiled makes; a kernel takes it as `const __grid_constant__ TensorMap`.
struct alignas(64) TensorMap {
    uint64_t opaque[16];
};

DEVICE void tma_prefetch_descriptor(const TensorMap* map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// --- loads: `barrier` counts the bytes as they arrive ---

DEVICE void tma_load_4d(uint32_t to, const TensorMap* map, uint32_t barrier, int x, int y, int z, int w) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(to), "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"(w)
        : "memory");
}
// The same box to the same address in every block of the cluster named in `mask`.
DEVICE void tma_load_4d_multicast(uint16_t mask, uint32_t to, const TensorMap* map, uint32_t barrier, int x, int y,
                                  int z, int w) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%4, %5, %6, %7}], [%2], %3;" ::"r"(to), "l"(map), "r"(barrier), "h"(mask), "r"(x), "r"(y),
        "r"(z), "r"(w)
        : "memory");
}
// With an L2 cache policy, such as l2_evict_first()'s.
DEVICE void tma_load_4d_cached(uint32_t to, const TensorMap* map, uint32_t barrier, uint64_t policy, int x, int y,
                               int z, int w) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(to), "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"(w),
        "l"(policy)
        : "memory");
}
DEVICE void tma_load_4d_multicast_cached(uint16_t mask, uint32_t to, const TensorMap* map, uint32_t barrier,
                                         uint64_t policy, int x, int y, int z, int w) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
        ".L2::cache_hint [%0], [%1, {%4, %5, %6, %7}], [%2], %3, %8;" ::"r"(to), "l"(map), "r"(barrier), "h"(mask),
        "r"(x), "r"(y), "r"(z), "r"(w), "l"(policy)
        : "memory");
}
// The L2 policy of data that is read once: it is evicted before what is read again.
DEVICE uint64_t l2_evict_first() {
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
// The L2 policy of data that stays longest: all other data is evicted before it.
DEVICE uint64_t l2_evict_last() {
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
// Brings a box into L2.
DEVICE void tma_prefetch_4d(const TensorMap* map, int x, int y, int z, int w) {
    asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global [%0, {%1, %2, %3, %4}];" ::"l"(map), "r"(x), "r"(y),
                 "r"(z), "r"(w)
                 : "memory");
}

// --- stores, in groups that a thread commits and waits for ---

DEVICE void tma_store_4d(const TensorMap* map, uint32_t from, int x, int y, int z, int w) {
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(map),
                 "r"(from), "r"(x), "r"(y), "r"(z), "r"(w)
                 : "memory");
}
// With an L2 cache policy.
DEVICE void tma_store_4d_cached(const TensorMap* map, uint32_t from, uint64_t policy, int x, int y, int z, int w) {
    asm volatile(
        "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group.L2::cache_hint [%0, {%2, %3, %4, %5}], [%1], %6;" ::"l"(
            map),
        "r"(from), "r"(x), "r"(y), "r"(z), "r"(w), "l"(policy)
        : "memory");
}
DEVICE void tma_store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Waits until at most PENDING groups of this thread's stores still read shared memory.
template <int PENDING> DEVICE void tma_store_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}
// Waits until all of this thread's stores are complete.
DEVICE void tma_store_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// Makes this thread's writes to shared memory visible to TMA (the async proxy). Call it before a TMA store reads them.
DEVICE void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// --- copies of contiguous bytes, without a tensor map ---

// `bytes` (a multiple of 16) from global to shared memory; `barrier` counts them as they arrive.
DEVICE void bulk_copy_g2s(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
        "l"(from), "r"(bytes), "r"(barrier)
        : "memory");
}
// From shared to global memory, in the groups of the TMA stores.
DEVICE void bulk_copy_s2g(void* to, uint32_t from, int bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes)
                 : "memory");
}
// Adds float32 to global memory, in the same groups.
DEVICE void bulk_reduce_add_f32(void* to, uint32_t from, int bytes) {
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to), "r"(from),
                 "r"(bytes)
                 : "memory");
}
