// A few queries against a long cache of keys and values: tiles in shared memory, and warp-wide matrix instructions.
//
// A block takes one split of one sequence's keys, one key head, and up to ROWS rows: queries times the heads that share
// the key head. Each warp walks tiles of 16 keys of its own, which come through a ring of STAGES tiles, by asynchronous
// copies of 16 bytes a lane or by TMA: nothing waits for another warp, and there is no barrier, until the split ends.
//
// What the cache holds, numbers or codes of 8 bits, is in kv_cache.h.
//
// Defines: ELEMENT (bf16 or f16); FORMAT: of a cache's codes of 8 bits (minifloat.h), none where it has ELEMENTs; D, E: head
// sizes; TMA: whether tiles come by TMA, of sm_90; PAGE: keys of a page, a multiple of 16; with TMA 0 where a sequence is one
// page; WARPS; STAGES; CHUNK: the fewest keys of a split; LEFT, RIGHT, SOFTCAP: whether there are such bounds; DIRECT: whether
// the one split's sums are the result; FIRST_WAVE, with TMA: blocks that start at once; PARAMS_LAYOUT (params.h).
#include "prelude.h"

#include "_lib/ptx/matrix.h"
#include "_lib/ptx/mma.h"
#include "_lib/ptx/pdl.h"
#include "_lib/ptx/shared_address.h"
#include "_lib/ptx/tma.h"
#include "attention/device/params.h"
#include "attention/device/seqlen_info.h"
#include "attention/device/softmax.h"
#include "kv_cache.h"

constexpr int KEYS = 16;            // of a tile, which lies in one page
constexpr int STEP = WARPS * KEYS;  // from a warp's tile to its next
constexpr int SUMS_PITCH = PADDED_E + 4;
constexpr int SUMS_BYTES = ROWS * SUMS_PITCH * 4;
static_assert(SPLIT_ALIGN % KEYS == 0, "tiles end where splits do");

DEVICE float finite_or_zero(float m) { return m == -INF_F ? 0.0f : m; }

// `tiles` of rows of a key head; `splits` of the keys that memory has room for, `max_splits` that a sequence is cut
// into.
struct Splits {
    int tiles, splits, max_splits;
};

// Keys begin to end of sequence z, key head `head`, rows from tile * ROWS on.
struct WorkTile {
    int z, split, tile, head, length, begin, end;

    DEVICE WorkTile(const AttentionParams& p, const Splits& s) {
        const int index = block_x() / p.kv_heads;  // heads of one token lie side by side
        head = block_x() % p.kv_heads;
        tile = index % s.tiles;
        split = index / s.tiles % s.splits;
        z = index / s.tiles / s.splits;
        length = length_of(p.seq_lens, z, p.seqlen_k);
        const KvSplits<CHUNK, LEFT> kv_splits(length, p.seqlen_q, p.left, s.max_splits);
        begin = kv_splits.first + split * kv_splits.size;
        end = length - begin < kv_splits.size ? length : begin + kv_splits.size;
    }
};

// A tile's rows as the matrix instructions have them: the queries of this lane's sums, and of its words.
struct Rows {
    int query[2];
    uint32_t words[D_STEPS * PARTS][2 * HALVES];
    RowScales scales;

    DEVICE Rows(const AttentionParams& p, const WorkTile& work, float k_scale, int lane) {
        const int qheads_per_kvhead = p.qheads_per_kvhead;
        const T* at[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            query[i] = (work.tile * ROWS + row_of(i, lane)) / qheads_per_kvhead;
            const int number = work.tile * ROWS + query_row(i, lane), own_query = number / qheads_per_kvhead;
            const T* own = static_cast<const T*>(p.q) + work.z * p.q_batch + own_query * p.q_row +
                           (work.head * qheads_per_kvhead + number % qheads_per_kvhead) * p.q_head;
            at[i] = own_query < p.seqlen_q ? own : nullptr;
        }
#pragma unroll
        for (int i = 0; i < D_STEPS * PARTS; ++i)
#pragma unroll
            for (int w = 0; w < 2 * HALVES; ++w) {
                const int own = i * 16 + query_column(w, lane);
                words[i][w] = at[w % 2] != nullptr && own < D ? *reinterpret_cast<const uint32_t*>(at[w % 2] + own) : 0;
            }
        scales.prepare(words, p, k_scale, lane);
    }
};

