// Adds the parts of k that wgmma.cu has summed apart, in their order, finishes the sums and stores c.
//
// A block of 128 threads finishes 64 x 64 of c: the threads hold the sums as those of wgmma.cu's consumer did.
//
// Defines: ELEMENT, TILE_M, TILE_N, PARTS (those of wgmma.cu), C_BY_ENGINE (c is row-major with 16-byte aligned
// rows), C_TOUCHES (c's columns touch), BIAS, ACTIVATION, PREACTIVATION.
#include "prelude.h"

#include "epilogue.h"
#include "hopper.h"
#include "tile.h"
#include "wgmma_store.h"

using T = ELEMENT;

constexpr int CONSUMERS = TILE_M / 64;
constexpr int BLOCKS = TILE_N / 64;
constexpr int VECTORS = 8;  // of four sums, of a thread

extern "C" __global__ __launch_bounds__(128) void matmul_wgmma_sum(const float4* sums, const T* bias, T* c,
                                                                  Z_PARAMETER(T) int tiles_m, int tiles_n,
                                                                  SIZES_PARAMETERS) {
    __shared__ alignas(1024) unsigned char staged[BLOCK_BYTES];
    __shared__ uint32_t biases[32];
    const Sizes s = SIZES_ARGUMENTS;
    const uint32_t across = blockIdx.y / BLOCKS, block = blockIdx.y % BLOCKS;
    const uint32_t down = blockIdx.x / CONSUMERS, consumer = blockIdx.x % CONSUMERS;
    const int outer = blockIdx.z / s.inner_batches, inner = blockIdx.z - outer * s.inner_batches;
    const Place place = {static_cast<int>(blockIdx.x) * 64, static_cast<int>(blockIdx.y) * 64, outer, inner,
                         static_cast<int>(blockIdx.y) * 64 + 64};
    if (place.row >= s.m || place.col >= s.n) return;

    const uint32_t pair = bias_pair<64>(bias, place.col, s.n);
    const int64_t tile = (static_cast<int64_t>(blockIdx.z) * tiles_n + across) * tiles_m + down;
    const float4* from = sums + ((tile * PARTS * CONSUMERS + consumer) * BLOCKS + block) * VECTORS * 128 + thread_x();
    float sum[VECTORS * 4];
#pragma unroll
    for (int i = 0; i < VECTORS * 4; ++i) sum[i] = 0.0f;
#pragma unroll 4
    for (int part = 0; part < PARTS; ++part) {
        const float4* at = from + static_cast<int64_t>(part) * CONSUMERS * BLOCKS * VECTORS * 128;
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) {
            const float4 v = at[i * 128];
            sum[i * 4] += v.x;
            sum[i * 4 + 1] += v.y;
            sum[i * 4 + 2] += v.z;
            sum[i * 4 + 3] += v.w;
        }
    }
    const uint32_t own_bias = shared_address(biases), at = shared_address(staged);
    share_bias<64>(own_bias, pair, 0);
    uint32_t words[BLOCK_WORDS];
#if PREACTIVATION
    pack<T, VECTORS * 4, false>(words, sum, own_bias);
    store_block<T>(at, z, words, place, s);
    __syncwarp();
#endif
    pack<T, VECTORS * 4>(words, sum, own_bias);
    store_block<T>(at, c, words, place, s);
}
