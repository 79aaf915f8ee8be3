// c = a @ b with Hopper's warpgroup matrix instructions, for 16-byte aligned operands of any layout.
//
// A persistent block walks tiles of TILE_M x TILE_N. TILE_M / 64 warpgroups multiply 64 rows of each tile; a thread
// after them starts bulk tensor copies into a ring of STAGES stages. Blocks of a cluster of CLUSTER_M x CLUSTER_N
// neighbouring tiles load a share of each operand tile and multicast it. Operands lie in shared memory with
// the 128-byte swizzle, in lines of 64 elements: along k, or along M or N for an operand that is contiguous
// the other way (A_ALONG_K or B_ALONG_K 0), then as blocks of 64 lines, one per k.
//
// A finished tile is packed to 16 bits in registers, and stored block by block during the next tile's SPREAD
// first steps of k; the last one goes through the pipe, which is free by then.
//
// With EDGE, columns that do not fill a tile of TILE_N make narrow tiles of EDGE columns. They come last, on
// the blocks from `first_edge` on, and no cluster shares them.
//
// With DIVIDED, the tiles from `whole` on are divided along k into `parts`: a cluster takes one part, before its
// whole tiles, and leaves float32 sums in `sums`, as its threads hold them, for wgmma_sum.cu.
//
// Defines: ELEMENT (bf16, f16); TILE_M (64, 128, 192), TILE_N (multiples of 16 from 64 to 256, of 64 where b's
// lines run along N), STAGES, GROUP, CLUSTER_M, CLUSTER_N, SPREAD (less than the steps of k; 0: all blocks at once), EDGE (0, 64, 128), ONCE (every block has
// one tile, which its place in the grid names), LAST (the last tile's rows are a box of their own: A_ALONG_K, no EDGE,
// CLUSTER_N 1), DIVIDED (not with EDGE or ONCE), A_ALONG_K, B_ALONG_K; C_BY_ENGINE:
// c is row-major with 16-byte aligned rows, and the copy engine stores it, or column-major where c is FLIPPED (then
// in boxes of C_LINES columns; without BIAS); BIAS, ACTIVATION, PREACTIVATION (not with
// ONCE).
#include "prelude.h"

#include "matmul/epilogue.h"
#include "_lib/ptx/cluster.h"
#include "_lib/ptx/pdl.h"
#include "_lib/ptx/pipeline.h"
#include "_lib/ptx/registers.h"
#include "_lib/ptx/tma.h"
#include "_lib/ptx/wgmma.h"
#include "matmul/tile.h"
#include "wgmma_store.h"

using T = ELEMENT;

constexpr int TILE_K = 64;  // one 128-byte line
constexpr int CONSUMERS = TILE_M / 64;
constexpr int MULTIPLYING = CONSUMERS * 128;
// Registers change hands among whole warpgroups; one multiplying warpgroup has enough.
constexpr int THREADS = MULTIPLYING + (CONSUMERS > 1 ? 128 : 32);
constexpr int COPYING_REGISTERS = CONSUMERS == 3 || DIVIDED ? 56 : 40;
constexpr int MULTIPLYING_REGISTERS = CONSUMERS == 3 ? 152 : DIVIDED ? 224 : 232;
constexpr int CLUSTER = CLUSTER_M * CLUSTER_N;
constexpr int HEIGHT = TILE_M * CLUSTER_M, WIDTH = TILE_N * CLUSTER_N;
constexpr int A_BYTES = TILE_M * 128;
constexpr int BLOCKS = (TILE_N + 63) / 64;  // of 64 x 64 of c per consumer; the last one may be a part of that
constexpr int B_BYTES = TILE_N * 128;
constexpr int STAGE_BYTES = A_BYTES + B_BYTES;
constexpr int EDGE_BYTES = A_BYTES + EDGE * 128;
constexpr int SPREAD_OR_1 = SPREAD ? SPREAD : 1;
constexpr int C_BYTES = ONCE ? 0 : CONSUMERS * C_BUFFERS * BLOCK_BYTES;
constexpr int RELEASES = CLUSTER_M + CLUSTER_N - 1;  // blocks that write to a stage, of each consumer
static_assert(TILE_M / CLUSTER_N % 8 == 0 && TILE_N / CLUSTER_M % 8 == 0, "a share is whole groups of the swizzle");
static_assert(CONSUMERS * BLOCKS * BLOCK_BYTES <= STAGES * STAGE_BYTES, "the ring holds a tile of c");

