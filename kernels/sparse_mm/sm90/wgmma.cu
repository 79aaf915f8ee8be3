// y = x @ w.T + bias of a weight with 2:4 sparsity by Hopper's sparse warpgroup matrix instructions (wgmma.sp). A and B
// are swapped: the sparse operand is the instruction's A, so the weight's rows are the product's, x's rows its columns,
// and y is stored column-major.
//
// Persistent and warp-specialised: a producer thread keeps two pipelines filled by TMA, x's in stages of 64 k and the
// values' in stages of 128 k, 64 values a row; both are 128-byte rows. Each of two consumer warpgroups computes 64 rows of
// the weight by TILE_M rows of x. The CLUSTER blocks of a cluster have neighbouring rows of the weight and share x's tile, of
// which each loads a part and multicasts it.
//
// The metadata go to registers as they lie in memory: wgmma.sp takes them from one pair of each four threads, which its
// selector names, so that of 256 k of a row the first pair reads the first 16 bytes, for four instructions, and the other
// pair the second. A permutation of bytes makes an instruction's word of two rows' words. They are loaded 256 k ahead.
//
// A finished tile is converted to 16 bits in registers and, where OVERLAP, stored block by block during the next tile's
// first 256 k; else, as the last tile is, at once.
//
// Defines: ELEMENT (bf16, f16), TILE_M (64, 128, 192, 256), STAGES, VALUE_STAGES, CLUSTER (1, 2),
// GROUP_N (clusters of a raster group), BOX_ROWS (of x that a block loads at a time), OVERLAP (needs 256 k), HAS_BIAS.
#define C_COL_MAJOR 1
#define C_TMA 1
#define C_BOX_COLS 64
#define ITEM_BYTES 2
#include "prelude.h"

#include "_lib/ptx/wgmma_sp.h"
#include "sparse_mm/sm90/weight_tiles.h"

using T = ELEMENT;
static_assert(BLOCKS <= 4, "a block of y for each stage of x of 256 k");

// A thread's 16 bytes of metadata in each of its two rows, of 256 k: rows lane / 4 and the eighth below it of its warp's
// 16.
struct Metadata {
    uint4 upper, lower;

    // From `upper_row` and `lower_row`, of `width` bytes, those at byte `at`, or zeros' beyond the rows' end.
    DEVICE void load(const uint8_t* upper_row, const uint8_t* lower_row, int at, int width) {
        constexpr uint32_t ZEROS = 0x44444444;  // places 0 and 1
        upper = lower = make_uint4(ZEROS, ZEROS, ZEROS, ZEROS);
        if (at < width) {
            upper = __ldg(reinterpret_cast<const uint4*>(upper_row + at));
            lower = __ldg(reinterpret_cast<const uint4*>(lower_row + at));
        }
    }
};

// The products of a consumer's 64 rows with a stage of x, of which `values` has the 32 values of a row at `half`.
template <int SELECTOR>
DEVICE void multiply(float (&acc)[SUMS], uint32_t values, int half, uint32_t x, const uint32_t* meta, bool add) {
    const uint64_t a = wgmma_descriptor(values + half * 64, 0, 1024);
    const uint64_t b = wgmma_descriptor(x, 0, 1024);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 2; ++k)
        WgmmaSp<TILE_M>::template run<SELECTOR>(acc, a + k * 2, b + k * 4, meta[k], add || k);
    wgmma_commit();
}