// Of a warp's tiles so far: each row's greatest score, the sum of the weights exp2(score - row_max), times 2^WEIGHT_BITS, and
// that of these times the values.
struct DecodeSoftmax {
    float row_max[2] = {-INF_F, -INF_F}, row_sum[2] = {0.0f, 0.0f};
    float acc_o[E_STEPS * PARTS * HALVES][4] = {};

    // A tile from key n on. It says where this lane's line of 16 columns of either is: `keys(step)`, `values(step)`.
    template <class Tile>
    DEVICE void add(const Tile& tile, const Rows& rows, int n, const WorkTile& work, const AttentionParams& p,
                    int lane) {
        float products[HALVES][2][4] = {};
#pragma unroll
        for (int step = 0; step < D_STEPS; ++step) {
            uint32_t b[4];
            ldmatrix_x4(b, tile.keys(step));
            add_keys(products, rows.words + step * PARTS, b, step);
        }
        float scores[HALVES][4];
#pragma unroll
        for (int half = 0; half < HALVES; ++half)
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                float score = (products[half][0][j] + products[half][1][j]) * rows.scales.of(p, slot_of(j));
                if (SOFTCAP) score = p.softcap_log2 * (1.0f - 2.0f / (1.0f + exp2_fast(score)));
                scores[half][j] = score;
            }
        if (LEFT || RIGHT || n + KEYS > work.end) {
#pragma unroll
            for (int half = 0; half < HALVES; ++half)
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    const int key = n + key_of(half, j, lane);
                    const int last = work.length - p.seqlen_q + rows.query[slot_of(j)];
                    bool seen = key < work.end;
                    if (RIGHT) seen = seen && key <= last + p.right;
                    if (LEFT) seen = seen && key >= last - p.left;
                    if (!seen) scores[half][j] = -INF_F;
                }
        }
        float rescale[2];
        bool grows = false;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float lane_max = math_max_number(scores[0][place_of(r, 0)], scores[0][place_of(r, 1)]);
            if constexpr (HALVES == 2) {
                lane_max = math_max_number(lane_max, math_max_number(scores[1][place_of(r, 0)], scores[1][place_of(r, 1)]));
            }
            const float highest = math_max_number(row_max[r], max_of_row(lane_max));
            const float base = finite_or_zero(highest);
            grows = grows || highest > row_max[r];
            rescale[r] = exp2_fast(row_max[r] - base);
            row_max[r] = highest;
            float sum = 0.0f;
#pragma unroll
            for (int half = 0; half < HALVES; ++half)
#pragma unroll
                for (int j = 0; j < 2; ++j) {
                    const float p = exp2_fast(scores[half][place_of(r, j)] - (base - WEIGHT_BITS));
                    scores[half][place_of(r, j)] = p;
                    sum += p;
                }
            row_sum[r] = row_sum[r] * (row_max[r] == -INF_F ? 1.0f : rescale[r]) + sum;
        }
        if (__any_sync(0xffffffffu, grows)) {
#pragma unroll
            for (int i = 0; i < E_STEPS * PARTS * HALVES; ++i)
#pragma unroll
                for (int j = 0; j < 4; ++j) acc_o[i][j] *= rescale[slot_of(j)];
        }
        uint32_t packed[2 * HALVES];
        pack_weights(packed, scores);
#pragma unroll
        for (int step = 0; step < E_STEPS; ++step) {
            uint32_t b[4];
            ldmatrix_x4_trans(b, tile.values(step));
            add_values(acc_o + step * PARTS * HALVES, packed, b);
        }
    }
};