struct TilePipeline : Pipeline<STAGES, STAGE_BYTES> {
    using Pipeline::Pipeline;

    DEVICE uint32_t a() const { return stage_base(); }
    DEVICE uint32_t b() const { return a() + A_BYTES; }
};

// What the blocks walk: divided tiles, whole tiles, narrow ones.
struct Work {
    uint32_t tiles, divided, edges;  // clusters of whole and of divided tiles, and narrow tiles
    int parts;                       // of each divided tile
    int first_edge;                  // the first block that has narrow tiles
    Sizes whole;                     // the product without the columns of narrow tiles

    DEVICE Work(const Sizes& s, int first, uint32_t undivided, int parts)
        : divided(0), parts(parts), first_edge(first), whole(s) {
        if (EDGE) whole.n = s.n / WIDTH * WIDTH;
        const uint32_t batches = static_cast<uint32_t>(s.inner_batches) * s.outer_batches;
        const uint32_t tiles_m = (static_cast<uint32_t>(s.m) + HEIGHT - 1) / HEIGHT;
        tiles = tiles_m * ((static_cast<uint32_t>(whole.n) + WIDTH - 1) / WIDTH) * batches;
        if (DIVIDED) {
            divided = tiles - undivided;
            tiles = undivided;
        }
        edges = EDGE ? (static_cast<uint32_t>(s.m) + TILE_M - 1) / TILE_M * batches : 0;
    }
    DEVICE Tile edge(uint32_t index) const {
        Sizes narrow = whole;
        narrow.n = 1;
        Tile tile = tile_at<TILE_M, 64, 1>(index, narrow);
        tile.col = whole.n;
        return tile;
    }
};

// Where a block stands in its cluster.
struct Member {
    int m, n;
};
DEVICE Member member() {
    const int rank = CLUSTER == 1 ? 0 : cluster_rank();
    return {rank % CLUSTER_M, rank / CLUSTER_M};
}

DEVICE Tile tile_of(uint32_t index, Member me, const Sizes& s) {
    Tile tile;
    if (ONCE) {
        const int batch = blockIdx.z;
        const int outer = s.inner_batches == 1 ? batch : batch / s.inner_batches;
        tile = {static_cast<int>(blockIdx.x / CLUSTER) * HEIGHT, static_cast<int>(blockIdx.y) * WIDTH, outer,
                batch - outer * s.inner_batches};
    } else {
        tile = tile_at<HEIGHT, WIDTH, GROUP>(index, s);
    }
    tile.row += me.m * TILE_M;
    tile.col += me.n * TILE_N;
    return tile;
}

// Rows of a tile that are loaded. Lines beyond an operand take the engine longer than those within; what lies in
// their place reaches rows of sums that nobody stores.
DEVICE int rows_of(const Tile& tile, const Sizes& s) {
    if (!LAST) return TILE_M;
    const int left = s.m - tile.row;
    return left >= TILE_M ? TILE_M : left > 0 ? (left + 7) / 8 * 8 : 0;
}

DEVICE int steps_of(const Sizes& s) { return (s.k + TILE_K - 1) / TILE_K; }

// The part of a divided tile's steps that a cluster multiplies: of `parts` each, cluster after cluster.
struct Part {
    uint32_t tile;
    int first, last;

    DEVICE Part(int parts, int steps) {
        const uint32_t cluster = blockIdx.x / CLUSTER, part = cluster % parts;
        tile = cluster / parts;
        first = static_cast<int>(static_cast<uint64_t>(steps) * part / parts);
        last = static_cast<int>(static_cast<uint64_t>(steps) * (part + 1) / parts);
    }
};

