// Small-M products: c (m x n) = x (m x k) @ w (k x n), m <= TILE_M, bound by reading w. What skinny.cu (tensor cores)
// and skinny_f32.cu (IEEE float32) share: all but the arithmetic.
//
// A block computes TILE_N columns of c. With K_SPLITS > 1 (split-K in a cluster) a cluster of K_SPLITS blocks does,
// each over its part of k; then each finishes and stores a share of the tile, adding the partial sums in order of rank
// from the blocks' shared memories. One producer thread keeps a pipeline of STAGES stages filled by TMA, each LINES
// 128-byte rows deep along k, with the 128-byte swizzle. In a stage w is first: per 128 bytes of k TILE_N rows
// (W_K_MAJOR 1), or squares of LINE k by LINE columns, one row per k (0); then x likewise. TMA fills what is outside an
// operand with zeros, but rows of x beyond the next eight are not loaded (X_K_MAJOR 1): TMA takes longer for rows
// outside than for those inside, and their sums are not stored.
//
// Defines: ELEMENT, TILE_M (rows of x, a power of two), TILE_N, K_SPLITS, LINES, STAGES, CONSUMERS (consumer warps),
// RESIDENT (blocks per multiprocessor), CONSTANT_W (no kernel still running writes w: with programmatic dependent launch
// a block fills its pipeline with w while the previous kernel ends), W_K_MAJOR, X_K_MAJOR; C_VECTOR: c is row-major with
// 16-byte aligned rows; BIAS, ACTIVATION, PREACTIVATION; GATED: the first half of w's TILE_N columns in a stage is
// gate's, the second up's.
#pragma once

#include "prelude.h"

#include "matmul/epilogue.h"
#include "_lib/ptx/cluster.h"
#include "_lib/ptx/pdl.h"
#include "_lib/ptx/pipeline.h"
#include "_lib/ptx/tma.h"
#include "matmul/tile.h"

using T = ELEMENT;

constexpr int LINE = 128 / sizeof(T);  // elements
constexpr int DEPTH = LINE * LINES;
constexpr int THREADS = (CONSUMERS + 1) * 32;
constexpr int X_LINES = X_K_MAJOR ? TILE_M : (TILE_M + LINE - 1) / LINE * LINE;
constexpr int W_BYTES = TILE_N * 128;                          // of one 128-byte row along k
constexpr int X_BYTES = (X_LINES * 128 + 1023) / 1024 * 1024;  // the swizzle repeats every 1024 bytes
constexpr int STAGE_BYTES = LINES * (W_BYTES + X_BYTES);
constexpr int PITCH = TILE_N + 4;  // floats from row to row of a staged tile
constexpr int C_TILE_N = GATED ? TILE_N / 2 : TILE_N;

struct TilePipeline : Pipeline<STAGES, STAGE_BYTES> {
    using Pipeline::Pipeline;

    DEVICE uint32_t w(int line) const { return stage_base() + line * W_BYTES; }
    DEVICE uint32_t x(int line) const { return stage_base() + LINES * W_BYTES + line * X_BYTES; }
};

// The part of the product that a block computes: columns from `col`, steps first to last of DEPTH along k.
struct KRange {
    int col, inner, outer, rank, first, last;
};

DEVICE KRange part_of(const Sizes& s) {
    const uint32_t index = blockIdx.x / K_SPLITS;
    const uint32_t tiles = (static_cast<uint32_t>(s.n) + C_TILE_N - 1) / C_TILE_N;
    const uint32_t batch = index / tiles;
    const uint32_t outer = batch / static_cast<uint32_t>(s.inner_batches);
    const int rank = K_SPLITS == 1 ? 0 : cluster_rank();
    const int64_t steps = (static_cast<int64_t>(s.k) + DEPTH - 1) / DEPTH;
    const int col = static_cast<int>((index - batch * tiles) * C_TILE_N);
    const int inner = static_cast<int>(batch - outer * s.inner_batches);
    return {col, inner, static_cast<int>(outer), rank, static_cast<int>(steps * rank / K_SPLITS),
            static_cast<int>(steps * (rank + 1) / K_SPLITS)};
}

// w is read once: evicted from L2 before data that is read again.
DEVICE void tma_load_4d_evict_first(uint32_t to, const TensorMap* map, uint32_t barrier, int x, int y, int z, int w) {
    tma_load_4d_cached(to, map, barrier, l2_evict_first(), x, y, z, w);
}

struct Source {
    const TensorMap* w;
    const TensorMap* x;
    int w_inner, w_outer, x_inner, x_outer;  // a batch dimension over which an operand is broadcast has size 1
    int copied;                              // bytes of a stage

