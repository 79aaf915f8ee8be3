// Rows on Hopper (sm_90): a cluster of blocks shares one row and exchanges sums through distributed shared memory, and
// bulk copies bring rows to shared memory ahead of the arithmetic.
#pragma once

#include "prelude.h"

#include "_lib/ptx/cluster.h"
#include "_lib/ptx/tma.h"

// Writes COUNT floats to the same address in block `rank` of the cluster; that block's mbarrier counts the bytes. One
// message: an mbarrier processes messages one by one.
template <int COUNT>
DEVICE void send(const float* place, const float (&value)[COUNT], uint64_t* arrived, int rank) {
#define ST_ASYNC "st.async.shared::cluster.mbarrier::complete_tx::bytes"
    const uint32_t to = map_shared_rank(shared_address(place), rank);
    const uint32_t done = map_shared_rank(shared_address(arrived), rank);
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

// --- shared memory ---

DEVICE words<16> load_shared(uint32_t from) {
    words<16> value;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.w[0]), "=r"(value.w[1]), "=r"(value.w[2]), "=r"(value.w[3])
                 : "r"(from)
                 : "memory");
    return value;
}