// Whether the blocks that share an operand each load some lines of it, or, where its lines do not run along k and
// cannot be shared in blocks of 64, some k of all lines.
constexpr bool some_k(int lines, bool along_k, int parts) { return !along_k && lines / parts % 64; }

// Part `part` of an operand's LINES lines from `line` on, step k: a box along k, else boxes of 64 lines; to all
// blocks in `mask`, or to this one alone.
template <int LINES, bool ALONG_K, int PARTS, bool ALONE>
DEVICE void load_part(uint16_t mask, uint32_t to, const TensorMap* map, uint32_t barrier, int part, int line, int k,
                      int inner, int outer) {
    constexpr bool SOME_K = some_k(LINES, ALONG_K, PARTS);
    constexpr int SHARE = SOME_K ? TILE_K / PARTS : LINES / PARTS;
    to += part * SHARE * 128;
    (SOME_K ? k : line) += part * SHARE;
#pragma unroll
    for (int i = 0; i < (ALONG_K ? 1 : SOME_K ? LINES / 64 : SHARE / 64); ++i) {
        const int x = ALONG_K ? k : line + i * 64;
        const int y = ALONG_K ? line : k;
        if (PARTS == 1 || ALONE) tma_load_4d(to + i * BLOCK_BYTES, map, barrier, x, y, inner, outer);
        else tma_load_4d_multicast(mask, to + i * BLOCK_BYTES, map, barrier, x, y, inner, outer);
    }
}

struct Maps {
    const TensorMap *a, *b, *edge, *last;  // `edge`: boxes of b for narrow tiles; `last`: of a for its last rows
};
// Where sums go: by the engine, or to `data`.
struct Output {
    const TensorMap* map;
    T* data;
};

DEVICE void produce(TilePipeline pipe, const Maps& maps, const Sizes& s, const Work& work) {
    const Member me = member();
    // Blocks of the same cluster row share a's tile, those of the same column b's.
    uint16_t row_mates = 0, column_mates = 0;
    for (int i = 0; i < CLUSTER_N; ++i) row_mates |= 1 << (me.m + i * CLUSTER_M);
    for (int i = 0; i < CLUSTER_M; ++i) column_mates |= 1 << (me.n * CLUSTER_M + i);
    const int steps = steps_of(s);
    const bool a_inner = s.a_inner, a_outer = s.a_outer, b_inner = s.b_inner, b_outer = s.b_outer;
    grid_dependency_wait();
    auto load_tile = [&](const Tile& tile, int first, int last) {
        const int rows = rows_of(tile, s);
        const TensorMap* map_a = rows < TILE_M ? maps.last : maps.a;
        for (int k = first * TILE_K; k < last * TILE_K; k += TILE_K) {
            pipe.wait_empty();
            mbarrier_arrive_expect_tx(pipe.full_barrier(), B_BYTES + rows * 128);
            if (rows)
                load_part<TILE_M, A_ALONG_K, CLUSTER_N, false>(row_mates, pipe.a(), map_a, pipe.full_barrier(), me.n,
                                                               tile.row, k, a_inner ? tile.inner : 0,
                                                               a_outer ? tile.outer : 0);
            load_part<TILE_N, B_ALONG_K, CLUSTER_M, false>(column_mates, pipe.b(), maps.b, pipe.full_barrier(), me.m,
                                                           tile.col, k, b_inner ? tile.inner : 0,
                                                           b_outer ? tile.outer : 0);
            pipe.advance();
        }
    };
    if (DIVIDED) {
        const Part part(work.parts, steps);
        if (part.tile < work.divided)
            load_tile(tile_of(work.tiles + part.tile, me, work.whole), part.first, part.last);
    }
    for (uint32_t index = blockIdx.x / CLUSTER; index < work.tiles; index += gridDim.x / CLUSTER) {
        load_tile(tile_of(index, me, work.whole), 0, steps);
        if (ONCE) return;
    }
    for (uint32_t index = blockIdx.x - work.first_edge; index < work.edges; index += gridDim.x - work.first_edge) {
        const Tile tile = work.edge(index);
        for (int k = 0; k < steps * TILE_K; k += TILE_K) {
            pipe.wait_empty();
            mbarrier_arrive_expect_tx(pipe.full_barrier(), EDGE_BYTES);
#pragma unroll
            for (int part = 0; part < CLUSTER_N; ++part)
                load_part<TILE_M, A_ALONG_K, CLUSTER_N, true>(0, pipe.a(), maps.a, pipe.full_barrier(), part, tile.row, k,
                                                              a_inner ? tile.inner : 0, a_outer ? tile.outer : 0);
            load_part<EDGE, B_ALONG_K, 1, true>(0, pipe.b(), maps.edge, pipe.full_barrier(), 0, tile.col, k,
                                                b_inner ? tile.inner : 0, b_outer ? tile.outer : 0);
            pipe.advance();
        }
    }
}

