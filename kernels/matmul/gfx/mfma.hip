// c = a @ b for bfloat16 and float16 with float32 accumulators on CDNA's matrix cores (gfx90a, gfx942, gfx950).
//
// -DPING_PONG=0: four waves, each with the fragments (fragments.h) of its part of the tile; tiles.h has the loop, and any
// alignment is right. 1: eight waves that take turns at the matrix cores (ping_pong.h). -DWAVES_M: how many of the waves are
// along M.

#include "fragments.h"
#if PING_PONG
#include "ping_pong.h"
#endif

#if defined(__gfx942__) || defined(__gfx950__)
constexpr int XCDS = 8;
#else
constexpr int XCDS = 1;
#endif

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
        : m(wave() / WAVES_N * WAVE_M), n(wave() % WAVES_N * WAVE_N), a_loads(m), b_loads(n) {
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

#if PING_PONG
typedef PingPong<A_K_MAJOR, B_K_MAJOR> Loop;
#else
typedef TwoStage<Core, A_K_MAJOR, B_K_MAJOR> Loop;
#endif
MATMUL_KERNEL(matmul_mfma, Loop, XCDS)
