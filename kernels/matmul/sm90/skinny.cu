// Small-M products on Hopper's tensor cores, bfloat16 and float16; skinny.h describes the division of work. A and B are
// swapped: w's columns are the 64 rows of a wgmma, and x's rows, up to 64, its columns, so that no more is computed
// than the next power of two. Where x is M-major (X_K_MAJOR 0), TILE_M is 64.
#include "prelude.h"

#include "_lib/ptx/registers.h"
#include "_lib/ptx/wgmma.h"
#include "skinny.h"

constexpr int SUMS = TILE_M / 2;  // per thread, of the 64 x TILE_M of a warpgroup
constexpr int GROUPS = CONSUMERS / 4;
static_assert(TILE_N <= GROUPS * 64, "a warpgroup computes 64 columns, the last perhaps fewer: it then reads beyond w");
static_assert(X_K_MAJOR || TILE_M == 64, "rows of an M-major x hold 64 m");

// Accumulates this warpgroup's 64 columns over the block's part of k.
DEVICE void multiply(TilePipeline pipe, const KRange& part, float (&sum)[SUMS]) {
    // 16 elements of k: 32 bytes of a row, or 16 rows.
    constexpr int W_STEP = W_K_MAJOR ? 32 : 16 * 128;
    constexpr int X_STEP = X_K_MAJOR ? 32 : 16 * 128;
    const int group = thread_x() / 128;
    uint32_t used = 0;
#pragma unroll
    for (int i = 0; i < SUMS; ++i) sum[i] = 0.0f;
    for (int step = part.first; step < part.last; ++step) {
        pipe.wait_full();
        wgmma_fence();
#pragma unroll
        for (int line = 0; line < LINES; ++line) {
            const uint64_t w = wgmma_descriptor(pipe.w(line) + group * 8192, 8192, 1024);
            const uint64_t x = wgmma_descriptor(pipe.x(line), 8192, 1024);
#pragma unroll
            for (int k = 0; k < 4; ++k)
                Wgmma<TILE_M>::run<!W_K_MAJOR, !X_K_MAJOR>(sum, w + (k * W_STEP >> 4), x + (k * X_STEP >> 4), 1);
        }
        wgmma_commit();
        wgmma_wait<1>();  // the step before no longer reads its stage
        if (step > part.first && thread_x() % 128 == 0) mbarrier_arrive(used);
        used = pipe.empty_barrier();
        pipe.advance();
    }
    wgmma_wait<0>();
    keep_in_registers<SUMS>(sum);
}

// Stages the sums at `at` as [row][column]. Sums 4j to 4j + 3 of a thread are rows 8j + 2t, 8j + 2t + 1 (t =
// lane % 4) at column lane / 4 of its warp's 16 and at the one 8 further. PITCH keeps a warp's stores in
// different banks.
DEVICE void stage_sums(uint32_t at, const float (&sum)[SUMS]) {
    const int lane = thread_x() % 32;
    const int col = thread_x() / 32 * 16 + lane / 4;
    const uint32_t to = at + (lane % 4 * 2 * PITCH + col) * 4;
#pragma unroll
    for (int i = 0; i < SUMS; ++i) {
        const int place = (i / 4 * 8 + i % 2) * PITCH + i % 4 / 2 * 8;
        if (TILE_N % 64 == 0 || col + i % 4 / 2 * 8 < TILE_N)  // the last warpgroup may have fewer columns
            asm volatile("st.shared.f32 [%0], %1;" ::"r"(to + place * 4), "f"(sum[i]) : "memory");
    }
}

SKINNY_KERNEL(matmul_skinny, GROUPS)
