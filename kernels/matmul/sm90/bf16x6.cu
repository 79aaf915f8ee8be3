// c = a @ b of float32 matrices on Hopper's tensor cores, as six bfloat16 products (bf16x6). split_bf16x3.cu has made
// each operand the sum of three bfloat16 planes, x = x0 + x1 / 2^8 + x2 / 2^16; of their nine products the six largest
// are computed:
//
//     c = a0 b0 + (a0 b1 + a1 b0) / 2^8 + (a0 b2 + a1 b1 + a2 b0) / 2^16
//
// The rest is at most 2^-24 of |a| |b|. Products of bfloat16 are exact, but the tensor cores truncate their sums; so
// sums over PART of k are kept apart by scale, and added in float32, rounded to nearest, on the CUDA cores.
//
// Persistent and warp-specialised: warpgroup 0 keeps a pipeline of STAGES stages filled by TMA, each the three planes
// of both operands, PART deep. The other warpgroups compute 64 rows each, alternating between two sets of accumulators:
// while the tensor cores fill one, the other is added up.
//
// Defines: ELEMENT (bf16), CONSUMERS (1, 2 warpgroups), TILE_N (64, 128), STAGES, GROUP_M, A_K_MAJOR, B_K_MAJOR;
// C_PAIRS: c is row-major with 8-byte aligned rows; BIAS, ACTIVATION.
#include "prelude.h"

#include "matmul/epilogue.h"
#include "_lib/ptx/pipeline.h"
#include "_lib/ptx/registers.h"
#include "_lib/ptx/tma.h"
#include "_lib/ptx/wgmma.h"
#include "matmul/tile.h"

constexpr int TILE_M = CONSUMERS * 64;
constexpr int PART = 64;  // of k: one 128-byte row
constexpr int THREADS = (1 + CONSUMERS) * 128;
constexpr int BLOCK_BYTES = 64 * 128;  // 64 rows
constexpr int A_BYTES = TILE_M * 128;  // one plane
constexpr int B_BYTES = TILE_N * 128;
constexpr int STAGE_BYTES = 3 * (A_BYTES + B_BYTES);
constexpr int SUMS = TILE_N / 2;  // per thread, of the 64 x TILE_N of a consumer

struct TilePipeline : Pipeline<STAGES, STAGE_BYTES> {
    using Pipeline::Pipeline;

    DEVICE uint32_t a(int plane) const { return stage_base() + plane * A_BYTES; }
    DEVICE uint32_t b(int plane) const { return a(3) + plane * B_BYTES; }
};

// Batch strides of a and b count matrices here.
DEVICE void producer_loop(TilePipeline pipe, const TensorMap* map_a, const TensorMap* map_b, const Sizes& s,
                    uint32_t tiles) {
    const int steps = (s.k + PART - 1) / PART;
    for (uint32_t index = blockIdx.x; index < tiles; index += gridDim.x) {
        const Tile tile = tile_at<TILE_M, TILE_N, GROUP_M>(index, s);
        const int matrix_a = static_cast<int>(tile.outer * s.a_outer + tile.inner * s.a_inner);
        const int matrix_b = static_cast<int>(tile.outer * s.b_outer + tile.inner * s.b_inner);
        for (int step = 0; step < steps; ++step) {
            const int k = step * PART;
            pipe.wait_empty();
            mbarrier_arrive_expect_tx(pipe.full_barrier(), STAGE_BYTES);
#pragma unroll
            for (int plane = 0; plane < 3; ++plane) {
#pragma unroll
                for (int i = 0; i < (A_K_MAJOR ? 1 : TILE_M / 64); ++i) {
                    const int row = tile.row + i * 64;
                    tma_load_4d(pipe.a(plane) + i * BLOCK_BYTES, map_a, pipe.full_barrier(), A_K_MAJOR ? k : row,
                             A_K_MAJOR ? row : k, matrix_a, plane);
                }
#pragma unroll
                for (int i = 0; i < (B_K_MAJOR ? 1 : TILE_N / 64); ++i) {
                    const int col = tile.col + i * 64;
                    tma_load_4d(pipe.b(plane) + i * BLOCK_BYTES, map_b, pipe.full_barrier(), B_K_MAJOR ? k : col,
                             B_K_MAJOR ? col : k, matrix_b, plane);
                }
            }
            pipe.advance();
        }
    }
}

// part (+)= plane `pa` of a @ plane `pb` of b, PART of k.
DEVICE void multiply(float (&part)[SUMS], const TilePipeline& pipe, int pa, int pb, bool accumulate) {
    constexpr int A_STEP = A_K_MAJOR ? 32 : 16 * 128;  // 16 of k: 32 bytes of a row, or 16 rows
    constexpr int B_STEP = B_K_MAJOR ? 32 : 16 * 128;
    const int consumer = thread_x() / 128 - 1;
    const uint64_t a = wgmma_descriptor(pipe.a(pa) + consumer * BLOCK_BYTES, BLOCK_BYTES, 1024);
    const uint64_t b = wgmma_descriptor(pipe.b(pb), BLOCK_BYTES, 1024);
#pragma unroll
    for (int k = 0; k < PART / 16; ++k)
        Wgmma<TILE_N>::run<!A_K_MAJOR, !B_K_MAJOR>(part, a + (k * A_STEP >> 4), b + (k * B_STEP >> 4),
                                                   accumulate || k > 0);
}