    DEVICE Source(const TensorMap* map_w, const TensorMap* map_x, const KRange& part, const Sizes& s)
        : w(map_w), x(map_x), w_inner(s.b_inner ? part.inner : 0), w_outer(s.b_outer ? part.outer : 0),
          x_inner(s.a_inner ? part.inner : 0), x_outer(s.a_outer ? part.outer : 0) {
        const int rows = (s.m + 7) / 8 * 8;
        copied = LINES * (W_BYTES + (X_K_MAJOR && rows < X_LINES ? rows : X_LINES) * 128);
    }

    // A stage's barrier expects both operands.
    DEVICE void copy_w(const TilePipeline& pipe, int col, int step) const {
        mbarrier_arrive_expect_tx(pipe.full_barrier(), copied);
#pragma unroll
        for (int line = 0; line < LINES; ++line) {
            const int k = step * DEPTH + line * LINE;
            if (W_K_MAJOR) {
                tma_load_4d_evict_first(pipe.w(line), w, pipe.full_barrier(), k, col, w_inner, w_outer);
            } else {
#pragma unroll
                for (int i = 0; i < TILE_N / LINE; ++i)
                    tma_load_4d_evict_first(pipe.w(line) + i * LINE * 128, w, pipe.full_barrier(),
                                            col + i * LINE % C_TILE_N, k, w_inner, w_outer + i * LINE / C_TILE_N);
            }
        }
    }

    DEVICE void copy_x(const TilePipeline& pipe, int step) const {
#pragma unroll
        for (int line = 0; line < LINES; ++line) {
            const int k = step * DEPTH + line * LINE;
            if (X_K_MAJOR) {
                tma_load_4d(pipe.x(line), x, pipe.full_barrier(), k, 0, x_inner, x_outer);
            } else {
#pragma unroll
                for (int i = 0; i < X_LINES / LINE; ++i)
                    tma_load_4d(pipe.x(line) + i * LINE * 128, x, pipe.full_barrier(), i * LINE, k, x_inner, x_outer);
            }
        }
    }
};

DEVICE bool is_producer() { return thread_x() == CONSUMERS * 32; }

// Fills the pipeline for the first time: w before the wait where that is constant, x after it.
DEVICE void fill(TilePipeline pipe, const Source& source, const KRange& part) {
    const int end = part.last - part.first < STAGES ? part.last : part.first + STAGES;
#if CONSTANT_W
    TilePipeline ahead = pipe;
    for (int step = part.first; step < end; ++step) {
        source.copy_w(ahead, part.col, step);
        ahead.advance();
    }
#endif
    grid_dependency_wait();
    for (int step = part.first; step < end; ++step) {
        if (!CONSTANT_W) source.copy_w(pipe, part.col, step);
        source.copy_x(pipe, step);
        pipe.advance();
    }
}

// Initialises the barriers and fills the pipeline. `consumers` arrivals make a stage empty. Every thread calls it.
DEVICE void start(TilePipeline pipe, const Source& source, const KRange& part, int consumers) {
    if (is_producer()) {
        tma_prefetch_descriptor(source.w);
        tma_prefetch_descriptor(source.x);
        pipe.init(consumers);
        mbarrier_init_fence();
        fence_proxy_async();  // the copies below use them at once
        fill(pipe, source, part);
    }
    grid_dependency_wait();
    __syncwarp();
    barrier();
}

// The producer's further rounds: a stage is refilled once it is empty. The next kernel's blocks start where there is
// room when the last copies are on their way: earlier they would take the memory from them.
DEVICE void refill(TilePipeline pipe, const Source& source, const KRange& part) {
    for (int step = part.first + STAGES; step < part.last; ++step) {
        mbarrier_wait(pipe.empty_barrier(), pipe.phase);
        source.copy_w(pipe, part.col, step);
        source.copy_x(pipe, step);
        pipe.advance();
    }
    launch_dependents();
}

using Quad = vec<float, 4>;

// Four floats of the shared memory of block `rank` of the cluster.
DEVICE Quad load_quad(uint32_t at, int rank) {
    Quad q;
    if (K_SPLITS == 1)
        asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(q.v[0]), "=f"(q.v[1]), "=f"(q.v[2]), "=f"(q.v[3])
                     : "r"(at)
                     : "memory");
    else
        asm volatile("{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, %4, %5;\n"
                     "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [remote];\n}"
                     : "=f"(q.v[0]), "=f"(q.v[1]), "=f"(q.v[2]), "=f"(q.v[3])
                     : "r"(at), "r"(rank)
                     : "memory");
    return q;
}

DEVICE void cluster_or_block_sync() {
    if (K_SPLITS == 1) barrier();
    else cluster_sync();
}

constexpr int VECTOR = 16 / sizeof(T);

