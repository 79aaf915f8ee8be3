// wgmma.cu's epilogue: accumulators are finished and converted to 16 bits at once, so that they are free for the next
// tile, then stored in blocks of 64 x 64 through shared memory.
#pragma once

#include "prelude.h"

#include "matmul/epilogue.h"
#include "_lib/ptx/matrix.h"
#include "_lib/ptx/tma.h"
#include "matmul/tile.h"

constexpr int BLOCK_BYTES = 64 * 128;  // 64 rows of 128 bytes
constexpr int BLOCK_WORDS = 16;        // of a thread, in 16-bit pairs, per block of 64 x 64
constexpr int C_BUFFERS = 2;           // blocks per consumer whose store is under way

// Bias of the thread's pair of columns, loaded long before it is used.
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

// Writes bias pairs to shared memory for all threads of the consumer.
template <int COLUMNS> DEVICE void share_bias(uint32_t at, uint32_t pair, int consumer) {
#if BIAS
    named_barrier_sync(consumer + 1, 128);
    const int thread = thread_x() % 128;
    if (thread * 2 < COLUMNS) asm volatile("st.shared.u32 [%0], %1;" ::"r"(at + thread * 4), "r"(pair) : "memory");
    named_barrier_sync(consumer + 1, 128);
#endif
}

// Finishes (with ACTIVATED, else adds only the bias) COUNT accumulators and converts them to 16-bit pairs: word 2 * j +
// down holds columns 8 * j + lane % 4 * 2 and the next one of row lane / 4 + 8 * down of the warp's 16.
template <class T, int COUNT, bool ACTIVATED = true>
DEVICE void convert(uint32_t* words, const float* sum, uint32_t bias) {
    const auto value = [](float sum, float bias) { return ACTIVATED ? finish(sum, bias) : preactivation(sum, bias); };
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
                pack2<T>(value(sum[j * 4 + down * 2], bias0), value(sum[j * 4 + down * 2 + 1], bias1));
    }
}

// The same of COUNT accumulators of gate, which those of up follow.
template <class T, int COUNT> DEVICE void convert_gated(uint32_t* words, const float* sum) {
#pragma unroll
    for (int i = 0; i < COUNT; i += 2)
        words[i / 2] = pack2<T>(finish_gated(sum[i], sum[COUNT + i]), finish_gated(sum[i + 1], sum[COUNT + i + 1]));
}

// One converted block into shared memory, rows with the 128-byte swizzle. A warp writes its 16 rows; with C_COL_MAJOR
// 32 bytes of every row, which is a column of the tile.
DEVICE void stage_block(uint32_t at, const uint32_t* words) {
    const int lane = thread_x() % 32;
#if C_COL_MAJOR
    // stmatrix: lanes 0-7, 8-15 address 8 columns of rows 0-7, 8-15, lanes 16-31 the next 8 columns.
    const int across = thread_x() % 128 / 32 * 2 + lane / 8 % 2;
#pragma unroll
    for (int j = 0; j < 8; j += 2)
        stmatrix_x4_trans(at + ((j + lane / 16) * 8 + lane % 8) * 128 + (across ^ lane % 8) * 16,
                                  words + j * 2);
#else
    // stmatrix: lanes 0-7, 8-15 address rows 0-7, 8-15 of the left 8 columns, lanes 16-31 of the right.
    const int line = thread_x() % 128 / 32 * 16 + lane % 16;
#pragma unroll
    for (int j = 0; j < 8; j += 2)
        stmatrix_x4(at + line * 128 + ((j + lane / 16) ^ line % 8) * 16, words + j * 2);
#endif
}

// First row and column of a consumer's 64 x 64 block of c, its batch, and the first column beyond its tile.
struct BlockPosition {
    int row, col, outer, inner, end;
};

