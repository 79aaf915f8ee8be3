// c = a @ b with Hopper's warpgroup matrix instructions (wgmma), for 16-byte aligned operands of any layout.
//
// Persistent and warp-specialised: a block computes tiles of TILE_M x TILE_N one after another. TILE_M / 64 consumer
// warpgroups compute 64 rows of each tile; one producer thread keeps a pipeline of STAGES stages filled by TMA. Blocks
// of a cluster of CLUSTER_M x CLUSTER_N neighbouring tiles load a share of each operand tile and multicast it. Operands
// lie in shared memory with the 128-byte swizzle, in rows of 64 elements: along K (K-major), or along M or N (A_K_MAJOR
// or B_K_MAJOR 0), then as blocks of 64 rows, one per k.
//
// A finished tile is converted to 16 bits in registers and stored block by block during the next tile's STORE_STEPS
// first steps of k, so that the epilogue overlaps the main loop; the last tile is staged in the pipeline's stages,
// which are free by then.
//
// A tile that would reach beyond the last column starts at `last_col` instead, so that no line outside b is loaded; the
// columns that two tiles compute are stored twice, with the same bits.
//
// N tail: with N_TAIL, columns that do not fill a tile of TILE_N make narrow tiles of N_TAIL columns. They come last,
// on the blocks from `first_n_tail` on, without multicast.
//
// Split-K: with SPLITK, the tiles from `whole` on are computed in `k_splits` parts along K: a cluster computes one
// part, before its whole tiles, and writes float32 accumulators to `partials`, as its threads hold them, for
// splitk_reduce.cu.
//
// Split-K in a cluster: with CLUSTER_K, the blocks of a cluster compute one tile, each a part along K, and each adds and
// stores a share of its columns (cluster_sum.h): no second launch, and no partial sums in memory.
//
// Gated: the first half of b's tile is gate's columns, the second up's, which its tensor map has as two matrices. So a
// thread's accumulators hold gate and up of the same columns of c, whose tiles are TILE_N / 2 wide. Of a cluster of two
// that shares b, one block loads gate's half and the other up's.
//
// STRIP_IN_L2: rows of a that a group of GROUP_M clusters reads for every column of c stay in L2 from wave to wave: what
// is loaded of b and stored of c is evicted first.
//
// Defines: ELEMENT (bf16, f16); TILE_M (64, 128, 192), TILE_N (multiples of 16 from 64 to 256, of 64 where b is
// N-major), STAGES, GROUP_M, CLUSTER_M, CLUSTER_N, CLUSTER_K (blocks along K; above
// 1: needs NON_PERSISTENT and CLUSTER_M = CLUSTER_N = 1; not with GATED), STORE_STEPS (less than the steps of k; 0: no overlap), N_TAIL (0,
// 64, 128), NON_PERSISTENT (every block has one tile, by its grid index), M_TAIL (the last tile's rows have a TMA box
// of their own: needs A_K_MAJOR, no N_TAIL, CLUSTER_N 1), SPLITK (not with N_TAIL or NON_PERSISTENT), A_K_MAJOR,
// B_K_MAJOR; C_TMA: TMA stores c, which is row-major with 16-byte aligned rows, or column-major with C_COL_MAJOR (then
// in boxes of C_BOX_COLS columns; without BIAS); STRIP_IN_L2 (not with
// N_TAIL); BIAS, ACTIVATION, PREACTIVATION (not with NON_PERSISTENT); GATED (needs TILE_N in multiples of 128; not with
// N_TAIL or SPLITK); ALPHAS (0, 2: float32 numbers in memory that multiply a sum, one after the other, before its bias;
// not with SPLITK or GATED).
#include "prelude.h"

#include "matmul/epilogue.h"
#include "_lib/ptx/cluster.h"
#include "_lib/ptx/pdl.h"
#include "_lib/ptx/pipeline.h"
#include "_lib/ptx/registers.h"
#include "_lib/ptx/tma.h"
#include "_lib/ptx/wgmma.h"
#include "cluster_sum.h"
#include "matmul/tile.h"
#include "wgmma_load.h"
#include "wgmma_store.h"

