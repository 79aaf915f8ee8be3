// How wgmma.cu's sums leave the registers: finished and packed to 16 bits at once, so that the sums are
// free for the next tile, then block by block of 64 x 64 through shared memory.
#pragma once

#include "prelude.h"

#include "epilogue.h"
#include "hopper.h"
#include "tile.h"

constexpr int BLOCK_BYTES = 64 * 128;  // 64 lines of 128 bytes
constexpr int BLOCK_WORDS = 16;        // of a thread, packed, per block of 64 x 64
constexpr int C_BUFFERS = 2;           // blocks per consumer on their way out

// Bias of the thread's pair of columns, read long before it is needed.
template <int COLUMNS, class T> DEVICE uint32_t bias_pair(const T* bias, int col, int n) {
#if BIAS
    const int pair = thread_x() % 128 * 2;
    if (pair >= COLUMNS) return 0;
    const uint32_t low = col + pair < n ? bias[col + pair].bits : 0;
    const uint32_t high = col + pair + 1 < n ? bias[col + pair + 1].bits : 0;
    return low | high << 16;
#else
    return 0;
#endif
}

template <class T> DEVICE float low_half(uint32_t pair) { return to_float(T{static_cast<uint16_t>(pair)}); }
template <class T> DEVICE float high_half(uint32_t pair) { return to_float(T{static_cast<uint16_t>(pair >> 16)}); }

// Puts bias pairs where all threads of the consumer find them.
template <int COLUMNS> DEVICE void share_bias(uint32_t at, uint32_t pair, int consumer) {
#if BIAS
    named_barrier(consumer + 1, 128);
    const int thread = thread_x() % 128;
    if (thread * 2 < COLUMNS) asm volatile("st.shared.u32 [%0], %1;" ::"r"(at + thread * 4), "r"(pair) : "memory");
    named_barrier(consumer + 1, 128);
#endif
}

// Finishes and packs COUNT sums: word 2 * j + down holds columns 8 * j + lane % 4 * 2 and the next one of row
// lane / 4 + 8 * down of the warp's 16.
template <class T, int COUNT> DEVICE void pack(uint32_t* words, const float* sum, uint32_t bias) {
#pragma unroll
    for (int j = 0; j < COUNT / 4; ++j) {
        uint32_t pair = 0;
#if BIAS
        const uint32_t at = bias + j * 16 + thread_x() % 4 * 4;
        asm volatile("ld.shared.u32 %0, [%1];" : "=r"(pair) : "r"(at) : "memory");
#endif
        const float bias0 = low_half<T>(pair), bias1 = high_half<T>(pair);
#pragma unroll
        for (int down = 0; down < 2; ++down)
            words[j * 2 + down] =
                pack2<T>(finish(sum[j * 4 + down * 2], bias0), finish(sum[j * 4 + down * 2 + 1], bias1));
    }
}

DEVICE void store_matrices(uint32_t address, const uint32_t* w) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(w[0]),
                 "r"(w[1]), "r"(w[2]), "r"(w[3])
                 : "memory");
}

// One packed block into shared memory, lines with the 128-byte swizzle. A warp writes its 16 lines.
DEVICE void stage_block(uint32_t at, const uint32_t* words) {
    const int lane = thread_x() % 32;
    // stmatrix: lanes 0-7, 8-15 address rows 0-7, 8-15 of the left 8 columns, lanes 16-31 of the right.
    const int line = thread_x() % 128 / 32 * 16 + lane % 16;
#pragma unroll
    for (int j = 0; j < 8; j += 2)
        store_matrices(at + line * 128 + ((j + lane / 16) ^ line % 8) * 16, words + j * 2);
}

// Where a consumer's block of c goes.
struct Place {
    int row, col, outer, inner;
};

// Through buffer `turn` of C_BUFFERS at `buffers`; a block beyond c is not written. The store runs on after
// this returns.
DEVICE void store_by_engine(uint32_t buffers, int turn, const TensorMap* map_c, const uint32_t* words, Place to,
                            int consumer, const Sizes& s) {
    const bool first = thread_x() % 128 == 0;
    const uint32_t at = buffers + turn * BLOCK_BYTES;
    if (first) wait_stores_read<C_BUFFERS - 1>();
    named_barrier(consumer + 1, 128);
    stage_block(at, words);
    copy_engine_fence();
    named_barrier(consumer + 1, 128);
    if (first) {
        if (to.row < s.m && to.col < s.n) store_box(map_c, at, to.col, to.row, to.inner, to.outer);
        commit_stores();
    }
}

DEVICE uint32_t staged(uint32_t at, int line, int col) {
    uint16_t bits;
    asm volatile("ld.shared.u16 %0, [%1];"
                 : "=h"(bits)
                 : "r"(at + line * 128 + (col / 8 ^ line % 8) * 16 + col % 8 * 2)
                 : "memory");
    return bits;
}

// The same without the copy engine, for a c whose rows are not 16-byte aligned or not contiguous. A warp
// writes a line at a time: in words where c's columns touch, whatever the parity of a row's address.
template <class T>
DEVICE void store_by_threads(uint32_t buffer, T* c, const uint32_t* words, Place place, const Sizes& s) {
    const int lane = thread_x() % 32;
    const int line0 = thread_x() % 128 / 32 * 16;
    __syncwarp();
    stage_block(buffer, words);
    __syncwarp();
    const int col = place.col;
    c += place.outer * s.c_outer + place.inner * s.c_inner;
#pragma unroll 4
    for (int i = 0; i < 16; ++i) {
        const int row = place.row + line0 + i;
        if (row >= s.m) break;
        T* to = c + row * s.c_row + col * s.c_col;
        const int odd = s.c_col == 1 ? static_cast<int>(reinterpret_cast<uint64_t>(to) / 2 % 2) : 0;
        const int at = lane * 2 + odd;
        const uint32_t low = staged(buffer, line0 + i, at);
        const uint32_t high = staged(buffer, line0 + i, (at + 1) % 64);
        if (s.c_col == 1 && at + 1 < 64 && col + at + 1 < s.n) {
            *reinterpret_cast<uint32_t*>(to + at) = low | high << 16;
        } else {
            if (col + at < s.n) to[at * s.c_col] = T{static_cast<uint16_t>(low)};
            if (at + 1 < 64 && col + at + 1 < s.n) to[(at + 1) * s.c_col] = T{static_cast<uint16_t>(high)};
        }
        if (odd && lane == 0 && col < s.n) to[0] = T{static_cast<uint16_t>(staged(buffer, line0 + i, 0))};
    }
}
