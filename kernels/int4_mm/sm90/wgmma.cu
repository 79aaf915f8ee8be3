// y = x @ w.T + bias of a weight in codes of 4 bits with scales of groups, by Hopper's warpgroup matrix instructions
// (wgmma). A and B are swapped: the weight is the operand that comes from registers, where threads make exact 16-bit
// numbers of the codes less their zero points, and x, whose rows are the product's columns, is that in shared memory.
//
// Persistent and warp-specialised: a producer thread keeps two pipelines filled by TMA, x's in stages of 64 k and the
// weight's in stages of 256 k. Two warps beside it bring what belongs to the groups of a stage of the weight: float32
// scales, zero points, offsets and the sums of x. Each of two consumer warpgroups computes 64 rows of the weight by
// TILE_M rows of x.
//
// Promotion: the products of CHUNK k, of one group all, are summed by themselves, multiplied by their row's scale and
// added to float32 accumulators by the CUDA cores, while the other consumer's products run.
//
// Codes: the products of 32 k, a unit, run while threads make the next unit's numbers. A thread holds two neighbours of k
// in a register, which are a byte of the weight: of each 8 codes the four threads of a row take a byte each.
//
// Split-K: where tiles do not fill the GPU each is computed in parts, of `split_stages` stages of the weight, and
// matmul/sm90/splitk_reduce.cu adds their sums. The bias belongs to the first part.
//
// Defines: ELEMENT (bf16, f16: of x and y); SCALE (of scales and offsets: bf16, f16, f32); TILE_M (64, 128), CHUNK (32, 64,
// 128), STAGES, WEIGHT_STAGES, GROUP_N; BOX_ROWS (of x that are loaded: less than a tile's where x has no more);
// HAS_ZERO_POINT (else it is ZERO_POINT), HAS_OFFSET (then `sums` are those of x over each CHUNK, [k / CHUNK, pitch], by
// chunk_sums.cu), HAS_BIAS; SPLIT_K (then `tiles` counts parts, and their sums go to `partials`).
#define C_COL_MAJOR 1
#define C_TMA 1
#define C_BOX_COLS 64
#include "prelude.h"

#include "_lib/ptx/pdl.h"
#include "_lib/ptx/pipeline.h"
#include "_lib/ptx/registers.h"
#include "_lib/ptx/tma.h"
#include "_lib/ptx/wgmma.h"
#include "int4_mm/sm90/numbers.h"
#include "matmul/sm90/wgmma_store.h"
#include "matmul/tile.h"

using T = ELEMENT;
using S = SCALE;

constexpr int CONSUMERS = 2;
constexpr int TILE_N = CONSUMERS * 64;  // rows of the weight
constexpr int THREADS = (CONSUMERS + 1) * 128;
constexpr int X_K = 64, WEIGHT_K = 256;  // of a stage: one 128-byte row
constexpr int X_BYTES = TILE_M * 128, WEIGHT_BYTES = TILE_N * 128;
constexpr int UNIT = 32, UNITS = WEIGHT_K / UNIT, UNIT_WORDS = UNIT / 16 * 4;
constexpr int CHUNKS = WEIGHT_K / CHUNK, CHUNK_UNITS = CHUNK / UNIT;
constexpr int SUMS = TILE_M / 2;  // a thread's accumulators
// Of a chunk in shared memory: a word of each row for the scale, the zero point and the offset, and the sums of x.
constexpr int VALUES = 1 + HAS_ZERO_POINT + HAS_OFFSET;
constexpr int ZERO_AT = TILE_N * 4, OFFSET_AT = TILE_N * 4 * (1 + HAS_ZERO_POINT), X_SUMS_AT = TILE_N * 4 * VALUES;
constexpr int CHUNK_BYTES = X_SUMS_AT + HAS_OFFSET * TILE_M * 4;
constexpr int C_BYTES = CONSUMERS * C_BUFFERS * BLOCK_BYTES;
constexpr int GROUP_WARPS = 2;
// Together no more than at the launch, 168 a thread: setmaxnreg would wait for ever.
constexpr int PRODUCER_REGISTERS = 72, CONSUMER_REGISTERS = 216;
static_assert(PRODUCER_REGISTERS + 2 * CONSUMER_REGISTERS <= 3 * 168, "registers of a block");
static_assert(TILE_M % 64 == 0 && CHUNK % UNIT == 0, "whole blocks of y and units of a chunk");

