// c = a @ b of fp8 operands with their scales, by Hopper's warpgroup matrix instructions (wgmma). a is row-major and b
// column-major (both K-major), with 16-byte aligned lines.
//
// Persistent and warp-specialised, as matmul's wgmma.cu: a producer thread keeps STAGES stages filled by TMA, with 128 k
// of each operand; two consumer warpgroups compute M_BLOCKS blocks of 64 rows each of a tile. With CLUSTER 2, two tiles
// that follow one another along M share b's: each block loads half of it and multicasts it to both.
//
// Promotion: wgmma adds fp8 products with 13 bits below the greatest, cut off, so that long sums drift towards zero. A
// block of 128 k is therefore summed by itself, and added to float32 accumulators by the CUDA cores; with BLOCK_SCALES
// it is multiplied by its scales there. While one consumer adds, the other's products run. FAST_ACCUM sums all of K in
// the matrix unit.
//
// Defines: A_ELEMENT, B_ELEMENT (e4m3, e5m2); OUTPUT (bf16, f16, f32); M_BLOCKS (1, 2), TILE_N (multiples of 64; 64 or
// 128 with BLOCK_SCALES), STAGES, CLUSTER (1, 2), GROUP_M; BLOCK_SCALES (a scale for each row and 128 k of a and for each
// 128 k and 128 columns of b; else for each row and column), FAST_ACCUM (not with BLOCK_SCALES), HAS_BIAS; C_TMA: TMA
// stores c, of 16 bits with 16-byte aligned rows; WIDE_OUTPUT (c is float32); C_CONTIGUOUS (c's rows are).
#define C_COL_MAJOR 0
#include "prelude.h"

#include "_lib/ptx/cluster.h"
#include "_lib/ptx/pdl.h"
#include "_lib/ptx/pipeline.h"
#include "_lib/ptx/registers.h"
#include "_lib/ptx/tma.h"
#include "_lib/ptx/wgmma_fp8.h"
#include "matmul/sm90/wgmma_store.h"
#include "matmul/tile.h"

using T = OUTPUT;

constexpr int TILE_K = 128;  // one 128-byte row
constexpr int CONSUMERS = 2;
constexpr int CONSUMER_ROWS = M_BLOCKS * 64;
constexpr int TILE_M = CONSUMERS * CONSUMER_ROWS;
constexpr int THREADS = (CONSUMERS + 1) * 128;
constexpr int A_BYTES = TILE_M * 128, B_BYTES = TILE_N * 128;
constexpr int STAGE_BYTES = A_BYTES + B_BYTES;
constexpr int C_BYTES = WIDE_OUTPUT ? 0 : CONSUMERS * C_BUFFERS * BLOCK_BYTES;
constexpr int SUMS = TILE_N / 2;  // a thread's accumulators of 64 rows
static_assert(!BLOCK_SCALES || (128 % TILE_N == 0 && !FAST_ACCUM), "one scale of b for a tile's 128 k");

struct TilePipeline : Pipeline<STAGES, STAGE_BYTES> {
    using Pipeline::Pipeline;

    DEVICE uint32_t a() const { return stage_base(); }
    DEVICE uint32_t b() const { return a() + A_BYTES; }
};

// The scales and the elements from one to the next: along M and K of a's, along K and N of b's.
struct Scales {
    const float *a, *b;
    int64_t a_row, a_k, b_k, b_col;
};

DEVICE Tile tile_of(uint32_t index, const Sizes& s) {
    Tile tile = tile_at<TILE_M * CLUSTER, TILE_N, GROUP_M>(index, s);
    if (CLUSTER > 1) tile.row += cluster_rank() * TILE_M;
    return tile;
}

DEVICE int steps_of(const Sizes& s) { return (s.k + TILE_K - 1) / TILE_K; }

