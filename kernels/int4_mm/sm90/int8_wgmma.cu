// c = (the sum over groups of their products, each times its scale) * scale_a + bias, of int8 activations and a weight in
// codes of 4 bits (W4A8), by Hopper's warpgroup matrix instructions (wgmma) of int8. A and B are swapped: the weight's
// rows are the product's, and the numbers made of its codes go into the instruction from registers.
//
// A producer thread keeps two pipelines filled by TMA (sparse_mm's weight_tiles.h): rows of 128 bytes are 128 k of x and
// 256 k of the codes. Each of two consumer warpgroups computes 64 rows of the weight by TILE_M rows of x. A thread reads
// of each 32 k the 2 + 2 bytes whose codes it gives to an instruction, and makes int8 numbers of them, less their zero
// points, for the next 128 k while the products of these run. Without zero points they are 16 times the numbers, which
// takes two instructions less for four.
//
// The products of a chunk, the longest of 128, 64 and 32 k of which a group is a multiple, are one batch; a group's sum
// is exact in int32, and added to float32 accumulators times its scale at its end.
//
// Defines: OUTPUT (bf16, f16), SCALE (f32, bf16, f16), CHUNK, ONE_CHUNK (a group is one), TILE_M (64, 128: rows of x),
// STAGES, VALUE_STAGES, CLUSTER (1, 2), GROUP_N (clusters of a raster group), BOX_ROWS (of x that a block loads at a
// time), HAS_ZERO_POINT (else 8), HAS_BIAS.
#define C_COL_MAJOR 1
#define C_TMA 1
#define C_BOX_COLS 64
#define ITEM_BYTES 1
#include "prelude.h"

#include "_lib/ptx/wgmma_int8.h"
#include "sparse_mm/sm90/weight_tiles.h"

using T = OUTPUT;
using S = SCALE;
constexpr int SCALE_BYTES = CONSUMERS * TILE_M * 4;  // of x's rows, for each consumer
constexpr int CHUNKS = X_K / CHUNK, STEPS = CHUNK / 32;
constexpr float RESULT = HAS_ZERO_POINT ? 1.0f : 0.0625f;  // of a sum of numbers that numbers_of makes
constexpr int WORDS = X_K / 32 * 4;  // of a thread's numbers of a stage of x

// A value for each row of the weight and group.
template <class U> struct Values {
    const U* data;
    int64_t row, column;
};

struct Groups {
    Values<S> scale;
    Values<uint8_t> zero_point;
    int count, chunks;  // of K, and chunks of each

    DEVICE int of_chunk(int chunk) const {
        const int group = ONE_CHUNK ? chunk : chunk / chunks;
        return group < count ? group : count - 1;
    }
};

// Without zero points: 16 times the numbers of four codes, those of neighbours along k from the lowest bits on.
DEVICE uint32_t numbers_of(uint32_t codes) {
    uint32_t four;  // (bytes & 0xf0f0f0f0) ^ 0x80808080, which the compiler makes two instructions of
    asm("lop3.b32 %0, %1, %2, %3, 0x6a;"
        : "=r"(four)
        : "r"(__byte_perm(codes << 4, codes, 0x5140)), "r"(0xf0f0f0f0), "r"(0x80808080));
    return four;
}
// The numbers themselves; `zeros` is what zeros_of makes.
DEVICE uint32_t numbers_of(uint32_t codes, uint32_t zeros) {
    const uint32_t bytes = __byte_perm(codes, 0, 0x4140);
    return (((bytes | bytes << 4) & 0x0f0f0f0f) + zeros) ^ 0x80808080;
}
// Of a zero point from 0 to 16, four times: 128 less it, so that no byte of a sum with a code goes over.
DEVICE uint32_t zeros_of(uint32_t zero) { return 0x80808080 - zero * 0x01010101; }

DEVICE uint32_t load_codes(uint32_t at) {
    uint16_t codes;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(codes) : "r"(at) : "memory");
    return codes;
}

// What a thread's two rows have for the chunks of a stage of x, as it was loaded: a conversion would wait for it.
template <class U> struct RowValues {
    U of[CHUNKS][2];
};

