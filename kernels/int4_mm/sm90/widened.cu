// y = x @ w.T + bias of a weight as widen_codes.cu left it, by Hopper's warpgroup matrix instructions (wgmma): numbers in 16 bits,
// codes less their zero points, and float32 scales of groups. A and B are swapped: the weight's rows are the product's.
//
// Persistent and warp-specialised, as matmul's wgmma.cu: a producer thread keeps STAGES stages of 64 k filled by TMA; each of
// CONSUMER_WARPGROUPS warpgroups computes 64 rows of the weight by TILE_N rows of x.
//
// Promotion: the products of 128 k, a chunk, of one group all, are summed by themselves, multiplied by their row's scale and
// added to float32 accumulators by the CUDA cores, while the other consumers' products run. The scales come by a bulk copy with a
// chunk's first stage.
//
// Defines: ELEMENT (bf16, f16); CONSUMER_WARPGROUPS (3), TILE_N (multiples of 64), STAGES (even), GROUP_M, HAS_BIAS.
#define C_COL_MAJOR 1
#define C_TMA 1
#define C_BOX_COLS 64
#include "prelude.h"

#include "_lib/ptx/pdl.h"
#include "_lib/ptx/pipeline.h"
#include "_lib/ptx/registers.h"
#include "_lib/ptx/tma.h"
#include "_lib/ptx/wgmma.h"
#include "matmul/sm90/wgmma_store.h"
#include "matmul/tile.h"

using T = ELEMENT;

constexpr int CONSUMERS = CONSUMER_WARPGROUPS;
constexpr int TILE_M = CONSUMERS * 64;  // rows of the weight
constexpr int THREADS = (CONSUMERS + 1) * 128;
constexpr int TILE_K = 64, CHUNK = 128;  // k of a stage, one 128-byte row; k whose sum meets a scale
constexpr int A_BYTES = TILE_M * 128, B_BYTES = TILE_N * 128;
constexpr int STAGE_BYTES = A_BYTES + B_BYTES, SCALE_BYTES = TILE_M * 4;
constexpr int C_BYTES = CONSUMERS * C_BUFFERS * BLOCK_BYTES;
constexpr int SUMS = TILE_N / 2;  // a thread's accumulators
// Together no more than at the launch, 128 a thread: setmaxnreg would wait for ever.
constexpr int PRODUCER_REGISTERS = 32, CONSUMER_REGISTERS = 160;
static_assert(PRODUCER_REGISTERS + CONSUMERS * CONSUMER_REGISTERS <= (CONSUMERS + 1) * 128, "registers of a block");
static_assert(STAGES % 2 == 0 && TILE_N % 64 == 0, "a chunk is two stages; whole blocks of y");

struct TilePipeline : Pipeline<STAGES, STAGE_BYTES> {
    uint32_t scales;  // of the first two stages

    DEVICE TilePipeline(uint32_t base, uint32_t barriers, uint32_t scales) : Pipeline(base, barriers), scales(scales) {}
    DEVICE uint32_t a() const { return stage_base(); }
    DEVICE uint32_t b() const { return stage_base() + A_BYTES; }
    DEVICE uint32_t chunk_scales() const { return scales + stage / 2 * SCALE_BYTES; }
};

// float32 scales of groups, `pitch` apart, each for `chunks` chunks.
struct GroupScales {
    const float* data;
    int pitch, chunks;
};

DEVICE void producer_loop(TilePipeline pipe, const TensorMap* map_numbers, const TensorMap* map_x, const GroupScales& scales,
                          const Sizes& s, uint32_t tiles) {
    grid_dependency_wait();
    for (uint32_t index = blockIdx.x; index < tiles; index += gridDim.x) {
        const Tile tile = tile_at<TILE_M, TILE_N, GROUP_M>(index, s);
        const float* of_group = scales.data + tile.row;
        int left = scales.chunks;  // chunks of the group
        for (int k = 0; k < s.k; k += TILE_K) {
            const bool begins = k % CHUNK == 0;
            pipe.wait_empty();
            mbarrier_arrive_expect_tx(pipe.full_barrier(), STAGE_BYTES + (begins ? SCALE_BYTES : 0));
            if (begins) {
                bulk_copy_g2s(pipe.chunk_scales(), of_group, SCALE_BYTES, pipe.full_barrier());
                if (--left == 0) {
                    of_group += scales.pitch;
                    left = scales.chunks;
                }
            }
            tma_load_4d(pipe.a(), map_numbers, pipe.full_barrier(), k, tile.row, 0, 0);
            tma_load_4d(pipe.b(), map_x, pipe.full_barrier(), k, tile.col, 0, 0);
            pipe.advance();
        }
    }
}

// The scales of a chunk for a thread's two rows.
struct RowScales {
    float upper, lower;

    DEVICE void load(const TilePipeline& pipe) {
        const uint32_t at = pipe.chunk_scales() + (thread_x() / 32 * 16 + thread_x() % 32 / 4) * 4;
        asm volatile("ld.shared.f32 %0, [%1];" : "=f"(upper) : "r"(at) : "memory");
        asm volatile("ld.shared.f32 %0, [%1];" : "=f"(lower) : "r"(at + 32) : "memory");
    }
};

