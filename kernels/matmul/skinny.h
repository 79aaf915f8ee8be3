// A product with few rows: c (TILE_M x n) = x (TILE_M x k) @ w (k x n), bound by the reading of w. What
// skinny.cu (tensor cores) and skinny_f32.cu (IEEE float32) share: all but the arithmetic.
//
// A block computes TILE_N columns of c, or with SPLIT > 1 a cluster of SPLIT blocks does, each summing its
// part of k; then each finishes and stores a share of the tile, adding the parts in order of rank out of the
// blocks' shared memories. One thread keeps a ring of STAGES stages filled by the copy engine, each LINES
// lines of 128 bytes deep along k, with the 128-byte swizzle. In a stage w lies first: for each line along k
// TILE_N lines (W_ALONG_K 1), or squares of LINE k by LINE columns, one line per k (0); then x likewise.
// Zeros stand for what lies outside of an operand.
//
// Defines: ELEMENT, TILE_M, TILE_N, SPLIT, SHARE, LINES, STAGES, CONSUMERS (warps that multiply), RESIDENT (blocks per
// multiprocessor), W_ALONG_K, X_ALONG_K; C_VECTOR: c is row-major with 16-byte aligned rows; BIAS,
// ACTIVATION.
#pragma once

#include "prelude.h"

#include "epilogue.h"
#include "skinny_hopper.h"
#include "tile.h"

using T = ELEMENT;

constexpr int LINE = 128 / sizeof(T);  // elements
constexpr int DEPTH = LINE * LINES;
constexpr int CLUSTER = SPLIT * SHARE;
constexpr int THREADS = (CONSUMERS + 1) * 32;
constexpr int X_LINES = X_ALONG_K ? TILE_M : (TILE_M + LINE - 1) / LINE * LINE;
constexpr int W_BYTES = TILE_N * 128;                          // of one line along k
constexpr int X_BYTES = (X_LINES * 128 + 1023) / 1024 * 1024;  // the swizzle repeats every 1024 bytes
constexpr int STAGE_BYTES = LINES * (W_BYTES + X_BYTES);
constexpr int STAGE_COPIED = LINES * (W_BYTES + X_LINES * 128);
constexpr int PITCH = TILE_N + 4;  // floats from row to row of a staged tile of sums

struct Ring {
    uint32_t base, full, empty;  // stages, and their barriers: filled, and free again
    int stage = 0;
    uint32_t phase = 0;

    DEVICE uint32_t w(int line) const { return base + stage * STAGE_BYTES + line * W_BYTES; }
    DEVICE uint32_t x(int line) const { return base + stage * STAGE_BYTES + LINES * W_BYTES + line * X_BYTES; }
    DEVICE uint32_t filled() const { return full + stage * 8; }
    DEVICE uint32_t freed() const { return empty + stage * 8; }
    DEVICE void advance() {
        if (++stage == STAGES) {
            stage = 0;
            phase ^= 1;
        }
    }
};

// The part of the product that a block multiplies: columns from `col`, steps of DEPTH along k. In a cluster
// `rank` counts the parts of k, `neighbour` the tiles that share x.
struct Part {
    int col, inner, outer, rank, neighbour, first, last;
};

DEVICE Part part_of(const Sizes& s) {
    constexpr int SPAN = TILE_N * SHARE;
    const uint32_t index = blockIdx.x / CLUSTER;
    const uint32_t tiles = (static_cast<uint32_t>(s.n) + SPAN - 1) / SPAN;
    const uint32_t batch = index / tiles;
    const uint32_t outer = batch / static_cast<uint32_t>(s.inner_batches);
    const int place = CLUSTER == 1 ? 0 : cluster_rank();
    const int rank = place / SHARE, neighbour = place % SHARE;
    const int64_t steps = (static_cast<int64_t>(s.k) + DEPTH - 1) / DEPTH;
    return {static_cast<int>((index - batch * tiles) * SPAN) + neighbour * TILE_N,
            static_cast<int>(batch - outer * s.inner_batches), static_cast<int>(outer), rank, neighbour, static_cast<int>(steps * rank / SPLIT),
            static_cast<int>(steps * (rank + 1) / SPLIT)};
}

