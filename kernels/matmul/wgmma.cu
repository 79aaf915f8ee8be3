// c = a @ b with Hopper's warpgroup matrix instructions, for 16-byte aligned operands of any layout.
//
// A persistent block walks tiles of 128 x TILE_N. Warpgroup 0 starts bulk tensor copies into a ring of STAGES
// stages; two consumer warpgroups each multiply 64 rows of every tile. Blocks of a cluster of
// CLUSTER_M x CLUSTER_N neighbouring tiles load a share of each operand tile and multicast it. Operands lie
// in shared memory with the 128-byte swizzle, in lines of 64 elements: along k, or along M or N for an
// operand that is contiguous the other way (A_ALONG_K or B_ALONG_K 0), then as blocks of 64 lines, one per k.
//
// A finished tile is packed to 16 bits in registers, and stored block by block during the next tile's SPREAD
// first steps of k.
//
// Defines: ELEMENT (bf16, f16); TILE_N (64, 128, 192, 256), STAGES, GROUP, CLUSTER_M, CLUSTER_N, SPREAD (less
// than the steps of k; 0: all blocks at once), A_ALONG_K, B_ALONG_K; C_BY_ENGINE: c is row-major with 16-byte
// aligned rows, and the copy engine stores it; BIAS, ACTIVATION.
#include "prelude.h"

#include "epilogue.h"
#include "hopper.h"
#include "tile.h"
#include "wgmma_store.h"

using T = ELEMENT;

constexpr int TILE_M = 128;
constexpr int TILE_K = 64;  // one 128-byte line
constexpr int CONSUMERS = 2;
constexpr int THREADS = (1 + CONSUMERS) * 128;
constexpr int CLUSTER = CLUSTER_M * CLUSTER_N;
constexpr int A_BYTES = TILE_M * 128;
constexpr int B_BYTES = TILE_N * 128;
constexpr int STAGE_BYTES = A_BYTES + B_BYTES;
constexpr int SPREAD_OR_1 = SPREAD ? SPREAD : 1;
constexpr int SUMS = TILE_N / 2;     // per thread, of a consumer's 64 x TILE_N
constexpr int BLOCKS = TILE_N / 64;  // of 64 x 64 of c per consumer
constexpr int C_BYTES = CONSUMERS * C_BUFFERS * BLOCK_BYTES;
constexpr int A_SHARE = TILE_M / CLUSTER_N;  // lines that a block loads for the cluster's row or column
constexpr int B_SHARE = TILE_N / CLUSTER_M;
static_assert(A_SHARE % (A_ALONG_K ? 8 : 64) == 0 && B_SHARE % (B_ALONG_K ? 8 : 64) == 0,
              "a share is whole groups of the swizzle");

struct Ring {
    uint32_t base, full, empty;  // stages, and their barriers: filled, and free again
    int stage = 0;
    uint32_t phase = 0;

