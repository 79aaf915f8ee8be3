// c = (a @ b) * scale_a * scale_b + bias of operands in 8 bits, on AMD's matrix units (codes.h); of int8 a less a zero
// point of each row, or the sums alone.
//
// -DTILE_M -DTILE_N: a block's tile, of WAVES_M x WAVES_N waves. Tiles of TILE_K along k lie in LDS, lines along k, as codes;
// while the matrix units work on them, the next ones are loaded to registers. Blocks that share a compute unit take turns.
//
// -DALIGNED=1, on CDNA: lines begin and end at multiples of 16 bytes, within 2^31. -DA_K_MAJOR, -DB_K_MAJOR: 1 where
// neighbours in memory are neighbours in k. -DR: c's and bias' type. -DHAS_BIAS. -DDIES: XCDs. -DBLOCKED=1: the scales are
// those of a TILE_K along k, and of 128 columns of b; the sum of each is scaled and added to the total. With -DINTEGER=1:
// -DSCALED=0: c is int32 sums. -DHAS_ZERO_POINT.
//
// -DAS_FNUZ=1, on gfx942: OCP's codes become fnuz on their way to LDS, once for each. What is not finite becomes NaN, so that
// its row or column is NaN. e5m2 has Inf too: a block that met one multiplies its tile again as bfloat16 numbers, and stores
// what is not finite there; finite results have the same bits whatever the others are.
#include "codes.h"
#if AS_FNUZ
#include "_lib/amdgcn/ocp_as_fnuz.h"
#endif
#include "matmul/gfx/raster.h"

constexpr int TILE_K = 128, BLOCK = 128;
constexpr int WAVES_M = 2, WAVES_N = 2;
#if AS_FNUZ
constexpr bool HAS_INF = A_E5M2 || B_E5M2;
#else
constexpr float AS_FNUZ_FACTOR = 1.0f;
constexpr bool HAS_INF = false;
#endif
constexpr int THREADS = WAVES_M * WAVES_N * WARP;
constexpr int LINE = TILE_K;  // bytes of a line in LDS
constexpr int M_FRAGMENTS = TILE_M / WAVES_M / FRAGMENT, N_FRAGMENTS = TILE_N / WAVES_N / FRAGMENT;
#include "code_tile.h"

// What a product takes of 16 codes; WIDE: numbers of bfloat16.
template <bool WIDE, class Format> DEVICE auto operand_of(words<16> codes, int product) {
#if AS_FNUZ
    if constexpr (WIDE) return widened<Format>(codes, product);
    else
#endif
        return operand<Format>(codes, product);
}

struct Scales {
    const float* data;
    int64_t outer, inner;

    DEVICE float at(int64_t i, int64_t j) const { return data[i * outer + j * inner]; }
};

template <bool VALUE> struct Constant {
    static constexpr bool value = VALUE;
};

DEVICE bool is_finite(float value) { return (bits_of(value) & 0x7f800000u) != 0x7f800000u; }

#if AS_FNUZ
// Makes fnuz codes of the OCP codes that this thread holds of a tile. Whether one of them was not finite.
template <class Format, class Tile> DEVICE bool to_fnuz(Tile& tile) {
    uint32_t found = 0;
#pragma unroll
    for (int i = 0; i < Tile::COUNT; ++i) {
#pragma unroll
        for (int word = 0; word < 4; ++word) {
            found |= not_finite<Format>(tile.held[i].w[word]);
            tile.held[i].w[word] = finite_as_fnuz(tile.held[i].w[word]);
        }
    }
    const bool some = found & SIGNS;
    if (__builtin_expect(some, false)) {
#pragma unroll
        for (int i = 0; i < Tile::COUNT; ++i) {
#pragma unroll
            for (int word = 0; word < 4; ++word) {
                const uint32_t codes = tile.held[i].w[word];
                tile.held[i].w[word] = with_nan(codes, not_finite<Format>(codes));
            }
        }
    }
    return some;
}

// Whether it is so in any thread of the block; what `lds` held is gone. All threads must call.
DEVICE bool in_any_thread(bool condition, char* lds) {
    int* const waves = reinterpret_cast<int*>(lds);
    waves[thread_x() / WARP] = __builtin_amdgcn_ballot_w64(condition) != 0;
    lds_barrier();
    int any = 0;
    for (int wave = 0; wave < WAVES_M * WAVES_N; ++wave) any |= waves[wave];
    lds_barrier();
    return __builtin_amdgcn_readfirstlane(any);
}
#endif

