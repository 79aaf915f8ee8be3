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
#include "prelude.h"

#include "_lib/ptx/cluster.h"
#include "_lib/ptx/pdl.h"
#include "_lib/ptx/pipeline.h"
#include "_lib/ptx/registers.h"
#include "_lib/ptx/tma.h"
#include "_lib/ptx/wgmma_sp.h"
#include "matmul/sm90/wgmma_store.h"
#include "matmul/tile.h"

using T = ELEMENT;

constexpr int CONSUMERS = 2;
constexpr int TILE_N = CONSUMERS * 64;  // rows of the weight
constexpr int THREADS = CONSUMERS * 128 + 128;
constexpr int X_K = 64, VALUE_K = 128;  // of a stage: one 128-byte row
constexpr int X_BYTES = TILE_M * 128, VALUE_BYTES = TILE_N * 128;
constexpr int SUMS = TILE_M / 2;  // a thread's accumulators
constexpr int BLOCKS = TILE_M / 64;
constexpr int C_BYTES = CONSUMERS * C_BUFFERS * BLOCK_BYTES;
// Together no more than at the launch, 168 a thread: setmaxnreg would wait for ever.
constexpr int PRODUCER_REGISTERS = 40, CONSUMER_REGISTERS = 232;
static_assert(PRODUCER_REGISTERS + CONSUMERS * CONSUMER_REGISTERS <= 3 * 168, "registers of a block");
static_assert(BLOCKS <= 4, "a block of y for each stage of x of 256 k");

struct XPipeline : Pipeline<STAGES, X_BYTES> {
    using Pipeline::Pipeline;
};
struct ValuePipeline : Pipeline<VALUE_STAGES, VALUE_BYTES> {
    using Pipeline::Pipeline;
};

// The product is [N, M] here: its rows, s.m of them, are the weight's, and its columns, s.n, x's.
DEVICE Tile tile_of(uint32_t index, const Sizes& s, int rank) {
    Tile tile = tile_at<TILE_N * CLUSTER, TILE_M, GROUP_N>(index, s);
    tile.row += rank * TILE_N;
    return tile;
}
DEVICE int rank_of_block() { return CLUSTER == 1 ? 0 : cluster_rank(); }

DEVICE void producer_loop(XPipeline x, ValuePipeline value, const TensorMap* map_x, const TensorMap* map_values,
                          const Sizes& s, uint32_t tiles) {
    const int rank = rank_of_block();
    constexpr uint16_t EVERY = (1 << CLUSTER) - 1;
    grid_dependency_wait();
    for (uint32_t index = blockIdx.x / CLUSTER; index < tiles; index += gridDim.x / CLUSTER) {
        const Tile tile = tile_of(index, s, rank);
        for (int k = 0; k < s.k; k += VALUE_K) {
            value.wait_empty();
            mbarrier_arrive_expect_tx(value.full_barrier(), VALUE_BYTES);
            tma_load_4d(value.stage_base(), map_values, value.full_barrier(), k / 2, tile.row, 0, 0);
            value.advance();
#pragma unroll
            for (int i = 0; i < VALUE_K; i += X_K) {
                x.wait_empty();
                mbarrier_arrive_expect_tx(x.full_barrier(), BOX_ROWS * CLUSTER * 128);
                const int part = rank * BOX_ROWS;
                if (CLUSTER == 1)
                    tma_load_4d(x.stage_base(), map_x, x.full_barrier(), k + i, tile.col, 0, 0);
                else
                    tma_load_4d_multicast(EVERY, x.stage_base() + part * 128, map_x, x.full_barrier(), k + i,
                                          tile.col + part, 0, 0);
                x.advance();
            }
        }
    }
}

// A number that the compiler knows, as an argument.
template <int NUMBER> struct Constant {
    static constexpr int value = NUMBER;
};

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

// The consumer's products with a stage are done: of x's every block of the cluster that multicasts to it hears of it.
DEVICE void release_x(uint32_t empty_barrier) {
    const int thread = thread_x() % 128;
    if (thread < CLUSTER) {
        if (CLUSTER == 1) mbarrier_arrive(empty_barrier);
        else mbarrier_arrive_cluster(empty_barrier, thread);
    }
}
DEVICE void release_values(uint32_t empty_barrier) {
    if (thread_x() % 128 == 0) mbarrier_arrive(empty_barrier);
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

#if CLUSTER > 1
#define CLUSTER_DIMS __cluster_dims__(CLUSTER, 1, 1)
#else
#define CLUSTER_DIMS
#endif

extern "C" __global__ __launch_bounds__(THREADS, 1) CLUSTER_DIMS void sparse_mm_wgmma(
    const __grid_constant__ TensorMap map_x, const __grid_constant__ TensorMap map_values,
    const __grid_constant__ TensorMap map_y, const uint8_t* meta, const T* bias, T* y, int m, int n, int k, int tiles) {
    DYNAMIC_SHARED(shared);
    const Sizes s = {n, m, k, 1, 1, 0, 0, 1, n, 0, 0, 0, 0, 0, 0};
    // The swizzle repeats every 1024 bytes of the address.
    const uint32_t base = (shared_address(shared) + 1023) & ~1023u;
    const uint32_t values = base + STAGES * X_BYTES;
    const uint32_t buffers = values + VALUE_STAGES * VALUE_BYTES;
    const uint32_t barriers = buffers + C_BYTES;
    const XPipeline x(base, barriers);
    const ValuePipeline value(values, barriers + STAGES * 16);
    const bool is_producer = thread_x() == CONSUMERS * 128;
    if (is_producer) {
        launch_dependents();
        x.init(CONSUMERS * CLUSTER);
        value.init(CONSUMERS);
        mbarrier_init_fence();
        fence_proxy_async();
    } else if (thread_x() == 0) {
        tma_prefetch_descriptor(&map_x);
        tma_prefetch_descriptor(&map_values);
        tma_prefetch_descriptor(&map_y);
    }
    if (CLUSTER > 1) cluster_sync();
    else barrier();

    if (thread_x() >= CONSUMERS * 128) {
        setmaxnreg_dec<PRODUCER_REGISTERS>();
        if (is_producer) producer_loop(x, value, &map_x, &map_values, s, tiles);
    } else {
        setmaxnreg_inc<CONSUMER_REGISTERS>();
        consumer_loop(x, value, buffers, &map_y, y, meta, bias, s, tiles);
    }
    // A block must not leave while its peers can still write to its shared memory or barriers.
    if (CLUSTER > 1) cluster_sync();
}
