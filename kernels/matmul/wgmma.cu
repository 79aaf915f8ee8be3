// c = a @ b with Hopper's warpgroup matrix instructions, for 16-byte aligned operands of any layout.
//
// A persistent block (or a cluster of two, sharing b's tile by multicast) walks tiles of TILE_M x TILE_N.
// Warpgroup 0 starts bulk tensor copies into a ring of STAGES stages; warpgroups 1 and 2 each multiply
// 64 rows of every tile, keep the sums in registers and write them out through shared memory, while the
// copies of the next tile already run. Operands lie in shared memory with the 128-byte swizzle, in lines
// of 64 elements: along k, or along M or N for an operand that is contiguous the other way
// (A_ALONG_K or B_ALONG_K 0), then as blocks of 64 lines, one per k.
//
// Defines: ELEMENT (bf16, f16), TILE_N (64, 128, 256), STAGES, GROUP, CLUSTER (1, 2), A_ALONG_K,
// B_ALONG_K; C_BY_ENGINE: c is row-major with 16-byte aligned rows, and the copy engine stores it; BIAS,
// ACTIVATION.
#include "prelude.h"

#include "epilogue.h"
#include "hopper.h"
#include "tile.h"

using T = ELEMENT;

constexpr int TILE_M = 128;
constexpr int TILE_K = 64;  // one 128-byte line
constexpr int CONSUMERS = 2;
constexpr int THREADS = (1 + CONSUMERS) * 128;
constexpr int BLOCK_BYTES = 64 * 128;  // 64 lines
constexpr int A_BYTES = TILE_M * 128;
constexpr int B_BYTES = TILE_N * 128;
constexpr int STAGE_BYTES = A_BYTES + B_BYTES;
constexpr int SUMS = TILE_N / 2;  // per thread, of the 64 x TILE_N of a consumer
constexpr int C_BUFFERS = 2;      // blocks of 64 x 64 of c per consumer on their way out
constexpr int C_BYTES = CONSUMERS * C_BUFFERS * BLOCK_BYTES;
static_assert(TILE_N / CLUSTER % 64 == 0, "each block of a cluster loads whole 64-column blocks of b");

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

DEVICE void produce(Ring ring, const TensorMap* map_a, const TensorMap* map_b, const Sizes& s, uint32_t tiles) {
    const int rank = CLUSTER == 1 ? 0 : cluster_rank();
    const int steps = (s.k + TILE_K - 1) / TILE_K;
    for (uint32_t index = blockIdx.x / CLUSTER; index < tiles; index += gridDim.x / CLUSTER) {
        const Tile tile = tile_at<TILE_M * CLUSTER, TILE_N, GROUP>(index, s);
        const int a_inner = s.a_inner ? tile.inner : 0, a_outer = s.a_outer ? tile.outer : 0;
        const int b_inner = s.b_inner ? tile.inner : 0, b_outer = s.b_outer ? tile.outer : 0;
        const int row = tile.row + rank * TILE_M;
        for (int step = 0; step < steps; ++step) {
            const int k = step * TILE_K;
            barrier_wait(ring.freed(), ring.phase ^ 1);
            barrier_expect(ring.filled(), STAGE_BYTES);
            if (A_ALONG_K) {
                load_box(ring.a(), map_a, ring.filled(), k, row, a_inner, a_outer);
            } else {
#pragma unroll
                for (int i = 0; i < TILE_M / 64; ++i)
                    load_box(ring.a() + i * BLOCK_BYTES, map_a, ring.filled(), row + i * 64, k, a_inner, a_outer);
            }
            // Each block of the cluster loads its share of b's tile for all of them.
            constexpr int SHARE = TILE_N / CLUSTER;
            const int col = tile.col + rank * SHARE;
            const uint32_t to = ring.b() + rank * SHARE * 128;
            constexpr uint16_t everyone = (1 << CLUSTER) - 1;
#pragma unroll
            for (int i = 0; i < (B_ALONG_K ? 1 : SHARE / 64); ++i) {
                const int x = B_ALONG_K ? k : col + i * 64;
                const int y = B_ALONG_K ? col : k;
                if (CLUSTER == 1)
                    load_box(to + i * BLOCK_BYTES, map_b, ring.filled(), x, y, b_inner, b_outer);
                else
                    load_box_to(everyone, to + i * BLOCK_BYTES, map_b, ring.filled(), x, y, b_inner, b_outer);
            }
            ring.advance();
        }
    }
}