DEVICE void add(float (&sum)[SUMS], float (&part)[SUMS], float scale) {
#pragma unroll
    for (int i = 0; i < SUMS; ++i) {
        asm volatile("" : "+f"(part[i])::"memory");  // not read before the wait for it
        sum[i] = math_fma(part[i], scale, sum[i]);
    }
}

DEVICE void store(float* c, const float (&sum)[SUMS], const float* bias, int row0, int col0, const Sizes& s) {
    const int lane = thread_x() % 32;
    const int row = row0 + thread_x() % 128 / 32 * 16 + lane / 4;
#pragma unroll
    for (int j = 0; j < TILE_N / 8; ++j) {
        const int col = col0 + j * 8 + lane % 4 * 2;
        if (col >= s.n) continue;
        const bool pair = col + 1 < s.n;
        const float bias0 = bias_at(bias, col), bias1 = pair ? bias_at(bias, col + 1) : 0.0f;
#pragma unroll
        for (int down = 0; down < 2; ++down) {
            if (row + down * 8 >= s.m) continue;
            float* to = c + (row + down * 8) * s.c_row + col * s.c_col;
            const float x = finish(sum[j * 4 + down * 2], bias0);
            const float y = finish(sum[j * 4 + down * 2 + 1], bias1);
            if (C_PAIRS && pair) {
                *reinterpret_cast<float2*>(to) = make_float2(x, y);
            } else {
                to[0] = x;
                if (pair) to[s.c_col] = y;
            }
        }
    }
}

DEVICE void consumer_loop(TilePipeline pipe, float* c, const float* bias, const Sizes& s, uint32_t tiles) {
    const int steps = (s.k + PART - 1) / PART;
    for (uint32_t index = blockIdx.x; index < tiles; index += gridDim.x) {
        const Tile tile = tile_at<TILE_M, TILE_N, GROUP_M>(index, s);
        float sum[SUMS] = {}, x[SUMS], y[SUMS];
        for (int step = 0; step < steps; ++step) {
            pipe.wait_full();
            wgmma_fence();
            multiply(x, pipe, 2, 0, false);
            multiply(x, pipe, 0, 2, true);
            multiply(x, pipe, 1, 1, true);
            wgmma_commit();
            multiply(y, pipe, 1, 0, false);
            multiply(y, pipe, 0, 1, true);
            wgmma_commit();
            wgmma_wait<1>();
            add(sum, x, 0x1p-16f);
            wgmma_fence();
            multiply(x, pipe, 0, 0, false);
            wgmma_commit();
            wgmma_wait<1>();
            add(sum, y, 0x1p-8f);
            wgmma_wait<0>();
            if (thread_x() % 128 == 0) mbarrier_arrive(pipe.empty_barrier());
            pipe.advance();
            add(sum, x, 1.0f);
        }
        const int row = tile.row + (thread_x() / 128 - 1) * 64;
        store(c + tile.outer * s.c_outer + tile.inner * s.c_inner, sum, bias, row, tile.col, s);
    }
}

extern "C" __global__ __launch_bounds__(THREADS, 1) void matmul_bf16x6(
    const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b, const float* bias,
    float* c, SIZES_PARAMETERS) {
    DYNAMIC_SHARED(shared);
    const Sizes s = SIZES_ARGUMENTS;
    // The swizzle repeats every 1024 bytes of the address.
    const uint32_t base = (shared_address(shared) + 1023) & ~1023u;
    const uint32_t barriers = base + STAGES * STAGE_BYTES;
    const TilePipeline pipe(base, barriers);

    if (thread_x() == 0) {
        tma_prefetch_descriptor(&map_a);
        tma_prefetch_descriptor(&map_b);
        pipe.init(CONSUMERS);
        mbarrier_init_fence();
    }
    barrier();

    const uint32_t tiles_m = (static_cast<uint32_t>(s.m) + TILE_M - 1) / TILE_M;
    const uint32_t tiles_n = (static_cast<uint32_t>(s.n) + TILE_N - 1) / TILE_N;
    const uint32_t tiles = tiles_m * tiles_n * s.inner_batches * s.outer_batches;
    if (thread_x() < 128) {
        setmaxnreg_dec<40>();
        if (thread_x() == 0) producer_loop(pipe, &map_a, &map_b, s, tiles);
    } else {
        setmaxnreg_inc<232>();
        consumer_loop(pipe, c, bias, s, tiles);
    }
}