// Adds up the sums of a block's warps in their order: with DIRECT to o and lse [z, head, query], else a split's to
// [z, head, query, splits]. A warp's take the place of its tiles, `pitch` bytes from one
// warp's to the next's. Values were codes times `v_scale`.
DEVICE void add_warps(const DecodeSoftmax& softmax, char* memory, int pitch, const AttentionParams& p,
                      const WorkTile& work, float v_scale, int splits, int warp, int lane) {
    const int qheads_per_kvhead = p.qheads_per_kvhead;
    SHARED float warp_max[WARPS][ROWS], warp_sum[WARPS][ROWS];
    float* own = reinterpret_cast<float*>(memory + warp * pitch);
#pragma unroll
    for (int i = 0; i < E_STEPS * PARTS * HALVES; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j)
            own[row_of(slot_of(j), lane) * SUMS_PITCH + column_of(i, j, lane)] = softmax.acc_o[i][j];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const float sum = sum_of_row(softmax.row_sum[i]);
        if (first_of_row(lane)) {
            warp_max[warp][row_of(i, lane)] = softmax.row_max[i];
            warp_sum[warp][row_of(i, lane)] = sum;
        }
    }
    barrier();
    const int rows = p.seqlen_q * qheads_per_kvhead - work.tile * ROWS;
    const int count = (rows < ROWS ? rows : ROWS) * E;
    for (int i = thread_x(); i < count; i += WARPS * 32) {
        const int row = i / E, column = i % E;
        float highest = -INF_F;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) highest = math_max_number(highest, warp_max[w][row]);
        const float base = finite_or_zero(highest);
        float sum = 0.0f, divisor = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) {
            const float weight = exp2_fast(warp_max[w][row] - base) * (1.0f / (1 << WEIGHT_BITS));
            sum += weight * reinterpret_cast<const float*>(memory + w * pitch)[row * SUMS_PITCH + column];
            divisor += weight * warp_sum[w][row];
        }
        sum *= v_scale;
        const int number = work.tile * ROWS + row, query = number / qheads_per_kvhead;
        const int head = work.head * qheads_per_kvhead + number % qheads_per_kvhead;
        const int64_t line = static_cast<int64_t>(work.z) * (p.kv_heads * qheads_per_kvhead) + head;
        const int64_t at = line * p.seqlen_q + query;
        if (DIRECT) {
            const bool seen = divisor > 0.0f || divisor != divisor;
            static_cast<T*>(p.o)[work.z * p.o_batch + head * p.o_head + query * p.o_row + column] =
                from_float<T>(seen ? div_rn(sum, divisor) : 0.0f);
            if (column == 0) p.lse[at] = seen ? highest * LN_2 + math_log(divisor) : -INF_F;
        } else {
            p.o_partial[(at * splits + work.split) * E + column] = sum;
            if (column == 0) {
                p.max_partial[at * splits + work.split] = highest;
                p.sum_partial[at * splits + work.split] = divisor;
            }
        }
    }
}

#if !TMA
// --- tiles by asynchronous copies ---

constexpr int K_PITCH = D_STEPS * 32 + 16;  // an odd number of 16-byte chunks: eight lines in different banks
constexpr int V_PITCH = E_STEPS * 32 + 16;
constexpr int STAGE_BYTES = KEYS * (K_PITCH + V_PITCH);
constexpr int PIPELINE_BYTES = STAGES * STAGE_BYTES;
static_assert(PIPELINE_BYTES >= SUMS_BYTES, "a warp's sums take the place of its tiles");

struct Cache {
    const Stored *k, *v;
    int64_t k_page, k_row, v_page, v_row;
    const int32_t* table;
    int pages;

    // The page of the tile that starts at key n, brought within the cache.
    DEVICE int page_of(int n, int end) const {
        const int page = n < end ? table[n / PAGE] : 0;
        return page < 0 ? 0 : page < pages ? page : pages - 1;
    }
};