// Tells the producers that write to this block, its cluster row's and column's, that a stage may be refilled;
// or its own alone, as often.
template <bool ALONE> DEVICE void release(uint32_t freed, Member me) {
    const int thread = thread_x() % 128;
    if (CLUSTER == 1 || ALONE) {
        if (thread < RELEASES) mbarrier_arrive(freed);
    } else if (thread < CLUSTER_M) {
        mbarrier_arrive_cluster(freed, me.n * CLUSTER_M + thread);
    } else if (thread < RELEASES) {
        const int other = thread - CLUSTER_M;
        mbarrier_arrive_cluster(freed, me.m + (other + (other >= me.n)) * CLUSTER_M);
    }
}

// Starts the products of one step of k, and waits for the step before.
template <int COLUMNS, bool FIRST> DEVICE void multiply(TilePipeline& pipe, float* sum, int consumer) {
    // 16 elements of k: 32 bytes along a line, or 16 lines.
    constexpr int A_STEP = A_ALONG_K ? 32 : 16 * 128;
    constexpr int B_STEP = B_ALONG_K ? 32 : 16 * 128;
    pipe.wait_full();
    const uint64_t a = wgmma_descriptor(pipe.a() + consumer * BLOCK_BYTES, BLOCK_BYTES, 1024);
    const uint64_t b = wgmma_descriptor(pipe.b(), BLOCK_BYTES, 1024);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < TILE_K / 16; ++k)
        Wgmma<COLUMNS>::template run<!A_ALONG_K, !B_ALONG_K>(sum, a + (k * A_STEP >> 4), b + (k * B_STEP >> 4),
                                                             !FIRST || k);
    wgmma_commit();
    pipe.advance();
    wgmma_wait<1>();
}

// Waits for the products that are under way; none of the sums is read before that.
template <int COUNT> DEVICE void settle(float (&sum)[COUNT]) {
    wgmma_wait<0>();
    keep_in_registers<COUNT>(sum);
}

// All products of one tile or of a part of its k, `ALONE` where no cluster shares it.
template <int COLUMNS, bool ALONE, int COUNT>
DEVICE void multiply_all(TilePipeline& pipe, float (&sum)[COUNT], int steps, int consumer, Member me) {
    uint32_t used = pipe.empty_barrier();
    multiply<COLUMNS, true>(pipe, sum, consumer);
    for (int step = 1; step < steps; ++step) {
        const uint32_t now = pipe.empty_barrier();
        multiply<COLUMNS, false>(pipe, sum, consumer);
        release<ALONE>(used, me);
        used = now;
    }
    settle(sum);
    release<ALONE>(used, me);
}

#if DIVIDED
#define SUMS_PARAMETER float *sums, int whole, int parts,
#define SUMS_ARGUMENT sums
#define DIVISION whole, parts
#else
#define SUMS_PARAMETER
#define SUMS_ARGUMENT nullptr
#define DIVISION 0, 1
#endif

// A consumer's sums, in vectors of four: one of every thread, then the next of every thread. Consumers and blocks
// follow one another.
template <int COUNT> DEVICE void store_sums(float* sums, const float (&sum)[COUNT], int consumer) {
    float4* to = reinterpret_cast<float4*>(sums) +
                 (static_cast<int64_t>(blockIdx.x) * CONSUMERS + consumer) * (COUNT / 4) * 128 + thread_x() % 128;
#pragma unroll
    for (int i = 0; i < COUNT / 4; ++i)
        to[i * 128] = make_float4(sum[i * 4], sum[i * 4 + 1], sum[i * 4 + 2], sum[i * 4 + 3]);
}

