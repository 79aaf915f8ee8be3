// c = a @ b for bfloat16 and float16 with float32 accumulators on CDNA's matrix cores (gfx90a, gfx942,
// gfx950): four waves of 64 lanes, each with WAVE_M x WAVE_N products of 32x32.
//
// The instruction's rows are columns of c and its columns rows of c (the product is computed as
// c.T = b.T @ a.T), because a lane's accumulators run down the instruction's rows: accumulator i of lane l
// is row 8 * (i / 4) + 4 * (l / 32) + i % 4, column l % 32. So a lane holds four neighbouring elements of
// one row of c, which make one 8-byte store.
//
// Which k an operand's lane and element stand for does not matter as long as a and b agree: a lane reads
// 8 neighbours in k (16 bytes of LDS), lanes 0-31 the first chunk and lanes 32-63 the second.
//
// -DWAVES_M: how many of the four waves are along M.

#include "tiles.h"

#if defined(__gfx942__) || defined(__gfx950__)
constexpr int XCDS = 8;
#else
constexpr int XCDS = 1;
#endif

constexpr int WAVES_N = 4 / WAVES_M;
constexpr int WAVE_M = TILE_M / WAVES_M / 32;
constexpr int WAVE_N = TILE_N / WAVES_N / 32;
static_assert(WAVE_M * WAVES_M * 32 == TILE_M && WAVE_N * WAVES_N * 32 == TILE_N, "waves must tile the tile");

typedef float accumulators __attribute__((ext_vector_type(16)));
typedef _Float16 half4 __attribute__((ext_vector_type(4)));
typedef _Float16 half8 __attribute__((ext_vector_type(8)));
typedef short short4 __attribute__((ext_vector_type(4)));
typedef __bf16 brain8 __attribute__((ext_vector_type(8)));

// Adds a 32x16 by 16x32 product: one instruction on gfx950, two of depth 8 elsewhere.
template <class Type> DEVICE accumulators multiply(words<16> a, words<16> b, accumulators c);

#if defined(__gfx950__)
template <> DEVICE accumulators multiply<f16>(words<16> a, words<16> b, accumulators c) {
    return __builtin_amdgcn_mfma_f32_32x32x16_f16(__builtin_bit_cast(half8, a), __builtin_bit_cast(half8, b),
                                                  c, 0, 0, 0);
}
template <> DEVICE accumulators multiply<bf16>(words<16> a, words<16> b, accumulators c) {
    return __builtin_amdgcn_mfma_f32_32x32x16_bf16(__builtin_bit_cast(brain8, a),
                                                   __builtin_bit_cast(brain8, b), c, 0, 0, 0);
}
#else
DEVICE words<8> half_of(words<16> chunk, int part) {
    return {{chunk.w[part * 2], chunk.w[part * 2 + 1]}};
}
template <> DEVICE accumulators multiply<f16>(words<16> a, words<16> b, accumulators c) {
    for (int part = 0; part < 2; ++part) {
        c = __builtin_amdgcn_mfma_f32_32x32x8f16(__builtin_bit_cast(half4, half_of(a, part)),
                                                 __builtin_bit_cast(half4, half_of(b, part)), c, 0, 0, 0);
    }
    return c;
}
template <> DEVICE accumulators multiply<bf16>(words<16> a, words<16> b, accumulators c) {
    for (int part = 0; part < 2; ++part) {
        c = __builtin_amdgcn_mfma_f32_32x32x8bf16_1k(__builtin_bit_cast(short4, half_of(a, part)),
                                                     __builtin_bit_cast(short4, half_of(b, part)), c, 0, 0,
                                                     0);
    }
    return c;
}
#endif

struct Core {
    accumulators sums[WAVE_M][WAVE_N];
    int m, n;  // this wave's corner in the tile
    int line, part;

    DEVICE Core() {
        const int wave = __builtin_amdgcn_readfirstlane(thread_x() / 64);
        m = wave / WAVES_N * (WAVE_M * 32);
        n = wave % WAVES_N * (WAVE_N * 32);
        line = thread_x() % 32;
        part = thread_x() % 64 / 32;
        for (int i = 0; i < WAVE_M; ++i) {
            for (int j = 0; j < WAVE_N; ++j) {
                sums[i][j] = 0.0f;
            }
        }
    }

    DEVICE void add(const char* a, const char* b) {
#pragma unroll
        for (int chunk = 0; chunk < TILE_K / CHUNK; chunk += 2) {
            words<16> left[WAVE_M], right[WAVE_N];
            for (int i = 0; i < WAVE_M; ++i) {
                left[i] = load_words<16>(a + Lds<TILE_M>::offset(m + i * 32 + line, chunk + part));
            }
            for (int j = 0; j < WAVE_N; ++j) {
                right[j] = load_words<16>(b + Lds<TILE_N>::offset(n + j * 32 + line, chunk + part));
            }
            for (int i = 0; i < WAVE_M; ++i) {
                for (int j = 0; j < WAVE_N; ++j) {
                    sums[i][j] = multiply<T>(right[j], left[i], sums[i][j]);
                }
            }
        }
    }

    DEVICE void store(const Output& c, int tile_m, int tile_n) const {
#pragma unroll
        for (int j = 0; j < WAVE_N; ++j) {
#pragma unroll
            for (int group = 0; group < 4; ++group) {
                const int column = tile_n + n + j * 32 + group * 8 + part * 4;
                float bias[4];
                load_bias(c, column, bias);
#pragma unroll
                for (int i = 0; i < WAVE_M; ++i) {
                    const accumulators& s = sums[i][j];
                    const float run[4] = {s[group * 4], s[group * 4 + 1], s[group * 4 + 2], s[group * 4 + 3]};
                    store_run(c, tile_m + m + i * 32 + line, column, run, bias);
                }
            }
        }
    }
};

MATMUL_KERNEL(matmul_mfma, Core, XCDS)
