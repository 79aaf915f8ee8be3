// The reduction of split-K: adds the partial sums of wgmma.cu's split-K tiles in the order of k, applies the epilogue
// and stores c.
//
// A thread finishes a vector of four sums, as one thread of wgmma.cu held it: two columns of two rows.
//
// Defines: ELEMENT, TILE_M, TILE_N, CLUSTER_M, CLUSTER_N, GROUP_M (those of wgmma.cu), THREADS, C_CONTIGUOUS (c is
// row-major), BIAS, ACTIVATION, PREACTIVATION.
#include "prelude.h"

#include "_lib/ptx/pdl.h"
#include "matmul/epilogue.h"
#include "matmul/tile.h"

using T = ELEMENT;

constexpr int CLUSTER = CLUSTER_M * CLUSTER_N;
constexpr int CONSUMERS = TILE_M / 64;
constexpr int VECTORS = TILE_N / 8;  // of a thread
constexpr int UNROLL = 8;            // splits that are loaded before they are added
constexpr int OF_BLOCK = CONSUMERS * VECTORS * 128;

// Two neighbouring columns of a row.
DEVICE void store_pair(T* to, float first, float second, int columns, int64_t step) {
    if (columns <= 0) return;
    const T low = from_float<T>(first), high = from_float<T>(second);
#if C_CONTIGUOUS
    if (columns > 1 && reinterpret_cast<uint64_t>(to) % 4 == 0) {
        *reinterpret_cast<uint32_t*>(to) = low.bits | static_cast<uint32_t>(high.bits) << 16;
        return;
    }
#endif
    to[0] = low;
    if (columns > 1) to[step] = high;
}

extern "C" __global__ __launch_bounds__(THREADS) void matmul_splitk_reduce(const float4* partials, const T* bias, T* c,
                                                                      Z_PARAMETER(T) int whole, int k_splits,
                                                                      SIZES_PARAMETERS) {
    const Sizes s = SIZES_ARGUMENTS;
    launch_dependents();
    const int at = blockIdx.y * THREADS + thread_x();
    const int thread = at % 128, vector = at / 128 % VECTORS, consumer = at / 128 / VECTORS;
    const int rank = blockIdx.x % CLUSTER;
    const uint32_t index = blockIdx.x / CLUSTER;
    const Tile tile = tile_at<TILE_M * CLUSTER_M, TILE_N * CLUSTER_N, GROUP_M>(whole + index, s);
    const int row = tile.row + rank % CLUSTER_M * TILE_M + consumer * 64 + thread / 32 * 16 + thread % 32 / 4;
    const int col = tile.col + rank / CLUSTER_M * TILE_N + vector * 8 + thread % 4 * 2;

    const float4* from = partials + (static_cast<int64_t>(index) * k_splits * CLUSTER + rank) * OF_BLOCK + at;
    grid_dependency_wait();
    if (row >= s.m || col >= s.n) return;
    float4 sum = {};
    for (int split = 0; split < k_splits; split += UNROLL) {
        float4 v[UNROLL];
#pragma unroll
        for (int i = 0; i < UNROLL; ++i)
            v[i] = split + i < k_splits ? from[static_cast<int64_t>(split + i) * CLUSTER * OF_BLOCK] : float4{};
#pragma unroll
        for (int i = 0; i < UNROLL; ++i) {
            sum.x += v[i].x;
            sum.y += v[i].y;
            sum.z += v[i].z;
            sum.w += v[i].w;
        }
    }
    float bias0 = 0.0f, bias1 = 0.0f;
#if BIAS
    bias0 = to_float(bias[col]);
    if (col + 1 < s.n) bias1 = to_float(bias[col + 1]);
#endif
    const int64_t place = tile.outer * s.c_outer + tile.inner * s.c_inner + row * s.c_row + col * s.c_col;
    const int columns = s.n - col, columns8 = row + 8 < s.m ? columns : 0;
#if PREACTIVATION
    store_pair(z + place, preactivation(sum.x, bias0), preactivation(sum.y, bias1), columns, s.c_col);
    store_pair(z + place + 8 * s.c_row, preactivation(sum.z, bias0), preactivation(sum.w, bias1), columns8, s.c_col);
#endif
    store_pair(c + place, finish(sum.x, bias0), finish(sum.y, bias1), columns, s.c_col);
    store_pair(c + place + 8 * s.c_row, finish(sum.z, bias0), finish(sum.w, bias1), columns8, s.c_col);
}