// w is read once: it leaves L2 first.
DEVICE void load_box_once(uint32_t to, const TensorMap* map, uint32_t barrier, int x, int y, int z, int w) {
#if EVICT
    asm volatile(
        "{\n.reg .b64 policy;\ncreatepolicy.fractional.L2::evict_first.b64 policy, 1.0;\n"
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%0], [%1, {%3, %4, %5, %6}], [%2], policy;\n}" ::"r"(to), "l"(map), "r"(barrier), "r"(x), "r"(y),
        "r"(z), "r"(w)
        : "memory");
#else
    load_box(to, map, barrier, x, y, z, w);
#endif
}

#ifndef OVERLAP
#define OVERLAP 0
#define PREFETCH 0
#endif
#ifndef SKEW
#define SKEW 0
#endif
#ifndef PROFILE
#define PROFILE 0
#endif
DEVICE uint64_t now() { uint64_t t; asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)); return t; }
DEVICE void await_previous() { if (OVERLAP) asm volatile("griddepcontrol.wait;" ::: "memory"); }
DEVICE void let_next_start() { if (OVERLAP) asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
DEVICE void prefetch_box(const TensorMap* map, int x, int y, int z, int w) {
    asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global.tile [%0, {%1, %2, %3, %4}];" ::"l"(map), "r"(x), "r"(y), "r"(z), "r"(w) : "memory");
}

struct Source {
    const TensorMap* w;
    const TensorMap* x;
    int w_inner, w_outer, x_inner, x_outer;  // a batch dimension over which an operand repeats has size 1

    DEVICE Source(const TensorMap* map_w, const TensorMap* map_x, const Part& part, const Sizes& s)
        : w(map_w), x(map_x), w_inner(s.b_inner ? part.inner : 0), w_outer(s.b_outer ? part.outer : 0),
          x_inner(s.a_inner ? part.inner : 0), x_outer(s.a_outer ? part.outer : 0) {}

    DEVICE void prefetch(int col, int step) const {
#pragma unroll
        for (int line = 0; line < LINES; ++line) {
            const int k = step * DEPTH + line * LINE;
            if (W_ALONG_K) {
                prefetch_box(w, k, col, w_inner, w_outer);
            } else {
#pragma unroll
                for (int i = 0; i < TILE_N / LINE; ++i) prefetch_box(w, col + i * LINE, k, w_inner, w_outer);
            }
        }
    }
    DEVICE void copy(const Ring& ring, const Part& part, int step) const {
        const int col = part.col;
        if (SKEW) {
            const int count = part.last - part.first;
            step = part.first + (step - part.first + part.col / TILE_N * SKEW) % count;
        }
        barrier_expect(ring.filled(), STAGE_COPIED);
#pragma unroll
        for (int line = 0; line < LINES; ++line) {
            const int k = step * DEPTH + line * LINE;
            if (W_ALONG_K) {
                load_box_once(ring.w(line), w, ring.filled(), k, col, w_inner, w_outer);
            } else {
#pragma unroll
                for (int i = 0; i < TILE_N / LINE; ++i)
                    load_box_once(ring.w(line) + i * LINE * 128, w, ring.filled(), col + i * LINE, k, w_inner,
                                  w_outer);
            }
            if (SHARE > 1) {
                // Each neighbour brings its rows to all of them.
                constexpr int OWN = TILE_M / SHARE;
                load_box_to(((1 << SHARE) - 1) << part.rank * SHARE, ring.x(line) + part.neighbour * OWN * 128, x,
                            ring.filled(), k, part.neighbour * OWN, x_inner, x_outer);
            } else if (X_ALONG_K) {
                load_box(ring.x(line), x, ring.filled(), k, 0, x_inner, x_outer);
            } else {
#pragma unroll
                for (int i = 0; i < X_LINES / LINE; ++i)
                    load_box(ring.x(line) + i * LINE * 128, x, ring.filled(), i * LINE, k, x_inner, x_outer);
            }
        }
    }
};

// One thread of a group that multiplies frees a stage, in every block that this one's copies come from.
DEVICE void release(uint32_t freed, const Part& part, int thread) {
    if (SHARE == 1) {
        if (thread == 0) barrier_arrive(freed);
    } else if (thread < SHARE) {
        barrier_arrive_at(freed, part.rank * SHARE + thread);
    }
}

DEVICE bool is_producer() { return thread_x() == CONSUMERS * 32; }

// Prepares the barriers and fills the ring for the first time. `releases` arrivals free a stage. Every thread
// calls it.
DEVICE void start(Ring ring, const Source& source, const Part& part, int releases) {
    if (is_producer()) {
        prefetch_map(source.w);
        prefetch_map(source.x);
        for (int stage = 0; stage < STAGES; ++stage) {
            barrier_init(ring.full + stage * 8, 1);
            barrier_init(ring.empty + stage * 8, releases * SHARE);
        }
        barrier_init_fence();
        copy_engine_fence();
    }
    if (SHARE > 1) {
        __syncwarp();
        cluster_barrier();  // the neighbours' barriers are ready
    }
    if (is_producer()) {
        for (int i = 0; i < PREFETCH && part.first + i < part.last; ++i) source.prefetch(part.col, part.first + i);
        await_previous();
        if (OVERLAP == 1) let_next_start();
        for (int step = part.first; step < part.last && step < part.first + STAGES; ++step) {
            source.copy(ring, part, step);
            ring.advance();
        }
    }
    __syncwarp();
    await_previous();
    barrier();
}

// The producer's further rounds: a stage is refilled once it is freed.
DEVICE void refill(Ring ring, const Source& source, const Part& part) {
    for (int step = part.first + STAGES; step < part.last; ++step) {
        barrier_wait(ring.freed(), ring.phase);
        source.copy(ring, part, step);
        ring.advance();
    }
    if (OVERLAP == 2) let_next_start();
}

using Quad = vec<float, 4>;

// Four floats of the shared memory of block `place` of the cluster.
DEVICE Quad load_quad(uint32_t at, int place) {
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
                     : "r"(at), "r"(place)
                     : "memory");
    return q;
}

