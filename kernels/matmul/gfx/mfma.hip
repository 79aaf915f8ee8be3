// c = a @ b for bfloat16 and float16 with float32 accumulators on CDNA's matrix cores (gfx90a, gfx942, gfx950), in
// fragments of 16 lines (fragments.h).
//
// -DPING_PONG=1: eight waves that take turns at the matrix cores (ping_pong.h; 256x256 on gfx950 direct_to_lds.h). 0:
// four waves and the loop of tiles.h, for operands of any alignment. -DWAVES_M: how many waves are along M.

#include "fragments.h"

#if PING_PONG && defined(__gfx950__) && TILE_N == 256

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

    static constexpr int LINE_BYTES = TILE_K * 2;
    static constexpr int FRAGMENTS_M = WAVE_M / FRAGMENT;
    static constexpr int FRAGMENTS_N = WAVE_N / FRAGMENT;

    Accumulators<FRAGMENTS_M, FRAGMENTS_N> sums;
    int m, n;  // this wave's corner in the tile
    FragmentLoads<LINE_BYTES> a_loads, b_loads;

    static DEVICE int wave() { return __builtin_amdgcn_readfirstlane(thread_x() / WARP); }

    DEVICE Core()
        : m(wave() / WAVES_N * WAVE_M), n(wave() % WAVES_N * WAVE_N), a_loads(m, 0), b_loads(n, 0) {
        sums.clear();
    }

    DEVICE void add(const char* a, const char* b) {
#pragma unroll
        for (int step = 0; step < TILE_K / DEPTH; ++step) {
            fragment left[FRAGMENTS_M], right[FRAGMENTS_N];
            for (int i = 0; i < FRAGMENTS_M; ++i) {
                left[i] = a_loads.load(a, i, step);
            }
            for (int j = 0; j < FRAGMENTS_N; ++j) {
                right[j] = b_loads.load(b, j, step);
            }
            sums.add(left, right);
        }
    }

    DEVICE void store(const Output& c, int tile_m, int tile_n) const { sums.store(c, tile_m + m, tile_n + n); }
};

typedef TwoStage<Core, A_K_MAJOR, B_K_MAJOR> Loop;

#endif

#if defined(__gfx942__) || defined(__gfx950__)
constexpr int XCDS = 8;
#else
constexpr int XCDS = 1;
#endif

MATMUL_KERNEL(matmul_mfma, Loop, XCDS)