DEVICE void consume(TilePipeline pipe, uint32_t buffers, uint32_t biases, Output c, Output z, const T* bias, float* sums,
                    const Sizes& s, const Work& work) {
    const int consumer = thread_x() / 128;
    const Member me = member();
    const int steps = steps_of(s);
    const uint32_t own_buffers = buffers + consumer * C_BUFFERS * BLOCK_BYTES;
    const uint32_t own_bias = biases + consumer * 512;
    grid_dependency_wait();
    uint32_t held[BLOCKS * BLOCK_WORDS];
    Tile last = {};
    bool holding = false;
#if C_BY_ENGINE
    int turn = 0;
#endif

    auto store_block = [&](Output out, const uint32_t* words, const Tile& tile, int block) {
        const int row = tile.row + consumer * 64, col = tile.col + block * 64;
        const Place place = {row, col, tile.outer, tile.inner, tile.col + TILE_N};
#if C_BY_ENGINE
        store_by_engine(own_buffers, turn, out.map, out.data, words, place, consumer, s);
        turn = (turn + 1) % C_BUFFERS;
#else
        store_by_threads(own_buffers, out.data, words, place, s);
#endif
    };
    auto store = [&](Output out, int from, int to) {
#pragma unroll
        for (int block = from; block < to; ++block) store_block(out, held + block * BLOCK_WORDS, last, block);
    };

    if (DIVIDED) {
        const Part part(work.parts, steps);
        if (part.tile < work.divided) {
            float sum[TILE_N / 2];
            multiply_all<TILE_N, false>(pipe, sum, part.last - part.first, consumer, me);
            store_sums(sums, sum, consumer);
        }
    }
    for (uint32_t index = blockIdx.x / CLUSTER; index < work.tiles; index += gridDim.x / CLUSTER) {
        float sum[TILE_N / 2];
        uint32_t used = pipe.empty_barrier();
        multiply<TILE_N, true>(pipe, sum, consumer);
        auto next = [&] {
            const uint32_t now = pipe.empty_barrier();
            multiply<TILE_N, false>(pipe, sum, consumer);
            release<false>(used, me);
            used = now;
        };
        const Tile tile = tile_of(index, me, work.whole);
        const uint32_t pair = bias_pair<TILE_N>(bias, tile.col, s.n);
        int step = 1;
        if (!ONCE) {
#pragma unroll
            for (; step <= SPREAD; ++step) {
                next();
                if (holding) store(c, (step - 1) * BLOCKS / SPREAD_OR_1, step * BLOCKS / SPREAD_OR_1);
            }
        }
        for (; step < steps; ++step) next();
        settle(sum);
        release<false>(used, me);

        share_bias<TILE_N>(own_bias, pair, consumer);
        last = tile;
        holding = true;
#if PREACTIVATION
        pack<T, TILE_N / 2, false>(held, sum, own_bias);
        store(z, 0, BLOCKS);
#endif
        pack<T, TILE_N / 2>(held, sum, own_bias);
        if (ONCE) break;
        if (SPREAD == 0) store(c, 0, BLOCKS);
    }
    if (EDGE && blockIdx.x - work.first_edge < work.edges) {
        if (SPREAD && holding) store(c, 0, BLOCKS);
        holding = false;
        for (uint32_t index = blockIdx.x - work.first_edge; index < work.edges;
             index += gridDim.x - work.first_edge) {
            float sum[(EDGE + 8) / 2];
            uint32_t words[(EDGE + 8) / 4];
            const Tile tile = work.edge(index);
            const uint32_t pair = bias_pair<EDGE>(bias, tile.col, s.n);
            multiply_all<EDGE ? EDGE : 64, true>(pipe, sum, steps, consumer, me);
            share_bias<EDGE>(own_bias, pair, consumer);
            auto store_edge = [&](Output out) {
#pragma unroll
                for (int block = 0; block < EDGE / 64; ++block)
                    store_block(out, words + block * BLOCK_WORDS, tile, block);
            };
#if PREACTIVATION
            pack<T, EDGE / 2, false>(words, sum, own_bias);
            store_edge(z);
#endif
            pack<T, EDGE / 2>(words, sum, own_bias);
            store_edge(c);
        }
    }
    if ((ONCE || SPREAD) && holding) {
        const Place place = {last.row + consumer * 64, last.col, last.outer, last.inner, last.col + TILE_N};
        store_last<T, BLOCKS, CONSUMERS>(pipe.base, c.map, c.data, held, place, consumer, s);
    }
    if (C_BY_ENGINE && thread_x() % 128 == 0) tma_store_wait_read<0>();
}

