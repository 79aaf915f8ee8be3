// How a warpgroup's 64 rows of a gradient leave its registers: rounded to shared memory, then by TMA, or row by row
// where a sequence ends among them.
//
// Defines: bwd_seqlen_info.h's.
#pragma once

#include "bwd_seqlen_info.h"

#include "_lib/ptx/matrix.h"
#include "_lib/ptx/thread_idx.h"
#include "_lib/ptx/tma.h"

// Varlen: a gradient in memory.
struct GlobalRows {
    T* first;
    int64_t head, row;
    int columns;
};

// A warpgroup's 64 x 64 sums, packed to 16 bits, as 64 swizzled lines. Word 2 * j + down holds columns
// 8 * j + lane % 4 * 2 and the next one of row lane / 4 + 8 * down of the warp's 16.
DEVICE void stage_block(uint32_t at, const uint32_t* words, int thread) {
    const int lane = thread % 32;
    const int line = thread % 128 / 32 * 16 + lane % 16;
#pragma unroll
    for (int j = 0; j < 8; j += 2)
        stmatrix_x4(at + line * SWIZZLE_BYTES + ((j + lane / 16) ^ line % 8) * 16, words + j * 2);
}

// The 64 rows of COLUMNS of `acc`, times `factor`, as blocks of 64 columns, `LINES` lines apart.
template <int COLUMNS, int LINES> DEVICE void stage_rows(uint32_t to, const float* acc, float factor) {
#pragma unroll
    for (int block = 0; block < COLUMNS / 64; ++block) {
        uint32_t words[16];
#pragma unroll
        for (int i = 0; i < 16; ++i) {
            const float* pair = acc + block * 32 + i * 2;
            words[i] = pack2<T>(pair[0] * factor, pair[1] * factor);
        }
        stage_block(to + block * LINES * SWIZZLE_BYTES, words, reload_thread_idx());
    }
}

// The first `count` staged rows, as rows `row` and on of a head: TMA would write over the next sequence's.
template <int COLUMNS, int LINES>
DEVICE void store_staged(const GlobalRows& to, uint32_t from, int head, int row, int count) {
    T* const rows = to.first + head * to.head + row * to.row;
#pragma unroll 1
    for (int i = reload_thread_idx() % 128; i < count * (COLUMNS / 8); i += 128) {
        const int line = i / (COLUMNS / 8), column = i % (COLUMNS / 8) * 8;
        words<16> held;
        asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(held.w[0]), "=r"(held.w[1]), "=r"(held.w[2]), "=r"(held.w[3])
                     : "r"(from + column / 64 * LINES * SWIZZLE_BYTES + line * SWIZZLE_BYTES +
                           (column / 8 % 8 ^ line % 8) * 16)
                     : "memory");
        if (column < to.columns) store_words(rows + line * to.row + column, held);
    }
}

// A warpgroup's 64 rows, times `factor`, through shared memory by TMA.
template <int COLUMNS>
DEVICE void store_rows(const TensorMap* map, uint32_t through, const float* acc, float factor, int bar, int row,
                       int head, int batch) {
    stage_rows<COLUMNS, 64>(through, acc, factor);
    fence_proxy_async();
    named_barrier_sync(bar, 128);
    if (reload_thread_idx() % 128 != 0) return;
#pragma unroll
    for (int block = 0; block < COLUMNS / 64; ++block)
        tma_store_4d(map, through + block * 64 * SWIZZLE_BYTES, block * 64, row, head, batch);
    tma_store_commit();
    tma_store_wait_read<0>();
}

// Varlen: the first `count` of them. What TMA still reads of shared memory has been read then.
template <int COLUMNS>
DEVICE void store_tail(const GlobalRows& to, uint32_t through, const float* acc, float factor, int bar, int row,
                       int count, int head) {
    stage_rows<COLUMNS, 64>(through, acc, factor);
    if (reload_thread_idx() % 128 == 0) tma_store_wait_read<0>();
    named_barrier_sync(bar, 128);
    store_staged<COLUMNS, 64>(to, through, head, row, count);
}