#ifndef ALPHAS
#define ALPHAS 0
#endif

using T = ELEMENT;

constexpr int CONSUMERS = TILE_M / 64;
constexpr int CONSUMER_THREADS = CONSUMERS * 128;
// setmaxnreg reallocates registers among whole warpgroups; a single consumer warpgroup has enough.
constexpr int THREADS = CONSUMER_THREADS + (CONSUMERS > 1 ? 128 : 32);
constexpr int PRODUCER_REGISTERS = CONSUMERS == 3 || SPLITK || STRIP_IN_L2 ? 56 : 40;
constexpr int CONSUMER_REGISTERS = CONSUMERS == 3 ? 152 : SPLITK || STRIP_IN_L2 ? 224 : 232;
constexpr int CLUSTER = CLUSTER_M * CLUSTER_N;
constexpr int C_TILE_N = GATED ? TILE_N / 2 : TILE_N;  // columns of c
constexpr int SHARE_N = TILE_N / CLUSTER_K;            // of a tile's columns, those that a block stores
constexpr int SHARE_BLOCKS = (SHARE_N + 63) / 64;
constexpr int CLUSTER_TILE_M = TILE_M * CLUSTER_M, CLUSTER_TILE_N = C_TILE_N * CLUSTER_N;
constexpr int A_BYTES = TILE_M * 128;
constexpr int BLOCKS = (C_TILE_N + 63) / 64;  // of 64 x 64 of c per consumer; the last one may be partial
constexpr int B_BYTES = TILE_N * 128;
constexpr int STAGE_BYTES = A_BYTES + B_BYTES;
constexpr int N_TAIL_BYTES = A_BYTES + N_TAIL * 128;
constexpr int STORE_STEPS_OR_1 = STORE_STEPS ? STORE_STEPS : 1;
constexpr int C_BYTES = NON_PERSISTENT ? 0 : CONSUMERS * C_BUFFERS * BLOCK_BYTES;
// Blocks that multicast to a stage; each consumer releases it to all of them.
constexpr int PRODUCERS = CLUSTER_M + CLUSTER_N - 1;
static_assert(TILE_M / CLUSTER_N % 8 == 0 && TILE_N / CLUSTER_M % 8 == 0, "shares are whole swizzle groups");
static_assert(!GATED || (TILE_N % 128 == 0 && !N_TAIL && !SPLITK), "the halves of b's tile are whole blocks");
static_assert(!(STRIP_IN_L2 && N_TAIL), "narrow tiles are loaded without a policy");
static_assert(CLUSTER_K == 1 || (NON_PERSISTENT && CLUSTER == 1 && !GATED && SHARE_N % 16 == 0), "shares are converted");
static_assert(CLUSTER_K == 1 || TILE_M * TILE_N * 4 + CONSUMERS * SHARE_BLOCKS * BLOCK_BYTES <= STAGES * STAGE_BYTES,
              "the stages hold the accumulators and a share of c");
static_assert(!(ALPHAS && (SPLITK || CLUSTER_K > 1 || GATED)), "a whole sum is multiplied");
static_assert(CONSUMERS * BLOCKS * BLOCK_BYTES <= STAGES * STAGE_BYTES, "the stages hold a tile of c");

struct TilePipeline : Pipeline<STAGES, STAGE_BYTES> {
    using Pipeline::Pipeline;

    DEVICE uint32_t a() const { return stage_base(); }
    DEVICE uint32_t b() const { return a() + A_BYTES; }
};

// The tiles: split-K ones, whole ones, and those of the N tail.
struct TileScheduler {
    uint32_t tiles, splitk_tiles, n_tails;  // clusters of whole and of split-K tiles, and narrow tiles
    int k_splits;                    // of each split-K tile
    int first_n_tail;                  // the first block with tiles of the N tail
    int last_col;                    // no other tile starts at a later column
    Sizes whole;                     // the product without the N tail

