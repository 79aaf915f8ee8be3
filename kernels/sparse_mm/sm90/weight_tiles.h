// What wgmma.cu, wgmma_fp8.cu and int4_mm's int8_wgmma.cu share: kernels whose product's rows are the weight's and whose
// weight has half the bytes of x along k: a block's pipelines, its producer, its tiles, and how it starts and ends.
//
// A row of x's stages is 128 bytes, X_K elements; one of the weight's values is 128 bytes too, of VALUE_K. Of a product's
// rows each consumer has 64; its columns are TILE_M rows of x, which the CLUSTER blocks of a cluster share.
//
// Needs ITEM_BYTES (of an element of x; of VALUE_K the values are half as many) and the kernels' defines.
#pragma once

#include "prelude.h"

#include "_lib/ptx/cluster.h"
#include "_lib/ptx/pdl.h"
#include "_lib/ptx/pipeline.h"
#include "_lib/ptx/registers.h"
#include "_lib/ptx/tma.h"
#include "matmul/sm90/wgmma_store.h"
#include "matmul/tile.h"

constexpr int CONSUMERS = 2;
constexpr int TILE_N = CONSUMERS * 64;  // rows of the weight
constexpr int THREADS = CONSUMERS * 128 + 128;
constexpr int X_K = 128 / ITEM_BYTES, VALUE_K = 2 * X_K;  // of a stage: one 128-byte row
constexpr int X_BYTES = TILE_M * 128, VALUE_BYTES = TILE_N * 128;
constexpr int SUMS = TILE_M / 2;  // a thread's accumulators
constexpr int BLOCKS = TILE_M / 64;
constexpr int C_BYTES = CONSUMERS * C_BUFFERS * BLOCK_BYTES;
// Together no more than at the launch, 168 a thread: setmaxnreg would wait for ever.
constexpr int PRODUCER_REGISTERS = 40, CONSUMER_REGISTERS = 232;
static_assert(PRODUCER_REGISTERS + CONSUMERS * CONSUMER_REGISTERS <= 3 * 168, "registers of a block");

// A number that the compiler knows, as an argument.
template <int NUMBER> struct Constant {
    static constexpr int value = NUMBER;
};

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

// The scales of a tile's rows of x, `step` elements apart, to shared memory, where a consumer's threads read them.
DEVICE void share_scales(uint32_t to, const float* scales, int64_t step, int first, int rows, int consumer) {
    named_barrier_sync(consumer + 1, 128);
    for (int i = thread_x() % 128; i < TILE_M; i += 128) {
        const int64_t row = first + i < rows ? first + i : rows - 1;
        asm volatile("st.shared.f32 [%0], %1;" ::"r"(to + i * 4), "f"(scales[row * step]) : "memory");
    }
    named_barrier_sync(consumer + 1, 128);
}

// A thread's sums of 64 x 64, finished: times their columns' scales, shared from `columns` on, and their two rows'.
template <class T>
DEVICE void finish_block(uint32_t (&words)[BLOCK_WORDS], const float* sums, uint32_t columns, const float (&rows)[2],
                         const float (&biases)[2]) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
        float scale[2];
        asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                     : "=f"(scale[0]), "=f"(scale[1])
                     : "r"(columns + (j * 8 + thread_x() % 4 * 2) * 4)
                     : "memory");
#pragma unroll
        for (int down = 0; down < 2; ++down) {
            const float* pair = sums + j * 4 + down * 2;
            const float first = pair[0] * scale[0] * rows[down], second = pair[1] * scale[1] * rows[down];
            words[j * 2 + down] =
                HAS_BIAS ? pack2<T>(first + biases[down], second + biases[down]) : pack2<T>(first, second);
        }
    }
}

// The kernels' body: `consume` is what a consumer's threads do. REST are bytes behind y's buffers, VALUE_ARRIVALS a consumer's arrivals
// at a stage of the values that it has read.
template <int REST, int VALUE_ARRIVALS = 1, class Consume>
DEVICE void run_block(char* shared, const TensorMap* map_x, const TensorMap* map_values, const TensorMap* map_y,
                      const Sizes& s, uint32_t tiles, Consume consume) {
    // The swizzle repeats every 1024 bytes of the address.
    const uint32_t base = (shared_address(shared) + 1023) & ~1023u;
    const uint32_t values = base + STAGES * X_BYTES;
    const uint32_t buffers = values + VALUE_STAGES * VALUE_BYTES;
    const uint32_t barriers = buffers + C_BYTES + REST;
    const XPipeline x(base, barriers);
    const ValuePipeline value(values, barriers + STAGES * 16);
    const bool is_producer = thread_x() == CONSUMERS * 128;
    if (is_producer) {
        launch_dependents();
        x.init(CONSUMERS * CLUSTER);
        value.init(CONSUMERS * VALUE_ARRIVALS);
        mbarrier_init_fence();
        fence_proxy_async();
    } else if (thread_x() == 0) {
        tma_prefetch_descriptor(map_x);
        tma_prefetch_descriptor(map_values);
        tma_prefetch_descriptor(map_y);
    }
    if (CLUSTER > 1) cluster_sync();
    else barrier();

    if (thread_x() >= CONSUMERS * 128) {
        setmaxnreg_dec<PRODUCER_REGISTERS>();
        if (is_producer) producer_loop(x, value, map_x, map_values, s, tiles);
    } else {
        setmaxnreg_inc<CONSUMER_REGISTERS>();
        consume(x, value, buffers);
    }
    // A block must not leave while its peers can still write to its shared memory or barriers.
    if (CLUSTER > 1) cluster_sync();
}

#if CLUSTER > 1
#define CLUSTER_DIMS __cluster_dims__(CLUSTER, 1, 1)
#else
#define CLUSTER_DIMS
#endif