// Of a consumer's thread: rows lane / 4 and the eighth below it of its warp's 16.
struct Rows {
    int64_t scale[2], zero[2];  // where a row's values begin
    uint32_t codes;             // where the upper row's codes begin in a stage, and those of the lower one 8 rows on

    DEVICE void load(RowValues<S>& scales, const Groups& groups, int stage) const {
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) {
            const int group = groups.of_chunk(stage * CHUNKS + c);
#pragma unroll
            for (int down = 0; down < 2; ++down)
                scales.of[c][down] = groups.scale.data[scale[down] + group * groups.scale.column];
        }
    }
    DEVICE void load_zeros(RowValues<uint8_t>& zeros, const Groups& groups, int stage) const {
#pragma unroll
        for (int c = 0; HAS_ZERO_POINT && c < CHUNKS; ++c) {
            const int group = groups.of_chunk(stage * CHUNKS + c);
#pragma unroll
            for (int down = 0; down < 2; ++down)
                zeros.of[c][down] = groups.zero_point.data[zero[down] + group * groups.zero_point.column];
        }
    }
    // The numbers of the half `half` of the stage of codes at `at`.
    DEVICE void make(uint32_t (&numbers)[WORDS], uint32_t at, int half, const RowValues<uint8_t>& zeros) const {
        const uint32_t from = at + codes, within = thread_x() % 32 / 4;
#pragma unroll
        for (int k = 0; k < X_K / 32; ++k) {
            const uint32_t unit = from + ((half * 4 + k) ^ within) * 16;
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const uint32_t four = load_codes(unit + i % 2 * 8 * 128 + i / 2 * 8);
                numbers[k * 4 + i] =
                    HAS_ZERO_POINT ? numbers_of(four, zeros_of(zeros.of[k / STEPS][i % 2])) : numbers_of(four);
            }
        }
        keep_in_registers<WORDS>(numbers);
    }
};

// A warp has read what it needs of a stage of codes.
DEVICE void release_codes(ValuePipeline& value) {
    __syncwarp();
    if (thread_x() % 32 == 0) mbarrier_arrive(value.empty_barrier());
    value.advance();
}

