// c = a @ b of fp8 operands with their scales, by Hopper's warpgroup matrix instructions (wgmma). a is row-major and b
// column-major (both K-major), with 16-byte aligned lines. Of int8 too, whose sums in int32 are exact (INTEGER).
//
// Persistent and warp-specialised, as matmul's wgmma.cu: a producer thread keeps STAGES stages filled by TMA, with
// 128 k of each operand; each of CONSUMER_WARPGROUPS warpgroups computes 64 rows of a tile.
//
// Promotion: wgmma adds fp8 products with 13 bits below the greatest, cut off, so that long sums drift towards zero. A
// block of 128 k is therefore summed by itself, and added to float32 accumulators by the CUDA cores; with BLOCK_SCALES
// it is multiplied by its scales there. With SUM_BUFFERS 2 a consumer's next products run meanwhile. FAST_ACCUM sums
// all of K in the matrix unit.
//
// Scales of blocks come through the stages too: as a thread's own loads a's were not there in time (2026-11-26,
// 64x7168x16384: 43 us, now 34). With A_SCALES_BULK, where those of 128 k lie one after another, the producer copies
// them with the operands, and b's, which hit L1, are loaded; else a warp beside it copies both one by one.
//
// Defines: A_ELEMENT, B_ELEMENT (e4m3, e5m2); OUTPUT (bf16, f16, f32); CONSUMER_WARPGROUPS (1, 2), TILE_N (multiples of
// 64), STAGES, SUM_BUFFERS (1, 2), GROUP_M; BOX_ROWS (of a that are loaded: less than a tile's where a has no more);
// BLOCK_SCALES (a scale for each row and 128 k of a and for each 128 k and 128 columns of b; else for each row and
// column; with MX_SCALES mx_scales.h's), A_SCALES_BULK, FAST_ACCUM (not with BLOCK_SCALES), HAS_BIAS; C_TMA: TMA stores c, of
// 16 bits with 16-byte aligned rows; WIDE_OUTPUT (c is float32 or int32); C_CONTIGUOUS (c's rows are); INTEGER (the
// elements are int8; with FAST_ACCUM), SCALED (0: c is the int32 sums, without scales and bias), HAS_ZERO_POINT (a less
// an int8 product's zero point of each row: the sums begin with its part, from the sums of b's columns).
#define C_COL_MAJOR 0
#include "prelude.h"

#include "_lib/ptx/mma.h"
#include "_lib/ptx/pdl.h"
#include "_lib/ptx/pipeline.h"
#include "_lib/ptx/registers.h"
#include "_lib/ptx/tma.h"
#if INTEGER
#include "_lib/ptx/wgmma_int8.h"
#else
#include "_lib/ptx/wgmma_fp8.h"
#endif
#include "matmul/sm90/wgmma_store.h"
#include "matmul/tile.h"

using T = OUTPUT;
#if INTEGER
using Sum = uint32_t;
template <int N> using Products = WgmmaInt8<N>;
#else
using Sum = float;
template <int N> using Products = WgmmaFp8<N>;
#endif
constexpr bool LINE_SCALES = SCALED && !BLOCK_SCALES && !MX_SCALES;   // of rows and columns
#if MX_SCALES
using Scale = uint8_t;
#else
using Scale = float;
#endif

