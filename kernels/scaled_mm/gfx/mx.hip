// c = (a @ b) * global_a * global_b + bias of operands in MXFP8, MXFP4 or NVFP4, on AMD's matrix units: a scale for each GROUP
// numbers along k of a line, a row of a or a column of b.
//
// -DSCALED_MFMA=1, on gfx950: instructions that take codes and e8m0 scales as they are (mx_codes.h). 0: codes become numbers of
// bfloat16, times their scales, on their way to LDS (mx_numbers.h).
//
// -DTILE_M -DTILE_N -DWAVES_M -DWAVES_N: a block's tile and its waves. -DPER_BYTE: numbers in a byte; K counts bytes. -DGROUP: 32
// or 16. -DE8M0=1: scales are e8m0, 0: of -DSCALE_FORMAT. -DA_FORMAT, -DB_FORMAT: types (minifloat.h). With SCALED_MFMA -DA_KIND,
// -DB_KIND: theirs in an instruction; -DSCALE_WORDS=1: the scales of 4 groups are an aligned word of memory, in all lines.
// -DWHOLE=1: with global_a and global_b. -DALIGNED, -DA_K_MAJOR, -DB_K_MAJOR, -DR, -DHAS_BIAS, -DDIES: as in scaled.hip.
#define INTEGER 0
#define NATIVE 0
#include "codes.h"
#include "matmul/gfx/raster.h"

constexpr int THREADS = WAVES_M * WAVES_N * WARP;
constexpr int GROUP_BYTES = GROUP / PER_BYTE;
constexpr int M_FRAGMENTS = TILE_M / WAVES_M / FRAGMENT, N_FRAGMENTS = TILE_N / WAVES_N / FRAGMENT;
typedef Accumulators Sums[M_FRAGMENTS][N_FRAGMENTS];

// A line's and a group's scales in memory. What lies beyond them is the last one's.
struct GroupScales {
    const uint8_t* data;
    int64_t line, group;
    int lines, groups;

    DEVICE const uint8_t* of_line(int i) const { return data + min(i, lines - 1) * line; }
    DEVICE uint32_t at(int i, int of_group) const { return of_line(i)[min(of_group, groups - 1) * group]; }
};

#if SCALED_MFMA
#include "mx_codes.h"
#else
#include "mx_numbers.h"
#endif

#if WHOLE
#define WHOLE_SCALES , const float *global_a, const float *global_b
#else
#define WHOLE_SCALES
#endif

KERNEL_RESIDENT(THREADS, RESIDENT)
void scaled_mm_mx(const uint8_t* a, const uint8_t* b, const uint8_t* scale_a, const uint8_t* scale_b, const R* bias, R* c, int M,
                  int N, int K, int tiles_m, int tiles_n, int64_t a_leading, int64_t b_leading, int64_t c_row, int64_t c_col,
                  int64_t scale_a_row, int64_t scale_a_k, int64_t scale_b_col, int64_t scale_b_k WHOLE_SCALES) {
    typedef Tile<TILE_M, WAVES_M, A_FORMAT, A_K_MAJOR> ATile;
    typedef Tile<TILE_N, WAVES_N, B_FORMAT, B_K_MAJOR> BTile;
    SHARED __attribute__((aligned(16))) char lds[ATile::BYTES + BTile::BYTES];
    char* const b_lds = lds + ATile::BYTES;
    const TileCorner corner = tile_corner<DIES>(block_x(), tiles_m, tiles_n);
    const int wave = thread_x() / WARP;
    const int wave_m = wave / WAVES_N, wave_n = wave % WAVES_N;
    const int m = corner.m + wave_m * (TILE_M / WAVES_M), n = corner.n + wave_n * (TILE_N / WAVES_N);
    const int groups = (K + GROUP_BYTES - 1) / GROUP_BYTES;
    ATile a_tile(a, a_leading, corner.m, M, {scale_a, scale_a_row, scale_a_k, M, groups});
    BTile b_tile(b, b_leading, corner.n, N, {scale_b, scale_b_col, scale_b_k, N, groups});
    Sums sums;
#pragma unroll
    for (int i = 0; i < M_FRAGMENTS; ++i) {
#pragma unroll
        for (int j = 0; j < N_FRAGMENTS; ++j) sums[i][j] = Accumulators{};
    }
    // Each round multiplies the tile in LDS, at `k`, and brings the next one; the first has nothing to multiply.
#pragma clang loop unroll(disable)
    for (int k = -TILE_K; k < K; k += TILE_K) {
        const int next = k + TILE_K;
        if (next < K) {
            a_tile.load(next, K - next);
            b_tile.load(next, K - next);
        }
        __builtin_amdgcn_sched_barrier(0);  // the compiler would wait for them before the products
        if (k >= 0) add_products(sums, ATile::of_wave(lds, wave_m), BTile::of_wave(b_lds, wave_n));
        __builtin_amdgcn_sched_barrier(0);
        lds_barrier();
        if (next < K) {
            a_tile.store(lds);
            b_tile.store(b_lds);
        }
        lds_barrier();
    }
#pragma unroll
    for (int i = 0; i < M_FRAGMENTS; ++i) {
        const int row = m + i * FRAGMENT + lane_line();
        if (row >= M) continue;
#pragma unroll
        for (int j = 0; j < N_FRAGMENTS; ++j) {
#pragma unroll
            for (int e = 0; e < SUMS; ++e) {
                const int column = n + j * FRAGMENT + lane_column(e);
                if (column >= N) continue;
                float value = sums[i][j][e];
#if WHOLE
                value = value * *global_a * *global_b;
#endif
                if (HAS_BIAS) value += to_float(bias[column]);  // rounded by itself: -ffp-contract=on
                c[row * c_row + column * c_col] = from_float<R>(value);
            }
        }
    }
}
