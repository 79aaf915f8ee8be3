// What bwd.cu does for packed sequences beyond the dense kernel.
//
// Copies do not know where a sequence ends, and a NaN beyond it, times 0, is a NaN. So a block of keys, values,
// queries or their gradients that crosses the end is announced to a warp, which clears the rows beyond and
// announces it to the others: what they see is zeros, as beyond the end of a tensor.
#pragma once

#include "bwd_tiles.h"

DEVICE bool torn_keys(const Work& work, const Sight& sight) { return work.first_key() + KEYS > sight.keys; }
DEVICE bool torn_queries(const Walk& walk, const Sight& sight) {
    return (walk.query_block + 1) * QUERIES > sight.queries;
}

// Once `torn` is over for the `bit`-th of `phases`: zeros in `rows` rows from row `from` on, then `full`. Lines are
// whole, so it does not matter how they are swizzled.
DEVICE void clear_rows(uint32_t at, int from, int rows, uint32_t torn, uint32_t full, int bit, uint32_t& phases) {
    mbarrier_wait(torn, phases >> bit & 1);
    phases ^= 1u << bit;
    const int lane = thread_x() % 32;
    for (int block = 0; block < HEAD_BLOCKS; ++block) {
        for (int byte = from * LINE + lane * 16; byte < rows * LINE; byte += 512)
            asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(at + block * rows * LINE + byte), "r"(0)
                         : "memory");
    }
    fence_proxy_async();
    __syncwarp();
    if (lane == 0) mbarrier_arrive(full);
}

// In the order in which they are brought.
DEVICE void clear_ends(const Shared& shared, const Work& work, const Sight& sight, Place& place, uint32_t& phases) {
    const bool torn = torn_keys(work, sight);
    const int keys = sight.keys - work.first_key(), steps = work.steps();
    if (torn) clear_rows(shared.k, keys, KEYS, shared.k_torn(), shared.k_full(), 0, phases);
    if (torn && steps == 0) clear_rows(shared.v, keys, KEYS, shared.v_torn(), shared.v_full(), 1, phases);
    Walk walk(work);
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
        const int stage = place.stage, queries = sight.queries - walk.query_block * QUERIES;
        const bool ends = torn_queries(walk, sight);
        if (ends)
            clear_rows(shared.q + stage * QUERY_BYTES, queries, QUERIES, shared.q_torn(stage), shared.q_full(stage),
                       2 + stage, phases);
        if (torn && step == 0) clear_rows(shared.v, keys, KEYS, shared.v_torn(), shared.v_full(), 1, phases);
        if (ends)
            clear_rows(shared.dout + stage * QUERY_BYTES, queries, QUERIES, shared.dout_torn(stage),
                       shared.dout_full(stage), 2 + STAGES + stage, phases);
        place.advance();
        walk.next();
    }
}

// dk or dv in memory.
struct Rows {
    T* first;
    int64_t head, row;
    int columns;
};

// The first `count` of a warpgroup's 64 staged rows, as rows `row` and on of a key head.
DEVICE void store_rows(const Rows& to, uint32_t from, int group, int row, int count) {
    const int thread = thread_x() % 128;
    T* const rows = to.first + group * to.head + row * to.row;
#pragma unroll
    for (int block = 0; block < HEAD_BLOCKS; ++block) {
#pragma unroll 1
        for (int i = thread; i < count * 8; i += 128) {
            const int line = i / 8, column = block * 64 + i % 8 * 8;
            words<16> held;
            asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(held.w[0]), "=r"(held.w[1]), "=r"(held.w[2]), "=r"(held.w[3])
                         : "r"(from + block * KEYS * LINE + line * LINE + (i % 8 ^ line % 8) * 16)
                         : "memory");
            if (column < to.columns) store_words(rows + line * to.row + column, held);
        }
    }
}