DEVICE void producer_loop(TilePipeline pipe, const TensorMap* map_a, const TensorMap* map_b, const Sizes& s,
                          uint32_t tiles) {
    constexpr int SHARE = TILE_N / CLUSTER;
    const int share = CLUSTER > 1 ? cluster_rank() * SHARE : 0;
    const int steps = steps_of(s);
    grid_dependency_wait();
    for (uint32_t index = blockIdx.x / CLUSTER; index < tiles; index += gridDim.x / CLUSTER) {
        const Tile tile = tile_of(index, s);
        for (int step = 0; step < steps; ++step) {
            const uint32_t full = pipe.full_barrier();
            pipe.wait_empty();
            mbarrier_arrive_expect_tx(full, STAGE_BYTES);
            tma_load_4d(pipe.a(), map_a, full, step * TILE_K, tile.row, 0, 0);
            const uint32_t to = pipe.b() + share * 128;
            if (CLUSTER == 1) tma_load_4d(to, map_b, full, step * TILE_K, tile.col, 0, 0);
            else tma_load_4d_multicast(3, to, map_b, full, step * TILE_K, tile.col + share, 0, 0);
            pipe.advance();
        }
    }
}

// Arrives at a stage's empty barrier in all blocks of the cluster.
DEVICE void release(uint32_t empty_barrier) {
    const int thread = thread_x() % 128;
    if (CLUSTER == 1) {
        if (thread == 0) mbarrier_arrive(empty_barrier);
    } else if (thread < CLUSTER) {
        mbarrier_arrive_cluster(empty_barrier, thread);
    }
}

// Issues the products of 64 rows from `a` on with a stage's 128 k: to `sums`, or where `add`, added to it.
DEVICE void multiply(float* sums, uint32_t a, uint32_t b, bool add) {
    const uint64_t first = wgmma_descriptor(a, 0, 1024), second = wgmma_descriptor(b, 0, 1024);
#pragma unroll
    for (int k = 0; k < TILE_K / 32; ++k) WgmmaFp8<TILE_N>::run(sums, first + k * 2, second + k * 2, add || k);
    wgmma_commit();
}

// The scales of a thread's rows and of a tile's columns for 128 k.
struct BlockScales {
    float a[M_BLOCKS][2], b;

    DEVICE void load(const Scales& scales, int row, int col, int step, const Sizes& s) {
        b = scales.b[step * scales.b_k + col / 128 * scales.b_col];
#pragma unroll
        for (int i = 0; i < M_BLOCKS * 2; ++i) {
            const int line = row + i / 2 * 64 + i % 2 * 8;
            a[i / 2][i % 2] = scales.a[(line < s.m ? line : s.m - 1) * scales.a_row + step * scales.a_k];
        }
    }
};

// The main loop of one tile, from the thread's first row on.
DEVICE void multiply_tile(TilePipeline& pipe, float (&acc)[M_BLOCKS][SUMS], const Scales& scales, int row, int col,
                          const Sizes& s) {
    const int consumer = thread_x() / 128;
    const int steps = steps_of(s);
#if FAST_ACCUM
    uint32_t used = 0;
    for (int step = 0; step < steps; ++step) {
        const uint32_t now = pipe.empty_barrier();
        pipe.wait_full();
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < M_BLOCKS; ++i) {
            multiply(acc[i], pipe.a() + (consumer * M_BLOCKS + i) * BLOCK_BYTES, pipe.b(), step != 0);
        }
        pipe.advance();
        wgmma_wait<M_BLOCKS>();
        if (step) release(used);
        used = now;
    }
    wgmma_wait<0>();
#pragma unroll
    for (int i = 0; i < M_BLOCKS; ++i) keep_in_registers<SUMS>(acc[i]);
    release(used);
