// What the two kernels of the gradient of wide heads qheads_per_kvhead: tiles of 64, and where gradients of scores are ds_workspace.
//
// Defines: bwd.h's; HEAD_D and HEAD_E, the columns of q and k and those of v and do (multiples of 64).
#pragma once

#include "bwd_walk.h"

#include "bwd_async.h"

static_assert(KEYS == 64 && QUERIES == 64, "a warpgroup's products have 64 rows");
constexpr int DS_ELEMENTS = KEYS * QUERIES;
constexpr int DS_BYTES = DS_ELEMENTS * 2;

// Varlen: a sequence's rows of ds_workspace blocks of scores, one for each block of keys: `most` long, but where the right alone is
// bounded each after row `late` is one shorter than the one before it.
struct DsRows {
    int most, late;

    // How many blocks stand in the rows before `row`.
    DEVICE int before(int row) const {
        return static_cast<int>(static_cast<int64_t>(row) * most - (missing(row - late) - missing(-late)));
    }

private:
    DEVICE int64_t missing(int64_t rows) const {
        if (rows <= 0) return 0;
        return rows < most ? rows * (rows - 1) / 2 : static_cast<int64_t>(most) * (most - 1) / 2 + (rows - most) * most;
    }
};

// What one pair of launches is for: the `lines` key heads from `line` on, of all batches, and of each the `blocks`
// blocks of keys from `block` on. A row of ds_workspace gradients holds `most` blocks. Of varlen it is a sequence's
// own, whose rows would begin at `first`; `each` blocks are ds_workspace of a query head.
struct Chunk {
    int line, lines, block, blocks;
    int most = 0;                // dense
    int each = 0, first = 0;     // varlen
    DsRows rows = {};            // varlen
};

// Gradients of a chunk's scores in memory: per query head and block of keys a row, of the blocks of queries that see it.
// A block lies as shared memory holds it: a line of queries per key, swizzled.
DEVICE T* ds_block(T* ds_workspace, const Chunk& chunk, int head, int key_block, int from_lowest) {
    if constexpr (VARLEN) {
        const int of_head = chunk.first + chunk.rows.before(key_block) + from_lowest;
        return ds_workspace + (static_cast<int64_t>(head) * chunk.each + of_head) * DS_ELEMENTS;
    } else {
        const int64_t row = static_cast<int64_t>(head) * chunk.blocks + key_block - chunk.block;
        return ds_workspace + (row * chunk.most + from_lowest) * DS_ELEMENTS;
    }
}

// COLUMNS of 64 rows as blocks of 64 columns.
template <int COLUMNS>
DEVICE void load_rows(uint32_t to, const TensorMap* map, uint32_t barrier, int row, int head, int batch) {
#pragma unroll
    for (int block = 0; block < COLUMNS / 64; ++block)
        tma_load_4d(to + block * 64 * SWIZZLE_BYTES, map, barrier, block * 64, row, head, batch);
}

// A warpgroup's 64 rows of sums, times `factor`, as 16 bits in shared memory.
template <int COLUMNS> DEVICE void stage_rows(uint32_t through, const float* sums, float factor) {
#pragma unroll
    for (int block = 0; block < COLUMNS / 64; ++block) {
        uint32_t words[16];
#pragma unroll
        for (int i = 0; i < 16; ++i) {
            const float* pair = sums + block * 32 + i * 2;
            words[i] = pack2<T>(pair[0] * factor, pair[1] * factor);
        }
        stage_block(through + block * 64 * SWIZZLE_BYTES, words, reload_thread_idx());
    }
}

// And from there to memory.
template <int COLUMNS>
DEVICE void store_rows(const TensorMap* map, uint32_t through, const float* sums, float factor, int bar, int row,
                       int head, int batch) {
    stage_rows<COLUMNS>(through, sums, factor);
    fence_proxy_async();
    named_barrier_sync(bar, 128);
    if (reload_thread_idx() % 128 != 0) return;
#pragma unroll
    for (int block = 0; block < COLUMNS / 64; ++block)
        tma_store_4d(map, through + block * 64 * SWIZZLE_BYTES, block * 64, row, head, batch);
    tma_store_commit();
    tma_store_wait_read<0>();
}

// A warp is through with a stage: four arrivals a warpgroup.
DEVICE void release(uint32_t freed) {
    __syncwarp();
    if (reload_thread_idx() % 32 == 0) mbarrier_arrive(freed);
}