// Copies LINE elements of 16 rows into lines PITCH bytes apart; rows from `rows` on become zeros, and so does what is
// behind a line.
template <int LINE, int PADDED, int PITCH>
DEVICE void copy_tile(uint32_t to, const Stored* from, int64_t row_stride, int rows, int lane) {
    constexpr int CHUNKS = PADDED / CHUNK_COLUMNS;
#pragma unroll
    for (int i = 0; i < CHUNKS * KEYS / 32; ++i) {
        const int index = i * 32 + lane;
        const int row = index / CHUNKS, chunk = index % CHUNKS;
        const bool inside = row < rows && chunk * CHUNK_COLUMNS < LINE;
        copy_async(to + row * PITCH + chunk * 16,
                   inside ? from + row * row_stride + chunk * CHUNK_COLUMNS : from, inside ? 16 : 0);
    }
}

DEVICE void copy_keys(uint32_t stage, const Cache& cache, int page, int n, int end, int lane) {
    const int slot = n % PAGE;
    const int rows = end - n;
    copy_tile<D, PADDED_D, K_PITCH>(stage, cache.k + page * cache.k_page + slot * cache.k_row, cache.k_row, rows, lane);
    copy_tile<E, PADDED_E, V_PITCH>(stage + KEYS * K_PITCH, cache.v + page * cache.v_page + slot * cache.v_row,
                                    cache.v_row, rows, lane);
}

// A stage of the ring, and this lane's line in it.
struct StageTile {
    uint32_t k, v;

    DEVICE StageTile(uint32_t stage, int lane)
        : k(stage + (lane / 16 * 8 + lane % 8) * K_PITCH + lane / 8 % 2 * 16),
          v(stage + KEYS * K_PITCH + lane % 16 * V_PITCH + lane / 16 * 16) {}
    DEVICE uint32_t keys(int step) const { return k + step * 32; }
    DEVICE uint32_t values(int step) const { return v + step * 32; }
};

// `pages`: of the cache. The others as in Splits.
KERNEL(WARPS * 32)
void attention_decode_sm80(const AttentionParams params, int pages, int tiles, int splits,
                          int max_splits CACHE_SCALES) {
    enter_pdl();
    const AttentionParams& p = params;
    DYNAMIC_SHARED(memory);
    const int lane = thread_x() % 32, warp = thread_x() / 32;
    const WorkTile work(p, {tiles, splits, max_splits});
    if (!DIRECT && work.begin >= work.length) return;

    const Rows rows(p, work, K_SCALE, lane);
    const Cache cache{static_cast<const Stored*>(p.k) + work.head * p.k_head,
                      static_cast<const Stored*>(p.v) + work.head * p.v_head, p.k_batch, p.k_row, p.v_batch, p.v_row,
                      p.block_table + work.z * p.block_table_row, pages};
    const uint32_t ring = shared_address(memory) + warp * PIPELINE_BYTES;
    const int start = work.begin + warp * KEYS;
    int ahead = start;
    int page = cache.page_of(ahead, work.end);
    int fill = 0, drain = 0;
    const auto copy_next = [&]() {
        if (ahead < work.end) copy_keys(ring + fill * STAGE_BYTES, cache, page, ahead, work.end, lane);
        commit_copies();
        fill = fill + 1 == STAGES ? 0 : fill + 1;
        ahead += STEP;
        page = cache.page_of(ahead, work.end);
    };
#pragma unroll
    for (int i = 0; i < STAGES - 1; ++i) copy_next();

    DecodeSoftmax softmax;
    for (int n = start; n < work.end; n += STEP) {
        wait_copies<STAGES - 2>();
        __syncwarp();
        copy_next();
        softmax.add(StageTile(ring + drain * STAGE_BYTES, lane), rows, n, work, p, lane);
        drain = drain + 1 == STAGES ? 0 : drain + 1;
    }
    wait_copies<0>();
    __syncwarp();
    add_warps(softmax, memory, PIPELINE_BYTES, p, work, V_SCALE, splits, warp, lane);
}
#else
// --- tiles by TMA: one lane of a warp starts the copies ---

