// A product with few rows: c (m x n) = x (m x k) @ w (k x n), m <= TILE_M, bound by the reading of w. What
// skinny.cu (tensor cores) and skinny_f32.cu (IEEE float32) share: all but the arithmetic.
//
// A block computes TILE_N columns of c, or with SPLIT > 1 a cluster of SPLIT blocks does, each summing its
// part of k; then each finishes and stores a share of the tile, adding the parts in order of rank out of the
// blocks' shared memories. One thread keeps a ring of STAGES stages filled by the copy engine, each LINES
// lines of 128 bytes deep along k, with the 128-byte swizzle. In a stage w lies first: for each line along k
// TILE_N lines (W_ALONG_K 1), or squares of LINE k by LINE columns, one line per k (0); then x likewise.
// Zeros stand for what lies outside of an operand, but rows of x beyond the next eight are not copied (X_ALONG_K 1):
// the engine takes longer for lines outside than for those within, and nobody stores their sums.
//
// Defines: ELEMENT, TILE_M (rows of x, a power of two), TILE_N, SPLIT, LINES, STAGES, CONSUMERS (warps that
// multiply), RESIDENT (blocks per multiprocessor), PDL (programmatic dependent launch: a block
// prefetches w's first stages to L2 while the previous kernel ends), W_ALONG_K, X_ALONG_K; C_VECTOR: c is row-major with
// 16-byte aligned rows; BIAS, ACTIVATION, PREACTIVATION.
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
constexpr int X_LINES = X_ALONG_K ? TILE_M : (TILE_M + LINE - 1) / LINE * LINE;
constexpr int W_BYTES = TILE_N * 128;                          // of one line along k
constexpr int X_BYTES = (X_LINES * 128 + 1023) / 1024 * 1024;  // the swizzle repeats every 1024 bytes
constexpr int STAGE_BYTES = LINES * (W_BYTES + X_BYTES);
constexpr int PITCH = TILE_N + 4;  // floats from row to row of a staged tile of sums

struct TilePipeline : Pipeline<STAGES, STAGE_BYTES> {
    using Pipeline::Pipeline;

    DEVICE uint32_t w(int line) const { return stage_base() + line * W_BYTES; }
    DEVICE uint32_t x(int line) const { return stage_base() + LINES * W_BYTES + line * X_BYTES; }
};

// The part of the product that a block multiplies: columns from `col`, steps first to last of DEPTH along k.
struct Part {
    int col, inner, outer, rank, first, last;
};

DEVICE Part part_of(const Sizes& s) {
    const uint32_t index = blockIdx.x / SPLIT;
    const uint32_t tiles = (static_cast<uint32_t>(s.n) + TILE_N - 1) / TILE_N;
    const uint32_t batch = index / tiles;
    const uint32_t outer = batch / static_cast<uint32_t>(s.inner_batches);
    const int rank = SPLIT == 1 ? 0 : cluster_rank();
    const int64_t steps = (static_cast<int64_t>(s.k) + DEPTH - 1) / DEPTH;
    const int col = static_cast<int>((index - batch * tiles) * TILE_N);
    const int inner = static_cast<int>(batch - outer * s.inner_batches);
    return {col, inner, static_cast<int>(outer), rank, static_cast<int>(steps * rank / SPLIT),
            static_cast<int>(steps * (rank + 1) / SPLIT)};
}

// w is read once: it leaves L2 before what is read again.
DEVICE void tma_load_4d_evict_first(uint32_t to, const TensorMap* map, uint32_t barrier, int x, int y, int z, int w) {
    tma_load_4d_cached(to, map, barrier, l2_evict_first(), x, y, z, w);
}

struct Source {
    const TensorMap* w;
    const TensorMap* x;
    int w_inner, w_outer, x_inner, x_outer;  // a batch dimension over which an operand repeats has size 1
    int copied;                              // bytes of a stage

    DEVICE Source(const TensorMap* map_w, const TensorMap* map_x, const Part& part, const Sizes& s)
        : w(map_w), x(map_x), w_inner(s.b_inner ? part.inner : 0), w_outer(s.b_outer ? part.outer : 0),
          x_inner(s.a_inner ? part.inner : 0), x_outer(s.a_outer ? part.outer : 0) {
        const int rows = (s.m + 7) / 8 * 8;
        copied = LINES * (W_BYTES + (X_ALONG_K && rows < X_LINES ? rows : X_LINES) * 128);
    }

    // Brings w's part of a step into L2.
    DEVICE void prefetch(int col, int step) const {
#pragma unroll
        for (int line = 0; line < LINES; ++line) {
            const int k = step * DEPTH + line * LINE;
            if (W_ALONG_K) {
                tma_prefetch_4d(w, k, col, w_inner, w_outer);
            } else {
#pragma unroll
                for (int i = 0; i < TILE_N / LINE; ++i) tma_prefetch_4d(w, col + i * LINE, k, w_inner, w_outer);
            }
        }
    }