DEVICE void everyone_wrote() {
    if (SPLIT == 1) barrier();
    else cluster_barrier();
}

// Adds up the sums that every block of the cluster has staged at `at`, [row][column] with PITCH, and stores
// this block's share of them.
DEVICE void finish_tile(uint32_t at, T* c, const T* bias, const Part& part, const Sizes& s) {
    constexpr int VECTOR = 16 / sizeof(T);
    constexpr int ACROSS = TILE_N / VECTOR;
    everyone_wrote();
#if PROFILE
    if (thread_x() == 0) reinterpret_cast<uint64_t*>(c)[blockIdx.x * 5 + 4] = now();
    if (CLUSTER > 1) cluster_barrier();
    return;
#endif
    const int rows = s.m < TILE_M ? s.m : TILE_M;
    c += part.outer * s.c_outer + part.inner * s.c_inner;
    for (int i = part.rank * THREADS + thread_x(); i < rows * ACROSS; i += SPLIT * THREADS) {
        const int row = i / ACROSS, within = i % ACROSS * VECTOR;
        const int col = part.col + within;
        Quad parts[SPLIT][VECTOR / 4];
#pragma unroll
        for (int rank = 0; rank < SPLIT; ++rank) {
#pragma unroll
            for (int q = 0; q < VECTOR / 4; ++q)
                parts[rank][q] = load_quad(at + (row * PITCH + within + q * 4) * 4, rank * SHARE + part.neighbour);
        }
        vec<T, VECTOR> values;
#pragma unroll
        for (int e = 0; e < VECTOR; ++e) {
            float sum = parts[0][e / 4].v[e % 4];
#pragma unroll
            for (int rank = 1; rank < SPLIT; ++rank) sum += parts[rank][e / 4].v[e % 4];
            values.v[e] = from_float<T>(finish(sum, col + e < s.n ? bias_at(bias, col + e) : 0.0f));
        }
        T* to = c + row * s.c_row + col * s.c_col;
        if (C_VECTOR && col + VECTOR <= s.n) {
            *reinterpret_cast<vec<T, VECTOR>*>(to) = values;
        } else {
#pragma unroll
            for (int e = 0; e < VECTOR; ++e)
                if (col + e < s.n) to[e * s.c_col] = values.v[e];
        }
    }
    // A block must not leave while another still reads its shared memory or arrives at its barriers.
    if (CLUSTER > 1) cluster_barrier();
}

#define SKINNY_KERNEL(name)                                                                                    \
    extern "C" __global__ __launch_bounds__(THREADS, RESIDENT) __cluster_dims__(CLUSTER, 1, 1) void name(        \
        const __grid_constant__ TensorMap map_w, const __grid_constant__ TensorMap map_x, const T* bias, T* c, \
        SIZES_PARAMETERS)