#else
#pragma unroll
    for (int i = 0; i < M_BLOCKS; ++i) clear<SUMS>(acc[i]);
    BlockScales next;
    if (BLOCK_SCALES) next.load(scales, row, col, 0, s);
    for (int step = 0; step < steps; ++step) {
        const BlockScales now = next;
        if (BLOCK_SCALES && step + 1 < steps) next.load(scales, row, col, step + 1, s);
        pipe.wait_full();
#pragma unroll
        for (int i = 0; i < M_BLOCKS; ++i) {
            float sums[SUMS];
            wgmma_fence();
            multiply(sums, pipe.a() + (consumer * M_BLOCKS + i) * BLOCK_BYTES, pipe.b(), false);
            wgmma_wait<0>();
            keep_in_registers<SUMS>(sums);
            if (i == M_BLOCKS - 1) release(pipe.empty_barrier());
            const float upper = BLOCK_SCALES ? now.a[i][0] * now.b : 1.0f;
            const float lower = BLOCK_SCALES ? now.a[i][1] * now.b : 1.0f;
#pragma unroll
            for (int j = 0; j < SUMS; ++j) {
                if (BLOCK_SCALES) acc[i][j] = math_fma(sums[j], j & 2 ? lower : upper, acc[i][j]);
                else acc[i][j] += sums[j];
            }
        }
        pipe.advance();
    }
#endif
}

// What follows the sum of a column: its scale and bias.
struct Column {
    float scale, bias;

    DEVICE Column(const Scales& scales, const T* biases, int col, const Sizes& s) : scale(1.0f), bias(0.0f) {
        const int64_t place = col < s.n ? col : s.n - 1;
        if (!BLOCK_SCALES) scale = scales.b[place * scales.b_col];
        if (HAS_BIAS) bias = to_float(biases[place]);
    }
    DEVICE float finish(float sum, float row_scale) const {
        if (!BLOCK_SCALES) sum = sum * row_scale * scale;
        return HAS_BIAS ? sum + bias : sum;
    }
};

// Scales and biases are read again behind it: kept for all rows they would take too many registers.
DEVICE void read_again() { asm volatile("" ::: "memory"); }

#if WIDE_OUTPUT
// A thread's sums of 64 columns to a float32 c whose rows are contiguous.
DEVICE void store_wide(T* c, const float* sums, int row, int col, const float (&row_scale)[2], const T* bias,
                       const Scales& scales, const Sizes& s) {
    col += thread_x() % 4 * 2;
    T* const rows[2] = {c + row * s.c_row + col, c + (row + 8) * s.c_row + col};
#pragma unroll
    for (int j = 0; j < 8; ++j) {
        if (j % 4 == 0) read_again();
        const Column left(scales, bias, col + j * 8, s), right(scales, bias, col + j * 8 + 1, s);
#pragma unroll
        for (int down = 0; down < 2; ++down) {
            if (row + down * 8 >= s.m) continue;
            if (col + j * 8 < s.n) rows[down][j * 8] = left.finish(sums[j * 4 + down * 2], row_scale[down]);
            if (col + j * 8 + 1 < s.n)
                rows[down][j * 8 + 1] = right.finish(sums[j * 4 + down * 2 + 1], row_scale[down]);
        }
    }
}
#endif

