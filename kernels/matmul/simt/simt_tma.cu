// c = a @ b in IEEE float32 for M-major a and N-major b that TMA can load (transpose.cu transposes the others): every
// product and sum is one fused multiply-add, in order of k, as in simt.cu.
//
// A block computes TILE_M x TILE_N of c, a thread ROWS x COLUMNS of it. One producer thread keeps a pipeline of STAGES
// stages filled by TMA, each 32 k deep, with the 128-byte swizzle: squares of 32 rows, one per k, of 32 rows of a or
// columns of b. Factors are read in quads of neighbours at one k: a quad of b ahead of its 32 products, the next block
// of four k of a meanwhile. So no factor passes through registers on its way to shared memory.
//
// K-major operands could be read four k at a time, but a thread's factors at one k are then in registers of one bank,
// and half of the products wait for an operand (2026-11-22, H200, 4096^3: both K-major 0.92 of torch, a alone 0.87, b
// alone 1.02, neither 1.03).
//
// Defines: ELEMENT (f32); TILE_M (128), TILE_N (256), TILE_K (32), THREADS_M, THREADS_N (16), STAGES, GROUP_M;
// C_VECTOR: c is row-major and 16-byte aligned; BIAS, ACTIVATION, PREACTIVATION.
#include "prelude.h"

#include "matmul/epilogue.h"
#include "_lib/ptx/pdl.h"
#include "_lib/ptx/pipeline.h"
#include "_lib/ptx/registers.h"
#include "_lib/ptx/tma.h"
#include "simt_store.h"
#include "matmul/tile.h"

constexpr int ACROSS = 16;  // threads along rows, and along columns
constexpr int ROWS = TILE_M / ACROSS, COLUMNS = TILE_N / ACROSS;  // of a thread
static_assert(ROWS == 8 && COLUMNS == 16 && TILE_K == 32 && THREADS_M == ACROSS && THREADS_N == ACROSS);
constexpr int CONSUMER_THREADS = ACROSS * ACROSS, WARPS = CONSUMER_THREADS / 32;
constexpr int THREADS = CONSUMER_THREADS + 128;
constexpr int SQUARE = 32 * 128;  // bytes of 32 rows of 128
constexpr int A_BYTES = TILE_M * 128, B_BYTES = TILE_N * 128;
constexpr int STAGE_BYTES = A_BYTES + B_BYTES;
constexpr int BLOCKS = TILE_K / 4;  // of four k in a stage
constexpr int QUADS = COLUMNS;      // of b in a block of four k
constexpr int AHEAD = 2, HELD = 4;  // quads of b

// A thread's i-th row or column of a tile: neighbours of one of every ACROSS quads.
DEVICE int place(int i, int thread) { return (i / 4 * ACROSS + thread) * 4 + i % 4; }

// Where a thread finds quad `number` of a block of four k, of which each k has PER_K, in an operand's tile at `tile`;
// ODD says whether the block's number is.
template <int PER_K, bool ODD> DEVICE uint32_t quad_at(uint32_t tile, int block, int number, int thread) {
    const int line = block * 4 + number / PER_K;
    const int swizzle = thread % 8 ^ (ODD * 4 + number / PER_K);
    return tile + (number % PER_K * (ACROSS / 8) + thread / 8) * SQUARE + line * 128 + swizzle * 16;
}

DEVICE Quad read_quad(uint32_t at) {
    Quad q;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(q.v[0]), "=f"(q.v[1]), "=f"(q.v[2]), "=f"(q.v[3])
                 : "r"(at));
    return q;
}

struct TilePipeline : Pipeline<STAGES, STAGE_BYTES> {
    using Pipeline::Pipeline;

    DEVICE uint32_t a() const { return stage_base(); }
    DEVICE uint32_t b() const { return a() + A_BYTES; }
};

template <int LINES>
DEVICE void load_tile(uint32_t to, const TensorMap* map, uint32_t barrier, int line, int k, int inner, int outer) {
#pragma unroll
    for (int i = 0; i < LINES / 32; ++i) tma_load_4d(to + i * SQUARE, map, barrier, line + i * 32, k, inner, outer);
}

DEVICE void producer_loop(TilePipeline pipe, const TensorMap* map_a, const TensorMap* map_b, const Tile& tile,
                          const Sizes& s) {
    const int a_inner = s.a_inner ? tile.inner : 0, a_outer = s.a_outer ? tile.outer : 0;
    const int b_inner = s.b_inner ? tile.inner : 0, b_outer = s.b_outer ? tile.outer : 0;
    for (int k = 0; k < s.k; k += TILE_K) {
        pipe.wait_empty();
        mbarrier_arrive_expect_tx(pipe.full_barrier(), STAGE_BYTES);
        load_tile<TILE_M>(pipe.a(), map_a, pipe.full_barrier(), tile.row, k, a_inner, a_outer);
        load_tile<TILE_N>(pipe.b(), map_b, pipe.full_barrier(), tile.col, k, b_inner, b_outer);
        pipe.advance();
    }
}

// Four k of a thread's rows, as quads of four rows at a k.
using Rows = Quad[ROWS];
DEVICE float factor(const Rows& rows, int i, int k) { return rows[k * (ROWS / 4) + i / 4].v[i % 4]; }

struct Consumer {
    TilePipeline pipe;
    int y, x;  // of the thread
    float sum[ROWS][COLUMNS];
    Quad held[HELD];