    DEVICE TileScheduler(const Sizes& s, int first, int last_col, uint32_t undivided, int k_splits)
        : splitk_tiles(0), k_splits(k_splits), first_n_tail(first), last_col(last_col), whole(s) {
        if (N_TAIL) whole.n = s.n / CLUSTER_TILE_N * CLUSTER_TILE_N;
        const uint32_t batches = static_cast<uint32_t>(s.inner_batches) * s.outer_batches;
        const uint32_t tiles_m = (static_cast<uint32_t>(s.m) + CLUSTER_TILE_M - 1) / CLUSTER_TILE_M;
        tiles = tiles_m * ((static_cast<uint32_t>(whole.n) + CLUSTER_TILE_N - 1) / CLUSTER_TILE_N) * batches;
        if (SPLITK) {
            splitk_tiles = tiles - undivided;
            tiles = undivided;
        }
        n_tails = N_TAIL ? (static_cast<uint32_t>(s.m) + TILE_M - 1) / TILE_M * batches : 0;
    }
    DEVICE Tile n_tail(uint32_t index) const {
        Sizes narrow = whole;
        narrow.n = 1;
        Tile tile = tile_at<TILE_M, 64, 1>(index, narrow);
        tile.col = whole.n;
        return tile;
    }
};

// A block's position in its cluster.
struct ClusterPosition {
    int m, n;
};
DEVICE ClusterPosition cluster_position() {
    const int rank = CLUSTER == 1 ? 0 : cluster_rank();
    return {rank % CLUSTER_M, rank / CLUSTER_M};
}

DEVICE Tile tile_of(uint32_t index, ClusterPosition me, const TileScheduler& work) {
    const Sizes& s = work.whole;
    Tile tile;
    if (NON_PERSISTENT && CLUSTER_K == 1) {
        const int batch = blockIdx.z;
        const int outer = s.inner_batches == 1 ? batch : batch / s.inner_batches;
        tile = {static_cast<int>(blockIdx.x / CLUSTER) * CLUSTER_TILE_M,
                static_cast<int>(blockIdx.y) * CLUSTER_TILE_N, outer, batch - outer * s.inner_batches};
    } else {
        tile = tile_at<CLUSTER_TILE_M, CLUSTER_TILE_N, GROUP_M>(index, s);
    }
    tile.row += me.m * TILE_M;
    tile.col += me.n * C_TILE_N;
    tile.col = min(tile.col, work.last_col);
    return tile;
}

// Rows of a tile that are loaded. Rows outside an operand take TMA longer than those inside; whatever is in shared
// memory in their place only reaches accumulator rows that are not stored.
DEVICE int rows_of(const Tile& tile, const Sizes& s) {
    if (!M_TAIL) return TILE_M;
    const int left = s.m - tile.row;
    return left >= TILE_M ? TILE_M : left > 0 ? (left + 7) / 8 * 8 : 0;
}

DEVICE int steps_of(const Sizes& s) { return (s.k + TILE_K - 1) / TILE_K; }

// The steps of k that a cluster, or with CLUSTER_K a block, computes of a split-K tile, whose `k_splits` parts are
// consecutive.
struct KRange {
    uint32_t tile, split;
    int first, last;

    DEVICE KRange(int k_splits, int steps) {
        const uint32_t cluster = blockIdx.x / CLUSTER;
        split = cluster % k_splits;
        tile = cluster / k_splits;
        first = static_cast<int>(static_cast<uint64_t>(steps) * split / k_splits);
        last = static_cast<int>(static_cast<uint64_t>(steps) * (split + 1) / k_splits);
    }
};

struct Maps {
    const TensorMap *a, *b;
    const TensorMap* n_tail;  // boxes of b for narrow tiles
    const TensorMap* m_tail;  // of a for its last rows
};
// Where c goes: by TMA, or to `data`.
struct Output {
    const TensorMap* map;
    T* data;
};

