// What the matrix-core kernels of gfx9 (mfma.hip) and of gfx11/gfx12 (wmma.hip) share: the raster; and the copies of
// a and b from global memory to LDS and the main loop of mfma.hip's operands of any alignment.
//
// -DTILE_M -DTILE_N -DTILE_K: the block's tile. -DTHREADS: its threads. -DA_K_MAJOR -DB_K_MAJOR: 1 where neighbours in
// memory are neighbours in k, 0 where they are rows of a (columns of b).
//
// -DGATED=1: b is gate and up (epilogue.h), K-major. The includer defines GATED_RUN.
#pragma once

#include "_lib/amdgcn/lds.h"
#include "matmul/gfx/output.h"
#include "matmul/gfx/raster.h"

#if GATED && !B_K_MAJOR
#error "gate and up must be K-major"
#endif

constexpr int CHUNK = 8;  // elements of k in the 16 bytes that one lane moves at a time

struct Matrix {
    const T* data;
    int64_t leading;  // elements from one line to the next; along the line the stride is 1
    int lines;        // rows of a, columns of b
    int64_t apart;    // elements from gate to up
};

// Where a tile's line is in memory: its place among the matrix's lines, and which matrix, of gate and up. Those of a
// GATED tile are of gate and of up in turn, GATED_RUN at a time: where a lane's accumulators of gate meet up's.
template <bool GATED_TILE> DEVICE int matrix_line(int line) {
    return GATED_TILE ? line / (2 * GATED_RUN) * GATED_RUN + line % GATED_RUN : line;
}
template <bool GATED_TILE> DEVICE int matrix_of(int line) { return GATED_TILE ? line / GATED_RUN % 2 : 0; }

// The slot of 16 bytes where `chunk` of a line of LDS lies (swizzle): chunks of a line are permuted (XOR), so that the
// lanes that the hardware serves together touch different banks; 32 banks of 4 bytes hold 8 chunks.
// CDNA's matrix cores read interleaved lines (fragments.h), and gfx942 and gfx950 serve 16-byte reads in groups such as
// lanes 0-3 and 20-23: found by trying all keys of line bits against both (2026-11-23).
template <int LINE_BYTES> DEVICE int swizzled(int line, int chunk) {
    constexpr int CHUNKS = LINE_BYTES / 16;
    static_assert(CHUNKS == 4 || CHUNKS == 8, "the permutation covers 64- and 128-byte lines");
    const int key = CHUNKS == 8 ? (line & 3) ^ (line >> 3 & 2) | (line >> 1 & 4) : ((line & 3) | (line >> 1 & 4)) >> 1;
    return (chunk ^ key) & (CHUNKS - 1);
}

// A tile in LDS: `ROWS` lines of TILE_K elements, in chunks of 16 bytes. No padding, so two stages of 128x128x32 take
// 32 KB and two blocks fit one CU.
template <int ROWS> struct Lds {
    static constexpr int CHUNKS = TILE_K / CHUNK;
    static constexpr int LINE_BYTES = TILE_K * 2;
    static constexpr int BYTES = ROWS * LINE_BYTES;

    static DEVICE int offset(int row, int chunk) {
        return row * LINE_BYTES + swizzled<LINE_BYTES>(row, chunk) * 16;
    }
};

// Moves ROWS x TILE_K elements: `load` from global memory into registers, `store` from there to LDS.
// Lines beyond the matrix hold anything finite or not, they only reach rows or columns of c that do not
// exist; elements beyond K are zero in both operands.
template <int ROWS, bool K_MAJOR, bool GATED_TILE = false> struct TileCopy;