// A wave's part of the tile.
struct Part {
    Accumulators sums[M_FRAGMENTS][N_FRAGMENTS];
#if HAS_ZERO_POINT
    int lines[N_FRAGMENTS] = {};  // b's sums over the k that this lane loads
#endif

    DEVICE void clear() {
#pragma unroll
        for (int i = 0; i < M_FRAGMENTS; ++i) {
#pragma unroll
            for (int j = 0; j < N_FRAGMENTS; ++j) {
                sums[i][j] = Accumulators{};
            }
        }
    }

    // a and b: this wave's first lines in LDS.
    template <bool WIDE> DEVICE void add(const char* a, const char* b) {
        typedef decltype(operand_of<WIDE, B_FORMAT>(words<16>{}, 0)) Operand;
#pragma unroll(WIDE ? 1 : TILE_K / DEPTH)  // decoding is long
        for (int k = 0; k < TILE_K; k += DEPTH) {
            words<16> left[M_FRAGMENTS], right[N_FRAGMENTS];
            const int from = place(lane_line(), k + lane_k());
#pragma unroll
            for (int i = 0; i < M_FRAGMENTS; ++i) {
                left[i] = load_words<16>(a + from + i * FRAGMENT * LINE);
            }
#pragma unroll
            for (int j = 0; j < N_FRAGMENTS; ++j) {
                right[j] = load_words<16>(b + from + j * FRAGMENT * LINE);
#if HAS_ZERO_POINT
                lines[j] = add_codes(right[j], lines[j]);
#endif
            }
#pragma unroll
            for (int product = 0; product < PRODUCTS; ++product) {
                Operand of_b[N_FRAGMENTS];
#pragma unroll
                for (int j = 0; j < N_FRAGMENTS; ++j) {
                    of_b[j] = operand_of<WIDE, B_FORMAT>(right[j], product);
                }
#pragma unroll
                for (int i = 0; i < M_FRAGMENTS; ++i) {
                    const Operand of_a = operand_of<WIDE, A_FORMAT>(left[i], product);
#pragma unroll
                    for (int j = 0; j < N_FRAGMENTS; ++j) {
                        sums[i][j] = multiply(of_a, of_b[j], sums[i][j]);
                    }
                }
            }
        }
    }

#if BLOCKED
    // The sums of block `kb` of k, times its scales and `factor`, from `part`; m and n: this wave's first row and column.
    DEVICE void add_scaled(const Part& part, const Scales& of_a, const Scales& of_b, float factor, int kb, int m, int n,
                           int M, int N) {
#pragma unroll
        for (int i = 0; i < M_FRAGMENTS; ++i) {
            const float scale_a = of_a.at(min(m + i * FRAGMENT + lane_line(), M - 1), kb) * factor;
#pragma unroll
            for (int j = 0; j < N_FRAGMENTS; ++j) {  // 16 columns are of one block
                const float scale = scale_a * of_b.at(kb, min(n + j * FRAGMENT, N - 1) / BLOCK);
                sums[i][j] += part.sums[i][j] * scale;
            }
        }
    }
#endif
};

#if BLOCKED && TILE_M == 128 && defined(__gfx942__)
#define RESIDENT 1  // fits two as it is, and spills if it must
#else
#define RESIDENT 2
#endif

#if HAS_ZERO_POINT
#define ZERO_POINTS , const int *zero_point, int64_t zero_point_row
#else
#define ZERO_POINTS
#endif