// The first `left` of a vector of columns of c.
DEVICE void store_columns(T* to, const vec<T, VECTOR>& values, int left, int64_t c_col) {
    if (C_VECTOR && left >= VECTOR) {
        *reinterpret_cast<vec<T, VECTOR>*>(to) = values;
    } else {
#pragma unroll
        for (int e = 0; e < VECTOR; ++e)
            if (e < left) to[e * c_col] = values.v[e];
    }
}

// The sums over the cluster's blocks, in order of rank, of VECTOR columns that every block has staged at `at`.
DEVICE void add_partials(float (&sum)[VECTOR], uint32_t at) {
    Quad partials[K_SPLITS][VECTOR / 4];
#pragma unroll
    for (int rank = 0; rank < K_SPLITS; ++rank) {
#pragma unroll
        for (int q = 0; q < VECTOR / 4; ++q) partials[rank][q] = load_quad(at + q * 16, rank);
    }
#pragma unroll
    for (int e = 0; e < VECTOR; ++e) {
        sum[e] = partials[0][e / 4].v[e % 4];
#pragma unroll
        for (int rank = 1; rank < K_SPLITS; ++rank) sum[e] += partials[rank][e / 4].v[e % 4];
    }
}

// Adds the partial sums that every block of the cluster has staged at `at`, [row][column] with PITCH, and stores this
// block's share of them.
DEVICE void finish_tile(uint32_t at, T* c, T* z, const T* bias, const KRange& part, const Sizes& s) {
    constexpr int ACROSS = C_TILE_N / VECTOR;
    cluster_or_block_sync();
    const int rows = s.m < TILE_M ? s.m : TILE_M;
    const int64_t start = part.outer * s.c_outer + part.inner * s.c_inner;
    for (int i = part.rank * THREADS + thread_x(); i < rows * ACROSS; i += K_SPLITS * THREADS) {
        const int row = i / ACROSS, within = i % ACROSS * VECTOR;
        const int col = part.col + within;
        float sums[VECTOR];
        add_partials(sums, at + (row * PITCH + within) * 4);
        vec<T, VECTOR> values, before;
#if GATED
        float up[VECTOR];
        add_partials(up, at + (row * PITCH + C_TILE_N + within) * 4);
#pragma unroll
        for (int e = 0; e < VECTOR; ++e) values.v[e] = from_float<T>(finish_gated(sums[e], up[e]));
#else
#pragma unroll
        for (int e = 0; e < VECTOR; ++e) {
            const float sum = preactivation(sums[e], col + e < s.n ? bias_at(bias, col + e) : 0.0f);
            before.v[e] = from_float<T>(sum);
            values.v[e] = from_float<T>(activate(sum));
        }
#endif
        const int64_t place = start + row * s.c_row + col * s.c_col;
        store_columns(c + place, values, s.n - col, s.c_col);
        if (PREACTIVATION) store_columns(z + place, before, s.n - col, s.c_col);
    }
    // A block must not exit while another still reads its shared memory.
    if (K_SPLITS > 1) cluster_sync();
}

#if K_SPLITS > 1
#define CLUSTER_DIMS __cluster_dims__(K_SPLITS, 1, 1)
#else
#define CLUSTER_DIMS
#endif
// The kernel of both files, from the includer's `multiply` (the main loop) and `stage_sums` (accumulators to shared memory).
// `consumers` arrivals make a stage empty.
#define SKINNY_KERNEL(name, consumers)                                                                         \
    extern "C" __global__ __launch_bounds__(THREADS, RESIDENT) CLUSTER_DIMS void name(                         \
        const __grid_constant__ TensorMap map_w, const __grid_constant__ TensorMap map_x, const T* bias, T* c, \
        Z_PARAMETER(T) SIZES_PARAMETERS) {                                                                     \
        DYNAMIC_SHARED(shared);                                                                                \
        const Sizes s = SIZES_ARGUMENTS;                                                                       \
        const uint32_t base = (shared_address(shared) + 1023) & ~1023u;                                        \
        const TilePipeline pipe(base, base + STAGES * STAGE_BYTES);                                            \
        const KRange part = part_of(s);                                                                        \
        const Source source(&map_w, &map_x, part, s);                                                          \
        start(pipe, source, part, consumers);                                                                  \
        if (thread_x() >= CONSUMERS * 32) {                                                                    \
            if (is_producer()) refill(pipe, source, part);                                                     \
            __syncwarp();                                                                                      \
            barrier(); /* no stage is read any more */                                                         \
        } else {                                                                                               \
            float sum[SUMS];                                                                                   \
            multiply(pipe, part, sum);                                                                         \
            barrier();                                                                                         \
            stage_sums(base, sum);                                                                             \
        }                                                                                                      \
        finish_tile(base, c, Z_ARGUMENT, bias, part, s);                                                       \
    }
