// Split-K in a cluster: the sums of its blocks' accumulators, through their shared memory (distributed shared memory,
// DSMEM).
#pragma once

#include "prelude.h"

#include "_lib/ptx/cluster.h"

// Adds this block's share of the columns of all accumulators of a cluster of BLOCKS, in the order of k, which is that of
// their ranks: a thread adds those that the same thread of each block held. Every block leaves its accumulators at
// `shared`, which nothing reads any more, in vectors of four: the first of every thread of a warpgroup, then the second
// of every thread; warpgroups follow one another. The other threads of the cluster call cluster_sync() meanwhile; none
// may leave before all have called cluster_arrive().
template <int BLOCKS, int COUNT>
DEVICE void cluster_sum(float (&sum)[COUNT / BLOCKS], const float (&acc)[COUNT], uint32_t shared, int rank) {
    constexpr int SHARE = COUNT / BLOCKS;
    static_assert(SHARE % 4 == 0, "a share is whole vectors");
    const uint32_t mine = shared + thread_x() / 128 * COUNT * 512 + thread_x() % 128 * 16;
#pragma unroll
    for (int i = 0; i < COUNT; i += 4)
        asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(mine + i * 512), "f"(acc[i]), "f"(acc[i + 1]),
                     "f"(acc[i + 2]), "f"(acc[i + 3])
                     : "memory");
    cluster_sync();
#pragma unroll
    for (int block = 0; block < BLOCKS; ++block) {
        const uint32_t from = map_shared_rank(mine + rank * SHARE * 512, block);
#pragma unroll
        for (int i = 0; i < SHARE; i += 4) {
            float v[4];
            asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                         : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3])
                         : "r"(from + i * 512)
                         : "memory");
#pragma unroll
            for (int j = 0; j < 4; ++j) sum[i + j] = block ? sum[i + j] + v[j] : v[j];
        }
    }
    cluster_arrive();
}