constexpr int TILE_K = 128;  // one 128-byte row
constexpr int CONSUMERS = CONSUMER_WARPGROUPS;
constexpr int TILE_M = CONSUMERS * 64;
constexpr int THREADS = (CONSUMERS + 1) * 128;
constexpr int A_BYTES = TILE_M * 128, B_BYTES = TILE_N * 128;
constexpr int STAGE_BYTES = A_BYTES + B_BYTES;
constexpr int LOADED_BYTES = BOX_ROWS * 128 + B_BYTES;
constexpr int C_BYTES = WIDE_OUTPUT ? 0 : CONSUMERS * C_BUFFERS * BLOCK_BYTES;
constexpr int SUMS = TILE_N / 2;  // a thread's accumulators
constexpr int BLOCKS = TILE_N / 64;   // of 64 columns
// Of a stage with BLOCK_SCALES: a's scales of the tile's rows, then b's of each 64 columns.
constexpr int SCALE_BYTES = MX_SCALES ? (TILE_M + TILE_N) * 16 : BLOCK_SCALES ? (TILE_M + BLOCKS + 3) / 4 * 16 : 0;
constexpr int COLUMN_BYTES = CONSUMERS * TILE_N * 8;
constexpr bool SCALE_WARP = BLOCK_SCALES && !A_SCALES_BULK;
constexpr int PRODUCERS = MX_SCALES ? 3 : SCALE_WARP ? 2 : 1;
constexpr int ARRIVALS = MX_SCALES ? 4 : 1;   // of a consumer at a stage that it has read
constexpr int COPIES_AHEAD = 2;   // stages whose scales are on their way
// Together no more than at the launch, 168 a thread: setmaxnreg would wait for ever.
constexpr int PRODUCER_REGISTERS = BLOCK_SCALES ? 56 : 40, CONSUMER_REGISTERS = BLOCK_SCALES ? 224 : 232;
static_assert(PRODUCER_REGISTERS + 2 * CONSUMER_REGISTERS <= 3 * 168, "registers of a block");
static_assert(TILE_N % 64 == 0 && !(BLOCK_SCALES && FAST_ACCUM), "whole blocks of columns; blocks of k are promoted");

struct TilePipeline : Pipeline<STAGES, STAGE_BYTES> {
    using Pipeline::Pipeline;

    DEVICE uint32_t a() const { return stage_base(); }
    DEVICE uint32_t b() const { return a() + A_BYTES; }
    DEVICE uint32_t scales() const { return barriers + STAGES * 16 + stage * SCALE_BYTES; }
};

DEVICE float load_shared(uint32_t at) {
    float value;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(at) : "memory");
    return value;
}

// The scales and the elements from one to the next: along M and K of a's, along K and N of b's.
struct Scales {
    const Scale *a, *b;
    int64_t a_row, a_k, b_k, b_col;
};

DEVICE int steps_of(const Sizes& s) { return (s.k + TILE_K - 1) / TILE_K; }

DEVICE void producer_loop(TilePipeline pipe, const TensorMap* map_a, const TensorMap* map_b, const Scales& scales,
                          const Sizes& s, uint32_t tiles) {
    const int steps = steps_of(s);
    grid_dependency_wait();
    for (uint32_t index = blockIdx.x; index < tiles; index += gridDim.x) {
        const Tile tile = tile_at<TILE_M, TILE_N, GROUP_M>(index, s);
        const int rows = s.m - tile.row < TILE_M ? s.m - tile.row : TILE_M;
        const uint32_t scale_bytes = A_SCALES_BULK ? rows * 4 : 0;
        for (int step = 0; step < steps; ++step) {
            pipe.wait_empty();
            mbarrier_arrive_expect_tx(pipe.full_barrier(), LOADED_BYTES + scale_bytes);
            if (A_SCALES_BULK)
                bulk_copy_g2s(pipe.scales(), scales.a + tile.row + step * scales.a_k, scale_bytes, pipe.full_barrier());
            tma_load_4d(pipe.a(), map_a, pipe.full_barrier(), step * TILE_K, tile.row, 0, 0);
            tma_load_4d(pipe.b(), map_b, pipe.full_barrier(), step * TILE_K, tile.col, 0, 0);
            pipe.advance();
        }
    }
}

