// What bwd_hdim256.cu and bwd_dq_hdim256.cu do for varlen beyond dense ones.
//
// A query head's blocks of gradients of scores are counted sequence by sequence, and of one by blocks of keys: each
// takes a row of as many as there are blocks of queries that see it. varlen_workspace_offsets.cu counts them, and says how
// many key heads take a chunk kv_heads_per_band. Where one is too many it takes chunks by parts: those blocks of keys whose rows
// begin among as many blocks of scores.
//
// Copies do not know where a sequence ends, and a NaN beyond it, times 0, is a NaN. So a block that crosses the end is
// announced to a warp, which clears the rows beyond and announces it to the others.
#pragma once

#include "bwd_hdim256.h"

// Of one head: how many key heads take a chunk, the parts of one, blocks of scores ds_workspace of a query head, and those of
// a part.
struct ChunkLayout {
    int lines, parts, each, part;
};

// `places`: of each sequence, the blocks of scores before its own. `reach`: the most blocks of queries in a row.
struct WorkspaceOffsets {
    const int* places;
    const int* layout;
    int reach;
};

// How many key heads chunk `number` is for.
DEVICE int chunk_heads(const WorkspaceOffsets& of, int number, int kv_heads) {
    const int lines = of.layout[0], parts = of.layout[1];
    return BwdSeqlenInfo::max(0, BwdSeqlenInfo::min(lines, kv_heads - number / parts * lines));
}

// The rows of a sequence's own. A bounded left leaves them as long as most are, `reach` at most.
DEVICE DsRows ds_rows_of(const Sequence& own, int reach, int left, int right) {
    constexpr int UNBOUNDED = 1 << 29;
    const int blocks = own.outside ? 0 : BwdSeqlenInfo::min((own.queries + QUERIES - 1) / QUERIES, reach);
    return {blocks, left < UNBOUNDED ? UNBOUNDED : -BwdSeqlenInfo::floor_div(own.queries - own.keys - right, KEYS)};
}

// What chunk `number` is for, of sequence z.
DEVICE Chunk chunk_of(const WorkspaceOffsets& of, int number, int kv_heads, int z, const Sequence& own, int left, int right) {
    const ChunkLayout layout = {of.layout[0], of.layout[1], of.layout[2], of.layout[3]};
    const int at = number % layout.parts, place = of.places[z];
    const int key_blocks = (own.keys + KEYS - 1) / KEYS;
    Chunk chunk;
    chunk.line = number / layout.parts * layout.lines;
    chunk.lines = chunk_heads(of, number, kv_heads);
    chunk.rows = ds_rows_of(own, of.reach, left, right);
    // The first block of keys of a part.
    const auto begin = [&](int part) {
        int first = 0, end = key_blocks;
        if (part == layout.parts) return end;
        while (part > 0 && first < end) {
            const int middle = first + (end - first) / 2;
            if (place + chunk.rows.before(middle) >= part * layout.part) end = middle;
            else first = middle + 1;
        }
        return first;
    };
    chunk.block = begin(at);
    chunk.blocks = begin(at + 1) - chunk.block;
    chunk.each = layout.each;
    chunk.first = place - at * layout.part;
    return chunk;
}

// Once the `phase`-th `partial` is over: zeros in COLUMNS of 64 rows from row `from` on, then `full`. Lines are whole, so
// it does not matter how they are swizzled.
template <int COLUMNS> DEVICE void zero_rows(uint32_t at, int from, uint32_t partial, uint32_t phase, uint32_t full) {
    mbarrier_wait(partial, phase);
    const int lane = reload_thread_idx() % 32;
#pragma unroll 1
    for (int block = 0; block < COLUMNS / 64; ++block) {
#pragma unroll 1
        for (int byte = from * SWIZZLE_BYTES + lane * 16; byte < 64 * SWIZZLE_BYTES; byte += 512)
            asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(at + block * 64 * SWIZZLE_BYTES + byte), "r"(0)
                         : "memory");
    }
    fence_proxy_async();
    __syncwarp();
    if (lane == 0) mbarrier_arrive(full);
}

// A gradient in memory.
struct GlobalRows {
    T* first;
    int64_t head, row;
    int columns;
};

// The first `count` of a warpgroup's 64 rows of sums, where the TMA would write over the next sequence's, as
// rows `row` and on of a head. What the TMA still reads has been read then.
template <int COLUMNS>
DEVICE void store_tail(const GlobalRows& to, uint32_t through, const float* sums, float factor, int bar, int row, int count,
                      int head) {
    stage_rows<COLUMNS>(through, sums, factor);
    if (reload_thread_idx() % 128 == 0) tma_store_wait_read<0>();
    named_barrier_sync(bar, 128);
    T* const rows = to.first + head * to.head + row * to.row;
#pragma unroll 1
    for (int i = reload_thread_idx() % 128; i < count * (COLUMNS / 8); i += 128) {
        const int line = i / (COLUMNS / 8), column = i % (COLUMNS / 8) * 8;
        words<16> held;
        asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(held.w[0]), "=r"(held.w[1]), "=r"(held.w[2]), "=r"(held.w[3])
                     : "r"(through + column / 64 * 64 * SWIZZLE_BYTES + line * SWIZZLE_BYTES + (column / 8 % 8 ^ line % 8) * 16)
                     : "memory");
        if (column < to.columns) store_words(rows + line * to.row + column, held);
    }
}