// gridDim.x, read where it stands: kept over a tile it was the one register more than a producer's 40.
DEVICE uint32_t grid_blocks() {
    uint32_t blocks;
    asm volatile("mov.u32 %0, %%nctaid.x;" : "=r"(blocks));
    return blocks;
}

DEVICE void producer_loop(TilePipeline pipe, const Maps& maps, const Sizes& s, const TileScheduler& work) {
    const ClusterPosition me = cluster_position();
    // Multicast masks: blocks of the same cluster row share a's tile, those of the same column b's.
    uint16_t a_mask = 0, b_mask = 0;
    for (int i = 0; i < CLUSTER_N; ++i) a_mask |= 1 << (me.m + i * CLUSTER_M);
    for (int i = 0; i < CLUSTER_M; ++i) b_mask |= 1 << (me.n * CLUSTER_M + i);
    const int steps = steps_of(s);
    const bool a_inner = s.a_inner, a_outer = s.a_outer, b_inner = s.b_inner, b_outer = s.b_outer;
    const uint64_t policy_a = STRIP_IN_L2 ? l2_evict_last() : 0, policy_b = STRIP_IN_L2 ? l2_evict_first() : 0;
    grid_dependency_wait();
    auto load_tile = [&](const Tile& tile, int first, int last) {
        const int rows = rows_of(tile, s);
        const TensorMap* map_a = rows < TILE_M ? maps.m_tail : maps.a;
        for (int k = first * TILE_K; k < last * TILE_K; k += TILE_K) {
            pipe.wait_empty();
            mbarrier_arrive_expect_tx(pipe.full_barrier(), B_BYTES + rows * 128);
            if (rows)
                load_share<TILE_M, A_K_MAJOR, CLUSTER_N, false>(a_mask, pipe.a(), map_a, pipe.full_barrier(),
                                                               policy_a, me.n, tile.row, k, a_inner ? tile.inner : 0,
                                                               a_outer ? tile.outer : 0);
            if constexpr (GATED)
                load_gate_up<TILE_N, B_K_MAJOR, CLUSTER_M>(b_mask, pipe.b(), maps.b, pipe.full_barrier(), policy_b,
                                                           me.m, tile.col, k);
            else
                load_share<TILE_N, B_K_MAJOR, CLUSTER_M, false>(b_mask, pipe.b(), maps.b, pipe.full_barrier(),
                                                               policy_b, me.m, tile.col, k, b_inner ? tile.inner : 0,
                                                               b_outer ? tile.outer : 0);
            pipe.advance();
        }
    };
    if (SPLITK) {
        const KRange range(work.k_splits, steps);
        if (range.tile < work.splitk_tiles)
            load_tile(tile_of(work.tiles + range.tile, me, work), range.first, range.last);
    }
    if (CLUSTER_K > 1) {
        const KRange range(CLUSTER_K, steps);
        load_tile(tile_of(range.tile, me, work), range.first, range.last);
        return;
    }
    for (uint32_t index = blockIdx.x / CLUSTER; index < work.tiles; index += grid_blocks() / CLUSTER) {
        load_tile(tile_of(index, me, work), 0, steps);
        if (NON_PERSISTENT) return;
    }
    for (uint32_t index = blockIdx.x - work.first_n_tail; index < work.n_tails;
         index += gridDim.x - work.first_n_tail) {
        const Tile tile = work.n_tail(index);
        for (int k = 0; k < steps * TILE_K; k += TILE_K) {
            pipe.wait_empty();
            mbarrier_arrive_expect_tx(pipe.full_barrier(), N_TAIL_BYTES);
#pragma unroll
            for (int share = 0; share < CLUSTER_N; ++share)
                load_share<TILE_M, A_K_MAJOR, CLUSTER_N, true>(0, pipe.a(), maps.a, pipe.full_barrier(), 0, share,
                                                               tile.row, k, a_inner ? tile.inner : 0,
                                                               a_outer ? tile.outer : 0);
            load_share<N_TAIL, B_K_MAJOR, 1, true>(0, pipe.b(), maps.n_tail, pipe.full_barrier(), 0, 0, tile.col, k,
                                                b_inner ? tile.inner : 0, b_outer ? tile.outer : 0);
            pipe.advance();
        }
    }
}

