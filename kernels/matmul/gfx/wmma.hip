// c = a @ b for bfloat16 and float16 with float32 accumulators on RDNA's matrix units (gfx11, gfx12):
// eight waves of 32 lanes, each with WAVE_M x WAVE_N products of 16x16x16.
//
// The product is computed as c.T = b.T @ a.T, because a lane's accumulators run down the instruction's
// rows: of lane l, column l % 16, accumulator i is row
//     2 * i + l / 16    on gfx11,
//     i + 8 * (l / 16)  on gfx12.
// So on gfx12 a lane holds eight neighbours of one row of c, which make one 16-byte store; on gfx11 two
// lanes exchange halves first. An operand's lane holds line l % 16: on gfx11 all 16 elements of k (both
// halves of the wave hold the same), on gfx12 eight of them. Which k those are does not matter as long as
// a and b agree.
//
// -DWAVES_M: how many of the eight waves are along M.

#include "tiles.h"

constexpr int WAVES_N = 8 / WAVES_M;
constexpr int WAVE_M = TILE_M / WAVES_M / 16;
constexpr int WAVE_N = TILE_N / WAVES_N / 16;
static_assert(WAVE_M * WAVES_M * 16 == TILE_M && WAVE_N * WAVES_N * 16 == TILE_N, "waves must tile the tile");

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

struct Core {
    accumulators sums[WAVE_M][WAVE_N];
    int m, n;  // this wave's corner in the tile
    int line, part;

    DEVICE Core() {
        const int wave = __builtin_amdgcn_readfirstlane(thread_x() / 32);
        m = wave / WAVES_N * (WAVE_M * 16);
        n = wave % WAVES_N * (WAVE_N * 16);
        line = thread_x() % 16;
        part = thread_x() % 32 / 16;
        for (int i = 0; i < WAVE_M; ++i) {
            for (int j = 0; j < WAVE_N; ++j) {
                sums[i][j] = 0.0f;
            }
        }
    }

    // The 16 elements of k from `chunk` on, of one line.
    template <int ROWS> DEVICE operand fetch(const char* tile, int row, int chunk) const {
#if defined(__GFX11__)
        const vec<words<16>, 2> both = {{load_words<16>(tile + Lds<ROWS>::offset(row, chunk)),
                                         load_words<16>(tile + Lds<ROWS>::offset(row, chunk + 1))}};
        return __builtin_bit_cast(operand, both);
#else
        return load_words<16>(tile + Lds<ROWS>::offset(row, chunk + part));
#endif
    }

    DEVICE void add(const char* a, const char* b) {
#pragma unroll
        for (int chunk = 0; chunk < TILE_K / CHUNK; chunk += 2) {
            operand left[WAVE_M], right[WAVE_N];
            for (int i = 0; i < WAVE_M; ++i) {
                left[i] = fetch<TILE_M>(a, m + i * 16 + line, chunk);
            }
            for (int j = 0; j < WAVE_N; ++j) {
                right[j] = fetch<TILE_N>(b, n + j * 16 + line, chunk);
            }
            for (int i = 0; i < WAVE_M; ++i) {
                for (int j = 0; j < WAVE_N; ++j) {
                    sums[i][j] = multiply<T>(right[j], left[i], sums[i][j]);
                }
            }
        }
    }

    // Eight neighbours of row `line` of c: columns 8 * part + 0..7 of the 16.
    DEVICE void neighbours(const accumulators& sums, float (&run)[8]) const {
#if defined(__GFX11__)
        // The lower half holds even columns, the upper odd ones: each keeps its four and gets the other's.
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float mine = part == 0 ? sums[i] : sums[i + 4];
            const float other = shuffle_xor(part == 0 ? sums[i + 4] : sums[i], 16);
            run[2 * i] = part == 0 ? mine : other;
            run[2 * i + 1] = part == 0 ? other : mine;
        }
#else
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            run[i] = sums[i];
        }
#endif
    }

    DEVICE void store(const Output& c, int tile_m, int tile_n) const {
#pragma unroll
        for (int j = 0; j < WAVE_N; ++j) {
            const int column = tile_n + n + j * 16 + part * 8;
            float bias[8];
            load_bias(c, column, bias);
#pragma unroll
            for (int i = 0; i < WAVE_M; ++i) {
                float run[8];
                neighbours(sums[i][j], run);
                store_run(c, tile_m + m + i * 16 + line, column, run, bias);
            }
        }
    }
};

typedef TwoStage<Core, A_K_MAJOR, B_K_MAJOR> Loop;
MATMUL_KERNEL(matmul_wmma, Loop, 1)