    template <bool ODD> DEVICE Quad a_quad(uint32_t tile, int block, int number) const {
        return read_quad(quad_at<ROWS / 4, ODD>(tile, block, number, y));
    }
    template <bool ODD> DEVICE Quad b_quad(uint32_t tile, int block, int number) const {
        return read_quad(quad_at<COLUMNS / 4, ODD>(tile, block, number, x));
    }

    // The products of a block of four k, whose rows are `now`; `next` becomes those of the block after it.
    template <bool ODD> DEVICE void multiply(int block, bool more, const Rows& now, Rows& next) {
        const uint32_t tile_b = pipe.b(), freed = pipe.empty_barrier();
        const bool last = ODD && block + 1 == BLOCKS;
        const int following = last ? 0 : block + 1;
        if (last) {
            pipe.advance();
            if (more) pipe.wait_full();
        }
        const uint32_t next_a = pipe.a(), next_b = pipe.b();
#pragma unroll
        for (int number = 0; number < QUADS; ++number) {
            if (number % 2 == 0) next[number / 2] = a_quad<!ODD>(next_a, following, number / 2);
            const int ahead = number + AHEAD;
            held[ahead % HELD] = ahead < QUADS ? b_quad<ODD>(tile_b, block, ahead)
                                               : b_quad<!ODD>(next_b, following, ahead - QUADS);
            const Quad& b = held[number % HELD];
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const int k = number / (COLUMNS / 4), column = number % (COLUMNS / 4) * 4 + e;
                // Down one column and up the next: neighbouring products share a factor.
#pragma unroll
                for (int at = 0; at < ROWS; ++at) {
                    const int i = e % 2 ? ROWS - 1 - at : at;
                    sum[i][column] = math_fma(factor(now, i, k), b.v[e], sum[i][column]);
                }
            }
        }
        if (last) {
            __syncwarp();
            if (thread_x() % 32 == 0) mbarrier_arrive(freed);
        }
    }

    DEVICE void run(int steps) {
        Rows rows[2];
        pipe.wait_full();
#pragma unroll
        for (int number = 0; number < ROWS; ++number) rows[0][number] = a_quad<false>(pipe.a(), 0, number);
#pragma unroll
        for (int number = 0; number < AHEAD; ++number) held[number] = b_quad<false>(pipe.b(), 0, number);
        const int blocks = steps * BLOCKS;
#pragma unroll 1
        for (int block = 0; block < blocks; block += 2) {
            multiply<false>(block % BLOCKS, true, rows[0], rows[1]);
            multiply<true>(block % BLOCKS + 1, block + 2 < blocks, rows[1], rows[0]);
        }
    }
};

extern "C" __global__ __launch_bounds__(THREADS, 1) void matmul_simt_tma(
    const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b, const float* bias, float* c,
    Z_PARAMETER(float) SIZES_PARAMETERS) {
    DYNAMIC_SHARED(shared);
    const Sizes s = SIZES_ARGUMENTS;
    const uint32_t base = (shared_address(shared) + 1023) & ~1023u;
    const uint32_t barriers = base + STAGES * STAGE_BYTES;
    const TilePipeline pipe(base, barriers);
    const Tile tile = tile_at<TILE_M, TILE_N, GROUP_M>(blockIdx.x, s);
    if (thread_x() == CONSUMER_THREADS) {
        launch_dependents();
        tma_prefetch_descriptor(&map_a);
        tma_prefetch_descriptor(&map_b);
        pipe.init(WARPS);
        mbarrier_init_fence();
        fence_proxy_async();
    }
    barrier();
    grid_dependency_wait();
    if (thread_x() >= CONSUMER_THREADS) {
        setmaxnreg_dec<24>();
        if (thread_x() == CONSUMER_THREADS) producer_loop(pipe, &map_a, &map_b, tile, s);
        return;
    }
    setmaxnreg_inc<240>();
    // 32 neighbouring threads cover 4 places along the rows and 8 along the columns.
    const int warp = thread_x() / 32, lane = thread_x() % 32;
    Consumer consumer{pipe, warp / 2 * 4 + lane / 8, warp % 2 * 8 + lane % 8, {}};
    consumer.run((s.k + TILE_K - 1) / TILE_K);

    c += tile.outer * s.c_outer + tile.inner * s.c_inner;
#if PREACTIVATION
    z += tile.outer * s.c_outer + tile.inner * s.c_inner;
#endif
#pragma unroll
    for (int j = 0; j < COLUMNS; j += 4) {
        const int col = tile.col + place(j, consumer.x);
        float shift[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) shift[e] = col + e < s.n ? bias_at(bias, col + e) : 0.0f;
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
            const int row = tile.row + place(i, consumer.y);
            if (row >= s.m) continue;
            const int64_t at = row * s.c_row + col * s.c_col;
            Quad value;
#pragma unroll
            for (int e = 0; e < 4; ++e)
                value.v[e] = preactivation(unbound(consumer.sum[i][j + e], s.k), shift[e]);
#if PREACTIVATION
            store(z + at, value, s.n - col, s.c_col);
#endif
#pragma unroll
            for (int e = 0; e < 4; ++e) value.v[e] = activate(value.v[e]);
            store(c + at, value, s.n - col, s.c_col);
        }
    }
}