// Arrives at the empty barriers of a stage in all blocks that multicast to it, those of this block's cluster row and
// column; with LOCAL at this block's own, as many times.
template <bool LOCAL> DEVICE void release(uint32_t empty_barrier, ClusterPosition me) {
    const int thread = thread_x() % 128;
    if (CLUSTER == 1 || LOCAL) {
        if (thread < PRODUCERS) mbarrier_arrive(empty_barrier);
    } else if (thread < CLUSTER_M) {
        mbarrier_arrive_cluster(empty_barrier, me.n * CLUSTER_M + thread);
    } else if (thread < PRODUCERS) {
        const int other = thread - CLUSTER_M;
        mbarrier_arrive_cluster(empty_barrier, me.m + (other + (other >= me.n)) * CLUSTER_M);
    }
}

// Issues the wgmmas of one step of k, and waits for those of the step before.
template <int COLUMNS, bool FIRST> DEVICE void multiply(TilePipeline& pipe, float* acc, int consumer) {
    // 16 elements of k: 32 bytes of a row, or 16 rows.
    constexpr int A_STEP = A_K_MAJOR ? 32 : 16 * 128;
    constexpr int B_STEP = B_K_MAJOR ? 32 : 16 * 128;
    pipe.wait_full();
    const uint64_t a = wgmma_descriptor(pipe.a() + consumer * BLOCK_BYTES, BLOCK_BYTES, 1024);
    const uint64_t b = wgmma_descriptor(pipe.b(), BLOCK_BYTES, 1024);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < TILE_K / 16; ++k)
        Wgmma<COLUMNS>::template run<!A_K_MAJOR, !B_K_MAJOR>(acc, a + (k * A_STEP >> 4), b + (k * B_STEP >> 4),
                                                             !FIRST || k);
    wgmma_commit();
    pipe.advance();
    wgmma_wait<1>();
}

// Waits for all wgmmas; no accumulator is read before that.
template <int COUNT> DEVICE void wait_accumulators(float (&acc)[COUNT]) {
    wgmma_wait<0>();
    keep_in_registers<COUNT>(acc);
}

// The main loop of one tile or of a part of its k; LOCAL where no cluster shares it.
template <int COLUMNS, bool LOCAL, int COUNT>
DEVICE void multiply_tile(TilePipeline& pipe, float (&acc)[COUNT], int steps, int consumer, ClusterPosition me) {
    uint32_t used = pipe.empty_barrier();
    multiply<COLUMNS, true>(pipe, acc, consumer);
    for (int step = 1; step < steps; ++step) {
        const uint32_t now = pipe.empty_barrier();
        multiply<COLUMNS, false>(pipe, acc, consumer);
        release<LOCAL>(used, me);
        used = now;
    }
    wait_accumulators(acc);
    release<LOCAL>(used, me);
}

#if SPLITK
#define PARTIALS_PARAMETER float *partials, int whole, int k_splits,
#define PARTIALS_ARGUMENT partials
#define SPLITK_ARGUMENTS whole, k_splits
#else
#define PARTIALS_PARAMETER
#define PARTIALS_ARGUMENT nullptr
#define SPLITK_ARGUMENTS 0, 1
#endif

// What multiplies a sum, and where it is.
struct Alphas {
    float first, second;
};
struct AlphaPointers {
    const float *first, *second;

    DEVICE Alphas load() const { return ALPHAS ? Alphas{*first, *second} : Alphas{}; }
};
#if ALPHAS
#define ALPHAS_PARAMETERS const float *first_alpha, const float *second_alpha,
#define ALPHAS_ARGUMENTS {first_alpha, second_alpha}
#else
#define ALPHAS_PARAMETERS
#define ALPHAS_ARGUMENTS {}
#endif

