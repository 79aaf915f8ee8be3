// c = a @ b for bfloat16 and float16 with float32 accumulators on RDNA's matrix units (gfx11, gfx12): waves of 32 lanes,
// each with FRAGMENTS_M x FRAGMENTS_N products of 16x16x16, in the loop of double_buffer.h.
//
// The product is computed as c.T = b.T @ a.T, because a lane's accumulators run down the instruction's
// rows: of lane l, column l % 16, accumulator i is row
//     2 * i + l / 16    on gfx11,
//     i + 8 * (l / 16)  on gfx12.
// gfx11 gets b's columns in another order (`b_line`), so that on both a lane holds 8 neighbours of one row of c. An
// operand's lane holds line l % 16: on gfx11 all 16 elements of k (both halves of the wave hold the same), on gfx12 those
// from 8 * (l / 16) on.
//
// -DWAVES_M: how many of the block's waves are along M. -DFAR: 1 where a lane's offset in a tile needs 64 bits.

// Of gate and up (GATED), every other fragment of b is gate's: a lane has 8 neighbours of c.

#define GATED_RUN 16
#include "_lib/amdgcn/pack.h"
#include "double_buffer.h"

constexpr int FRAGMENT = 16;
constexpr int WAVES_N = THREADS / WARP / WAVES_M;
constexpr int FRAGMENTS_M = TILE_M / WAVES_M / FRAGMENT;
constexpr int FRAGMENTS_N = TILE_N / WAVES_N / FRAGMENT;
static_assert(FRAGMENTS_M * WAVES_M * FRAGMENT == TILE_M && FRAGMENTS_N * WAVES_N * FRAGMENT == TILE_N,
              "waves must tile the tile");
static_assert(FRAGMENTS_N % 2 == 0, "two neighbours are stored together");

typedef float accumulators __attribute__((ext_vector_type(8)));

#if defined(__GFX11__)
constexpr int DEPTH = 16;  // elements of k in one lane's operand
typedef _Float16 half_operand __attribute__((ext_vector_type(16)));
typedef short brain_operand __attribute__((ext_vector_type(16)));
#define MULTIPLY(type) __builtin_amdgcn_wmma_f32_16x16x16_##type##_w32
#else
constexpr int DEPTH = 8;
typedef _Float16 half_operand __attribute__((ext_vector_type(8)));
typedef short brain_operand __attribute__((ext_vector_type(8)));
#define MULTIPLY(type) __builtin_amdgcn_wmma_f32_16x16x16_##type##_w32_gfx12
#endif

typedef words<DEPTH * 2> operand;

template <class Type> DEVICE accumulators multiply(operand a, operand b, accumulators c);
template <> DEVICE accumulators multiply<f16>(operand a, operand b, accumulators c) {
    return MULTIPLY(f16)(__builtin_bit_cast(half_operand, a), __builtin_bit_cast(half_operand, b), c);
}
template <> DEVICE accumulators multiply<bf16>(operand a, operand b, accumulators c) {
    return MULTIPLY(bf16)(__builtin_bit_cast(brain_operand, a), __builtin_bit_cast(brain_operand, b), c);
}

// Which of 16 columns of b this lane holds: the one that the instruction's row l % 16 stands for.
DEVICE int b_line() {
    const int row = thread_x() % FRAGMENT;
#if defined(__GFX11__)
    return row % 2 * 8 + row / 2;
#else
    return row;
#endif
}

struct Wave {
    accumulators sums[FRAGMENTS_M][FRAGMENTS_N];
    int m, n;              // this wave's corner in the tile
    int a_from, b_from;    // this lane's first byte of either operand in a stage

    DEVICE Wave() {
        const int wave = __builtin_amdgcn_readfirstlane(thread_x() / WARP);
        m = wave / WAVES_N * (FRAGMENTS_M * FRAGMENT);
        n = wave % WAVES_N * (FRAGMENTS_N * FRAGMENT);
        const int k = DEPTH == 8 ? thread_x() % WARP / FRAGMENT * 16 : 0;
        a_from = (m + place(thread_x() % FRAGMENT)) * LINE_BYTES + k;
        b_from = (TILE_M + n + place(b_line())) * LINE_BYTES + k;
        for (int i = 0; i < FRAGMENTS_M; ++i) {
            for (int j = 0; j < FRAGMENTS_N; ++j) {
                sums[i][j] = 0.0f;
            }
        }
    }

    static DEVICE operand fetch(const char* from) {
#if defined(__GFX11__)
        const vec<words<16>, 2> both = {{load_words<16>(from), load_words<16>(from + 16)}};
        return __builtin_bit_cast(operand, both);
#else
        return load_words<16>(from);
#endif
    }

    // The compiler would fill the registers with what comes later, or wait for the next tile before the products.
    static DEVICE void keep_order() { __builtin_amdgcn_sched_barrier(0); }

