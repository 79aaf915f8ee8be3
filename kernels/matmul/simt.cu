// c = a @ b in IEEE float32: every product and sum is one fused multiply-add, in order of k. For CUDA
// and HIP.
//
// A block computes TILE_M x TILE_N of c, a thread QUADS_M x QUADS_N blocks of 4 x 4. Tiles of TILE_K go
// from global memory through registers to shared memory, one ahead of the arithmetic, and lie there
// k-major ([k][row of a] and [k][column of b]) so that a thread's operands are 16-byte reads.
//
// Defines: TILE_M, TILE_N, TILE_K, THREADS_M, THREADS_N (threads along rows and columns of c), GROUP;
// A_ALONG_K, B_ALONG_K: whether the operand's unit stride is along k; A_BYTES, B_BYTES: 16 where every
// line is 16-byte aligned, else 4; C_VECTOR: c is row-major and 16-byte aligned; BIAS, ACTIVATION.
#include "prelude.h"

#include "epilogue.h"
#include "tile.h"

constexpr int THREADS = THREADS_M * THREADS_N;
constexpr int QUADS_M = TILE_M / THREADS_M / 4;
constexpr int QUADS_N = TILE_N / THREADS_N / 4;
static_assert(THREADS_M % 4 == 0 && THREADS_N % 8 == 0, "32 neighbouring threads form a 4 x 8 patch");

using Quad = vec<float, 4>;

// Where element (k, place) of a tile lies. The permutation moves whole quads, and spreads the columns
// that a transposing store writes at once over the banks.
template <int EXTENT> DEVICE int offset(int k, int place) { return k * EXTENT + (place ^ (k / 4 * 8 & (EXTENT - 1))); }

// One operand's tile: EXTENT rows (of a) or columns (of b), TILE_K deep, in quads along the unit stride.
template <int EXTENT, bool ALONG_K, int BYTES> struct OperandTile {
    static constexpr int PER_LINE = (ALONG_K ? TILE_K : EXTENT) / 4;
    static constexpr int COUNT = EXTENT * TILE_K / 4 / THREADS;
    static_assert(COUNT * THREADS * 4 == EXTENT * TILE_K, "quads divide among threads");

    Quad held[COUNT];

    static DEVICE int line(int i) { return (i * THREADS + thread_x()) / PER_LINE; }
    static DEVICE int start(int i) { return (i * THREADS + thread_x()) % PER_LINE * 4; }

    DEVICE void load(const float* base, int64_t leading, int first, int extent, int k, int depth) {
        const int line0 = ALONG_K ? first : k;
        const int lines = ALONG_K ? extent : depth;
        const int start0 = ALONG_K ? k : first;
        const int length = ALONG_K ? depth : extent;
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            const int at = start0 + start(i);
            const float* from = base + (line0 + line(i)) * leading + at;
            const int valid = line0 + line(i) < lines ? length - at : 0;
            if (BYTES == 16 && valid >= 4) {
                held[i] = *reinterpret_cast<const Quad*>(from);
            } else {
#pragma unroll
                for (int e = 0; e < 4; ++e) held[i].v[e] = e < valid ? from[e] : 0.0f;
            }
        }
    }

    DEVICE void store(float* shared) const {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            if (ALONG_K) {
#pragma unroll
                for (int e = 0; e < 4; ++e) shared[offset<EXTENT>(start(i) + e, line(i))] = held[i].v[e];
            } else {
                *reinterpret_cast<Quad*>(shared + offset<EXTENT>(line(i), start(i))) = held[i];
            }
        }
    }
};

KERNEL(THREADS)
void matmul_simt(const float* a, const float* b, const float* bias, float* c, SIZES_PARAMETERS) {
    SHARED alignas(16) float shared_a[2][TILE_K * TILE_M];
    SHARED alignas(16) float shared_b[2][TILE_K * TILE_N];
    const Sizes s = SIZES_ARGUMENTS;
    const Tile tile = tile_at<TILE_M, TILE_N, GROUP>(static_cast<uint32_t>(block_x()), s);
    a += tile.outer * s.a_outer + tile.inner * s.a_inner;
    b += tile.outer * s.b_outer + tile.inner * s.b_inner;
    c += tile.outer * s.c_outer + tile.inner * s.c_inner;

    // 32 neighbouring threads cover 4 quads of rows and 8 of columns: 64 and 128 bytes of shared memory.
    const int patch = thread_x() / 32;
    const int y = patch / (THREADS_N / 8) * 4 + thread_x() % 32 / 8;
    const int x = patch % (THREADS_N / 8) * 8 + thread_x() % 8;

    OperandTile<TILE_M, A_ALONG_K, A_BYTES> next_a;
    OperandTile<TILE_N, B_ALONG_K, B_BYTES> next_b;
    float sum[QUADS_M * 4][QUADS_N * 4] = {};
    const int steps = s.k / TILE_K + (s.k % TILE_K != 0);
    if (steps > 0) {
        next_a.load(a, s.a_leading, tile.row, s.m, 0, s.k);
        next_b.load(b, s.b_leading, tile.col, s.n, 0, s.k);
        next_a.store(shared_a[0]);
        next_b.store(shared_b[0]);
    }
    for (int step = 0; step < steps; ++step) {
        barrier();
        const bool more = step + 1 < steps;
        if (more) {
            next_a.load(a, s.a_leading, tile.row, s.m, (step + 1) * TILE_K, s.k);
            next_b.load(b, s.b_leading, tile.col, s.n, (step + 1) * TILE_K, s.k);
        }
        const float* tile_a = shared_a[step % 2];
        const float* tile_b = shared_b[step % 2];
#pragma unroll
        for (int k = 0; k < TILE_K; ++k) {
            Quad row[QUADS_M];
            Quad col[QUADS_N];
#pragma unroll
            for (int q = 0; q < QUADS_M; ++q)
                row[q] = *reinterpret_cast<const Quad*>(tile_a + offset<TILE_M>(k, (q * THREADS_M + y) * 4));
#pragma unroll
            for (int q = 0; q < QUADS_N; ++q)
                col[q] = *reinterpret_cast<const Quad*>(tile_b + offset<TILE_N>(k, (q * THREADS_N + x) * 4));
#pragma unroll
            for (int i = 0; i < QUADS_M * 4; ++i) {
#pragma unroll
                for (int j = 0; j < QUADS_N * 4; ++j)
                    sum[i][j] = math_fma(row[i / 4].v[i % 4], col[j / 4].v[j % 4], sum[i][j]);
            }
        }
        if (more) {
            next_a.store(shared_a[(step + 1) % 2]);
            next_b.store(shared_b[(step + 1) % 2]);
        }
    }

#pragma unroll
    for (int q = 0; q < QUADS_N; ++q) {
        const int col = tile.col + (q * THREADS_N + x) * 4;
        float shift[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) shift[e] = col + e < s.n ? bias_at(bias, col + e) : 0.0f;
#pragma unroll
        for (int i = 0; i < QUADS_M * 4; ++i) {
            const int row = tile.row + (i / 4 * THREADS_M + y) * 4 + i % 4;
            if (row >= s.m) continue;
            float* to = c + row * s.c_row + col * s.c_col;
            Quad value;
#pragma unroll
            for (int e = 0; e < 4; ++e) value.v[e] = finish(sum[i][q * 4 + e], shift[e]);
            if (C_VECTOR && col + 4 <= s.n) {
                *reinterpret_cast<Quad*>(to) = value;
            } else {
#pragma unroll
                for (int e = 0; e < 4; ++e)
                    if (col + e < s.n) to[e * s.c_col] = value.v[e];
            }
        }
    }
}