// Memory runs along k: a thread moves whole chunks.
template <int ROWS, bool GATED_TILE> struct TileCopy<ROWS, true, GATED_TILE> {
    static constexpr int CHUNKS = Lds<ROWS>::CHUNKS;
    static constexpr int COUNT = ROWS * CHUNKS / THREADS;
    static constexpr int STEP = THREADS / CHUNKS;  // lines between two chunks of one thread
    static_assert(COUNT * THREADS == ROWS * CHUNKS, "every thread moves the same number of chunks");

    const T* from[COUNT];
    words<16> held[COUNT];
    int row, chunk;

    DEVICE TileCopy(const Matrix& matrix, int first) {
        row = thread_x() / CHUNKS;
        chunk = thread_x() % CHUNKS;
        for (int i = 0; i < COUNT; ++i) {
            const int at = first + row + i * STEP;
            const int line = min(matrix_line<GATED_TILE>(at), matrix.lines - 1);
            from[i] = matrix.data + matrix_of<GATED_TILE>(at) * matrix.apart + line * matrix.leading + chunk * CHUNK;
        }
    }

    // `left`: elements of k from here to the end of the matrix.
    DEVICE void load(int left) {
        if (left >= TILE_K) {
            for (int i = 0; i < COUNT; ++i) {
                held[i] = load_unaligned<16>(from[i]);
                from[i] += TILE_K;
            }
            return;
        }
        const int valid = left - chunk * CHUNK;
        for (int i = 0; i < COUNT; ++i) {
            vec<T, CHUNK> values;
            for (int k = 0; k < CHUNK; ++k) {
                values.v[k].bits = 0;
                if (k < valid) {
                    values.v[k] = from[i][k];
                }
            }
            held[i] = __builtin_bit_cast(words<16>, values);
        }
    }

    DEVICE void store(char* lds) const {
        for (int i = 0; i < COUNT; ++i) {
            store_words<16>(lds + Lds<ROWS>::offset(row + i * STEP, chunk), held[i]);
        }
    }
};

// Memory runs along the lines' index: a thread moves blocks of 4 lines x 4 k, transposed in registers.
template <int ROWS> struct TileCopy<ROWS, false, false> {
    static constexpr int SIDE = 4;
    static constexpr int BLOCKS = ROWS * TILE_K / (SIDE * SIDE);
    static constexpr int COUNT = (BLOCKS + THREADS - 1) / THREADS;

    const T* from[COUNT];
    words<8> held[COUNT][SIDE];
    int64_t leading;
    int first, lines;
    bool inside;  // the whole tile lies in the matrix

    static DEVICE int block(int i) { return thread_x() + i * THREADS; }
    static DEVICE bool exists(int i) { return BLOCKS % THREADS == 0 || block(i) < BLOCKS; }
    // 16 lanes, which write LDS together, cover 8 blocks of k of two lines whose swizzles differ in the highest bit;
    // a wave reads 32 lines of 8 k at a time.
    static DEVICE int line_of(int i) {
        const int within = (block(i) % 2 * 2 + block(i) / 16 % 2) * SIDE;
        return within + block(i) / 32 % (ROWS / 16) * 16;
    }
    static DEVICE int k_of(int i) { return (block(i) / 2 % 8 + block(i) / (ROWS * 2) * 8) * SIDE; }

    DEVICE TileCopy(const Matrix& matrix, int start)
        : leading(matrix.leading), first(start), lines(matrix.lines), inside(start + ROWS <= matrix.lines) {
        for (int i = 0; i < COUNT; ++i) {
            from[i] = matrix.data + k_of(i) * leading + (first + line_of(i));
        }
    }

    DEVICE void load(int left) {
        const bool full = inside && left >= TILE_K;
        for (int i = 0; i < COUNT; ++i) {
            if (!exists(i)) {
                continue;
            }
            if (full) {
                for (int k = 0; k < SIDE; ++k) {
                    held[i][k] = load_unaligned<8>(from[i] + k * leading);
                }
            } else {
                load_tail(i, left);
            }
            from[i] += TILE_K * leading;
        }
    }

    DEVICE void load_tail(int i, int left) {
        const int valid = lines - first - line_of(i);
        for (int k = 0; k < SIDE; ++k) {
            vec<T, SIDE> values = {};
            const bool real = k_of(i) + k < left;
            if (real && valid >= SIDE) {
                values = __builtin_bit_cast(vec<T, SIDE>, load_unaligned<8>(from[i] + k * leading));
            } else if (real) {
                for (int line = 0; line < SIDE; ++line) {
                    if (line < valid) {
                        values.v[line] = from[i][k * leading + line];
                    }
                }
            }
            held[i][k] = __builtin_bit_cast(words<8>, values);
        }
    }

    DEVICE void store(char* lds) const {
        for (int i = 0; i < COUNT; ++i) {
            if (!exists(i)) {
                continue;
            }
            const int k = k_of(i);
            for (int line = 0; line < SIDE; ++line) {
                const words<8> column = {{pair(i, 0, line), pair(i, 2, line)}};
                const int at = Lds<ROWS>::offset(line_of(i) + line, k / CHUNK) + k % CHUNK * 2;
                store_words<8>(lds + at, column);
            }
        }
    }

    // Elements k and k + 1 of one line as a word.
    DEVICE uint32_t pair(int i, int k, int line) const {
        const uint32_t low = held[i][k].w[line / 2];
        const uint32_t high = held[i][k + 1].w[line / 2];
        return line % 2 == 0 ? (low & 0xffffu) | high << 16 : low >> 16 | (high & 0xffff0000u);
    }
};