template <int COUNT> DEVICE void times_alphas(float (&acc)[COUNT], const Alphas& alphas) {
#if ALPHAS
#pragma unroll
    for (int i = 0; i < COUNT; ++i) acc[i] = acc[i] * alphas.first * alphas.second;
#endif
}

// A consumer's partial sums, in vectors of four: the first of every thread, then the second of every thread. Consumers
// and blocks follow one another.
template <int COUNT> DEVICE void store_partials(float* partials, const float (&acc)[COUNT], int consumer) {
    float4* to = reinterpret_cast<float4*>(partials) +
                 (static_cast<int64_t>(blockIdx.x) * CONSUMERS + consumer) * (COUNT / 4) * 128 + thread_x() % 128;
#pragma unroll
    for (int i = 0; i < COUNT / 4; ++i)
        to[i * 128] = make_float4(acc[i * 4], acc[i * 4 + 1], acc[i * 4 + 2], acc[i * 4 + 3]);
}

DEVICE void consumer_loop(TilePipeline pipe, uint32_t buffers, uint32_t biases, Output c, Output z, const T* bias,
                          float* partials, AlphaPointers of_sums, const Sizes& s, const TileScheduler& work) {
    const int consumer = thread_x() / 128;
    const ClusterPosition me = cluster_position();
    const int steps = steps_of(s);
    const uint32_t own_buffers = buffers + consumer * C_BUFFERS * BLOCK_BYTES;
    const uint32_t own_bias = biases + consumer * 512;
    grid_dependency_wait();
    const Alphas alphas = of_sums.load();
    uint32_t finished[BLOCKS * BLOCK_WORDS];  // the last tile, converted, until it is stored
    Tile last = {};
    bool pending = false;
#if C_TMA
    int buffer = 0;
#endif

    auto store_block = [&](Output out, const uint32_t* words, const Tile& tile, int block) {
        const int row = tile.row + consumer * 64, col = tile.col + block * 64;
        const BlockPosition place = {row, col, tile.outer, tile.inner, tile.col + C_TILE_N};
#if C_TMA
        store_by_tma(own_buffers, buffer, out.map, out.data, words, place, consumer, s);
        buffer = (buffer + 1) % C_BUFFERS;
#else
        store_by_threads(own_buffers, out.data, words, place, s);
#endif
    };
    auto store = [&](Output out, int from, int to) {
#pragma unroll
        for (int block = from; block < to; ++block) store_block(out, finished + block * BLOCK_WORDS, last, block);
    };

    if (SPLITK) {
        const KRange range(work.k_splits, steps);
        if (range.tile < work.splitk_tiles) {
            float acc[TILE_N / 2];
            multiply_tile<TILE_N, false>(pipe, acc, range.last - range.first, consumer, me);
            store_partials(partials, acc, consumer);
        }
    }
    for (uint32_t index = blockIdx.x / CLUSTER; index < work.tiles; index += gridDim.x / CLUSTER) {
        float acc[TILE_N / 2];
        uint32_t used = pipe.empty_barrier();
        multiply<TILE_N, true>(pipe, acc, consumer);
        auto next_step = [&] {
            const uint32_t now = pipe.empty_barrier();
            multiply<TILE_N, false>(pipe, acc, consumer);
            release<false>(used, me);
            used = now;
        };
        const Tile tile = tile_of(index, me, work);
        const uint32_t pair = bias_pair<TILE_N>(bias, tile.col, s.n);
        int step = 1;
        if (!NON_PERSISTENT) {
#pragma unroll
            for (; step <= STORE_STEPS; ++step) {
                next_step();
                if (pending) store(c, (step - 1) * BLOCKS / STORE_STEPS_OR_1, step * BLOCKS / STORE_STEPS_OR_1);
            }
        }
        for (; step < steps; ++step) next_step();
        wait_accumulators(acc);
        release<false>(used, me);

        times_alphas(acc, alphas);
        share_bias<TILE_N>(own_bias, pair, consumer);
        last = tile;
        pending = true;
#if PREACTIVATION
        convert<T, TILE_N / 2, false>(finished, acc, own_bias);
        store(z, 0, BLOCKS);
#endif
#if GATED
        convert_gated<T, C_TILE_N / 2>(finished, acc);
#else
        convert<T, TILE_N / 2>(finished, acc, own_bias);
#endif
        if (NON_PERSISTENT) break;
        if (STORE_STEPS == 0) store(c, 0, BLOCKS);
    }
    if (N_TAIL && blockIdx.x - work.first_n_tail < work.n_tails) {
        if (STORE_STEPS && pending) store(c, 0, BLOCKS);
        pending = false;
        for (uint32_t index = blockIdx.x - work.first_n_tail; index < work.n_tails;
             index += gridDim.x - work.first_n_tail) {
            float acc[(N_TAIL + 8) / 2];
            uint32_t words[(N_TAIL + 8) / 4];
            const Tile tile = work.n_tail(index);
            const uint32_t pair = bias_pair<N_TAIL>(bias, tile.col, s.n);
            multiply_tile<N_TAIL ? N_TAIL : 64, true>(pipe, acc, steps, consumer, me);
            times_alphas(acc, alphas);
            share_bias<N_TAIL>(own_bias, pair, consumer);
            auto store_n_tail = [&](Output out) {
#pragma unroll
                for (int block = 0; block < N_TAIL / 64; ++block)
                    store_block(out, words + block * BLOCK_WORDS, tile, block);
            };
#if PREACTIVATION
            convert<T, N_TAIL / 2, false>(words, acc, own_bias);
            store_n_tail(z);
#endif
            convert<T, N_TAIL / 2>(words, acc, own_bias);
            store_n_tail(c);
        }
    }
    if ((NON_PERSISTENT || STORE_STEPS) && pending) {
        const BlockPosition place = {last.row + consumer * 64, last.col, last.outer, last.inner, last.col + C_TILE_N};
        store_last<T, BLOCKS, CONSUMERS>(pipe.base, c.map, c.data, finished, place, consumer, s);
    }
    if (C_TMA && thread_x() % 128 == 0) tma_store_wait_read<0>();
}