#if CLUSTER_M * CLUSTER_N > 1
#define CLUSTER_DIMS __cluster_dims__(CLUSTER, 1, 1)
#else
#define CLUSTER_DIMS
#endif

extern "C" __global__ __launch_bounds__(THREADS, 1) CLUSTER_DIMS void matmul_wgmma(
    const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b,
#if LAST
    const __grid_constant__ TensorMap map_last,
#endif
#if EDGE
    const __grid_constant__ TensorMap map_edge,
#endif
#if C_BY_ENGINE
    const __grid_constant__ TensorMap map_c,
#if PREACTIVATION
    const __grid_constant__ TensorMap map_z,
#endif
#endif
    const T* bias, T* c, Z_PARAMETER(T) SUMS_PARAMETER int first_edge, SIZES_PARAMETERS) {
    DYNAMIC_SHARED(shared);
    const Sizes s = SIZES_ARGUMENTS;
    // The swizzle repeats every 1024 bytes of the address.
    const uint32_t base = (shared_address(shared) + 1023) & ~1023u;
    const uint32_t buffers = base + STAGES * STAGE_BYTES;
    const uint32_t barriers = buffers + C_BYTES;
    const uint32_t biases = barriers + STAGES * 16;
    const TilePipeline pipe(base, barriers);
    Maps maps{&map_a, &map_b, &map_b, &map_a};
#if LAST
    maps.last = &map_last;
#endif
#if EDGE
    maps.edge = &map_edge;
#endif
    Output to_c{nullptr, c}, to_z{nullptr, Z_ARGUMENT};
#if C_BY_ENGINE
    to_c.map = &map_c;
#if PREACTIVATION
    to_z.map = &map_z;
#endif
#endif

    const bool first_copying = thread_x() == MULTIPLYING;
    if (first_copying) {
        launch_dependents();
        pipe.init(CONSUMERS * RELEASES);
        mbarrier_init_fence();
        fence_proxy_async();
    } else if (thread_x() == 0) {
        tma_prefetch_descriptor(maps.a);
        tma_prefetch_descriptor(maps.b);
        if (C_BY_ENGINE) tma_prefetch_descriptor(to_c.map);
        if (EDGE) tma_prefetch_descriptor(maps.edge);
        if (LAST) tma_prefetch_descriptor(maps.last);
    }
    // The warp that copies waits for nobody but for its cluster.
    if (CLUSTER > 1) {
        cluster_sync();
    } else if (thread_x() / 32 == MULTIPLYING / 32) {
        __syncwarp();
        named_barrier_arrive(7, THREADS);
    } else {
        named_barrier_sync(7, THREADS);
    }

    const Work work(s, first_edge, DIVISION);
    if (thread_x() >= MULTIPLYING) {
        if (CONSUMERS > 1) setmaxnreg_dec<COPYING_REGISTERS>();
        if (first_copying) produce(pipe, maps, s, work);
    } else {
        if (CONSUMERS > 1) setmaxnreg_inc<MULTIPLYING_REGISTERS>();
        consume(pipe, buffers, biases, to_c, to_z, bias, SUMS_ARGUMENT, s, work);
    }
    // A block must not leave while its peers can still write to its shared memory or barriers.
    if (CLUSTER > 1) cluster_sync();
}