// Issues the products of a consumer's 64 rows with a stage: to `part`, or where `add`, added to it.
DEVICE void multiply(float (&part)[SUMS], const TilePipeline& pipe, int consumer, bool add) {
    const uint64_t a = wgmma_descriptor(pipe.a() + consumer * BLOCK_BYTES, 0, 1024);
    const uint64_t b = wgmma_descriptor(pipe.b(), 0, 1024);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < TILE_K / 16; ++k)
        Wgmma<TILE_N>::template run<false, false>(part, a + k * 2, b + k * 2, add || k);
    wgmma_commit();
}

DEVICE void release(uint32_t empty_barrier) {
    if (thread_x() % 128 == 0) mbarrier_arrive(empty_barrier);
}

// Adds the sums of a chunk to the accumulators, once they are there.
DEVICE void promote(float (&acc)[SUMS], float (&part)[SUMS], const RowScales& scales) {
    keep_in_registers<SUMS>(part);
#pragma unroll
    for (int i = 0; i < SUMS; ++i) acc[i] = math_fma(part[i], i & 2 ? scales.lower : scales.upper, acc[i]);
}

// The main loop of one tile. Scales are read before a chunk's products: a consumer's first product has ended where all its warps
// have begun it.
DEVICE void multiply_tile(TilePipeline& pipe, float (&acc)[SUMS], int consumer, int chunks) {
    clear<SUMS>(acc);
    for (int chunk = 0; chunk < chunks; ++chunk) {
        float part[SUMS];
        RowScales scales;
        pipe.wait_full();
        scales.load(pipe);
        const uint32_t first = pipe.empty_barrier();
        multiply(part, pipe, consumer, false);
        pipe.advance();
        pipe.wait_full();
        multiply(part, pipe, consumer, true);
        wgmma_wait<1>();
        release(first);
        wgmma_wait<0>();
        release(pipe.empty_barrier());
        pipe.advance();
        promote(acc, part, scales);
    }
}

DEVICE void consumer_loop(TilePipeline pipe, uint32_t buffers, const TensorMap* map_y, T* y, const T* bias, const Sizes& s,
                          uint32_t tiles) {
    // The compiler knows this to be the same in all lanes: descriptors stay in uniform registers.
    const int consumer = __shfl_sync(0xffffffffu, thread_x() / 128, 0);
    const uint32_t own_buffers = buffers + consumer * C_BUFFERS * BLOCK_BYTES;
    int buffer = 0;
    grid_dependency_wait();
    for (uint32_t index = blockIdx.x; index < tiles; index += gridDim.x) {
        const Tile tile = tile_at<TILE_M, TILE_N, GROUP_M>(index, s);
        const int first = tile.row + consumer * 64;
        float acc[SUMS];
        multiply_tile(pipe, acc, consumer, s.k / CHUNK);
        float biases[2] = {};
        if (HAS_BIAS)
#pragma unroll
            for (int down = 0; down < 2; ++down) {
                const int row = first + thread_x() % 128 / 32 * 16 + thread_x() % 32 / 4 + down * 8;
                biases[down] = to_float(bias[row < s.m ? row : s.m - 1]);
            }
#pragma unroll
        for (int block = 0; block < TILE_N / 64; ++block) {
            uint32_t words[BLOCK_WORDS];
#pragma unroll
            for (int i = 0; i < BLOCK_WORDS; ++i) {
                const float* sums = acc + block * 32 + i * 2;
                words[i] = pack2<T>(sums[0] + biases[i % 2], sums[1] + biases[i % 2]);
            }
            const BlockPosition place = {first, tile.col + block * 64, 0, 0, tile.col + TILE_N};
            store_by_tma(own_buffers, buffer, map_y, y, words, place, consumer, s);
            buffer = (buffer + 1) % C_BUFFERS;
        }
    }
    if (thread_x() % 128 == 0) tma_store_wait_read<0>();
}

extern "C" __global__ __launch_bounds__(THREADS, 1) void int4_mm_widened(
    const __grid_constant__ TensorMap map_numbers, const __grid_constant__ TensorMap map_x,
    const __grid_constant__ TensorMap map_y, const float* scales, const T* bias, T* y, int m, int n, int k, int tiles, int pitch,
    int chunks) {
    DYNAMIC_SHARED(shared);
    const Sizes s = {n, m, k, 1, 1, 0, 0, 1, n, 0, 0, 0, 0, 0, 0};
    // The swizzle repeats every 1024 bytes of the address.
    const uint32_t base = (shared_address(shared) + 1023) & ~1023u;
    const uint32_t buffers = base + STAGES * STAGE_BYTES;
    const uint32_t of_chunks = buffers + C_BYTES;
    const TilePipeline pipe(base, of_chunks + STAGES / 2 * SCALE_BYTES, of_chunks);
    const bool is_producer = thread_x() == CONSUMERS * 128;
    if (is_producer) {
        launch_dependents();
        pipe.init(CONSUMERS);
        mbarrier_init_fence();
        fence_proxy_async();
    } else if (thread_x() == 0) {
        tma_prefetch_descriptor(&map_numbers);
        tma_prefetch_descriptor(&map_x);
        tma_prefetch_descriptor(&map_y);
    }
    barrier();

    if (thread_x() >= CONSUMERS * 128) {
        setmaxnreg_dec<PRODUCER_REGISTERS>();
        if (is_producer) producer_loop(pipe, &map_numbers, &map_x, {scales, pitch, chunks}, s, tiles);
    } else {
        setmaxnreg_inc<CONSUMER_REGISTERS>();
        consumer_loop(pipe, buffers, &map_y, y, bias, s, tiles);
    }
}