// Tells the producers of the whole cluster, who all write to this block, that a stage may be refilled.
DEVICE void release(uint32_t freed) {
    const int thread = thread_x() % 128;
    if (CLUSTER == 1) {
        if (thread == 0) barrier_arrive(freed);
    } else if (thread < CLUSTER) {
        barrier_arrive_at(freed, thread);
    }
}

DEVICE void store_matrices(uint32_t address, const uint32_t (&w)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(w[0]),
                 "r"(w[1]), "r"(w[2]), "r"(w[3])
                 : "memory");
}

// Finishes block `block` (64 x 64, c's columns from `col`) of a consumer's sums and puts it into shared
// memory, lines with the 128-byte swizzle. A warp writes lines 16 * warp to 16 * warp + 15.
DEVICE void stage_block(uint32_t at, const float (&sum)[SUMS], int block, const T* bias, int col, int n) {
    const int lane = thread_x() % 32;
    // stmatrix: lanes 0-7, 8-15 address rows 0-7, 8-15 of the left 8 columns, lanes 16-31 of the right.
    const int line = thread_x() % 128 / 32 * 16 + lane % 16;
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
        const float* d = sum + (block * 8 + j) * 4;
        uint32_t w[4];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int at_col = col + (j + half) * 8 + lane % 4 * 2;
            const float bias0 = at_col < n ? bias_at(bias, at_col) : 0.0f;
            const float bias1 = at_col + 1 < n ? bias_at(bias, at_col + 1) : 0.0f;
#pragma unroll
            for (int down = 0; down < 2; ++down)
                w[half * 2 + down] = pack2<T>(finish(d[half * 4 + down * 2], bias0),
                                              finish(d[half * 4 + down * 2 + 1], bias1));
        }
        store_matrices(at + line * 128 + ((j + lane / 16) ^ line % 8) * 16, w);
    }
}

// Writes a consumer's 64 x TILE_N of c block by block through C_BUFFERS buffers at `buffer`; a block
// beyond c is not written. The stores run on after this returns.
DEVICE void store_by_engine(uint32_t buffer, const TensorMap* map_c, const float (&sum)[SUMS], const T* bias,
                            int row, int col, int inner, int outer, const Sizes& s) {
    const bool first = thread_x() % 128 == 0;
    const int consumer = thread_x() / 128;
#pragma unroll
    for (int block = 0; block < TILE_N / 64; ++block) {
        const uint32_t at = buffer + block % C_BUFFERS * BLOCK_BYTES;
        if (first) wait_stores_read<C_BUFFERS - 1>();
        named_barrier(consumer, 128);
        stage_block(at, sum, block, bias, col + block * 64, s.n);
        copy_engine_fence();
        named_barrier(consumer, 128);
        if (first) {
            if (row < s.m && col + block * 64 < s.n) store_box(map_c, at, col + block * 64, row, inner, outer);
            commit_stores();
        }
    }
}

DEVICE uint32_t staged(uint32_t at, int line, int col) {
    uint16_t bits;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(bits) : "r"(at + line * 128 + (col / 8 ^ line % 8) * 16 + col % 8 * 2));
    return bits;
}

// The same without the copy engine, for a c whose rows are not 16-byte aligned or not contiguous. A warp
// writes a line at a time: in words where c's columns touch, whatever the parity of a row's address.
DEVICE void store_by_threads(uint32_t buffer, T* c, const float (&sum)[SUMS], const T* bias, int row0, int col0,
                             const Sizes& s) {
    const int lane = thread_x() % 32;
    const int line0 = thread_x() % 128 / 32 * 16;
#pragma unroll
    for (int block = 0; block < TILE_N / 64; ++block) {
        __syncwarp();
        stage_block(buffer, sum, block, bias, col0 + block * 64, s.n);
        __syncwarp();
        const int col = col0 + block * 64;
#pragma unroll 4
        for (int i = 0; i < 16; ++i) {
            const int row = row0 + line0 + i;
            if (row >= s.m) break;
            T* to = c + row * s.c_row + col * s.c_col;
            const int odd = s.c_col == 1 ? static_cast<int>(reinterpret_cast<uint64_t>(to) / 2 % 2) : 0;
            const int place = lane * 2 + odd;
            const uint32_t low = staged(buffer, line0 + i, place);
            const uint32_t high = staged(buffer, line0 + i, (place + 1) % 64);
            if (s.c_col == 1 && place + 1 < 64 && col + place + 1 < s.n) {
                *reinterpret_cast<uint32_t*>(to + place) = low | high << 16;
            } else {
                if (col + place < s.n) to[place * s.c_col] = T{static_cast<uint16_t>(low)};
                if (place + 1 < 64 && col + place + 1 < s.n)
                    to[(place + 1) * s.c_col] = T{static_cast<uint16_t>(high)};
            }
            if (odd && lane == 0 && col < s.n) to[0] = T{static_cast<uint16_t>(staged(buffer, line0 + i, 0))};
        }
    }
}