// Copies the scales of each stage, one warp beside the producer thread; rows beyond a get those of its last. One
// arrival stands for a warp's copies: one of each lane cost 3 % more (2026-11-26).
DEVICE void scale_loop(TilePipeline pipe, const Scales& scales, const Sizes& s, uint32_t tiles) {
    const int lane = thread_x() % 32;
    const int steps = steps_of(s);
    TilePipeline there = pipe;   // the first stage that has not arrived
    int under_way = 0;
    const auto arrive = [&] {
        __syncwarp();
        if (lane == 0) mbarrier_arrive(there.full_barrier());
        there.advance();
    };
    grid_dependency_wait();
    for (uint32_t index = blockIdx.x; index < tiles; index += gridDim.x) {
        const Tile tile = tile_at<TILE_M, TILE_N, GROUP_M>(index, s);
        const Scale* rows[TILE_M / 32];
#pragma unroll
        for (int i = 0; i < TILE_M / 32; ++i) {
            const int row = tile.row + i * 32 + lane;
            rows[i] = scales.a + (row < s.m ? row : s.m - 1) * scales.a_row;
        }
        const int col = tile.col + lane * 64;
        const Scale* columns = scales.b + (col < s.n ? col : s.n - 1) / 128 * scales.b_col;
        for (int step = 0; step < steps; ++step) {
            pipe.wait_empty();
            const uint32_t to = pipe.scales() + lane * 4;
#pragma unroll
            for (int i = 0; i < TILE_M / 32; ++i) copy_word(to + i * 128, rows[i] + step * scales.a_k);
            if (lane < BLOCKS) copy_word(to + TILE_M * 4, columns + step * scales.b_k);
            commit_copies();
            pipe.advance();
            if (under_way < COPIES_AHEAD) {
                ++under_way;
            } else {
                wait_copies<COPIES_AHEAD>();
                arrive();
            }
        }
    }
    wait_copies<0>();
    for (; under_way; --under_way) arrive();
}

// Where the scales of 128 k lie beside a stage: b's of each 64 columns.
struct ColumnScales {
    const Scale* at[BLOCKS];
    int64_t step;

    DEVICE ColumnScales(const Scales& scales, int col, const Sizes& s) : step(scales.b_k) {
#pragma unroll
        for (int i = 0; i < BLOCKS; ++i) {
            const int place = col + i * 64 < s.n ? col + i * 64 : s.n - 1;
            at[i] = scales.b + place / 128 * scales.b_col;
        }
    }
};

// The scales of 128 k: of a thread's two rows and of each 64 columns.
struct StepScales {
    float upper, lower, columns[BLOCKS];

    DEVICE void load(const TilePipeline& pipe, ColumnScales& from) {
        const int row = thread_x() / 32 * 16 + thread_x() % 32 / 4;
        upper = load_shared(pipe.scales() + row * 4);
        lower = load_shared(pipe.scales() + row * 4 + 32);
#pragma unroll
        for (int i = 0; i < BLOCKS; ++i) {
            if (SCALE_WARP) {
                columns[i] = load_shared(pipe.scales() + (TILE_M + i) * 4);
            } else {
                columns[i] = *from.at[i];
                from.at[i] += from.step;
            }
        }
    }
};

// The warpgroup's index, which the compiler knows to be the same in all lanes: descriptors stay in uniform registers,
// 2 to 4 % (2026-11-26).
DEVICE int uniform_consumer() { return __shfl_sync(0xffffffffu, thread_x() / 128, 0); }

// Issues the products of a consumer's 64 rows with a stage's 128 k: to `sums`, or where `add`, added to it.
DEVICE void multiply(Sum* sums, const TilePipeline& pipe, int consumer, bool add) {
    const uint64_t a = wgmma_descriptor(pipe.a() + consumer * BLOCK_BYTES, 0, 1024);
    const uint64_t b = wgmma_descriptor(pipe.b(), 0, 1024);
    pipe.wait_full();
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < TILE_K / 32; ++k) Products<TILE_N>::run(sums, a + k * 2, b + k * 2, add || k);
    wgmma_commit();
}

DEVICE void release(uint32_t empty_barrier) {
    if (thread_x() % 128 == 0) mbarrier_arrive(empty_barrier);
}

// Adds the sums of 128 k to the accumulators, once they are there.
DEVICE void promote(float (&acc)[SUMS], float (&sums)[SUMS], const StepScales& scales) {
    keep_in_registers<SUMS>(sums);
#pragma unroll
    for (int block = 0; block < BLOCKS; ++block) {
        const float upper = BLOCK_SCALES ? scales.upper * scales.columns[block] : 1.0f;
        const float lower = BLOCK_SCALES ? scales.lower * scales.columns[block] : 1.0f;
#pragma unroll
        for (int j = block * 32; j < block * 32 + 32; ++j) {
            if (BLOCK_SCALES) acc[j] = math_fma(sums[j], j & 2 ? lower : upper, acc[j]);
            else acc[j] += sums[j];
        }
    }
}

