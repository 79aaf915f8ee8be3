// c = a @ b of float32 matrices on Hopper's tensor cores. split.cu has made each operand the sum of three
// bfloat16 planes, x = x0 + x1 / 2^8 + x2 / 2^16; of their nine products the six largest are taken:
//
//     c = a0 b0 + (a0 b1 + a1 b0) / 2^8 + (a0 b2 + a1 b1 + a2 b0) / 2^16
//
// What is left out is 2^-24 of |a| |b| at most. Products of bfloat16 are exact, but the tensor cores cut
// their sums towards zero; so sums over 64 of k (PART) stay apart by their scale, and are added in float32,
// rounded to nearest, on the CUDA cores.
//
// A persistent block walks tiles of TILE_M x TILE_N. Warpgroup 0 starts bulk tensor copies into a ring of
// STAGES stages, each the three planes of both operands, PART deep; the other warpgroups each multiply 64
// rows, by turns into two sets of accumulators: while the tensor cores fill one, the other is added up.
//
// Defines: ELEMENT (bf16), CONSUMERS (1, 2: warpgroups that multiply), TILE_N (64, 128), STAGES, GROUP,
// A_ALONG_K, B_ALONG_K; C_PAIRS: c is row-major with 8-byte aligned rows; BIAS, ACTIVATION.
#include "prelude.h"

#include "matmul/epilogue.h"
#include "_lib/ptx/hopper.h"
#include "matmul/tile.h"

constexpr int TILE_M = CONSUMERS * 64;
constexpr int PART = 64;  // of k: one 128-byte line
constexpr int THREADS = (1 + CONSUMERS) * 128;
constexpr int BLOCK_BYTES = 64 * 128;  // 64 lines
constexpr int A_BYTES = TILE_M * 128;  // one plane
constexpr int B_BYTES = TILE_N * 128;
constexpr int STAGE_BYTES = 3 * (A_BYTES + B_BYTES);
constexpr int SUMS = TILE_N / 2;  // per thread, of the 64 x TILE_N of a consumer

struct Ring {
    uint32_t base, full, empty;  // stages, and their barriers: filled, and free again
    int stage = 0;
    uint32_t phase = 0;

    DEVICE uint32_t a(int plane) const { return base + stage * STAGE_BYTES + plane * A_BYTES; }
    DEVICE uint32_t b(int plane) const { return a(3) + plane * B_BYTES; }
    DEVICE uint32_t filled() const { return full + stage * 8; }
    DEVICE uint32_t freed() const { return empty + stage * 8; }
    DEVICE void advance() {
        if (++stage == STAGES) {
            stage = 0;
            phase ^= 1;
        }
    }
};

// Batch strides of a and b count matrices here.
DEVICE void produce(Ring ring, const TensorMap* map_a, const TensorMap* map_b, const Sizes& s,
                    uint32_t tiles) {
    const int steps = (s.k + PART - 1) / PART;
    for (uint32_t index = blockIdx.x; index < tiles; index += gridDim.x) {
        const Tile tile = tile_at<TILE_M, TILE_N, GROUP>(index, s);
        const int matrix_a = static_cast<int>(tile.outer * s.a_outer + tile.inner * s.a_inner);
        const int matrix_b = static_cast<int>(tile.outer * s.b_outer + tile.inner * s.b_inner);
        for (int step = 0; step < steps; ++step) {
            const int k = step * PART;
            barrier_wait(ring.freed(), ring.phase ^ 1);
            barrier_expect(ring.filled(), STAGE_BYTES);
#pragma unroll
            for (int plane = 0; plane < 3; ++plane) {
#pragma unroll
                for (int i = 0; i < (A_ALONG_K ? 1 : TILE_M / 64); ++i) {
                    const int row = tile.row + i * 64;
                    load_box(ring.a(plane) + i * BLOCK_BYTES, map_a, ring.filled(), A_ALONG_K ? k : row,
                             A_ALONG_K ? row : k, matrix_a, plane);
                }
#pragma unroll
                for (int i = 0; i < (B_ALONG_K ? 1 : TILE_N / 64); ++i) {
                    const int col = tile.col + i * 64;
                    load_box(ring.b(plane) + i * BLOCK_BYTES, map_b, ring.filled(), B_ALONG_K ? k : col,
                             B_ALONG_K ? col : k, matrix_b, plane);
                }
            }
            ring.advance();
        }
    }
}

// part (+)= plane `pa` of a @ plane `pb` of b, PART of k.
DEVICE void multiply(float (&part)[SUMS], const Ring& ring, int pa, int pb, bool accumulate) {
    constexpr int A_STEP = A_ALONG_K ? 32 : 16 * 128;  // 16 of k: 32 bytes along a line, or 16 lines
    constexpr int B_STEP = B_ALONG_K ? 32 : 16 * 128;
    const int consumer = thread_x() / 128 - 1;
    const uint64_t a = descriptor(ring.a(pa) + consumer * BLOCK_BYTES, BLOCK_BYTES, 1024);
    const uint64_t b = descriptor(ring.b(pb), BLOCK_BYTES, 1024);
#pragma unroll
    for (int k = 0; k < PART / 16; ++k)
        Wgmma<TILE_N>::run<!A_ALONG_K, !B_ALONG_K>(part, a + (k * A_STEP >> 4), b + (k * B_STEP >> 4),
                                                   accumulate || k > 0);
}