DEVICE void consume(Ring ring, uint32_t buffer, const TensorMap* map_c, T* c, const T* bias, const Sizes& s,
                    uint32_t tiles) {
    const int consumer = thread_x() / 128 - 1;
    const int rank = CLUSTER == 1 ? 0 : cluster_rank();
    const int steps = (s.k + TILE_K - 1) / TILE_K;
    // A k step of 16 elements: 32 bytes along a line, or 16 lines.
    constexpr int A_STEP = A_ALONG_K ? 32 : 16 * 128;
    constexpr int B_STEP = B_ALONG_K ? 32 : 16 * 128;
    for (uint32_t index = blockIdx.x / CLUSTER; index < tiles; index += gridDim.x / CLUSTER) {
        const Tile tile = tile_at<TILE_M * CLUSTER, TILE_N, GROUP>(index, s);
        float sum[SUMS];
        uint32_t used = 0;
        for (int step = 0; step < steps; ++step) {
            barrier_wait(ring.filled(), ring.phase);
            const uint64_t a = descriptor(ring.a() + consumer * BLOCK_BYTES, BLOCK_BYTES, 1024);
            const uint64_t b = descriptor(ring.b(), BLOCK_BYTES, 1024);
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < TILE_K / 16; ++k)
                Wgmma<TILE_N>::run<!A_ALONG_K, !B_ALONG_K>(sum, a + (k * A_STEP >> 4), b + (k * B_STEP >> 4),
                                                           step | k);
            wgmma_commit();
            wgmma_wait<1>();  // the step before is done with its stage
            if (step > 0) release(used);
            used = ring.freed();
            ring.advance();
        }
        wgmma_wait<0>();
#pragma unroll
        for (int i = 0; i < SUMS; ++i) asm volatile("" : "+f"(sum[i])::"memory");  // read no sum before the wait
        release(used);

        const int row = tile.row + rank * TILE_M + consumer * 64;
        const uint32_t own = buffer + consumer * C_BUFFERS * BLOCK_BYTES;
#if C_BY_ENGINE
        store_by_engine(own, map_c, sum, bias, row, tile.col, tile.inner, tile.outer, s);
#else
        store_by_threads(own, c + tile.outer * s.c_outer + tile.inner * s.c_inner, sum, bias, row, tile.col, s);
#endif
    }
    if (C_BY_ENGINE && thread_x() % 128 == 0) wait_stores<0>();
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
    const uint32_t buffer = base + STAGES * STAGE_BYTES;
    const uint32_t barriers = buffer + C_BYTES;
    const Ring ring{base, barriers, barriers + STAGES * 8};

    if (thread_x() == 0) {
        prefetch_map(&map_a);
        prefetch_map(&map_b);
        for (int stage = 0; stage < STAGES; ++stage) {
            barrier_init(ring.full + stage * 8, 1);
            barrier_init(ring.empty + stage * 8, CONSUMERS * CLUSTER);
        }
        barrier_init_fence();
    }
    if (CLUSTER == 1) barrier();
    else cluster_barrier();

    const uint32_t tiles_m = (static_cast<uint32_t>(s.m) + TILE_M * CLUSTER - 1) / (TILE_M * CLUSTER);
    const uint32_t tiles_n = (static_cast<uint32_t>(s.n) + TILE_N - 1) / TILE_N;
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
        consume(ring, buffer, to, c, bias, s, tiles);
    }
    // A block must not leave while its peer can still write to its shared memory or barriers.
    if (CLUSTER > 1) cluster_barrier();
}