#if MX_SCALES
#include "scaled_mm/sm90/mx_scales.h"
#else
// The main loop of one tile.
DEVICE void multiply_tile(TilePipeline& pipe, Sum (&acc)[SUMS], ColumnScales columns, int consumer, int steps) {
#if FAST_ACCUM
    uint32_t used = 0;
    for (int step = 0; step < steps; ++step) {
        const uint32_t now = pipe.empty_barrier();
        multiply(acc, pipe, consumer, HAS_ZERO_POINT || step != 0);
        pipe.advance();
        wgmma_wait<1>();
        if (step) release(used);
        used = now;
    }
    wgmma_wait<0>();
    keep_in_registers<SUMS>(acc);
    release(used);
#else
    clear<SUMS>(acc);
#if SUM_BUFFERS == 2
    float even[SUMS], odd[SUMS];
    StepScales of_even, of_odd;
    // Starts the products of a step, then promotes those of the step before.
    auto step_on = [&](float (&now)[SUMS], StepScales& of_now, float (&before)[SUMS], const StepScales& of_before,
                       uint32_t used) {
        multiply(now, pipe, consumer, false);
        if (BLOCK_SCALES) of_now.load(pipe, columns);
        pipe.advance();
        wgmma_wait<1>();
        release(used);
        promote(acc, before, of_before);
    };
    uint32_t used = pipe.empty_barrier();
    multiply(even, pipe, consumer, false);
    if (BLOCK_SCALES) of_even.load(pipe, columns);
    pipe.advance();
    int step = 1;
    for (; step + 1 < steps; step += 2) {
        const uint32_t first = pipe.empty_barrier();
        step_on(odd, of_odd, even, of_even, used);
        used = pipe.empty_barrier();
        step_on(even, of_even, odd, of_odd, first);
    }
    if (step < steps) {
        const uint32_t last = pipe.empty_barrier();
        step_on(odd, of_odd, even, of_even, used);
        wgmma_wait<0>();
        release(last);
        promote(acc, odd, of_odd);
    } else {
        wgmma_wait<0>();
        release(used);
        promote(acc, even, of_even);
    }
#else
    for (int step = 0; step < steps; ++step) {
        float sums[SUMS];
        StepScales scales;
        multiply(sums, pipe, consumer, false);
        if (BLOCK_SCALES) scales.load(pipe, columns);
        wgmma_wait<0>();
        release(pipe.empty_barrier());
        pipe.advance();
        promote(acc, sums, scales);
    }
#endif
#endif
}
#endif

// The scales and biases of a tile's columns: read when its products begin, and shared when they have ended.
struct Columns {
    static constexpr int EACH = (TILE_N + 127) / 128;   // of a thread
    float scale[EACH], bias[EACH];

    DEVICE Columns(const Scales& scales, const T* biases, int first, const Sizes& s) {
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            const int col = first + i * 128 + thread_x() % 128;
            const int64_t place = col < s.n ? col : s.n - 1;
            scale[i] = LINE_SCALES ? scales.b[place * scales.b_col] : 1.0f;
            bias[i] = HAS_BIAS ? to_float(biases[place]) : 0.0f;
        }
    }
    DEVICE void share(uint32_t at, int consumer) const {
        named_barrier_sync(consumer + 1, 128);
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            const int col = i * 128 + thread_x() % 128;
            if (TILE_N % 128 && col >= TILE_N) continue;
            asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(at + col * 8), "f"(scale[i]), "f"(bias[i])
                         : "memory");
        }
        named_barrier_sync(consumer + 1, 128);
    }
};

// What follows the sum of a pair of columns.
struct ColumnPair {
    float scale[2], bias[2];

    DEVICE explicit ColumnPair(uint32_t at) {
        asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(scale[0]), "=f"(bias[0]), "=f"(scale[1]), "=f"(bias[1])
                     : "r"(at)
                     : "memory");
    }
    DEVICE float finish(Sum sum, int which, float row_scale) const {
#if INTEGER  // each step is rounded by itself
        const float scaled = __fmul_rn(__fmul_rn(static_cast<float>(static_cast<int>(sum)), row_scale), scale[which]);
        return HAS_BIAS ? __fadd_rn(scaled, bias[which]) : scaled;
#else
        if (LINE_SCALES) sum = sum * row_scale * scale[which];
        return HAS_BIAS ? sum + bias[which] : sum;
#endif
    }
};

