// c = a @ b for bfloat16 and float16 with float32 accumulators on CDNA's matrix cores (gfx90a, gfx942, gfx950), in
// fragments of 16 lines (fragments.h).
//
// -DPING_PONG=1: a wave multiplies a tile's quarters in turn (ping_pong.h; on gfx950 direct_to_lds.h), eight waves in two
// groups or four in one. 0: four waves and the loop of staged.h for aligned operands (-DALIGNED=1), else of tiles.h.
// -DWAVES_M: how many waves are along M.

#include "staged.h"

#if PING_PONG && defined(__gfx950__)

#include "direct_to_lds.h"
typedef DirectPingPong<A_K_MAJOR, B_K_MAJOR> Loop;

#elif PING_PONG

#include "ping_pong.h"
typedef PingPong<A_K_MAJOR, B_K_MAJOR> Loop;

#else

struct Core {
    static constexpr int WAVES_N = THREADS / WARP / WAVES_M;
    static constexpr int WAVE_M = TILE_M / WAVES_M;
    static constexpr int WAVE_N = TILE_N / WAVES_N;
    static_assert(WAVE_M * WAVES_M == TILE_M && WAVE_N * WAVES_N == TILE_N, "waves must tile the tile");

    static constexpr int LINE_BYTES = TILE_K * 2, STEPS = TILE_K / DEPTH;
    static constexpr int FRAGMENTS_M = WAVE_M / FRAGMENT;
    static constexpr int FRAGMENTS_N = WAVE_N / FRAGMENT;

    Accumulators<FRAGMENTS_M, FRAGMENTS_N> sums;
    fragment a[STEPS][FRAGMENTS_M], b[STEPS][FRAGMENTS_N];
    int m, n;  // this wave's corner in the tile
    FragmentLoads<LINE_BYTES> a_loads, b_loads;

    static DEVICE int wave() { return __builtin_amdgcn_readfirstlane(thread_x() / WARP); }

    DEVICE Core()
        : m(wave() / WAVES_N * WAVE_M), n(wave() % WAVES_N * WAVE_N), a_loads(m, 0), b_loads(n, 0) {
        sums.clear();
    }

    DEVICE void load(const char* a_tile, const char* b_tile) {
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            for (int i = 0; i < FRAGMENTS_M; ++i) {
                a[step][i] = a_loads.load(a_tile, i, step);
            }
            for (int j = 0; j < FRAGMENTS_N; ++j) {
                b[step][j] = b_loads.load(b_tile, j, step);
            }
        }
    }

    DEVICE void multiply() {
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            sums.add(a[step], b[step]);
        }
    }

    DEVICE void add(const char* a_tile, const char* b_tile) {
        load(a_tile, b_tile);
        multiply();
    }

    DEVICE void store(const Output& c, int tile_m, int tile_n) const { sums.store(c, tile_m + m, tile_n + n); }
};

#if ALIGNED
typedef OneStage<Core, A_K_MAJOR, B_K_MAJOR> Loop;
#else
typedef TwoStage<Core, A_K_MAJOR, B_K_MAJOR> Loop;
#endif

#endif

#if defined(__gfx942__) || defined(__gfx950__)
constexpr int XCDS = 8;
#else
constexpr int XCDS = 1;
#endif

MATMUL_KERNEL(matmul_mfma, Loop, XCDS)