constexpr int LINE = 128;  // bytes of a block's columns
constexpr int LINE_COLUMNS = LINE / sizeof(Stored);
constexpr int D_BLOCKS = (D + LINE_COLUMNS - 1) / LINE_COLUMNS, E_BLOCKS = (E + LINE_COLUMNS - 1) / LINE_COLUMNS;
constexpr int BLOCK_BYTES = KEYS * LINE;
constexpr int K_BYTES = D_BLOCKS * BLOCK_BYTES;
constexpr int STAGE_BYTES = K_BYTES + E_BLOCKS * BLOCK_BYTES;
constexpr int PIPELINE_BYTES = STAGES * STAGE_BYTES;
static_assert(PIPELINE_BYTES >= SUMS_BYTES, "a warp's sums take the place of its tiles");

// One head's keys and values of one sequence.
struct Cache {
    const TensorMap *k, *v;
    const int32_t* table;
    int pages, z, head, end;
    uint64_t policy;

    // The page of the tile that starts at key n, as the table has it.
    DEVICE int page_of(int n) const {
        int page = z;
        if (PAGE != 0 && n < end) page = table[n / (PAGE != 0 ? PAGE : 1)];
        return page;
    }

    // Keys and values are read once, and what L2 holds beside them is not: evicted first, 2 % faster over 64
    // sequences, 1 % over one (H200, 2026-11-22).
    // Starts the copies of that tile. Its page is brought within the cache.
    DEVICE void copy(uint32_t to, uint32_t barrier, int page, int n) const {
        int slot = n;
        if (PAGE != 0) {
            page = page < 0 ? 0 : page < pages ? page : pages - 1;
            slot = n % (PAGE != 0 ? PAGE : 1);
        }
        mbarrier_arrive_expect_tx(barrier, STAGE_BYTES);
#pragma unroll
        for (int b = 0; b < D_BLOCKS; ++b)
            tma_load_4d_cached(to + b * BLOCK_BYTES, k, barrier, policy, b * LINE_COLUMNS, head, slot, page);
#pragma unroll
        for (int b = 0; b < E_BLOCKS; ++b)
            tma_load_4d_cached(to + K_BYTES + b * BLOCK_BYTES, v, barrier, policy, b * LINE_COLUMNS, head, slot, page);
    }

    // Brings the tile that starts at key n of a contiguous cache into L2.
    DEVICE void prefetch(int n) const {
#pragma unroll
        for (int b = 0; b < D_BLOCKS; ++b) tma_prefetch_4d(k, b * LINE_COLUMNS, head, n, z);
#pragma unroll
        for (int b = 0; b < E_BLOCKS; ++b) tma_prefetch_4d(v, b * LINE_COLUMNS, head, n, z);
    }
};

// A stage of the ring: lines of 128 bytes whose chunks of 16 lie where the swizzle puts them, chunk x of line y at
// x ^ y % 8. This lane's line of 16 is lane % 8 of its eight.
struct StageTile {
    uint32_t k, v, k_lane, v_lane;

    DEVICE StageTile(uint32_t stage, int lane)
        : k(stage), v(stage + K_BYTES), k_lane((lane / 16 * 8 + lane % 8) * LINE + (lane / 8 % 2 ^ lane % 8) * 16),
          v_lane(lane % 16 * LINE + (lane / 16 ^ lane % 8) * 16) {}
    DEVICE uint32_t keys(int step) const { return k + step / 4 * BLOCK_BYTES + (k_lane ^ step % 4 * 32); }
    DEVICE uint32_t values(int step) const { return v + step / 4 * BLOCK_BYTES + (v_lane ^ step % 4 * 32); }
    // Zeros for the values from row `first` on: what stands behind a sequence may be NaN, which no weight of 0 hides.
    DEVICE void clear(int first, int lane) const {
        for (int i = first * (LINE / 16) + lane; i < KEYS * (LINE / 16); i += 32)
#pragma unroll
            for (int b = 0; b < E_BLOCKS; ++b)
                asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(v + b * BLOCK_BYTES + i * 16), "r"(0)
                             : "memory");
        __syncwarp();
    }
};