// Stores the 16 rows of a staged block that this warp wrote, 16 bytes a thread: for a c with 16-byte aligned rows.
template <class T> DEVICE void store_lines(uint32_t staged, T* c, BlockPosition to, const Sizes& s) {
    const int line0 = thread_x() % 128 / 32 * 16;
    const int end = to.end < s.n ? to.end : s.n;
    c += to.outer * s.c_outer + to.inner * s.c_inner + to.row * s.c_row + to.col;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int line = line0 + i * 4 + thread_x() % 32 / 8, across = thread_x() % 8;
        uint4 v;
        asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                     : "r"(staged + line * 128 + (across ^ line % 8) * 16)
                     : "memory");
        const int col = to.col + across * 8;
        if (to.row + line >= s.m || col >= end) continue;
        T* at = c + line * s.c_row + across * 8;
        if (col + 8 <= end) {
            *reinterpret_cast<uint4*>(at) = v;
        } else {
            const uint32_t w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
            for (int e = 0; e < 7; ++e)
                if (col + e < end) at[e] = T{static_cast<uint16_t>(w[e / 2] >> (e % 2 * 16))};
        }
    }
}

// One box of c; with STRIP_IN_L2 it leaves L2 before what is read again.
DEVICE void store_box(const TensorMap* map, uint32_t from, int x, int y, int z, int w) {
#if defined(STRIP_IN_L2) && STRIP_IN_L2
    tma_store_4d_cached(map, from, l2_evict_first(), x, y, z, w);
#else
    tma_store_4d(map, from, x, y, z, w);
#endif
}

// The TMA stores of a staged block: all that lies inside c and the tile, or nothing where the tile ends inside a box of
// 64 columns. With C_COL_MAJOR a box has C_BOX_COLS columns of the tile.
DEVICE void tma_store_block(const TensorMap* map_c, uint32_t at, BlockPosition to, const Sizes& s) {
    if (to.row >= s.m) return;
#if C_COL_MAJOR
#pragma unroll
    for (int line = 0; line < 64; line += C_BOX_COLS)
        if (to.col + line < s.n && to.col + line < to.end)
            store_box(map_c, at + line * 128, to.row, to.col + line, to.inner, to.outer);
#else
    if (to.col < s.n && to.end - to.col >= 64) store_box(map_c, at, to.col, to.row, to.inner, to.outer);
#endif
}

// Through buffer `buffer` of C_BUFFERS at `buffers`; a block outside c is not written. The store runs on after this
// returns. Where the tile ends inside the block, threads store it: the TMA box has 64 columns.
template <class T>
DEVICE void store_by_tma(uint32_t buffers, int buffer, const TensorMap* map_c, T* c, const uint32_t* words,
                         BlockPosition to, int consumer, const Sizes& s) {
    const bool first = thread_x() % 128 == 0;
    const uint32_t at = buffers + buffer * BLOCK_BYTES;
    if (first) tma_store_wait_read<C_BUFFERS - 1>();
    named_barrier_sync(consumer + 1, 128);
    stage_block(at, words);
    fence_proxy_async();
    named_barrier_sync(consumer + 1, 128);
    if (!C_COL_MAJOR && to.end - to.col < 64) store_lines(at, c, to, s);
    if (first) {
        tma_store_block(map_c, at, to, s);
        tma_store_commit();
    }
}

// Without a memory clobber: it may run before stores to c.
DEVICE uint32_t staged_word(uint32_t at) {
    uint32_t word;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(at));
    return word;
}