DEVICE void consumer_loop(TilePipeline pipe, uint32_t buffers, const TensorMap* map_c, T* c, const T* bias,
                          const Scales& scales, const Sizes& s, uint32_t tiles) {
    const int consumer = thread_x() / 128, lane = thread_x() % 32;
    [[maybe_unused]] const uint32_t own_buffers = buffers + consumer * C_BUFFERS * BLOCK_BYTES;
    [[maybe_unused]] int buffer = 0;
    grid_dependency_wait();
    for (uint32_t index = blockIdx.x / CLUSTER; index < tiles; index += gridDim.x / CLUSTER) {
        const Tile tile = tile_of(index, s);
        const int first = tile.row + consumer * CONSUMER_ROWS;
        const int row = first + thread_x() % 128 / 32 * 16 + lane / 4;
        float acc[M_BLOCKS][SUMS];
        multiply_tile(pipe, acc, scales, row, tile.col, s);
#pragma unroll
        for (int i = 0; i < M_BLOCKS; ++i) {
            float row_scale[2];
#pragma unroll
            for (int down = 0; down < 2; ++down) {
                const int line = row + i * 64 + down * 8;
                row_scale[down] = BLOCK_SCALES ? 1.0f : scales.a[(line < s.m ? line : s.m - 1) * scales.a_row];
            }
#pragma unroll
            for (int block = 0; block < TILE_N / 64; ++block) {
#if WIDE_OUTPUT
                store_wide(c, acc[i] + block * 32, row + i * 64, tile.col + block * 64, row_scale, bias, scales, s);
#else
                uint32_t words[BLOCK_WORDS];
#pragma unroll
                for (int j = 0; j < 8; ++j) {
                    if (j % 4 == 0) read_again();
                    const int col = tile.col + block * 64 + j * 8 + lane % 4 * 2;
                    const Column left(scales, bias, col, s), right(scales, bias, col + 1, s);
                    const float* sums = acc[i] + block * 32 + j * 4;
#pragma unroll
                    for (int down = 0; down < 2; ++down)
                        words[j * 2 + down] = pack2<T>(left.finish(sums[down * 2], row_scale[down]),
                                                       right.finish(sums[down * 2 + 1], row_scale[down]));
                }
                const BlockPosition place = {first + i * 64, tile.col + block * 64, 0, 0, tile.col + TILE_N};
#if C_TMA
                store_by_tma(own_buffers, buffer, map_c, c, words, place, consumer, s);
                buffer = (buffer + 1) % C_BUFFERS;
#else
                store_by_threads(own_buffers, c, words, place, s);
#endif
#endif
            }
        }
    }
    if (C_TMA && thread_x() % 128 == 0) tma_store_wait_read<0>();
}

#if CLUSTER > 1
#define CLUSTER_DIMS __cluster_dims__(CLUSTER, 1, 1)
#else
#define CLUSTER_DIMS
#endif

extern "C" __global__ __launch_bounds__(THREADS, 1) CLUSTER_DIMS void scaled_mm_wgmma(
    const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b,
#if C_TMA
    const __grid_constant__ TensorMap map_c,
#endif
    const float* scale_a, const float* scale_b, const T* bias, T* c, int m, int n, int k, int tiles, int64_t c_row,
    int64_t c_col, int64_t scale_a_row, int64_t scale_a_k, int64_t scale_b_k, int64_t scale_b_col) {
    DYNAMIC_SHARED(shared);
    const Sizes s = {m, n, k, 1, 1, 0, 0, c_row, c_col, 0, 0, 0, 0, 0, 0};
    const Scales scales = {scale_a, scale_b, scale_a_row, scale_a_k, scale_b_k, scale_b_col};
    // The swizzle repeats every 1024 bytes of the address.
    const uint32_t base = (shared_address(shared) + 1023) & ~1023u;
    const uint32_t buffers = base + STAGES * STAGE_BYTES;
    const TilePipeline pipe(base, buffers + C_BYTES);
    const bool is_producer = thread_x() == CONSUMERS * 128;
    const TensorMap* to_c = nullptr;
#if C_TMA
    to_c = &map_c;
#endif
    if (is_producer) {
        launch_dependents();
        pipe.init(CONSUMERS * CLUSTER);
        mbarrier_init_fence();
        fence_proxy_async();
    } else if (thread_x() == 0) {
        tma_prefetch_descriptor(&map_a);
        tma_prefetch_descriptor(&map_b);
        if (C_TMA) tma_prefetch_descriptor(to_c);
    }
    if (CLUSTER > 1) cluster_sync();
    else barrier();

    if (thread_x() >= CONSUMERS * 128) {
        setmaxnreg_dec<40>();
        if (is_producer) producer_loop(pipe, &map_a, &map_b, s, tiles);
    } else {
        setmaxnreg_inc<232>();
        consumer_loop(pipe, buffers, to_c, c, bias, scales, s, tiles);
    }
    // A block must not leave while its peers can still write to its shared memory or barriers.
    if (CLUSTER > 1) cluster_sync();
}