// `pages`: of the cache. The others as in Splits.
KERNEL(WARPS * 32)
void attention_decode_tma(const __grid_constant__ TensorMap map_k, const __grid_constant__ TensorMap map_v,
                          const AttentionParams params, int pages, int tiles, int splits,
                          int max_splits CACHE_SCALES) {
    launch_dependents();
    const AttentionParams& p = params;
    DYNAMIC_SHARED(shared);
    SHARED alignas(8) uint64_t filled[WARPS][STAGES];
    const int lane = thread_x() % 32, warp = __shfl_sync(0xffffffffu, thread_x() / 32, 0);
    if (PAGE != 0) grid_dependency_wait();  // lengths and pages are in memory
    const WorkTile work(p, {tiles, splits, max_splits});
    if (!DIRECT && work.begin >= work.length) return;

    char* memory = shared + (0u - shared_address(shared)) % 1024;  // the swizzle repeats every 1024 bytes
    const uint32_t ring = shared_address(memory) + warp * PIPELINE_BYTES, barriers = shared_address(filled[warp]);
    const Cache cache{&map_k, &map_v, p.block_table + work.z * p.block_table_row, pages, work.z, work.head,
                      work.end, l2_evict_first()};
    const int start = work.begin + warp * KEYS;
    if (PAGE == 0) {
        // L2 sees what the previous kernel still writes: 16 sequences of 4096 keys 772 us a step of models/, without 785
        // (H200, 2026-11-27).
        if (lane == 0 && block_x() < FIRST_WAVE)
            for (int i = 0; i < STAGES; ++i)
                if (start + i * STEP < work.end) cache.prefetch(start + i * STEP);
        grid_dependency_wait();
    }
    int first_pages[STAGES];  // looked up together
#pragma unroll
    for (int i = 0; i < STAGES; ++i) first_pages[i] = cache.page_of(start + i * STEP);
    if (lane == 0) {
#pragma unroll
        for (int i = 0; i < STAGES; ++i) mbarrier_init(barriers + i * 8, 1);
        mbarrier_init_fence();
#pragma unroll
        for (int i = 0; i < STAGES; ++i)
            if (start + i * STEP < work.end)
                cache.copy(ring + i * STAGE_BYTES, barriers + i * 8, first_pages[i], start + i * STEP);
    }
    __syncwarp();
    int ahead = start + STAGES * STEP;
    int page = cache.page_of(ahead);  // looked up a tile before it is needed

    const Rows rows(p, work, K_SCALE, lane);
    DecodeSoftmax softmax;
    int stage = 0;
    uint32_t phase = 0;
    for (int n = start; n < work.end; n += STEP) {
        const StageTile tile(ring + stage * STAGE_BYTES, lane);
        mbarrier_wait(barriers + stage * 8, phase);
        if (n + KEYS > work.end) tile.clear(work.end - n, lane);
        softmax.add(tile, rows, n, work, p, lane);
        __syncwarp();
        if (lane == 0 && ahead < work.end) cache.copy(tile.k, barriers + stage * 8, page, ahead);
        ahead += STEP;
        page = cache.page_of(ahead);
        if (++stage == STAGES) {
            stage = 0;
            phase ^= 1;
        }
    }
    __syncwarp();
    add_warps(softmax, memory, PIPELINE_BYTES, p, work, V_SCALE, splits, warp, lane);
}
#endif