KERNEL_RESIDENT(THREADS, RESIDENT)
void scaled_mm(const uint8_t* a, const uint8_t* b, const float* scale_a, const float* scale_b, const R* bias, R* c, int M,
               int N, int K, int tiles_m, int tiles_n, int64_t a_leading, int64_t b_leading, int64_t c_row, int64_t c_col,
               int64_t scale_a_row, int64_t scale_a_k, int64_t scale_b_k, int64_t scale_b_col ZERO_POINTS) {
    constexpr int A_BYTES = TILE_M * LINE;
    SHARED __attribute__((aligned(16))) char lds[A_BYTES + TILE_N * LINE];
    const TileCorner corner = tile_corner<DIES>(block_x(), tiles_m, tiles_n);
    const int wave = thread_x() / WARP;
    const int wave_m = wave / WAVES_N * (TILE_M / WAVES_M), wave_n = wave % WAVES_N * (TILE_N / WAVES_N);
    const int m = corner.m + wave_m, n = corner.n + wave_n;
    const Scales of_a = {scale_a, scale_a_row, scale_a_k}, of_b = {scale_b, scale_b_k, scale_b_col};
    CodeTile<TILE_M, A_K_MAJOR> a_tile(a, a_leading, corner.m, M);
    CodeTile<TILE_N, B_K_MAJOR> b_tile(b, b_leading, corner.n, N);
    Part total, part;
    // The tile; WIDE: as products of bfloat16 numbers. Whether one of this thread's codes may be Inf.
    const auto multiply_tile = [&](auto wide) __attribute__((always_inline)) {
        constexpr bool WIDE = decltype(wide)::value, AGAIN = NATIVE && WIDE;
        bool infinite = false;
        total.clear();
        part.clear();
        // Each round multiplies the tile in LDS, at `k`, and brings the next one; the first has nothing to multiply.
#pragma clang loop unroll(disable)
        for (int k = -TILE_K; k < K; k += TILE_K) {
            const int next = k + TILE_K;
            if (next < K) {
                a_tile.load(next, K - next);
                b_tile.load(next, K - next);
            }
            __builtin_amdgcn_sched_barrier(0);  // the compiler would wait for them before the products
            if (k >= 0) {
                part.add<WIDE>(lds + wave_m * LINE, lds + A_BYTES + wave_n * LINE);
#if BLOCKED
                total.add_scaled(part, of_a, of_b, WIDE ? 1.0f : AS_FNUZ_FACTOR, k / BLOCK, m, n, M, N);
                part.clear();
#endif
            }
            __builtin_amdgcn_sched_barrier(0);
#if AS_FNUZ
            if (!WIDE && next < K) {
                const bool in_a = to_fnuz<A_FORMAT>(a_tile), in_b = to_fnuz<B_FORMAT>(b_tile);
                infinite |= A_E5M2 && in_a || B_E5M2 && in_b;
            }
#endif
            lds_barrier();
            if (next < K) {
                a_tile.store(lds);
                b_tile.store(lds + A_BYTES);
            }
            lds_barrier();
        }
        const Part& found = BLOCKED ? total : part;
#if HAS_ZERO_POINT
        Accumulators of_columns[N_FRAGMENTS];
#pragma unroll
        for (int j = 0; j < N_FRAGMENTS; ++j) of_columns[j] = column_sums(part.lines[j]);
#endif
#pragma unroll
        for (int i = 0; i < M_FRAGMENTS; ++i) {
            const int row = m + i * FRAGMENT + lane_line();
            if (row >= M) continue;
#if SCALED
            const float own = BLOCKED ? 1.0f : of_a.at(row, 0);
#endif
#if HAS_ZERO_POINT
            const int zero = zero_point[row * zero_point_row];
#endif
#pragma unroll
            for (int j = 0; j < N_FRAGMENTS; ++j) {
#pragma unroll
                for (int e = 0; e < SUMS; ++e) {
                    const int column = n + j * FRAGMENT + lane_column(e);
                    if (column >= N) continue;
                    Sum sum = found.sums[i][j][e];
#if HAS_ZERO_POINT
                    sum = corrected(sum, zero, of_columns[j][e]);
#endif
#if SCALED  // a statement is rounded by itself: -ffp-contract=on
                    float value = static_cast<float>(sum);
                    if (AGAIN && is_finite(value)) continue;
                    if (!BLOCKED && !WIDE) value *= AS_FNUZ_FACTOR;  // exact
                    if (!BLOCKED) value = value * own * of_b.at(0, column);
                    if (HAS_BIAS) value += to_float(bias[column]);
                    c[row * c_row + column * c_col] = from_float<R>(value);
#else
                    c[row * c_row + column * c_col] = sum;
#endif
                }
            }
        }
        return infinite;
    };
    const bool infinite = multiply_tile(Constant<!NATIVE>{});
#if AS_FNUZ
    if (HAS_INF && in_any_thread(infinite, lds)) multiply_tile(Constant<true>{});
#endif
}