struct XPipeline : Pipeline<STAGES, X_BYTES> {
    using Pipeline::Pipeline;
};
struct WeightPipeline : Pipeline<WEIGHT_STAGES, WEIGHT_BYTES> {
    uint32_t groups;  // what belongs to the chunks of the first stage

    DEVICE WeightPipeline(uint32_t base, uint32_t barriers, uint32_t groups)
        : Pipeline(base, barriers), groups(groups) {}
    DEVICE uint32_t chunks() const { return groups + stage * CHUNKS * CHUNK_BYTES; }
};

DEVICE float load_shared(uint32_t at) {
    float value;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(at) : "memory");
    return value;
}
DEVICE void store_shared(uint32_t at, float value) {
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(at), "f"(value) : "memory");
}

// Of a matrix [N, groups], the elements from one row and column to the next.
template <class Type> struct GroupMatrix {
    const Type* data;
    int row, column;
};
struct Groups {
    GroupMatrix<S> scale;
    GroupMatrix<uint8_t> zero_point;
    GroupMatrix<S> offset;
    const float* sums;
    int pitch, chunks;  // of the sums; of a group
};

// The product is [N, M] here: its rows, s.m of them, are the weight's, and its columns, s.n, x's.
DEVICE Tile tile_of(uint32_t index, const Sizes& s) { return tile_at<TILE_N, TILE_M, GROUP_N>(index, s); }
DEVICE int stages_of(const Sizes& s) { return (s.k + WEIGHT_K - 1) / WEIGHT_K; }

struct Splits {
    int parts, stages;  // of a tile; of a part, but the last
};
// What a block computes at a time: a tile, in the stages of the weight from `first` on, up to `last`.
struct Part {
    Tile tile;
    int first, last;
};
DEVICE Part part_of(uint32_t index, const Splits& splits, const Sizes& s) {
#if SPLIT_K
    const uint32_t tile = index / splits.parts;
    const int first = (index - tile * splits.parts) * splits.stages, stages = stages_of(s);
    return {tile_of(tile, s), first, first + splits.stages < stages ? first + splits.stages : stages};
#else
    return {tile_of(index, s), 0, stages_of(s)};
#endif
}

DEVICE void producer_loop(XPipeline x, WeightPipeline weight, const TensorMap* map_x, const TensorMap* map_weight,
                          const Sizes& s, const Splits& splits, uint32_t tiles) {
    grid_dependency_wait();
    for (uint32_t index = blockIdx.x; index < tiles; index += gridDim.x) {
        const Part part = part_of(index, splits, s);
        const Tile& tile = part.tile;
        for (int stage = part.first; stage < part.last; ++stage) {
            weight.wait_empty();
            mbarrier_arrive_expect_tx(weight.full_barrier(), WEIGHT_BYTES);
            tma_load_4d(weight.stage_base(), map_weight, weight.full_barrier(), stage * (WEIGHT_K / 2), tile.row, 0, 0);
            weight.advance();
            for (int k = stage * WEIGHT_K; k < (stage + 1) * WEIGHT_K; k += X_K) {
                x.wait_empty();
                mbarrier_arrive_expect_tx(x.full_barrier(), BOX_ROWS * 128);
                tma_load_4d(x.stage_base(), map_x, x.full_barrier(), k, tile.col, 0, 0);
                x.advance();
            }
        }
    }
}