    DEVICE uint32_t a() const { return base + stage * STAGE_BYTES; }
    DEVICE uint32_t b() const { return a() + A_BYTES; }
    DEVICE uint32_t filled() const { return full + stage * 8; }
    DEVICE uint32_t freed() const { return empty + stage * 8; }
    DEVICE void advance() {
        if (++stage == STAGES) {
            stage = 0;
            phase ^= 1;
        }
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
    Tile tile = tile_at<TILE_M * CLUSTER_M, TILE_N * CLUSTER_N, GROUP>(index, s);
    tile.row += me.m * TILE_M;
    tile.col += me.n * TILE_N;
    return tile;
}

// LINES lines of an operand from line `line` on, step k: one box along k, else boxes of 64 lines; to all
// blocks in `mask` where SHARED_BY of them share it.
template <int LINES, bool ALONG_K, int SHARED_BY>
DEVICE void load_share(uint16_t mask, uint32_t to, const TensorMap* map, uint32_t barrier, int line, int k,
                       int inner, int outer) {
#pragma unroll
    for (int i = 0; i < (ALONG_K ? 1 : LINES / 64); ++i) {
        const int x = ALONG_K ? k : line + i * 64;
        const int y = ALONG_K ? line : k;
        if (SHARED_BY == 1) load_box(to + i * BLOCK_BYTES, map, barrier, x, y, inner, outer);
        else load_box_to(mask, to + i * BLOCK_BYTES, map, barrier, x, y, inner, outer);
    }
}

DEVICE void produce(Ring ring, const TensorMap* map_a, const TensorMap* map_b, const Sizes& s, uint32_t tiles) {
    const Member me = member();
    // Blocks of the same cluster row share a's tile, those of the same column b's.
    uint16_t row_mates = 0, column_mates = 0;
    for (int i = 0; i < CLUSTER_N; ++i) row_mates |= 1 << (me.m + i * CLUSTER_M);
    for (int i = 0; i < CLUSTER_M; ++i) column_mates |= 1 << (me.n * CLUSTER_M + i);
    for (uint32_t index = blockIdx.x / CLUSTER; index < tiles; index += gridDim.x / CLUSTER) {
        const Tile tile = tile_of(index, me, s);
        const int a_inner = s.a_inner ? tile.inner : 0, a_outer = s.a_outer ? tile.outer : 0;
        const int b_inner = s.b_inner ? tile.inner : 0, b_outer = s.b_outer ? tile.outer : 0;
        const int a_line = me.n * A_SHARE, b_line = me.m * B_SHARE;
        for (int k = 0; k < s.k; k += TILE_K) {
            barrier_wait(ring.freed(), ring.phase ^ 1);
            barrier_expect(ring.filled(), STAGE_BYTES);
            load_share<A_SHARE, A_ALONG_K, CLUSTER_N>(row_mates, ring.a() + a_line * 128, map_a, ring.filled(),
                                                      tile.row + a_line, k, a_inner, a_outer);
            load_share<B_SHARE, B_ALONG_K, CLUSTER_M>(column_mates, ring.b() + b_line * 128, map_b, ring.filled(),
                                                      tile.col + b_line, k, b_inner, b_outer);
            ring.advance();
        }
    }
}

// Tells the producers that write to this block, its cluster row's and column's, that a stage may be refilled.
DEVICE void release(uint32_t freed, Member me) {
    const int thread = thread_x() % 128;
    if (CLUSTER == 1) {
        if (thread == 0) barrier_arrive(freed);
    } else if (thread < CLUSTER_M) {
        barrier_arrive_at(freed, me.n * CLUSTER_M + thread);
    } else if (thread < CLUSTER_M + CLUSTER_N - 1) {
        const int other = thread - CLUSTER_M;
        barrier_arrive_at(freed, me.m + (other + (other >= me.n)) * CLUSTER_M);
    }
}

// Starts the products of one step of k, and waits for the step before.
template <bool FIRST> DEVICE void multiply(Ring& ring, float* sum, int consumer) {
    // 16 elements of k: 32 bytes along a line, or 16 lines.
    constexpr int A_STEP = A_ALONG_K ? 32 : 16 * 128;
    constexpr int B_STEP = B_ALONG_K ? 32 : 16 * 128;
    barrier_wait(ring.filled(), ring.phase);
    const uint64_t a = descriptor(ring.a() + consumer * BLOCK_BYTES, BLOCK_BYTES, 1024);
    const uint64_t b = descriptor(ring.b(), BLOCK_BYTES, 1024);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < TILE_K / 16; ++k)
        Wgmma<TILE_N>::run<!A_ALONG_K, !B_ALONG_K>(sum, a + (k * A_STEP >> 4), b + (k * B_STEP >> 4), !FIRST || k);
    wgmma_commit();
    ring.advance();
    wgmma_wait<1>();
}