#if WIDE_OUTPUT
// A thread's sums of 64 columns to a c of 32 bits whose rows are contiguous.
DEVICE void store_wide(T* c, const Sum* sums, int row, int col, const float (&row_scale)[2], uint32_t columns,
                       const Sizes& s) {
    T* const rows[2] = {c + row * s.c_row + col, c + (row + 8) * s.c_row + col};
#pragma unroll
    for (int j = 0; j < 8; ++j) {
#if SCALED
        const ColumnPair pair(columns + j * 64);
#endif
#pragma unroll
        for (int down = 0; down < 2; ++down) {
#pragma unroll
            for (int right = 0; right < 2; ++right) {
                const Sum sum = sums[j * 4 + down * 2 + right];
                if (row + down * 8 < s.m && col + j * 8 + right < s.n)
#if SCALED
                    rows[down][j * 8 + right] = pair.finish(sum, right, row_scale[down]);
#else
                    rows[down][j * 8 + right] = static_cast<T>(sum);
#endif
            }
        }
    }
}
#endif

// Zero points of rows, `step` elements apart, and the sums over k of b's columns, which go on to the end of a tile.
struct ZeroPoints {
    const uint32_t *rows, *columns;
    int64_t step;

    // -zero * columns of a thread's rows and columns; `row` and `col` are its first ones.
    DEVICE void begin(Sum (&acc)[SUMS], int row, int col, const Sizes& s) const {
        Sum minus[2];
#pragma unroll
        for (int down = 0; down < 2; ++down) {
            const int line = row + down * 8;
            minus[down] = 0u - rows[(line < s.m ? line : s.m - 1) * step];
        }
#pragma unroll
        for (int j = 0; j < TILE_N / 8; ++j) {
            const words<8> pair = load_words<8>(columns + col + j * 8);
#pragma unroll
            for (int i = 0; i < 4; ++i) acc[j * 4 + i] = minus[i / 2] * pair.w[i % 2];
        }
    }
};

DEVICE void consumer_loop(TilePipeline pipe, uint32_t buffers, uint32_t columns, const TensorMap* map_c, T* c,
                          const T* bias, const Scales& scales, const ZeroPoints& points, const Sizes& s,
                          uint32_t tiles) {
    const int consumer = uniform_consumer(), lane = thread_x() % 32;
    [[maybe_unused]] const uint32_t own_buffers = buffers + consumer * C_BUFFERS * BLOCK_BYTES;
    [[maybe_unused]] int buffer = 0;
    const uint32_t own_columns = columns + consumer * TILE_N * 8;
    const int steps = steps_of(s);
    grid_dependency_wait();
    for (uint32_t index = blockIdx.x; index < tiles; index += gridDim.x) {
        const Tile tile = tile_at<TILE_M, TILE_N, GROUP_M>(index, s);
        const int first = tile.row + consumer * 64;
        const int row = first + thread_x() % 128 / 32 * 16 + lane / 4;
        const Columns own(scales, bias, tile.col, s);
        float row_scale[2];
#pragma unroll
        for (int down = 0; down < 2; ++down) {
            const int line = row + down * 8;
            row_scale[down] = LINE_SCALES ? scales.a[(line < s.m ? line : s.m - 1) * scales.a_row] : 1.0f;
        }
        Sum acc[SUMS];
        if (HAS_ZERO_POINT) points.begin(acc, row, tile.col + lane % 4 * 2, s);
#if MX_SCALES
        multiply_tile(pipe, acc, consumer, (s.k + 31) / 32);
#else
        multiply_tile(pipe, acc, ColumnScales(scales, tile.col, s), consumer, steps);
#endif
        if (LINE_SCALES || HAS_BIAS) own.share(own_columns, consumer);
#pragma unroll
        for (int block = 0; block < BLOCKS; ++block) {
            const uint32_t pairs = own_columns + (block * 64 + lane % 4 * 2) * 8;
#if WIDE_OUTPUT
            store_wide(c, acc + block * 32, row, tile.col + block * 64 + lane % 4 * 2, row_scale, pairs, s);
#else
            uint32_t words[BLOCK_WORDS];
#pragma unroll
            for (int j = 0; j < 8; ++j) {
                const ColumnPair pair(pairs + j * 64);
                const Sum* sums = acc + block * 32 + j * 4;
#pragma unroll
                for (int down = 0; down < 2; ++down)
                    words[j * 2 + down] = pack2<T>(pair.finish(sums[down * 2], 0, row_scale[down]),
                                                   pair.finish(sums[down * 2 + 1], 1, row_scale[down]));
            }
            const BlockPosition place = {first, tile.col + block * 64, 0, 0, tile.col + TILE_N};
#if C_TMA
            store_by_tma(own_buffers, buffer, map_c, c, words, place, consumer, s);
            buffer = (buffer + 1) % C_BUFFERS;
#else
            store_by_threads(own_buffers, c, words, place, s);
#endif
#endif
        }
    }
    if (C_TMA && thread_x() % 128 == 0) tma_store_wait_read<0>();
}