// Brings what belongs to the chunks of each stage: chunks beyond K have a scale and an offset of 0, rows beyond the
// weight those of its last.
DEVICE void group_loop(WeightPipeline weight, const Groups& groups, const Sizes& s, const Splits& splits,
                       uint32_t tiles) {
    constexpr int THREADS = GROUP_WARPS * 32, ROWS = TILE_N / THREADS, COLUMNS = TILE_M / THREADS;  // of a thread
    constexpr int BATCH = CHUNKS < 4 ? CHUNKS : 4;  // chunks whose loads are under way
    const int thread = thread_x() % THREADS;
    grid_dependency_wait();
    for (uint32_t index = blockIdx.x; index < tiles; index += gridDim.x) {
        const Part part = part_of(index, splits, s);
        const Tile& tile = part.tile;
        const int before = part.first * CHUNKS, group = before / groups.chunks;
        int scale_at[ROWS], zero_at[ROWS], offset_at[ROWS];
        const float* x_sums = groups.sums + static_cast<int64_t>(before) * groups.pitch + tile.col + thread;
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
            const int row = tile.row + i * THREADS + thread < s.m ? tile.row + i * THREADS + thread : s.m - 1;
            scale_at[i] = row * groups.scale.row + group * groups.scale.column;
            zero_at[i] = row * groups.zero_point.row + group * groups.zero_point.column;
            offset_at[i] = row * groups.offset.row + group * groups.offset.column;
        }
        // Chunks from this one on: of K, and of its group.
        int left = s.k / CHUNK - before, of_group = (group + 1) * groups.chunks - before;
        for (int stage = part.first; stage < part.last; ++stage) {
            weight.wait_empty();
#pragma unroll 1
            for (int first = 0; first < CHUNKS; first += BATCH) {
                S scale[BATCH][ROWS], offset[BATCH][ROWS];
                uint8_t zero[BATCH][ROWS];
                float sums[BATCH][COLUMNS];
                const int inside = left;
#pragma unroll
                for (int i = 0; i < BATCH; ++i) {
#pragma unroll
                    for (int j = 0; j < ROWS; ++j) {
                        scale[i][j] = groups.scale.data[scale_at[j]];
                        if (HAS_ZERO_POINT) zero[i][j] = groups.zero_point.data[zero_at[j]];
                        if (HAS_OFFSET) offset[i][j] = groups.offset.data[offset_at[j]];
                    }
                    if (HAS_OFFSET)
#pragma unroll
                        for (int j = 0; j < COLUMNS; ++j) sums[i][j] = x_sums[j * THREADS];
                    const bool more = --left > 0;  // beyond K the last chunk's are read again
                    const bool next_group = more && --of_group == 0;
                    of_group = next_group ? groups.chunks : of_group;
                    x_sums += more ? groups.pitch : 0;
#pragma unroll
                    for (int j = 0; j < ROWS; ++j) {
                        scale_at[j] += next_group ? groups.scale.column : 0;
                        zero_at[j] += next_group ? groups.zero_point.column : 0;
                        offset_at[j] += next_group ? groups.offset.column : 0;
                    }
                }
#pragma unroll
                for (int i = 0; i < BATCH; ++i) {
                    const uint32_t chunk = weight.chunks() + (first + i) * CHUNK_BYTES + thread * 4;
#pragma unroll
                    for (int j = 0; j < ROWS; ++j) {
                        const uint32_t at = chunk + j * THREADS * 4;
                        store_shared(at, i < inside ? to_float(scale[i][j]) : 0.0f);
                        if (HAS_ZERO_POINT) store_shared(at + ZERO_AT, float_of(zero_pair<T>(zero[i][j])));
                        if (HAS_OFFSET) store_shared(at + OFFSET_AT, i < inside ? to_float(offset[i][j]) : 0.0f);
                    }
                    if (HAS_OFFSET)
#pragma unroll
                        for (int j = 0; j < COLUMNS; ++j)
                            store_shared(chunk + X_SUMS_AT + j * THREADS * 4, i < inside ? sums[i][j] : 0.0f);
                }
            }
            __syncwarp();
            if (thread_x() % 32 == 0) mbarrier_arrive(weight.full_barrier());
            weight.advance();
        }
    }
}

// Where a thread's codes and the values of its rows lie in a stage of the weight: rows lane / 4 and the eighth below it
// of its warp's 16.
struct WeightRows {
    uint32_t codes, values;   // the row's first 16 bytes, swizzled; the first chunk's scale of the row

