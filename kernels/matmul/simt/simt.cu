// c = a @ b in IEEE float32: every product and sum is one fused multiply-add, in order of k. For CUDA
// and HIP.
//
// A block computes TILE_M x TILE_N of c, a thread QUADS_M x QUADS_N blocks of 4 x 4. Tiles of TILE_K go
// from global memory through registers to shared memory, one ahead of the arithmetic, and are stored
// k by k ([k][row of a] and [k][column of b]) so that a thread's factors are 16-byte reads; they are read
// one k ahead.
//
// Defines: TILE_M, TILE_N, TILE_K, THREADS_M, THREADS_N (threads along rows and columns of c), GROUP_M;
// A_K_MAJOR, B_K_MAJOR: whether the operand is K-major; A_BYTES, B_BYTES: 16 where every row is 16-byte
// aligned, else 4; C_VECTOR: c is row-major and 16-byte aligned; BIAS, ACTIVATION.
#include "prelude.h"

#include "matmul/epilogue.h"
#include "simt_store.h"
#include "matmul/tile.h"

constexpr int THREADS = THREADS_M * THREADS_N;
constexpr int QUADS_M = TILE_M / THREADS_M / 4;
constexpr int QUADS_N = TILE_N / THREADS_N / 4;
static_assert(THREADS_M % 4 == 0 && THREADS_N % 8 == 0, "32 neighbouring threads form a 4 x 8 patch");
static_assert(TILE_K % 2 == 0, "the factors of k and k + 1 are held at once");

// Rows of a tile in shared memory are padded by PAD elements, so that the rows or
// columns that a transposing store writes at once fall into different banks.
constexpr int PAD = 4;
constexpr int BUFFER_A = TILE_K * (TILE_M + PAD);
constexpr int BUFFER_B = TILE_K * (TILE_N + PAD);

// One operand's tile: EXTENT rows (of a) or columns (of b), TILE_K deep, in quads along the unit stride.
template <int EXTENT, bool K_MAJOR, int BYTES> struct OperandTile {
    static constexpr int PER_LINE = (K_MAJOR ? TILE_K : EXTENT) / 4;
    static constexpr int COUNT = EXTENT * TILE_K / 4 / THREADS;
    static_assert(COUNT * THREADS * 4 == EXTENT * TILE_K, "quads divide among threads");

    const float* base;
    const float* from[COUNT];  // this thread's quads of the next tile
    int64_t leading;
    int first, extent;
    bool whole;  // quads that are loaded in full belong to valid lines, or to none that is stored
    Quad held[COUNT];

    static DEVICE int line(int i) { return (i * THREADS + thread_x()) / PER_LINE; }
    static DEVICE int start(int i) { return (i * THREADS + thread_x()) % PER_LINE * 4; }

    DEVICE OperandTile(const float* base, int64_t leading, int first, int extent)
        : base(base), leading(leading), first(first), extent(extent) {
        // Beyond the last row or column, what is there is read once more: no sum of it is stored.
        whole = K_MAJOR || first + EXTENT <= extent || (BYTES == 16 && extent % 4 == 0);
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            const int place = first + (K_MAJOR ? line(i) : start(i));
            const int last = K_MAJOR ? extent - 1 : extent - 4;
            const int64_t valid = place < last ? place : last;
            from[i] = K_MAJOR ? base + valid * leading + start(i) : base + line(i) * leading + valid;
        }
    }

    // The tile from `k` on, of which `depth` are left; tiles are loaded in order.
    DEVICE void load(int k, int depth) {
        if (whole && depth >= TILE_K) {
#pragma unroll
            for (int i = 0; i < COUNT; ++i) {
                if (BYTES == 16) {
                    held[i] = *reinterpret_cast<const Quad*>(from[i]);
                } else {
#pragma unroll
                    for (int e = 0; e < 4; ++e) held[i].v[e] = from[i][e];
                }
                from[i] += K_MAJOR ? TILE_K : TILE_K * leading;
            }
            return;
        }
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            const int across = K_MAJOR ? first + line(i) : k + line(i);
            const int along = K_MAJOR ? k + start(i) : first + start(i);
            const int left = K_MAJOR ? depth - start(i) : extent - along;
            const int valid = (K_MAJOR ? across < extent : line(i) < depth) ? left : 0;
            const float* at = base + across * leading + along;
#pragma unroll
            for (int e = 0; e < 4; ++e) held[i].v[e] = e < valid ? at[e] : 0.0f;
        }
    }

    DEVICE void store(float* shared) const {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            if (K_MAJOR) {
#pragma unroll
                for (int e = 0; e < 4; ++e) shared[(start(i) + e) * (EXTENT + PAD) + line(i)] = held[i].v[e];
            } else {
                *reinterpret_cast<Quad*>(shared + line(i) * (EXTENT + PAD) + start(i)) = held[i];
            }
        }
    }
};