DEVICE void consumer_loop(XPipeline x, ValuePipeline value, uint32_t buffers, const TensorMap* map_y, T* y,
                          const uint8_t* meta, const T* bias, const Sizes& s, uint32_t tiles) {
    // The compiler knows this to be the same in all lanes: descriptors stay in uniform registers.
    const int consumer = __shfl_sync(0xffffffffu, thread_x() / 128, 0);
    const int rank = rank_of_block();
    const uint32_t own_buffers = buffers + consumer * C_BUFFERS * BLOCK_BYTES;
    const int own_row = consumer * 64 + thread_x() % 128 / 32 * 16 + thread_x() % 32 / 4;
    const int own_byte = thread_x() % 4 / 2 * 16;  // the pair of each four threads
    const uint32_t selector = thread_x() % 2 ? 0x7632 : 0x5410;
    const int width = s.k / 8;
    uint32_t finished[(OVERLAP ? BLOCKS : 1) * BLOCK_WORDS];  // the last tile, converted, until it is stored
    Tile last = {};
    bool pending = false;
    int buffer = 0;
    grid_dependency_wait();

    const auto store = [&](int block, const uint32_t* words) {
        const BlockPosition place = {last.row + consumer * 64, last.col + block * 64, 0, 0, last.col + TILE_M};
        store_by_tma(own_buffers, buffer, map_y, y, words, place, consumer, s);
        buffer = (buffer + 1) % C_BUFFERS;
    };
    for (uint32_t index = blockIdx.x / CLUSTER; index < tiles; index += gridDim.x / CLUSTER) {
        const Tile tile = tile_of(index, s, rank);
        const int row0 = tile.row + own_row < s.m ? tile.row + own_row : s.m - 1;
        const int row1 = tile.row + own_row + 8 < s.m ? tile.row + own_row + 8 : s.m - 1;
        const uint8_t *upper = meta + static_cast<int64_t>(row0) * width, *lower = meta + static_cast<int64_t>(row1) * width;
        Metadata next;
        next.load(upper, lower, own_byte, width);
        float biases[2] = {};
        if (HAS_BIAS) {
            biases[0] = to_float(bias[row0]);
            biases[1] = to_float(bias[row1]);
        }
        float acc[SUMS];
        undefined<SUMS>(acc);
        uint32_t words[4] = {};
        uint32_t used_x = 0, used_values = 0;
        // The products of stage `STAGE` of x, of four in 256 k; what the stage before it used is given back.
        const auto step = [&](auto stage, int at) {
            constexpr int STAGE = decltype(stage)::value;
            constexpr int WORD = STAGE % 2 * 2;
            if (STAGE % 2 == 0) value.wait_full();
            x.wait_full();
            multiply<STAGE / 2>(acc, value.stage_base() + consumer * BLOCK_BYTES, STAGE % 2, x.stage_base(), words + WORD,
                                STAGE || at);
            wgmma_wait<1>();
            keep_in_registers<2>(words + 2 - WORD);
            if (at || STAGE) {
                release_x(used_x);
                if (STAGE % 2 == 0) release_values(used_values);
            }
            used_x = x.empty_barrier();
            x.advance();
            if (STAGE % 2) {
                used_values = value.empty_barrier();
                value.advance();
            }
            if (OVERLAP && STAGE < BLOCKS && at == 0 && pending) store(STAGE, finished + STAGE * BLOCK_WORDS);
        };
        for (int at = 0; at < width; at += 32) {
            words[0] = __byte_perm(next.upper.x, next.lower.x, selector);
            words[1] = __byte_perm(next.upper.y, next.lower.y, selector);
            step(Constant<0>(), at);
            words[2] = __byte_perm(next.upper.z, next.lower.z, selector);
            words[3] = __byte_perm(next.upper.w, next.lower.w, selector);
            next.load(upper, lower, at + 32 + own_byte, width);
            step(Constant<1>(), at);
            if (at + 16 < width) {
                step(Constant<2>(), at);
                step(Constant<3>(), at);
            }
        }
        wgmma_wait<0>();
        keep_in_registers<4>(words);
        keep_in_registers<SUMS>(acc);
        release_x(used_x);
        release_values(used_values);
        last = tile;
        pending = true;
#pragma unroll
        for (int block = 0; block < BLOCKS; ++block) {
            uint32_t* words = finished + (OVERLAP ? block * BLOCK_WORDS : 0);
#pragma unroll
            for (int i = 0; i < BLOCK_WORDS; ++i) {
                const float *pair = acc + (block * BLOCK_WORDS + i) * 2, of_row = biases[i % 2];
                words[i] = HAS_BIAS ? pack2<T>(pair[0] + of_row, pair[1] + of_row) : pack2<T>(pair[0], pair[1]);
            }
            if (!OVERLAP) store(block, words);
        }
    }
    if (OVERLAP && pending) {
#pragma unroll
        for (int block = 0; block < BLOCKS; ++block) store(block, finished + block * BLOCK_WORDS);
    }
    if (thread_x() % 128 == 0) tma_store_wait_read<0>();
}

extern "C" __global__ __launch_bounds__(THREADS, 1) CLUSTER_DIMS void sparse_mm_wgmma(
    const __grid_constant__ TensorMap map_x, const __grid_constant__ TensorMap map_values,
    const __grid_constant__ TensorMap map_y, const uint8_t* meta, const T* bias, T* y, int m, int n, int k, int tiles) {
    DYNAMIC_SHARED(shared);
    const Sizes s = {n, m, k, 1, 1, 0, 0, 1, n, 0, 0, 0, 0, 0, 0};
    run_block<0>(shared, &map_x, &map_values, &map_y, s, tiles, [&](XPipeline x, ValuePipeline value, uint32_t buffers) {
        consumer_loop(x, value, buffers, &map_y, y, meta, bias, s, tiles);
    });
}