    DEVICE void copy(const TilePipeline& pipe, int col, int step) const {
        mbarrier_arrive_expect_tx(pipe.full_barrier(), copied);
#pragma unroll
        for (int line = 0; line < LINES; ++line) {
            const int k = step * DEPTH + line * LINE;
            if (W_ALONG_K) {
                tma_load_4d_evict_first(pipe.w(line), w, pipe.full_barrier(), k, col, w_inner, w_outer);
            } else {
#pragma unroll
                for (int i = 0; i < TILE_N / LINE; ++i)
                    tma_load_4d_evict_first(pipe.w(line) + i * LINE * 128, w, pipe.full_barrier(), col + i * LINE, k, w_inner,
                                  w_outer);
            }
            if (X_ALONG_K) {
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

// Prepares the barriers and fills the ring for the first time. `releases` arrivals free a stage. Every thread
// calls it.
DEVICE void start(TilePipeline pipe, const Source& source, const Part& part, int releases) {
    if (is_producer()) {
        tma_prefetch_descriptor(source.w);
        tma_prefetch_descriptor(source.x);
        pipe.init(releases);
        mbarrier_init_fence();
        fence_proxy_async();  // the copies below use them at once
        launch_dependents();
#if PDL
        // What the kernel before still writes of w, L2 will have as well.
        for (int step = part.first; step < part.last && step < part.first + STAGES; ++step)
            source.prefetch(part.col, step);
#endif
        grid_dependency_wait();
        for (int step = part.first; step < part.last && step < part.first + STAGES; ++step) {
            source.copy(pipe, part.col, step);
            pipe.advance();
        }
    }
    grid_dependency_wait();
    __syncwarp();
    barrier();
}

// The producer's further rounds: a stage is refilled once it is freed.
DEVICE void refill(TilePipeline pipe, const Source& source, const Part& part) {
    for (int step = part.first + STAGES; step < part.last; ++step) {
        mbarrier_wait(pipe.empty_barrier(), pipe.phase);
        source.copy(pipe, part.col, step);
        pipe.advance();
    }
}

using Quad = vec<float, 4>;

// Four floats of the shared memory of block `rank` of the cluster.
DEVICE Quad load_quad(uint32_t at, int rank) {
    Quad q;
    if (SPLIT == 1)
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

DEVICE void everyone_wrote() {
    if (SPLIT == 1) barrier();
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

// Adds up the sums that every block of the cluster has staged at `at`, [row][column] with PITCH, and stores
// this block's share of them.
DEVICE void finish_tile(uint32_t at, T* c, T* z, const T* bias, const Part& part, const Sizes& s) {
    constexpr int ACROSS = TILE_N / VECTOR;
    everyone_wrote();
    const int rows = s.m < TILE_M ? s.m : TILE_M;
    const int64_t start = part.outer * s.c_outer + part.inner * s.c_inner;
    for (int i = part.rank * THREADS + thread_x(); i < rows * ACROSS; i += SPLIT * THREADS) {
        const int row = i / ACROSS, within = i % ACROSS * VECTOR;
        const int col = part.col + within;
        Quad parts[SPLIT][VECTOR / 4];
#pragma unroll
        for (int rank = 0; rank < SPLIT; ++rank) {
#pragma unroll
            for (int q = 0; q < VECTOR / 4; ++q)
                parts[rank][q] = load_quad(at + (row * PITCH + within + q * 4) * 4, rank);
        }
        vec<T, VECTOR> values, before;
#pragma unroll
        for (int e = 0; e < VECTOR; ++e) {
            float sum = parts[0][e / 4].v[e % 4];
#pragma unroll
            for (int rank = 1; rank < SPLIT; ++rank) sum += parts[rank][e / 4].v[e % 4];
            sum = preactivation(sum, col + e < s.n ? bias_at(bias, col + e) : 0.0f);
            before.v[e] = from_float<T>(sum);
            values.v[e] = from_float<T>(activate(sum));
        }
        const int64_t place = start + row * s.c_row + col * s.c_col;
        store_columns(c + place, values, s.n - col, s.c_col);
        if (PREACTIVATION) store_columns(z + place, before, s.n - col, s.c_col);
    }
    // A block must not leave while another still reads its shared memory.
    if (SPLIT > 1) cluster_sync();
}

#if SPLIT > 1
#define CLUSTER_DIMS __cluster_dims__(SPLIT, 1, 1)
#else
#define CLUSTER_DIMS
#endif
#define SKINNY_KERNEL(name)                                                                                    \
    extern "C" __global__ __launch_bounds__(THREADS, RESIDENT) CLUSTER_DIMS void name(                         \
        const __grid_constant__ TensorMap map_w, const __grid_constant__ TensorMap map_x, const T* bias, T* c, \
        Z_PARAMETER(T) SIZES_PARAMETERS)