// One tile of c by one block. Core holds the accumulators: `add(a_tile, b_tile)` adds the product of two
// LDS tiles, `store(output, m, n)` writes them. LDS has two stages: while the matrix cores work on one,
// the next tile is loaded from global memory to registers, then to the other; one barrier per tile.
template <class Core, bool A_K, bool B_K> struct TwoStage {
    static constexpr int STAGE = Lds<TILE_M>::BYTES + Lds<TILE_N>::BYTES;
    static constexpr int LDS_BYTES = 2 * STAGE;

    static DEVICE void run(const Matrix& a, const Matrix& b, const Output& c, int K, TileCorner corner, char* lds) {
        Core core;
        if (K > 0) {
            TileCopy<TILE_M, A_K> a_copy(a, corner.m);
            TileCopy<TILE_N, B_K, GATED> b_copy(b, corner.n);
            a_copy.load(K);
            b_copy.load(K);
            a_copy.store(lds);
            b_copy.store(lds + Lds<TILE_M>::BYTES);
            lds_barrier();
            int stage = 0;
            int left = K;
            while (left > TILE_K) {
                left -= TILE_K;
                a_copy.load(left);
                b_copy.load(left);
                const char* const now = lds + stage * STAGE;
                core.add(now, now + Lds<TILE_M>::BYTES);
                stage ^= 1;
                char* const next = lds + stage * STAGE;
                a_copy.store(next);
                b_copy.store(next + Lds<TILE_M>::BYTES);
                lds_barrier();
            }
            const char* const last = lds + stage * STAGE;
            core.add(last, last + Lds<TILE_M>::BYTES);
        }
        core.store(c, corner.m, corner.n);
    }
};

// The kernel of both files. `Loop` computes a tile, with Loop::LDS_BYTES. Blocks: x counts tiles, y and z matrices of
// the batch, `batches_y` to a z.
#define MATMUL_KERNEL(name, Loop, XCDS)                                                                     \
    KERNEL_RESIDENT(THREADS, 512 / THREADS)                                                                 \
    void name(const T* a, const T* b, Sum* c, Z_PARAMETER(T) const T* bias, int M, int N, int K,            \
              SPLIT_PARAMETER int tiles_m, int tiles_n, int batches, int batches_y, int batches_inner, int64_t a_leading,                \
              int64_t b_leading, int64_t c_row, int64_t c_col, int64_t a_outer, int64_t a_inner,            \
              int64_t b_outer, int64_t b_inner, int64_t c_outer, int64_t c_inner) {                         \
        SHARED __attribute__((aligned(16))) char lds[Loop::LDS_BYTES];                                      \
        const int batch = block_z() * batches_y + block_y();                                                \
        if (batch >= batches) {                                                                             \
            return;                                                                                         \
        }                                                                                                   \
        const int64_t outer = batch / batches_inner, inner = batch % batches_inner;                         \
        const Matrix left = {a + outer * a_outer + inner * a_inner, a_leading, M, 0};                       \
        const Matrix right = {b + outer * b_outer + inner * b_inner, b_leading, N, b_outer};               \
        T* const before = Z_ARGUMENT;                                                                       \
        const int64_t start = outer * c_outer + inner * c_inner;                                            \
        const Output output = {c + start, before + start, bias, c_row, c_col, M, N};                        \
        Loop::run(left, right, output, SPLIT_DEPTH(K, inner), tile_corner<XCDS>(block_x(), tiles_m, tiles_n), lds);             \
    }