#if CLUSTER_K > 1
// A consumer's part along K of the cluster's tile, and its share of the columns of all parts.
DEVICE void cluster_k_consumer(TilePipeline pipe, uint32_t biases, Output c, const T* bias, const Sizes& s,
                               const TileScheduler& work) {
    const int consumer = thread_x() / 128;
    const uint32_t own_bias = biases + consumer * 512;
    const KRange range(CLUSTER_K, steps_of(s));
    Tile tile = tile_of(range.tile, {0, 0}, work);
    tile.col += range.split * SHARE_N;
    grid_dependency_wait();
    float acc[TILE_N / 2], sum[SHARE_N / 2];
    uint32_t words[SHARE_BLOCKS * BLOCK_WORDS];
    const uint32_t pair = bias_pair<SHARE_N>(bias, tile.col, s.n);
    multiply_tile<TILE_N, true>(pipe, acc, range.last - range.first, consumer, {0, 0});
    named_barrier_sync(6, CONSUMER_THREADS);  // all wgmmas have read the stages
    cluster_sum<CLUSTER_K>(sum, acc, pipe.base, range.split);
    share_bias<SHARE_N>(own_bias, pair, consumer);
    convert<T, SHARE_N / 2>(words, sum, own_bias);
    const BlockPosition place = {tile.row + consumer * 64, tile.col, tile.outer, tile.inner, tile.col + SHARE_N};
    store_last<T, SHARE_BLOCKS, CONSUMERS>(pipe.base + TILE_M * TILE_N * 4, c.map, c.data, words, place, consumer, s);
    if (C_TMA && thread_x() % 128 == 0) tma_store_wait_read<0>();
}
#endif

