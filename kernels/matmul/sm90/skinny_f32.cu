// Small-M products in IEEE float32: fused multiply-adds on operands from shared memory; skinny.h describes the division
// of work.
//
// Where w is K-major, eight lanes share a 128-byte row of it, four k each, and a warp's four such groups compute COLS
// columns each; sums are added over the eight lanes at the end. Where w is N-major, a lane computes four columns of
// every row, and warps take different k; sums are added over the warps at the end. The orders are fixed.
#include "prelude.h"

#include "skinny.h"

constexpr int SUMS = 4 * TILE_M;  // per thread
static_assert(sizeof(T) == 4 && TILE_M % 4 == 0, "rows are read in fours");
static_assert(TILE_N == (W_K_MAJOR ? CONSUMERS * 16 : 128), "a warp takes 16 columns, or all");

// Chunk `chunk` (16 bytes) of line `line` under the swizzle.
DEVICE uint32_t chunk_at(uint32_t base, int line, int chunk) {
    return base + line * 128 + ((chunk ^ line % 8) * 16);
}

DEVICE Quad quad_at(uint32_t at) {
    Quad q;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(q.v[0]), "=f"(q.v[1]), "=f"(q.v[2]), "=f"(q.v[3])
                 : "r"(at));
    return q;
}
DEVICE void put_quad(uint32_t at, const float* v) {
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(at), "f"(v[0]), "f"(v[1]), "f"(v[2]),
                 "f"(v[3])
                 : "memory");
}

// x's rows 4r to 4r + 3 at k = 4 chunk + e of one line: where[row][e].
DEVICE void load_x(float (&where)[4][4], uint32_t x, int r, int chunk) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const Quad q = X_K_MAJOR ? quad_at(chunk_at(x, r * 4 + i, chunk))
                                 : quad_at(chunk_at(x + r / 8 * LINE * 128, chunk * 4 + i, r % 8));
#pragma unroll
        for (int e = 0; e < 4; ++e) (X_K_MAJOR ? where[i][e] : where[e][i]) = q.v[e];
    }
}

// One line along k: sum[row][i] += x[row] . w[i].
DEVICE void multiply_line(float (&sum)[SUMS], uint32_t w, uint32_t x) {
    const int lane = thread_x() % 32, warp = thread_x() / 32;
    // [i][e]: column i at k e; where w is contiguous along its columns, read as [e][i].
    float held[4][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const Quad q = W_K_MAJOR ? quad_at(chunk_at(w, warp * 16 + i * 4 + lane / 8, lane % 8))
                                 : quad_at(chunk_at(w + lane / 8 * LINE * 128, warp % 8 * 4 + i, lane % 8));
#pragma unroll
        for (int e = 0; e < 4; ++e) (W_K_MAJOR ? held[i][e] : held[e][i]) = q.v[e];
    }
    const int chunk = W_K_MAJOR ? lane % 8 : warp % 8;
#pragma unroll
    for (int r = 0; r < TILE_M / 4; ++r) {
        float row[4][4];
        load_x(row, x, r, chunk);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
#pragma unroll
            for (int j = 0; j < 4; ++j) {
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    sum[(r * 4 + j) * 4 + i] = math_fma(row[j][e], held[i][e], sum[(r * 4 + j) * 4 + i]);
            }
        }
    }
}

DEVICE void multiply(TilePipeline pipe, const KRange& part, float (&sum)[SUMS]) {
    const int warp = thread_x() / 32;
#pragma unroll
    for (int i = 0; i < SUMS; ++i) sum[i] = 0.0f;
    for (int step = part.first; step < part.last; ++step) {
        pipe.wait_full();
        if (W_K_MAJOR) {
#pragma unroll
            for (int line = 0; line < LINES; ++line) multiply_line(sum, pipe.w(line), pipe.x(line));
        } else {
            // CONSUMERS of 8 or 16 warps: each takes four k of every line, or of every second one.
#pragma unroll
            for (int line = 0; line < LINES; line += CONSUMERS / 8)
                multiply_line(sum, pipe.w(line + warp / 8), pipe.x(line + warp / 8));
        }
        __syncwarp();
        if (thread_x() % 32 == 0) mbarrier_arrive(pipe.empty_barrier());
        pipe.advance();
    }
}

// Adds v over lanes that differ in bits 0 to 2, halving what a lane holds while it can: afterwards it holds
// the sums of elements first to first + count.
struct Held {
    int first, count;
};
template <int COUNT, int BIT> DEVICE Held add_over_lanes(float* v, int first) {
    if constexpr (BIT == 0) {
        return {first, COUNT};
    } else if constexpr (COUNT > 1) {
        constexpr int HALF = COUNT / 2;
        const bool upper = thread_x() & BIT;
#pragma unroll
        for (int i = 0; i < HALF; ++i) {
            const float given = upper ? v[i] : v[i + HALF];
            const float kept = upper ? v[i + HALF] : v[i];
            v[i] = kept + shuffle_xor(given, BIT);
        }
        return add_over_lanes<HALF, BIT / 2>(v, first + (upper ? HALF : 0));
    } else {
        v[0] += shuffle_xor(v[0], BIT);
        return add_over_lanes<1, BIT / 2>(v, first);
    }
}

// Stages the sums at `at` as [row][column].
DEVICE void stage_sums(uint32_t at, float (&sum)[SUMS]) {
    const int lane = thread_x() % 32, warp = thread_x() / 32;
    if constexpr (W_K_MAJOR) {
        const Held held = add_over_lanes<SUMS, 4>(sum, 0);
        constexpr int COUNT = SUMS / 8 > 0 ? SUMS / 8 : 1;
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            const int e = held.first + i;
            const int place = e / 4 * PITCH + warp * 16 + e % 4 * 4 + lane / 8;
            asm volatile("st.shared.f32 [%0], %1;" ::"r"(at + place * 4), "f"(sum[i]) : "memory");
        }
    } else {
        constexpr int BYTES = TILE_M * PITCH * 4;
#pragma unroll
        for (int half = CONSUMERS / 2; half > 0; half /= 2) {
            const uint32_t own = at + (warp % half) * BYTES + lane * 16;
            if (warp >= half && warp < 2 * half) {
#pragma unroll
                for (int row = 0; row < TILE_M; ++row) put_quad(own + row * PITCH * 4, sum + row * 4);
            }
            named_barrier_sync(1, CONSUMERS * 32);
            if (warp < half) {
#pragma unroll
                for (int row = 0; row < TILE_M; ++row) {
                    const Quad q = quad_at(own + row * PITCH * 4);
#pragma unroll
                    for (int i = 0; i < 4; ++i) sum[row * 4 + i] += q.v[i];
                }
            }
            named_barrier_sync(1, CONSUMERS * 32);
        }
        if (warp == 0) {
#pragma unroll
            for (int row = 0; row < TILE_M; ++row) put_quad(at + lane * 16 + row * PITCH * 4, sum + row * 4);
        }
    }
}

SKINNY_KERNEL(matmul_skinny_f32, CONSUMERS)