DEVICE void consume(Ring ring, uint32_t buffers, uint32_t biases, const TensorMap* map_c, T* c, const T* bias,
                    const Sizes& s, uint32_t tiles) {
    const int consumer = thread_x() / 128 - 1;
    const Member me = member();
    const int steps = (s.k + TILE_K - 1) / TILE_K;
    const uint32_t own_buffers = buffers + consumer * C_BUFFERS * BLOCK_BYTES;
    const uint32_t own_bias = biases + consumer * 512;
    uint32_t held[BLOCKS * BLOCK_WORDS];
    Tile last = {};
    bool holding = false;
#if C_BY_ENGINE
    int turn = 0;
#endif

    auto store = [&](int from, int to) {
#pragma unroll
        for (int block = from; block < to; ++block) {
            const uint32_t* words = held + block * BLOCK_WORDS;
            const Place place = {last.row + consumer * 64, last.col + block * 64, last.outer, last.inner};
#if C_BY_ENGINE
            store_by_engine(own_buffers, turn, map_c, words, place, consumer, s);
            turn = (turn + 1) % C_BUFFERS;
#else
            store_by_threads(own_buffers, c, words, place, s);
#endif
        }
    };

    for (uint32_t index = blockIdx.x / CLUSTER; index < tiles; index += gridDim.x / CLUSTER) {
        float sum[SUMS];
        uint32_t used = ring.freed();
        multiply<true>(ring, sum, consumer);
        auto next = [&] {
            const uint32_t now = ring.freed();
            multiply<false>(ring, sum, consumer);
            release(used, me);
            used = now;
        };
        const Tile tile = tile_of(index, me, s);
        const uint32_t pair = bias_pair<TILE_N>(bias, tile.col, s.n);
        int step = 1;
#pragma unroll
        for (; step <= SPREAD; ++step) {
            next();
            if (holding) store((step - 1) * BLOCKS / SPREAD_OR_1, step * BLOCKS / SPREAD_OR_1);
        }
        for (; step < steps; ++step) next();
        wgmma_wait<0>();
#pragma unroll
        for (int i = 0; i < SUMS; ++i) asm volatile("" : "+f"(sum[i])::"memory");  // none is read before the wait
        release(used, me);

        share_bias<TILE_N>(own_bias, pair, consumer);
        pack<T, SUMS>(held, sum, own_bias);
        last = tile;
        holding = true;
        if (SPREAD == 0) store(0, BLOCKS);
    }
    if (SPREAD && holding) store(0, BLOCKS);
    if (C_BY_ENGINE && thread_x() % 128 == 0) wait_stores_read<0>();
}

extern "C" __global__ __launch_bounds__(THREADS, 1) __cluster_dims__(CLUSTER, 1, 1) void matmul_wgmma(
    const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b,
#if C_BY_ENGINE
    const __grid_constant__ TensorMap map_c,
#endif
    const T* bias, T* c, SIZES_PARAMETERS) {
    DYNAMIC_SHARED(shared);
    const Sizes s = SIZES_ARGUMENTS;
    // The swizzle repeats every 1024 bytes of the address.
    const uint32_t base = (shared_address(shared) + 1023) & ~1023u;
    const uint32_t buffers = base + STAGES * STAGE_BYTES;
    const uint32_t barriers = buffers + C_BYTES;
    const uint32_t biases = barriers + STAGES * 16;
    const Ring ring{base, barriers, barriers + STAGES * 8};

    if (thread_x() == 0) {
        prefetch_map(&map_a);
        prefetch_map(&map_b);
#if C_BY_ENGINE
        prefetch_map(&map_c);
#endif
    } else if (thread_x() == 32) {
        for (int stage = 0; stage < STAGES; ++stage) {
            barrier_init(ring.full + stage * 8, 1);
            barrier_init(ring.empty + stage * 8, CONSUMERS * (CLUSTER_M + CLUSTER_N - 1));
        }
        barrier_init_fence();
    }
    if (CLUSTER == 1) barrier();
    else cluster_barrier();

    constexpr int HEIGHT = TILE_M * CLUSTER_M, WIDTH = TILE_N * CLUSTER_N;
    const uint32_t tiles_m = (static_cast<uint32_t>(s.m) + HEIGHT - 1) / HEIGHT;
    const uint32_t tiles_n = (static_cast<uint32_t>(s.n) + WIDTH - 1) / WIDTH;
    const uint32_t tiles = tiles_m * tiles_n * s.inner_batches * s.outer_batches;
#if C_BY_ENGINE
    const TensorMap* const to = &map_c;
#else
    const TensorMap* const to = nullptr;
#endif
    if (thread_x() < 128) {
        registers_down<40>();
        if (thread_x() == 0) produce(ring, &map_a, &map_b, s, tiles);
    } else {
        registers_up<232>();
        consume(ring, buffers, biases, to, c, bias, s, tiles);
    }
    // A block must not leave while its peers can still write to its shared memory or barriers.
    if (CLUSTER > 1) cluster_barrier();
}