DEVICE void consumer_loop(XPipeline x, ValuePipeline value, uint32_t buffers, const TensorMap* map_y, T* y,
                          const Groups& groups, const float* scale_a, int64_t scale_a_row, const T* bias, const Sizes& s,
                          uint32_t tiles) {
    // The compiler knows this to be the same in all lanes: descriptors stay in uniform registers.
    const int consumer = __shfl_sync(0xffffffffu, thread_x() / 128, 0);
    const int rank = rank_of_block();
    const uint32_t own_buffers = buffers + consumer * C_BUFFERS * BLOCK_BYTES;
    const uint32_t own_scales = buffers + C_BYTES + consumer * TILE_M * 4;
    const int own_row = consumer * 64 + thread_x() % 128 / 32 * 16 + thread_x() % 32 / 4;
    const int stages = (s.k + X_K - 1) / X_K, chunks = s.k / CHUNK;
    int buffer = 0;
    grid_dependency_wait();

    for (uint32_t index = blockIdx.x / CLUSTER; index < tiles; index += gridDim.x / CLUSTER) {
        const Tile tile = tile_of(index, s, rank);
        Rows rows;
        rows.codes = own_row * 128 + thread_x() % 4 * 2;
        float biases[2] = {};
#pragma unroll
        for (int down = 0; down < 2; ++down) {
            const int at = tile.row + own_row + down * 8, row = at < s.m ? at : s.m - 1;
            rows.scale[down] = row * groups.scale.row;
            rows.zero[down] = row * groups.zero_point.row;
            if (HAS_BIAS) biases[down] = to_float(bias[row]);
        }
        RowValues<S> scales, next_scales;
        RowValues<uint8_t> zeros;
        rows.load(scales, groups, 0);
        rows.load_zeros(zeros, groups, 0);
        float acc[SUMS];
        uint32_t part[SUMS], numbers[2][WORDS];
        clear<SUMS>(acc);
        value.wait_full();
        rows.make(numbers[0], value.stage_base(), 0, zeros);
        rows.load_zeros(zeros, groups, 1);
        // A stage of x, of whose codes' stage it is the half HALF.
        const auto step = [&](auto half, int stage) {
            constexpr int HALF = decltype(half)::value;
            rows.load(next_scales, groups, stage + 1);
            x.wait_full();
#pragma unroll
            for (int c = 0; c < CHUNKS; ++c) {
                const int chunk = stage * CHUNKS + c;
                const uint64_t b = wgmma_descriptor(x.stage_base() + c * CHUNK, 0, 1024);
                const bool begins = ONE_CHUNK || chunk % groups.chunks == 0;
                wgmma_fence();
#pragma unroll
                for (int k = 0; k < STEPS; ++k)
                    WgmmaInt8Rs<TILE_M>::run(part, numbers[HALF] + (c * STEPS + k) * 4, b + k * 2, !begins || k);
                wgmma_commit();
                if (c == 0 && stage + 1 < stages) {
                    if (HALF == 1) value.wait_full();
                    rows.make(numbers[1 - HALF], value.stage_base(), 1 - HALF, zeros);
                    rows.load_zeros(zeros, groups, stage + 2);
                    if (HALF == 0) release_codes(value);
                }
                wgmma_wait<0>();
                keep_in_registers<SUMS>(part);
                const bool ends = chunk < chunks && (ONE_CHUNK || (chunk + 1) % groups.chunks == 0);
                if (ends) {
                    const float scale[2] = {to_float(scales.of[c][0]), to_float(scales.of[c][1])};
#pragma unroll
                    for (int i = 0; i < SUMS; ++i)
                        acc[i] = math_fma(static_cast<float>(static_cast<int>(part[i])), scale[i / 2 % 2], acc[i]);
                }
            }
            keep_in_registers<WORDS>(numbers[HALF]);
            release_x(x.empty_barrier());
            x.advance();
            scales = next_scales;
        };
        for (int stage = 0; stage < stages; stage += 2) {
            step(Constant<0>(), stage);
            if (stage + 1 < stages) step(Constant<1>(), stage + 1);
        }
        if (stages % 2) release_codes(value);
        share_scales(own_scales, scale_a, scale_a_row, tile.col, s.n, consumer);
#pragma unroll
        for (int block = 0; block < BLOCKS; ++block) {
            uint32_t words[BLOCK_WORDS];
            finish_block<T>(words, acc + block * 32, own_scales + block * 256, {RESULT, RESULT}, biases);
            const BlockPosition place = {tile.row + consumer * 64, tile.col + block * 64, 0, 0, tile.col + TILE_M};
            store_by_tma(own_buffers, buffer, map_y, y, words, place, consumer, s);
            buffer = (buffer + 1) % C_BUFFERS;
        }
    }
    if (thread_x() % 128 == 0) tma_store_wait_read<0>();
}

extern "C" __global__ __launch_bounds__(THREADS, 1) CLUSTER_DIMS void int8_int4_mm_wgmma(
    const __grid_constant__ TensorMap map_x, const __grid_constant__ TensorMap map_values,
    const __grid_constant__ TensorMap map_y, const S* scale, int64_t scale_row, int64_t scale_col, const uint8_t* zero_point,
    int64_t zero_row, int64_t zero_col, const float* scale_a, int64_t scale_a_row, const T* bias, T* y, int m, int n, int k,
    int tiles, int count, int chunks) {
    DYNAMIC_SHARED(shared);
    const Sizes s = {n, m, k, 1, 1, 0, 0, 1, n, 0, 0, 0, 0, 0, 0};
    const Groups groups = {{scale, scale_row, scale_col}, {zero_point, zero_row, zero_col}, count, chunks};
    run_block<SCALE_BYTES, 4>(shared, &map_x, &map_values, &map_y, s, tiles,
                              [&](XPipeline x, ValuePipeline value, uint32_t buffers) {
                                  consumer_loop(x, value, buffers, &map_y, y, groups, scale_a, scale_a_row, bias, s, tiles);
                              });
}