KERNEL(THREADS)
void matmul_simt(const float* a, const float* b, const float* bias, float* c, Z_PARAMETER(float) SIZES_PARAMETERS) {
    SHARED alignas(16) float shared_a[2 * BUFFER_A];
    SHARED alignas(16) float shared_b[2 * BUFFER_B];
    const Sizes s = SIZES_ARGUMENTS;
    const Tile tile = tile_at<TILE_M, TILE_N, GROUP_M>(static_cast<uint32_t>(block_x()), s);
    a += tile.outer * s.a_outer + tile.inner * s.a_inner;
    b += tile.outer * s.b_outer + tile.inner * s.b_inner;
    c += tile.outer * s.c_outer + tile.inner * s.c_inner;

    // 32 neighbouring threads cover 4 quads of rows and 8 of columns: 64 and 128 bytes of shared memory.
    const int patch = thread_x() / 32;
    const int y = patch / (THREADS_N / 8) * 4 + thread_x() % 32 / 8;
    const int x = patch % (THREADS_N / 8) * 8 + thread_x() % 8;

    OperandTile<TILE_M, A_K_MAJOR, A_BYTES> next_a(a, s.a_leading, tile.row, s.m);
    OperandTile<TILE_N, B_K_MAJOR, B_BYTES> next_b(b, s.b_leading, tile.col, s.n);
    float sum[QUADS_M * 4][QUADS_N * 4] = {};
    const int steps = s.k / TILE_K + (s.k % TILE_K != 0);
    if (steps > 0) {
        next_a.load(0, s.k);
        next_b.load(0, s.k);
        next_a.store(shared_a);
        next_b.store(shared_b);
    }
    Quad row[2][QUADS_M];
    Quad col[2][QUADS_N];
    int now_a = 0, now_b = 0;  // offsets of the current tiles
    const auto read = [&](int k, Quad(&rows)[QUADS_M], Quad(&cols)[QUADS_N]) {
        const float* tile_a = shared_a + now_a + y * 4 + k * (TILE_M + PAD);
        const float* tile_b = shared_b + now_b + x * 4 + k * (TILE_N + PAD);
#pragma unroll
        for (int q = 0; q < QUADS_M; ++q)
            rows[q] = *reinterpret_cast<const Quad*>(tile_a + q * THREADS_M * 4);
#pragma unroll
        for (int q = 0; q < QUADS_N; ++q)
            cols[q] = *reinterpret_cast<const Quad*>(tile_b + q * THREADS_N * 4);
    };
    barrier();
    read(0, row[0], col[0]);
    for (int step = 0; step < steps; ++step) {
        const bool more = step + 1 < steps;
#pragma unroll
        for (int k = 0; k < TILE_K; ++k) {
            if (k == 1 && more) {
                const int next = (step + 1) * TILE_K;
                next_a.load(next, s.k - next);
                next_b.load(next, s.k - next);
            }
            if (k == TILE_K - 1) {
                if (more) {
                    next_a.store(shared_a + (BUFFER_A - now_a));
                    next_b.store(shared_b + (BUFFER_B - now_b));
                }
                now_a = BUFFER_A - now_a;
                now_b = BUFFER_B - now_b;
                barrier();
            }
            read((k + 1) % TILE_K, row[(k + 1) % 2], col[(k + 1) % 2]);
            // Down one column and up the next: neighbouring products share a factor, which the operand
            // cache of the register file then holds.
#pragma unroll
            for (int j = 0; j < QUADS_N * 4; ++j) {
#pragma unroll
                for (int at = 0; at < QUADS_M * 4; ++at) {
                    const int i = j % 2 ? QUADS_M * 4 - 1 - at : at;
                    sum[i][j] = math_fma(row[k % 2][i / 4].v[i % 4], col[k % 2][j / 4].v[j % 4], sum[i][j]);
                }
            }
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
            const int64_t place = row * s.c_row + col * s.c_col;
            Quad value;
#pragma unroll
            for (int e = 0; e < 4; ++e) value.v[e] = preactivation(unbound(sum[i][q * 4 + e], s.k), shift[e]);
#if PREACTIVATION
            store(z + tile.outer * s.c_outer + tile.inner * s.c_inner + place, value, s.n - col, s.c_col);
#endif
#pragma unroll
            for (int e = 0; e < 4; ++e) value.v[e] = activate(value.v[e]);
            store(c + place, value, s.n - col, s.c_col);
        }
    }
}