    DEVICE void add(const char* stage) {
#pragma unroll
        for (int k = 0; k < TILE_K; k += 16) {
            operand left[FRAGMENTS_M], right[FRAGMENTS_N];
#pragma unroll
            for (int j = 0; j < FRAGMENTS_N; ++j) {
                right[j] = fetch(stage + b_from + j * (FRAGMENT * LINE_BYTES) + k * 2);
            }
#pragma unroll
            for (int i = 0; i < FRAGMENTS_M; ++i) {
                left[i] = fetch(stage + a_from + i * (FRAGMENT * LINE_BYTES) + k * 2);
            }
#pragma unroll
            for (int i = 0; i < FRAGMENTS_M; ++i) {
#pragma unroll
                for (int j = 0; j < FRAGMENTS_N; ++j) {
                    sums[i][j] = multiply<T>(right[j], left[i], sums[i][j]);
                }
            }
            if (k % 32 == 16) {
                keep_order();
            }
        }
    }

    // The epilogue.
    DEVICE void store(const Output& c, int tile_m, int tile_n) const {
        int lane = thread_x() % WARP;
        asm volatile("" : "+v"(lane));  // keeps the addresses in c out of the registers before
#pragma unroll
        for (int j = 0; j < FRAGMENTS_N; j += 2) {
            store_columns(c, tile_m + m, tile_n + n + j * FRAGMENT, j, lane);
        }
    }

#if GATED
    // 16 columns: of gate in fragment j, of up in the next.
    DEVICE void store_columns(const Output& c, int first_row, int first_column, int j, int lane) const {
#pragma unroll
        for (int i = 0; i < FRAGMENTS_M; ++i) {
            float gate[8], up[8];
            for (int e = 0; e < 8; ++e) {
                gate[e] = sums[i][j][e];
                up[e] = sums[i][j + 1][e];
            }
            const int row = first_row + i * FRAGMENT + lane % FRAGMENT;
            store_gated_run(c, row, first_column / 2 + lane / FRAGMENT * 8, gate, up);
        }
    }
#else

    // 32 columns, of fragments j and j + 1.
    DEVICE void store_columns(const Output& c, int first_row, int first_column, int j, int lane) const {
        const int line = lane % FRAGMENT, part = lane / FRAGMENT;
        float bias[2][8];
#pragma unroll
        for (int f = 0; f < 2; ++f) {
            load_bias(c, first_column + f * FRAGMENT + part * 8, bias[f]);
        }
#pragma unroll
        for (int i = 0; i < FRAGMENTS_M; ++i) {
            const int row = first_row + i * FRAGMENT;
#if C_ROW_MAJOR
            words<16> before[2], after[2];
#pragma unroll
            for (int f = 0; f < 2; ++f) {
                const accumulators x = sums[i][j + f];
#pragma unroll
                for (int e = 0; e < 8; e += 2) {
                    const float low = preactivation(x[e], bias[f][e]), high = preactivation(x[e + 1], bias[f][e + 1]);
                    before[f].w[e / 2] = pack2_products<T>(low, high);
                    after[f].w[e / 2] = pack2_products<T>(activate(low), activate(high));
                }
            }
            const int column = first_column + line / 8 * FRAGMENT + part * 8;
#if PREACTIVATION
            store_pair(c, c.before, row + line % 8, column, before);
#endif
            store_pair(c, c.data, row + line % 8, column, after);
#else
#pragma unroll
            for (int f = 0; f < 2; ++f) {
                float run[8];
                for (int e = 0; e < 8; ++e) {
                    run[e] = sums[i][j + f][e];
                }
                store_run(c, row + line, first_column + f * FRAGMENT + part * 8, run, bias[f]);
            }
#endif
        }
    }
#endif

    // Lanes 8-15 of 16 give their first 8 columns to lanes 0-7 for these' second: so four lanes store 64 contiguous
    // bytes of a row, in two stores of 8 rows.
    static DEVICE void store_pair(const Output& c, T* data, int row, int column, const words<16> (&pair)[2]) {
        constexpr int BY_8 = 0x128;  // row_ror:8
        words<16> upper, lower;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int first = static_cast<int>(pair[0].w[i]), second = static_cast<int>(pair[1].w[i]);
            upper.w[i] = static_cast<uint32_t>(__builtin_amdgcn_update_dpp(first, second, BY_8, 0xf, 0xc, false));
            lower.w[i] = static_cast<uint32_t>(__builtin_amdgcn_update_dpp(second, first, BY_8, 0xf, 0x3, false));
        }
        store_chunk(c, data, row, column, upper);
        store_chunk(c, data, row + 8, column, lower);
    }

    static DEVICE void store_chunk(const Output& c, T* data, int row, int column, words<16> chunk) {
        if (row >= c.M) {
            return;
        }
        T* const to = data + row * c.row + column;
        if (column + 8 <= c.N) {
            __builtin_memcpy(to, &chunk, sizeof chunk);
            return;
        }
        const vec<T, 8> values = __builtin_bit_cast(vec<T, 8>, chunk);
        for (int e = 0; e < 8; ++e) {
            if (column + e < c.N) {
                to[e] = values.v[e];
            }
        }
    }
};

typedef DoubleBuffer<Wave, A_K_MAJOR, B_K_MAJOR> Loop;
MATMUL_KERNEL(matmul_wmma, Loop, 1)
