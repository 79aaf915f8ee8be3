// What wgmma.cu and wgmma_fp8.cu share: a block's pipelines, its producer, its tiles, and how it starts and ends.
//
// A row of x's stages is 128 bytes, X_K elements; one of the values' is 128 bytes too, of the X_K values of VALUE_K. Of a
// product's rows, the weight's, each consumer has 64; its columns are TILE_M rows of x, which the CLUSTER blocks of a
// cluster share.
//
// Needs ITEM_BYTES (of an element of x and of the values) and the defines of both kernels.
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

// Both kernels' body: `consume` is what a consumer's threads do. `rest` are bytes behind y's buffers.
template <int REST, class Consume>
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
        value.init(CONSUMERS);
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