    DEVICE WeightRows(const WeightPipeline& weight, int consumer) {
        const int within = thread_x() % 32 / 4;
        const int row = consumer * 64 + thread_x() % 128 / 32 * 16 + within;
        codes = weight.stage_base() + row * 128 + within * 16;
        values = weight.chunks() + row * 4;
    }
};

// A thread's codes of a unit: of each of its rows 16 bytes.
struct Codes {
    uint32_t upper[UNIT / 8], lower[UNIT / 8];

    DEVICE void load(const WeightRows& rows, int unit) {
        load_codes(upper, rows.codes ^ unit * 16);
        load_codes(lower, (rows.codes ^ unit * 16) + 8 * 128);
    }
};

// The numbers of a unit, as wgmma's operand: see numbers.h.
DEVICE void make_numbers(uint32_t (&numbers)[UNIT_WORDS], const Codes& codes, const uint32_t (&zeros)[2],
                         uint32_t selector) {
#pragma unroll
    for (int i = 0; i < UNIT / 8; ++i) {
        numbers[i * 2] = numbers_of<T>(codes.upper[i], selector, zeros[0]);
        numbers[i * 2 + 1] = numbers_of<T>(codes.lower[i], selector, zeros[1]);
    }
    keep_in_registers<UNIT_WORDS>(numbers);
}

// Issues the products of a consumer's 64 rows with a unit of x at `at`: to `part`, or where `add`, added to it.
DEVICE void multiply(float (&part)[SUMS], const uint32_t (&numbers)[UNIT_WORDS], uint32_t at, bool add) {
    const uint64_t x = wgmma_descriptor(at, 0, 1024);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < UNIT / 16; ++k) WgmmaRs<TILE_M>::template run<false>(part, numbers + k * 4, x + k * 2, add || k);
    wgmma_commit();
}

// The scales and offsets of a chunk for a thread's two rows.
struct ChunkValues {
    float scale[2], offset[2];

    DEVICE explicit ChunkValues(uint32_t at) {
#pragma unroll
        for (int down = 0; down < 2; ++down) {
            scale[down] = load_shared(at + down * 32);
            offset[down] = HAS_OFFSET ? load_shared(at + OFFSET_AT + down * 32) : 0.0f;
        }
    }
};

// Adds the sums of a chunk to the accumulators, once they are there; `x_sums` are those of the thread's columns.
DEVICE void promote(float (&acc)[SUMS], float (&part)[SUMS], const ChunkValues& values, uint32_t x_sums) {
    keep_in_registers<SUMS>(part);
#pragma unroll
    for (int i = 0; i < SUMS; ++i) acc[i] = math_fma(part[i], values.scale[i / 2 % 2], acc[i]);
#if HAS_OFFSET
#pragma unroll
    for (int j = 0; j < SUMS / 4; ++j) {
        float sum[2];
        asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(sum[0]), "=f"(sum[1]) : "r"(x_sums + j * 32) : "memory");
#pragma unroll
        for (int i = 0; i < 4; ++i) acc[j * 4 + i] = math_fma(sum[i % 2], values.offset[i / 2], acc[j * 4 + i]);
    }
#endif
}

// The consumer's products with a stage of x are done.
DEVICE void release(uint32_t empty_barrier) {
    if (thread_x() % 128 == 0) mbarrier_arrive(empty_barrier);
}
// A warp has read what it needs of a stage of the weight.
DEVICE void release_weight(uint32_t empty_barrier) {
    __syncwarp();
    if (thread_x() % 32 == 0) mbarrier_arrive(empty_barrier);
}