DEVICE void add(float (&sum)[SUMS], float (&part)[SUMS], float scale) {
#pragma unroll
    for (int i = 0; i < SUMS; ++i) {
        asm volatile("" : "+f"(part[i])::"memory");  // not read before the wait for it
        sum[i] = math_fma(part[i], scale, sum[i]);
    }
}

DEVICE void store(float* c, const float (&sum)[SUMS], const float* bias, int row0, int col0, const Sizes& s) {
    const int lane = thread_x() % 32;
    const int row = row0 + thread_x() % 128 / 32 * 16 + lane / 4;
#pragma unroll
    for (int j = 0; j < TILE_N / 8; ++j) {
        const int col = col0 + j * 8 + lane % 4 * 2;
        if (col >= s.n) continue;
        const bool pair = col + 1 < s.n;
        const float bias0 = bias_at(bias, col), bias1 = pair ? bias_at(bias, col + 1) : 0.0f;
#pragma unroll
        for (int down = 0; down < 2; ++down) {
            if (row + down * 8 >= s.m) continue;
            float* to = c + (row + down * 8) * s.c_row + col * s.c_col;
            const float x = finish(sum[j * 4 + down * 2], bias0);
            const float y = finish(sum[j * 4 + down * 2 + 1], bias1);
            if (C_PAIRS && pair) {
                *reinterpret_cast<float2*>(to) = make_float2(x, y);
            } else {
                to[0] = x;
                if (pair) to[s.c_col] = y;
            }
        }
    }
}

DEVICE void consume(Ring ring, float* c, const float* bias, const Sizes& s, uint32_t tiles) {
    const int steps = (s.k + PART - 1) / PART;
    for (uint32_t index = blockIdx.x; index < tiles; index += gridDim.x) {
        const Tile tile = tile_at<TILE_M, TILE_N, GROUP>(index, s);
        float sum[SUMS] = {}, x[SUMS], y[SUMS];
        for (int step = 0; step < steps; ++step) {
            barrier_wait(ring.filled(), ring.phase);
            wgmma_fence();
            multiply(x, ring, 2, 0, false);
            multiply(x, ring, 0, 2, true);
            multiply(x, ring, 1, 1, true);
            wgmma_commit();
            multiply(y, ring, 1, 0, false);
            multiply(y, ring, 0, 1, true);
            wgmma_commit();
            wgmma_wait<1>();
            add(sum, x, 0x1p-16f);
            wgmma_fence();
            multiply(x, ring, 0, 0, false);
            wgmma_commit();
            wgmma_wait<1>();
            add(sum, y, 0x1p-8f);
            wgmma_wait<0>();
            if (thread_x() % 128 == 0) barrier_arrive(ring.freed());
            ring.advance();
            add(sum, x, 1.0f);
        }
        const int row = tile.row + (thread_x() / 128 - 1) * 64;
        store(c + tile.outer * s.c_outer + tile.inner * s.c_inner, sum, bias, row, tile.col, s);
    }
}

extern "C" __global__ __launch_bounds__(THREADS, 1) void matmul_bf16x6(
    const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b, const float* bias,
    float* c, SIZES_PARAMETERS) {
    DYNAMIC_SHARED(shared);
    const Sizes s = SIZES_ARGUMENTS;
    // The swizzle repeats every 1024 bytes of the address.
    const uint32_t base = (shared_address(shared) + 1023) & ~1023u;
    const uint32_t barriers = base + STAGES * STAGE_BYTES;
    const Ring ring{base, barriers, barriers + STAGES * 8};

    if (thread_x() == 0) {
        prefetch_map(&map_a);
        prefetch_map(&map_b);
        for (int stage = 0; stage < STAGES; ++stage) {
            barrier_init(ring.full + stage * 8, 1);
            barrier_init(ring.empty + stage * 8, CONSUMERS);
        }
        barrier_init_fence();
    }
    barrier();

    const uint32_t tiles_m = (static_cast<uint32_t>(s.m) + TILE_M - 1) / TILE_M;
    const uint32_t tiles_n = (static_cast<uint32_t>(s.n) + TILE_N - 1) / TILE_N;
    const uint32_t tiles = tiles_m * tiles_n * s.inner_batches * s.outer_batches;
    if (thread_x() < 128) {
        registers_down<40>();
        if (thread_x() == 0) produce(ring, &map_a, &map_b, s, tiles);
    } else {
        registers_up<232>();
        consume(ring, c, bias, s, tiles);
    }
}
