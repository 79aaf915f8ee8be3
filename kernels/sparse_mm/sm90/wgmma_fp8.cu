// c = (a @ w.T) * scale_a * scale_b + bias in fp8, of a weight with 2:4 sparsity, by Hopper's sparse warpgroup matrix
// instructions (wgmma.sp). As wgmma.cu, with k twice as long: rows of 128 bytes are 128 k of a and 256 k of the values.
//
// The matrix unit keeps 13 bits of a sum (wgmma_fp8.h): 256 k, which are 128 products of an element, are summed by
// themselves and added to float32 accumulators by the CUDA cores, while the other consumer's products run.
//
// Where K ends within 256 k, TMA fills up with zeros. A thread's metadata of 256 k are 16 of the 32 bytes of one row, as they lie in memory. wgmma.sp wants every other word
// of them: two threads, which have the halves of a row, exchange two words each.
//
// Defines: ELEMENT (e4m3), OUTPUT (bf16, f16), TILE_M (64, 128, 192: rows of a), STAGES, VALUE_STAGES, CLUSTER (1, 2),
// GROUP_N (clusters of a raster group), BOX_ROWS (of a that a block loads at a time), HAS_BIAS.
#define C_COL_MAJOR 1
#define C_TMA 1
#define C_BOX_COLS 64
#define ITEM_BYTES 1
#include "prelude.h"

#include "_lib/ptx/wgmma_sp_fp8.h"
#include "sparse_mm/sm90/weight_tiles.h"

using T = OUTPUT;
constexpr int SCALE_BYTES = CONSUMERS * TILE_M * 4;  // of a's rows, for each consumer
constexpr int META = 32;                             // bytes of a row's metadata of 256 k

// A thread's words of metadata for the four products of 256 k, from 16 bytes of its row: the row's first of two threads,
// else its last. Both lie two threads apart.
DEVICE void exchange(uint32_t (&words)[4], uint4 held, bool last) {
    const uint32_t first = __shfl_xor_sync(0xffffffffu, last ? held.x : held.y, 2);
    const uint32_t second = __shfl_xor_sync(0xffffffffu, last ? held.z : held.w, 2);
    words[0] = last ? first : held.x;
    words[1] = last ? second : held.z;
    words[2] = last ? held.y : first;
    words[3] = last ? held.w : second;
}

// The products of a consumer's 64 rows with a stage of a, 128 k, of which `values` has 64 values of a row at `half`.
DEVICE void multiply(float (&sums)[SUMS], uint32_t values, int half, uint32_t x, const uint32_t* meta) {
    const uint64_t a = wgmma_descriptor(values + half * 64, 0, 1024);
    const uint64_t b = wgmma_descriptor(x, 0, 1024);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 2; ++k) WgmmaSpFp8<TILE_M>::run(sums, a + k * 2, b + k * 4, meta[k], half || k);
    wgmma_commit();
}

struct Scales {
    const float *a, *b;
    int64_t a_row, b_col;  // elements from one to the next
};

DEVICE void consumer_loop(XPipeline x, ValuePipeline value, uint32_t buffers, const TensorMap* map_c, T* c,
                          const uint8_t* meta, const T* bias, const Scales& scales, const Sizes& s, uint32_t tiles) {
    // The compiler knows this to be the same in all lanes: descriptors stay in uniform registers.
    const int consumer = __shfl_sync(0xffffffffu, thread_x() / 128, 0);
    const int rank = rank_of_block();
    const uint32_t own_buffers = buffers + consumer * C_BUFFERS * BLOCK_BYTES;
    const uint32_t own_scales = buffers + C_BYTES + consumer * TILE_M * 4;
    const int own_row = consumer * 64 + thread_x() % 128 / 32 * 16 + thread_x() % 32 / 4;
    const bool last_half = thread_x() % 4 / 2;
    const int width = s.k / 8;
    int buffer = 0;
    grid_dependency_wait();

    for (uint32_t index = blockIdx.x / CLUSTER; index < tiles; index += gridDim.x / CLUSTER) {
        const Tile tile = tile_of(index, s, rank);
        int row[2];
        float scale[2], biases[2] = {};
#pragma unroll
        for (int down = 0; down < 2; ++down) {
            const int at = tile.row + own_row + down * 8;
            row[down] = at < s.m ? at : s.m - 1;
            scale[down] = scales.b[row[down] * scales.b_col];
            if (HAS_BIAS) biases[down] = to_float(bias[row[down]]);
        }
        const uint8_t* from = meta + static_cast<int64_t>((thread_x() % 2 ? row[1] : row[0])) * width + last_half * 16;
        const auto load = [&](int at) {   // of the row's end, places 0 and 1
            return at + last_half * 16 < width ? __ldg(reinterpret_cast<const uint4*>(from + at))
                                               : make_uint4(0x44444444, 0x44444444, 0x44444444, 0x44444444);
        };
        uint4 next = load(0);
        float acc[SUMS];
        clear<SUMS>(acc);
        for (int at = 0; at < width; at += META) {
            uint32_t words[4];
            float sums[SUMS];
            undefined<SUMS>(sums);
            exchange(words, next, last_half);
            const uint32_t values = value.stage_base() + consumer * BLOCK_BYTES;
            const uint32_t used = x.empty_barrier();
            value.wait_full();
            x.wait_full();
            multiply(sums, values, 0, x.stage_base(), words);
            x.advance();
            x.wait_full();
            multiply(sums, values, 1, x.stage_base(), words + 2);
            next = load(at + META);
            wgmma_wait<1>();
            release_x(used);
            wgmma_wait<0>();
            keep_in_registers<4>(words);
            keep_in_registers<SUMS>(sums);
            release_x(x.empty_barrier());
            x.advance();
            release_values(value.empty_barrier());
            value.advance();
#pragma unroll
            for (int i = 0; i < SUMS; ++i) acc[i] += sums[i];
        }
        share_scales(own_scales, scales.a, scales.a_row, tile.col, s.n, consumer);
#pragma unroll
        for (int block = 0; block < BLOCKS; ++block) {
            uint32_t words[BLOCK_WORDS];
            finish_block<T>(words, acc + block * 32, own_scales + block * 256, scale, biases);
            const BlockPosition place = {tile.row + consumer * 64, tile.col + block * 64, 0, 0, tile.col + TILE_M};
            store_by_tma(own_buffers, buffer, map_c, c, words, place, consumer, s);
            buffer = (buffer + 1) % C_BUFFERS;
        }
    }
    if (thread_x() % 128 == 0) tma_store_wait_read<0>();
}

extern "C" __global__ __launch_bounds__(THREADS, 1) CLUSTER_DIMS void sparse_scaled_mm_wgmma(
    const __grid_constant__ TensorMap map_x, const __grid_constant__ TensorMap map_values,
    const __grid_constant__ TensorMap map_y, const uint8_t* meta, const float* scale_a, const float* scale_b, const T* bias,
    T* y, int m, int n, int k, int tiles, int64_t scale_a_row, int64_t scale_b_col) {
    DYNAMIC_SHARED(shared);
    const Sizes s = {n, m, k, 1, 1, 0, 0, 1, n, 0, 0, 0, 0, 0, 0};
    const Scales scales = {scale_a, scale_b, scale_a_row, scale_b_col};
    run_block<SCALE_BYTES>(shared, &map_x, &map_values, &map_y, s, tiles,
                           [&](XPipeline x, ValuePipeline value, uint32_t buffers) {
                               consumer_loop(x, value, buffers, &map_y, y, meta, bias, scales, s, tiles);
                           });
}
