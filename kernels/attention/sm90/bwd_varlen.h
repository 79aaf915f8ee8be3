// What bwd.cu does for varlen beyond the dense kernel.
//
// Copies do not know where a sequence ends, and a NaN beyond it, times 0, is a NaN. So a block of keys, values,
// queries or their gradients that crosses the end is announced to a warp, which clears the rows beyond and
// announces it to the others: what they see is zeros, as beyond the end of a tensor.
#pragma once

#include "bwd_tiles.h"

DEVICE bool partial_keys(const WorkTile& work, const BwdSeqlenInfo& seqlen) { return work.first_key() + KEYS > seqlen.keys; }
DEVICE bool partial_queries(const StepIterator& steps_at, const BwdSeqlenInfo& seqlen) {
    return (steps_at.query_block + 1) * QUERIES > seqlen.queries;
}

// Once `partial` is over for the `bit`-th of `phases`: zeros in `rows` rows from row `from` on, then `full`. Lines are
// whole, so it does not matter how they are swizzled.
DEVICE void zero_rows(uint32_t at, int from, int rows, uint32_t partial, uint32_t full, int bit, uint32_t& phases) {
    mbarrier_wait(partial, phases >> bit & 1);
    phases ^= 1u << bit;
    const int lane = thread_x() % 32;
    for (int block = 0; block < HEAD_BLOCKS; ++block) {
        for (int byte = from * SWIZZLE_BYTES + lane * 16; byte < rows * SWIZZLE_BYTES; byte += 512)
            asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(at + block * rows * SWIZZLE_BYTES + byte), "r"(0)
                         : "memory");
    }
    fence_proxy_async();
    __syncwarp();
    if (lane == 0) mbarrier_arrive(full);
}

// In the order in which they are brought.
DEVICE void zero_tails(const Shared& shared, const WorkTile& work, const BwdSeqlenInfo& seqlen, PipelineState<STAGES>& place, uint32_t& phases) {
    const bool partial = partial_keys(work, seqlen);
    const int keys = seqlen.keys - work.first_key(), steps = work.steps();
    if (partial) zero_rows(shared.k, keys, KEYS, shared.k_partial(), shared.k_full(), 0, phases);
    if (partial && steps == 0) zero_rows(shared.v, keys, KEYS, shared.v_partial(), shared.v_full(), 1, phases);
    StepIterator steps_at(work);
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
        const int stage = place.stage, queries = seqlen.queries - steps_at.query_block * QUERIES;
        const bool ends = partial_queries(steps_at, seqlen);
        if (ends)
            zero_rows(shared.q + stage * QUERY_BYTES, queries, QUERIES, shared.q_partial(stage), shared.q_full(stage),
                       2 + stage, phases);
        if (partial && step == 0) zero_rows(shared.v, keys, KEYS, shared.v_partial(), shared.v_full(), 1, phases);
        if (ends)
            zero_rows(shared.dout + stage * QUERY_BYTES, queries, QUERIES, shared.dout_partial(stage),
                       shared.dout_full(stage), 2 + STAGES + stage, phases);
        place.advance();
        steps_at.next();
    }
}

// dk or dv in memory.
struct GlobalRows {
    T* first;
    int64_t head, row;
    int columns;
};

// The first `count` of a warpgroup's 64 staged rows, as rows `row` and on of a key head.
DEVICE void store_rows(const GlobalRows& to, uint32_t from, int kv_head, int row, int count) {
    const int thread = thread_x() % 128;
    T* const rows = to.first + kv_head * to.head + row * to.row;
#pragma unroll
    for (int block = 0; block < HEAD_BLOCKS; ++block) {
#pragma unroll 1
        for (int i = thread; i < count * 8; i += 128) {
            const int line = i / 8, column = block * 64 + i % 8 * 8;
            words<16> held;
            asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(held.w[0]), "=r"(held.w[1]), "=r"(held.w[2]), "=r"(held.w[3])
                         : "r"(from + block * KEYS * SWIZZLE_BYTES + line * SWIZZLE_BYTES + (i % 8 ^ line % 8) * 16)
                         : "memory");
            if (column < to.columns) store_words(rows + line * to.row + column, held);
        }
    }
}