// The same without TMA, for a c whose rows are not 16-byte aligned or not contiguous. A warp writes a row at a time: in
// words where c is row-major, whatever the parity of a row's address.
//
// 2026-11-21, 4096x4097x4096: with words read and stored row after row 213 us, beside 179 us for 4104 columns.
template <class T>
DEVICE void store_by_threads(uint32_t buffer, T* c, const uint32_t* words, BlockPosition place, const Sizes& s) {
    constexpr int UNROLL = 8;  // rows
    const int lane = thread_x() % 32;
    const int line0 = thread_x() % 128 / 32 * 16;
    __syncwarp();
    stage_block(buffer, words);
    __syncwarp();
    const int rows = s.m - place.row - line0;
    const int end = place.end < s.n ? place.end : s.n;
    const int columns = end - place.col < 64 ? end - place.col : 64;
    if (columns <= 0) return;
    T* to = c + place.outer * s.c_outer + place.inner * s.c_inner + (place.row + line0) * s.c_row +
            place.col * s.c_col;
#if C_CONTIGUOUS
    // Columns after the thread's pair, which starts one column later in a row that starts between two words.
    const int left = columns - 1 - lane * 2;
    const int64_t step = s.c_row * static_cast<int64_t>(sizeof(T));
    char* row = reinterpret_cast<char*>(to);
#pragma unroll 1
    for (int first = 0; first < 16 && first < rows; first += UNROLL) {
        const uint32_t lines = buffer + (line0 + first) * 128;
        uint32_t word[UNROLL], next[UNROLL];
#pragma unroll
        for (int i = 0; i < UNROLL; ++i) {
            word[i] = staged_word(lines + i * 128 + (lane * 4 ^ i * 16));
            next[i] = staged_word(lines + i * 128 + ((lane + 1) % 32 * 4 ^ i * 16));
        }
#pragma unroll
        for (int i = 0; i < UNROLL; ++i, row += step) {
            const bool inside = first + i < rows;
            const int odd = static_cast<int>(reinterpret_cast<uint64_t>(row)) & 2;
            const uint32_t pair = __funnelshift_r(word[i], next[i], odd * 8);
            char* at = row + lane * 4 + odd;
            if (inside && odd / 2 < left) *reinterpret_cast<uint32_t*>(at) = pair;
            if (inside && odd / 2 == left) *reinterpret_cast<uint16_t*>(at) = static_cast<uint16_t>(pair);
            if (inside && odd > lane * 2) *reinterpret_cast<uint16_t*>(row) = static_cast<uint16_t>(word[i]);
        }
    }
#else
#pragma unroll 1
    for (int i = 0; i < 16 && i < rows; ++i, to += s.c_row) {
        const uint32_t word = staged_word(buffer + (line0 + i) * 128 + (lane * 4 ^ i % 8 * 16));
        if (lane * 2 < columns) to[lane * 2 * s.c_col] = T{static_cast<uint16_t>(word)};
        if (lane * 2 + 1 < columns) to[(lane * 2 + 1) * s.c_col] = T{static_cast<uint16_t>(word >> 16)};
    }
#endif
}

// All BLOCKS blocks of the last tile, through the pipeline's stages at `stages`: no load is under way, and the warps
// have waited for all wgmmas of the block.
//
// 2026-11-21, by threads in 16-byte vectors instead of TMA: 1024^3 6.6 us, not 6.4; 2048^3 the same.
template <class T, int BLOCKS, int CONSUMERS>
DEVICE void store_last(uint32_t stages, const TensorMap* map_c, T* c, const uint32_t* words, BlockPosition to,
                       int consumer, const Sizes& s) {
    const uint32_t own = stages + consumer * BLOCKS * BLOCK_BYTES;
    named_barrier_sync(6, CONSUMERS * 128);
#if C_TMA
#pragma unroll
    for (int block = 0; block < BLOCKS; ++block)
        stage_block(own + block * BLOCK_BYTES, words + block * BLOCK_WORDS);
    fence_proxy_async();
    named_barrier_sync(consumer + 1, 128);
    if (thread_x() % 128 == 0) {
#pragma unroll
        for (int block = 0; block < BLOCKS; ++block)
            tma_store_block(map_c, own + block * BLOCK_BYTES,
                        BlockPosition{to.row, to.col + block * 64, to.outer, to.inner, to.end}, s);
        tma_store_commit();
    }
    if (!C_COL_MAJOR && to.end - to.col < BLOCKS * 64) {
        const int last = (BLOCKS - 1) * 64;
        store_lines(own + (BLOCKS - 1) * BLOCK_BYTES, c,
                    BlockPosition{to.row, to.col + last, to.outer, to.inner, to.end}, s);
    }
#else
#pragma unroll
    for (int block = 0; block < BLOCKS; ++block)
        store_by_threads(own + block * BLOCK_BYTES, c, words + block * BLOCK_WORDS,
                         BlockPosition{to.row, to.col + block * 64, to.outer, to.inner, to.end}, s);
#endif
}