extern "C" __global__ __launch_bounds__(THREADS, 1) void scaled_mm_wgmma(
    const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b,
#if C_TMA
    const __grid_constant__ TensorMap map_c,
#endif
    const Scale* scale_a, const Scale* scale_b, const T* bias, T* c, int m, int n, int k, int tiles, int64_t c_row,
    int64_t c_col, int64_t scale_a_row, int64_t scale_a_k, int64_t scale_b_k, int64_t scale_b_col
#if HAS_ZERO_POINT
    ,
    const uint32_t* zero_point, const uint32_t* column_sums, int64_t zero_point_row
#endif
) {
    DYNAMIC_SHARED(shared);
    const Sizes s = {m, n, k, 1, 1, 0, 0, c_row, c_col, 0, 0, 0, 0, 0, 0};
    const Scales scales = {scale_a, scale_b, scale_a_row, scale_a_k, scale_b_k, scale_b_col};
#if HAS_ZERO_POINT
    const ZeroPoints points = {zero_point, column_sums, zero_point_row};
#else
    const ZeroPoints points = {};
#endif
    // The swizzle repeats every 1024 bytes of the address.
    const uint32_t base = (shared_address(shared) + 1023) & ~1023u;
    const uint32_t buffers = base + STAGES * STAGE_BYTES;
    const uint32_t columns = buffers + C_BYTES;
    const TilePipeline pipe(base, columns + COLUMN_BYTES);
    const bool is_producer = thread_x() == CONSUMERS * 128;
    const TensorMap* to_c = nullptr;
#if C_TMA
    to_c = &map_c;
#endif
    if (is_producer) {
        launch_dependents();
        pipe.init(CONSUMERS * ARRIVALS, PRODUCERS);
        mbarrier_init_fence();
        fence_proxy_async();
    } else if (thread_x() == 0) {
        tma_prefetch_descriptor(&map_a);
        tma_prefetch_descriptor(&map_b);
        if (C_TMA) tma_prefetch_descriptor(to_c);
    }
    barrier();

    if (thread_x() >= CONSUMERS * 128) {
        if (CONSUMERS > 1) setmaxnreg_dec<PRODUCER_REGISTERS>();
        if (is_producer) producer_loop(pipe, &map_a, &map_b, scales, s, tiles);
#if MX_SCALES
        else if (thread_x() / 32 == CONSUMERS * 4 + 1)
            mx_scale_loop<TILE_M, true>(pipe, scale_a, scale_a_row, scale_a_k, s, tiles);
        else if (thread_x() / 32 == CONSUMERS * 4 + 2)
            mx_scale_loop<TILE_N, false>(pipe, scale_b, scale_b_col, scale_b_k, s, tiles);
#else
        else if (SCALE_WARP && thread_x() / 32 == CONSUMERS * 4 + 1) scale_loop(pipe, scales, s, tiles);
#endif
    } else {
        if (CONSUMERS > 1) setmaxnreg_inc<CONSUMER_REGISTERS>();
        consumer_loop(pipe, buffers, columns, to_c, c, bias, scales, points, s, tiles);
    }
}