// The main loop of one tile.
DEVICE void multiply_tile(XPipeline& x, WeightPipeline& weight, float (&acc)[SUMS], int consumer, int stages) {
    const uint32_t selector = byte_selector(thread_x() % 4);
    // From a thread's place among a chunk's values to the sums of x for its columns.
    const uint32_t to_x_sums = X_SUMS_AT + thread_x() % 4 * 8 -
                               (consumer * 64 + thread_x() % 128 / 32 * 16 + thread_x() % 32 / 4) * 4;
    float part[SUMS];
    uint32_t numbers[2][UNIT_WORDS];
    uint32_t zeros[2] = {zero_pair<T>(ZERO_POINT), zero_pair<T>(ZERO_POINT)};
    Codes codes;
    clear<SUMS>(acc);
    undefined<SUMS>(part);
    weight.wait_full();
    WeightRows rows(weight, consumer);
    codes.load(rows, 0);
    // Makes a unit's numbers of the codes that are there, and loads those of the next.
    const auto make = [&](int unit) {
        if (HAS_ZERO_POINT && unit % CHUNK_UNITS == 0) {
            const uint32_t at = rows.values + unit / CHUNK_UNITS * CHUNK_BYTES + ZERO_AT;
            zeros[0] = bits_of(load_shared(at));
            zeros[1] = bits_of(load_shared(at + 32));
        }
        make_numbers(numbers[unit % 2], codes, zeros, selector);
        if (unit + 1 < UNITS) codes.load(rows, unit + 1);
    };
    make(0);
    for (int stage = 1; stage <= stages; ++stage) {
        const uint32_t values = rows.values, used_weight = weight.empty_barrier();
        uint32_t used_x = 0;
#pragma unroll
        for (int unit = 0; unit < UNITS; ++unit) {
            const int chunk = unit / CHUNK_UNITS;
            const bool begins = unit % CHUNK_UNITS == 0, ends = unit % CHUNK_UNITS == CHUNK_UNITS - 1;
            if (unit % 2 == 0) x.wait_full();
            multiply(part, numbers[unit % 2], x.stage_base() + unit % 2 * 64, !begins);
            if (!begins) {
                wgmma_wait<1>();
                keep_in_registers<UNIT_WORDS>(numbers[(unit + 1) % 2]);
                if (unit % 2 == 0) release(used_x);
            }
            if (unit % 2) {
                used_x = x.empty_barrier();
                x.advance();
            }
            if (unit + 1 < UNITS) {
                make(unit + 1);
            } else {
                weight.advance();
                if (stage < stages) {
                    weight.wait_full();
                    rows = WeightRows(weight, consumer);
                    codes.load(rows, 0);
                    make(0);
                }
            }
            if (ends) {
                const uint32_t at = values + chunk * CHUNK_BYTES;
                const ChunkValues of(at);
                wgmma_wait<0>();
                keep_in_registers<UNIT_WORDS>(numbers[unit % 2]);
                if (unit % 2) release(used_x);
                promote(acc, part, of, at + to_x_sums);
            }
        }
        release_weight(used_weight);
    }
}

// The sums of a part, as splitk_reduce.cu reads them.
DEVICE void store_part(float4* to, const float (&acc)[SUMS], const float (&biases)[2]) {
#pragma unroll
    for (int i = 0; i < SUMS / 4; ++i) {
        const float* sums = acc + i * 4;
        to[i * 128] = {sums[0] + biases[0], sums[1] + biases[0], sums[2] + biases[1], sums[3] + biases[1]};
    }
}