#if CLUSTER_M * CLUSTER_N * CLUSTER_K > 1
#define CLUSTER_DIMS __cluster_dims__(CLUSTER * CLUSTER_K, 1, 1)
#else
#define CLUSTER_DIMS
#endif

extern "C" __global__ __launch_bounds__(THREADS, 1) CLUSTER_DIMS void matmul_wgmma(
    const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b,
#if M_TAIL
    const __grid_constant__ TensorMap map_m_tail,
#endif
#if N_TAIL
    const __grid_constant__ TensorMap map_n_tail,
#endif
#if C_TMA
    const __grid_constant__ TensorMap map_c,
#if PREACTIVATION
    const __grid_constant__ TensorMap map_z,
#endif
#endif
    const T* bias, T* c, Z_PARAMETER(T) PARTIALS_PARAMETER ALPHAS_PARAMETERS int first_n_tail, int last_col,
    SIZES_PARAMETERS) {
    DYNAMIC_SHARED(shared);
    const Sizes s = SIZES_ARGUMENTS;
    // The swizzle repeats every 1024 bytes of the address.
    const uint32_t base = (shared_address(shared) + 1023) & ~1023u;
    const uint32_t buffers = base + STAGES * STAGE_BYTES;
    const uint32_t barriers = buffers + C_BYTES;
    const uint32_t biases = barriers + STAGES * 16;
    const TilePipeline pipe(base, barriers);
    Maps maps{&map_a, &map_b, &map_b, &map_a};
#if M_TAIL
    maps.m_tail = &map_m_tail;
#endif
#if N_TAIL
    maps.n_tail = &map_n_tail;
#endif
    Output to_c{nullptr, c}, to_z{nullptr, Z_ARGUMENT};
#if C_TMA
    to_c.map = &map_c;
#if PREACTIVATION
    to_z.map = &map_z;
#endif
#endif

    const bool is_producer = thread_x() == CONSUMER_THREADS;
    if (is_producer) {
        launch_dependents();
        pipe.init(CONSUMERS * PRODUCERS);
        mbarrier_init_fence();
        fence_proxy_async();
    } else if (thread_x() == 0) {
        tma_prefetch_descriptor(maps.a);
        tma_prefetch_descriptor(maps.b);
        if (C_TMA) tma_prefetch_descriptor(to_c.map);
        if (N_TAIL) tma_prefetch_descriptor(maps.n_tail);
        if (M_TAIL) tma_prefetch_descriptor(maps.m_tail);
    }
    // The producer warp waits for its cluster, not for the block's other warps.
    if (CLUSTER > 1) {
        cluster_sync();
    } else if (thread_x() / 32 == CONSUMER_THREADS / 32) {
        __syncwarp();
        named_barrier_arrive(7, THREADS);
    } else {
        named_barrier_sync(7, THREADS);
    }

    const TileScheduler work(s, first_n_tail, last_col, SPLITK_ARGUMENTS);
    if (thread_x() >= CONSUMER_THREADS) {
        if (CONSUMERS > 1) setmaxnreg_dec<PRODUCER_REGISTERS>();
        if (is_producer) producer_loop(pipe, maps, s, work);
#if CLUSTER_K > 1
        cluster_sync();
        cluster_arrive();
#endif
    } else {
        if (CONSUMERS > 1) setmaxnreg_inc<CONSUMER_REGISTERS>();
#if CLUSTER_K > 1
        cluster_k_consumer(pipe, biases, to_c, bias, s, work);
#else
        consumer_loop(pipe, buffers, biases, to_c, to_z, bias, PARTIALS_ARGUMENT, ALPHAS_ARGUMENTS, s, work);
#endif
    }
    // A block must not leave while its peers can still access its shared memory or barriers.
    if (CLUSTER > 1) cluster_sync();
    if (CLUSTER_K > 1) {
        __syncwarp();
        cluster_wait();
    }
}