DEVICE void consumer_loop(XPipeline x, WeightPipeline weight, uint32_t buffers, const TensorMap* map_y, T* y,
                          const T* bias, float4* partials, const Sizes& s, const Splits& splits, uint32_t tiles) {
    // The compiler knows this to be the same in all lanes: descriptors stay in uniform registers.
    const int consumer = __shfl_sync(0xffffffffu, thread_x() / 128, 0);
    const uint32_t own_buffers = buffers + consumer * C_BUFFERS * BLOCK_BYTES;
    int buffer = 0;
    grid_dependency_wait();
    for (uint32_t index = blockIdx.x; index < tiles; index += gridDim.x) {
        const Part part = part_of(index, splits, s);
        const Tile& tile = part.tile;
        const int first = tile.row + consumer * 64;
        float biases[2] = {};
        if (HAS_BIAS && part.first == 0)
#pragma unroll
            for (int down = 0; down < 2; ++down) {
                const int row = first + thread_x() % 128 / 32 * 16 + thread_x() % 32 / 4 + down * 8;
                biases[down] = to_float(bias[row < s.m ? row : s.m - 1]);
            }
        float acc[SUMS];
        multiply_tile(x, weight, acc, consumer, part.last - part.first);
#if SPLIT_K
        const int64_t before = (static_cast<int64_t>(index) * CONSUMERS + consumer) * (SUMS / 4) * 128;
        store_part(partials + before + thread_x() % 128, acc, biases);
        continue;
#endif
#pragma unroll
        for (int block = 0; block < TILE_M / 64; ++block) {
            uint32_t words[BLOCK_WORDS];
#pragma unroll
            for (int i = 0; i < BLOCK_WORDS; ++i) {
                const float* sums = acc + block * 32 + i * 2;
                const float of_row = biases[i % 2];
                words[i] = HAS_BIAS ? pack2<T>(sums[0] + of_row, sums[1] + of_row) : pack2<T>(sums[0], sums[1]);
            }
            const BlockPosition place = {first, tile.col + block * 64, 0, 0, tile.col + TILE_M};
            store_by_tma(own_buffers, buffer, map_y, y, words, place, consumer, s);
            buffer = (buffer + 1) % C_BUFFERS;
        }
    }
    if (thread_x() % 128 == 0) tma_store_wait_read<0>();
}

extern "C" __global__ __launch_bounds__(THREADS, 1) void int4_mm_wgmma(
    const __grid_constant__ TensorMap map_x, const __grid_constant__ TensorMap map_weight,
    const __grid_constant__ TensorMap map_y, const S* scale, const uint8_t* zero_point, const S* offset,
    const float* sums, const T* bias, T* y, float4* partials, int m, int n, int k, int tiles, int k_splits,
    int split_stages, int chunks, int pitch, int scale_row, int scale_col, int zero_row, int zero_col, int offset_row,
    int offset_col) {
    DYNAMIC_SHARED(shared);
    const Sizes s = {n, m, k, 1, 1, 0, 0, 1, n, 0, 0, 0, 0, 0, 0};
    const Groups groups = {{scale, scale_row, scale_col},    {zero_point, zero_row, zero_col},
                           {offset, offset_row, offset_col}, sums,
                           pitch,                            chunks};
    const Splits splits = {k_splits, split_stages};
    // The swizzle repeats every 1024 bytes of the address.
    const uint32_t base = (shared_address(shared) + 1023) & ~1023u;
    const uint32_t weights = base + STAGES * X_BYTES;
    const uint32_t buffers = weights + WEIGHT_STAGES * WEIGHT_BYTES;
    const uint32_t of_groups = buffers + C_BYTES;
    const uint32_t barriers = of_groups + WEIGHT_STAGES * CHUNKS * CHUNK_BYTES;
    const XPipeline x(base, barriers);
    const WeightPipeline weight(weights, barriers + STAGES * 16, of_groups);
    const bool is_producer = thread_x() == CONSUMERS * 128;
    if (is_producer) {
        launch_dependents();
        x.init(CONSUMERS);
        weight.init(CONSUMERS * 4, 1 + GROUP_WARPS);
        mbarrier_init_fence();
        fence_proxy_async();
    } else if (thread_x() == 0) {
        tma_prefetch_descriptor(&map_x);
        tma_prefetch_descriptor(&map_weight);
        tma_prefetch_descriptor(&map_y);
    }
    barrier();

    if (thread_x() >= CONSUMERS * 128) {
        setmaxnreg_dec<PRODUCER_REGISTERS>();
        if (is_producer) producer_loop(x, weight, &map_x, &map_weight, s, splits, tiles);
        else if (thread_x() >= CONSUMERS * 128 + 64) group_loop(weight, groups, s, splits, tiles);
    } else {
        setmaxnreg_inc<CONSUMER_REGISTERS>();
        consumer_loop(x, weight, buffers, &map_y, y, bias, partials, s, splits, tiles);
    }
}
