// A few queries against a long KV cache, contiguous or paged, on AMD's matrix units.
//
// A block takes one split of one sequence's keys, one KV head, and up to 16 columns: queries times the query heads that
// share the KV head. Each of its waves walks tiles of MMA_M keys of its own and needs no other wave until the split
// ends; then the waves' accumulators are added in order. attention_decode_combine adds up the splits.
//
// Keys and values are read once, so they go from memory to the operands' registers and not through LDS. Scores are
// computed transposed, keys by columns (tiles.h). For o^T = v^T P^T a lane needs several keys' values of one column
// of v: it loads up to 16 neighbouring bytes of each key's row and exchanges halves of words among its own registers.
// Which column of v a row of the product stands for follows from that.
//
// A cache of 8 bits is the same: a lane's codes become numbers of ELEMENT, which has them all, in its registers.
//
// Defines: ELEMENT (bf16, f16); FORMAT: of a cache's codes of 8 bits (minifloat.h), none where it has ELEMENTs; D, E: head sizes; PAGE: keys of a page, 0 where a sequence's keys are contiguous; CHUNK: the
// fewest keys of a split; LEFT, RIGHT: whether the window's sides hide keys; SOFTCAP, SINKS: whether there are any;
// SCALE_ONLY: whether scores are products times a positive scale and nothing else; PARAMS_LAYOUT (params.h).
#include "attention/device/params.h"
#include "attention/device/seqlen_info.h"
#include "attention/device/softmax.h"
#include "tiles.h"
#ifdef FORMAT
#include "_lib/minifloat.h"
#define CACHE_SCALES , const float *k_scale, int64_t k_scale_head, const float *v_scale, int64_t v_scale_head
#define K_SCALE k_scale[work.kv_head * k_scale_head]
#define V_SCALE v_scale[work.kv_head * v_scale_head]
#else
#define CACHE_SCALES
#define K_SCALE 1.0f
#define V_SCALE 1.0f
#endif

using T = ELEMENT;
using Softmax = ColumnSoftmax<T>;
constexpr int WAVES = 4;
constexpr int THREADS = WAVES * WARP;
constexpr int STEPS = (D + MMA_K - 1) / MMA_K;
constexpr int V_TILES = (E + 15) / 16;  // of 16 columns of v
constexpr int KEYS_PER_LANE = sizeof(operand) / 2;  // keys whose values a lane holds
constexpr bool FEW_REGISTERS = WARP == 32 && V_TILES > 8;  // the accumulators take half of them
constexpr int PAGE_KEYS = PAGE == 0 ? 1 : PAGE;
// Whether a lane's rows of a tile are in one page, and follow from one address.
constexpr bool WHOLE_TILES = PAGE % ELEMENTS_PER_LANE == 0 && KEYS_PER_LANE == ELEMENTS_PER_LANE;
constexpr int KEY_LOOKUPS = WHOLE_TILES ? 1 : MMA_INSTRUCTIONS;
constexpr int KEYS_PER_LOOKUP = PAGE % ELEMENTS_PER_LANE == 0 ? ELEMENTS_PER_LANE : 1;  // aligned keys in one page

// --- what the cache holds: numbers, or codes of 8 bits ---

#ifdef FORMAT
using Stored = uint8_t;

// COUNT codes from `from` on, of which `valid` exist, as numbers; zeros for the others. COUNT of 1: a word.
template <int COUNT> DEVICE words<(COUNT > 1 ? COUNT * 2 : 4)> load_numbers(const uint8_t* from, int valid) {
    words<(COUNT > 1 ? COUNT * 2 : 4)> numbers = {};
    if constexpr (COUNT >= 4) {
        const words<COUNT> codes = load_bounded<COUNT>(from, valid);
#pragma unroll
        for (int i = 0; i < COUNT / 2; ++i) {
            numbers.w[i] = decode_pair<T, FORMAT>(codes.w[i / 2] >> i % 2 * 16 & 0xffffu);
        }
    } else {
        const uint32_t first = valid > 0 ? from[0] : 0, second = COUNT > 1 && valid > 1 ? from[COUNT - 1] : 0;
        numbers.w[0] = decode_pair<T, FORMAT>(first | second << 8);
    }
    return numbers;
}

// The second operand from global memory, as load_b_global has it of numbers.
DEVICE BFragment load_b_global(const uint8_t* row, int k, int remaining) {
#if defined(__GFX11__)
    const vec<words<16>, 2> both = {{load_numbers<8>(row + k, remaining),
                                     load_numbers<8>(row + k + ELEMENTS_PER_LANE, remaining - ELEMENTS_PER_LANE)}};
    return {__builtin_bit_cast(operand, both)};
#else
    const int own = lane_part() * ELEMENTS_PER_LANE;
    return {load_numbers<8>(row + k + own, remaining - own)};
#endif
}
#else
using Stored = T;
#endif

// --- where keys and values lie ---

// A row: `offset` elements behind `base`. Where all lanes have the same base, the load adds them.
struct Row {
    const Stored* base;
    uint32_t offset;

    DEVICE const Stored* at(int column) const {
        constexpr uint32_t BYTES = sizeof(Stored);
        return reinterpret_cast<const Stored*>(reinterpret_cast<const char*>(base) + offset * BYTES) + column;
    }
};

struct CacheRows {
    const Stored* data;
    int64_t page, row;

    DEVICE Row at(int page_index, int key) const {
        return {PAGE == 0 ? data + key * row : data + page_index * page + key % PAGE_KEYS * row, 0};
    }

    // COUNT rows from first + own on, `step` keys apart and in one page; `first` is the same in all lanes, rows are less
    // than 2^24 elements apart.
    template <int COUNT> DEVICE void near(Row (&rows)[COUNT], int page_index, int first, int own, int step) const {
        const Stored* const start = PAGE == 0 ? data + first * row : at(page_index, first + own).base;
        const uint32_t offset = PAGE == 0 ? static_cast<uint32_t>(own) * static_cast<uint32_t>(row) : 0;
        for (int i = 0; i < COUNT; ++i) {
            rows[i] = {start + i * step * row, offset};
        }
    }
};

// The pages of the keys that a lane loads of a tile. Behind `end` the last key before it is loaded once more.
struct PageIndices {
    int of_keys[KEY_LOOKUPS], of_values[KEYS_PER_LANE / KEYS_PER_LOOKUP];
};

struct PagedKV {
    CacheRows k, v;
    const int32_t* table;
    int pages, end;

    static DEVICE int key_row(int instruction) { return a_row_of_lane(instruction); }
    static DEVICE int value_row(int i) {
        return i + (KEYS_PER_LANE == ELEMENTS_PER_LANE ? lane_part() * ELEMENTS_PER_LANE : 0);
    }

    DEVICE int clamped(int key) const { return min(key, end - 1); }

    // Clamped to the cache.
    DEVICE int page_of(int key) const {
        const int page = table[clamped(key) / PAGE_KEYS];
        return page < 0 ? 0 : min(page, pages - 1);
    }

    DEVICE PageIndices look_up(int n) const {
        PageIndices found = {};
        if (PAGE != 0) {
            for (int i = 0; i < KEY_LOOKUPS; ++i) {
                found.of_keys[i] = page_of(n + key_row(i));
            }
            for (int i = 0; i < KEYS_PER_LANE / KEYS_PER_LOOKUP; ++i) {
                found.of_values[i] = page_of(n + value_row(i * KEYS_PER_LOOKUP));
            }
        }
        return found;
    }
};

// --- the product with keys ---

// Queries in LDS as the second operand takes them: chunks of 16 bytes, 16 columns side by side.
constexpr int Q_CHUNKS = STEPS * MMA_K / ELEMENTS_PER_LANE;

DEVICE BFragment load_queries(const char* queries, int step) {
    const char* const from = queries + (step * (MMA_K / ELEMENTS_PER_LANE) * MMA_N + lane_column()) * 16;
#if defined(__GFX11__)
    const vec<words<16>, 2> both = {{load_words<16>(from), load_words<16>(from + MMA_N * 16)}};
    return {__builtin_bit_cast(operand, both)};
#else
    return {load_words<16>(from + lane_part() * MMA_N * 16)};
#endif
}

// Steps whose keys are in registers at once.
constexpr int STEPS_IN_REGISTERS = (FEW_REGISTERS ? 128 : 256) / sizeof(AFragment);

DEVICE AccumulatorFragment compute_scores(const Row (&rows)[MMA_INSTRUCTIONS], const char* queries) {
    AccumulatorFragment acc;
    acc.fill(0.0f);
#pragma unroll
    for (int first = 0; first < STEPS; first += STEPS_IN_REGISTERS) {
        AFragment keys[STEPS_IN_REGISTERS];
#pragma unroll
        for (int i = 0; i < STEPS_IN_REGISTERS && first + i < STEPS; ++i) {
            for (int j = 0; j < MMA_INSTRUCTIONS; ++j) {
                const int d = (first + i) * MMA_K;
                keys[i].registers[j] = load_b_global(rows[j].at(0), d, D - d).registers;
            }
        }
#pragma unroll
        for (int i = 0; i < STEPS_IN_REGISTERS && first + i < STEPS; ++i) {
            mma<T>(acc, keys[i], load_queries(queries, first + i));
        }
    }
    return acc;
}

// --- the product with values ---

// The row of a tile of values that a lane loads, and the one of its accumulator `i`.
DEVICE int own_value_row() {
    return a_row_of_lane(0) / ELEMENTS_PER_LANE * ACCUMULATORS + a_row_of_lane(0) % ELEMENTS_PER_LANE;
}
DEVICE int accumulator_row(int i) { return lane_part() * ACCUMULATORS + i; }

// How many tiles are loaded at once, from `tile` on: row r stands for as many columns, from r * width on.
constexpr int width_from(int tile) {
    const int columns = E - tile * 16;
    return columns >= 128 && !FEW_REGISTERS ? 8 : columns >= 64 ? 4 : columns >= 32 ? 2 : 1;
}

template <int WIDTH> DEVICE words<(WIDTH > 1 ? WIDTH * 2 : 4)> load_neighbours(const Stored* from) {
#ifdef FORMAT
    return load_numbers<WIDTH>(from, WIDTH);
#else
    if constexpr (WIDTH > 1) {
        return load_unaligned<WIDTH * 2>(from);
    } else {
        return {{from->bits}};
    }
#endif
}

using OutputAccumulators = accumulators[V_TILES];

template <int TILE>
DEVICE void accumulate_pv(OutputAccumulators& acc_o, const Row (&rows)[KEYS_PER_LANE], const BFragment& p) {
    constexpr int WIDTH = width_from(TILE);
    const int column = TILE * 16 + own_value_row() * WIDTH;
    decltype(load_neighbours<WIDTH>(nullptr)) loaded[KEYS_PER_LANE];
    for (int i = 0; i < KEYS_PER_LANE; ++i) {
        loaded[i] = load_neighbours<WIDTH>(rows[i].at(WIDTH > 1 ? column : min(column, E - 1)));
    }
#pragma unroll
    for (int f = 0; f < WIDTH; ++f) {
        operand values;
        for (int i = 0; i < KEYS_PER_LANE / 2; ++i) {
            values.w[i] = pair_halves(loaded[2 * i].w[f / 2], loaded[2 * i + 1].w[f / 2], f % 2);
        }
        acc_o[TILE + f] = mma_instruction<T>(values, p.registers, acc_o[TILE + f]);
    }
    if constexpr (TILE + WIDTH < V_TILES) {
        accumulate_pv<TILE + WIDTH>(acc_o, rows, p);
    }
}

// --- what a block computes, and its partial results ---

struct WorkTile {
    int64_t z;
    int kv_head, tile, split;
    int kv_heads, qheads_per_kvhead, queries, splits;

    // The heads of one token are neighbouring blocks.
    DEVICE WorkTile(int index, int tiles, int kv_heads, int qheads_per_kvhead, int queries, int splits)
        : kv_heads(kv_heads), qheads_per_kvhead(qheads_per_kvhead), queries(queries), splits(splits) {
        kv_head = index % kv_heads;
        tile = index / kv_heads % tiles;
        split = index / kv_heads / tiles % splits;
        z = index / kv_heads / tiles / splits;
    }
    DEVICE int row(int column) const { return tile * MMA_N + column; }
    DEVICE int query(int column) const { return row(column) / qheads_per_kvhead; }
    DEVICE int head(int column) const { return kv_head * qheads_per_kvhead + row(column) % qheads_per_kvhead; }
    DEVICE int columns() const { return min(queries * qheads_per_kvhead - tile * MMA_N, MMA_N); }
    // Into partial results [z, head, query, splits].
    DEVICE int64_t partial_index(int column) const {
        const int64_t row_index = (z * (kv_heads * qheads_per_kvhead) + head(column)) * queries + query(column);
        return row_index * splits + split;
    }
};

constexpr int TILES_AT_ONCE = 4;  // tiles whose accumulators are added up at once
typedef float Exchange[WAVES][MMA_N][TILES_AT_ONCE * 16 + 4];

// Stores the waves' accumulators times `v_scale`, added in order of the waves; this wave's are multiplied by `factor`.
template <int TILE>
DEVICE void store_partial(const OutputAccumulators& acc_o, float factor, float v_scale, int wave, Exchange& exchange,
                          const WorkTile& work, float* o_partial) {
    constexpr int WIDTH = width_from(TILE);
    constexpr int AT_ONCE = WIDTH < TILES_AT_ONCE ? WIDTH : TILES_AT_ONCE;
    constexpr int COUNT = AT_ONCE * 16;
#pragma unroll
    for (int first = 0; first < WIDTH; first += AT_ONCE) {
        lds_barrier();
#pragma unroll
        for (int i = 0; i < ACCUMULATORS; ++i) {
            for (int f = 0; f < AT_ONCE; ++f) {
                exchange[wave][lane_column()][accumulator_row(i) * AT_ONCE + f] = acc_o[TILE + first + f][i] * factor;
            }
        }
        lds_barrier();
        for (int index = thread_x(); index < work.columns() * COUNT; index += THREADS) {
            const int row = index / COUNT, at = index % COUNT;
            const int column = TILE * 16 + at / AT_ONCE * WIDTH + first + at % AT_ONCE;
            float sum = 0.0f;
            for (int w = 0; w < WAVES; ++w) {
                sum += exchange[w][row][at];
            }
            if (column < E) {
                o_partial[work.partial_index(row) * E + column] = sum * v_scale;
            }
        }
    }
    if constexpr (TILE + WIDTH < V_TILES) {
        store_partial<TILE + WIDTH>(acc_o, factor, v_scale, wave, exchange, work, o_partial);
    }
}

// --- the softmax ---

// Which keys this lane's query sees: low <= key <= high.
struct MaskBounds {
    int low, high;
};

// Products become scores, all but the scale where SCALE_ONLY.
DEVICE void apply_scale(float (&scores)[ELEMENTS_PER_LANE], const AccumulatorFragment& products, float scale,
                        float cap) {
    for (int i = 0; i < ELEMENTS_PER_LANE; ++i) {
        scores[i] = SCALE_ONLY ? products.get(i) : products.get(i) * scale;
        if (SOFTCAP) {
            scores[i] = cap * (1.0f - 2.0f * rcp_fast(1.0f + exp2_ftz(scores[i])));
        }
    }
}

// Scores of keys that are not seen become -inf.
DEVICE void apply_mask(float (&scores)[ELEMENTS_PER_LANE], MaskBounds mask, int n) {
    for (int i = 0; i < ELEMENTS_PER_LANE; ++i) {
        const int key = n + lane_part() * ELEMENTS_PER_LANE + i;
        if (key > mask.high || (LEFT && key < mask.low)) {
            scores[i] = -INF_F;
        }
    }
}

// `pages`: of the cache. `tiles` of columns of a KV head; `splits` of the keys that memory has room for, `max_splits`
// that a sequence is cut into.
KERNEL_RESIDENT(THREADS, 2)
void attention_decode(const AttentionParams params, int pages, int tiles, int splits, int max_splits CACHE_SCALES) {
    const AttentionParams& p = params;
    SHARED __attribute__((aligned(16))) char q_tile[Q_CHUNKS * MMA_N * 16];
    SHARED __attribute__((aligned(16))) Exchange exchange;
    SHARED float wave_row_maxima[WAVES][MMA_N], wave_row_sums[WAVES][MMA_N];
    const int wave = __builtin_amdgcn_readfirstlane(thread_x() / WARP);
    const WorkTile work(block_x(), tiles, p.kv_heads, p.qheads_per_kvhead, p.seqlen_q, splits);
    const int length = length_of(p.seq_lens, work.z, p.seqlen_k);
    const KvSplits<CHUNK, LEFT> kv_splits(length, p.seqlen_q, p.left, max_splits);
    if (work.split >= kv_splits.count) {
        return;
    }
    const int begin = kv_splits.first + work.split * kv_splits.size;
    const int end = min(length - begin, kv_splits.size) + begin;

    const T* const q = static_cast<const T*>(p.q) + work.z * p.q_batch;
    for (int id = thread_x(); id < Q_CHUNKS * MMA_N; id += THREADS) {
        const int column = id % MMA_N, d = id / MMA_N * ELEMENTS_PER_LANE;
        words<16> chunk = {};
        if (column < work.columns()) {
            chunk = load_bounded<16>(q + work.query(column) * p.q_row + work.head(column) * p.q_head + d, D - d);
        }
        store_words<16>(q_tile + id * 16, chunk);
    }
    lds_barrier();

    const Stored* k = static_cast<const Stored*>(p.k) + work.kv_head * p.k_head;
    const Stored* v = static_cast<const Stored*>(p.v) + work.kv_head * p.v_head;
    const int* table = p.block_table;
    if (PAGE == 0) {
        k += work.z * p.k_batch;
        v += work.z * p.v_batch;
    } else {
        table += work.z * p.block_table_row;
    }
    const PagedKV cache{{k, p.k_batch, p.k_row}, {v, p.v_batch, p.v_row}, table, pages, end};
    const int last = length - p.seqlen_q + work.query(lane_column());  // the query's own key
    const MaskBounds mask{last - p.left, RIGHT ? min(last + p.right, end - 1) : end - 1};

    const float score_scale = p.score_scale * K_SCALE;
    Softmax softmax;
    OutputAccumulators acc_o;
    for (int tile = 0; tile < V_TILES; ++tile) {
        acc_o[tile] = 0.0f;
    }
    int q_offset = 0;
    // The keys that all queries of the block see: from seen_first to before seen_stop.
    const int diagonal = length - p.seqlen_q;
    const int seen_first = LEFT ? diagonal + work.query(MMA_N - 1) - p.left : begin;
    const int seen_stop = RIGHT ? min(diagonal + work.query(0) + p.right + 1, end) : end;
    const bool near = p.k_row < 1 << 24 && p.v_row < 1 << 24;
    PageIndices next = cache.look_up(begin + wave * MMA_M);  // an iteration before: loads would wait for a load
    for (int n = begin + wave * MMA_M; n < end; n += WAVES * MMA_M) {
        asm("" : "+v"(q_offset));  // or the compiler keeps all queries in registers
        const PageIndices indices = next;
        next = cache.look_up(n + WAVES * MMA_M);
        const bool whole = near && n + MMA_M <= end;
        Row k_rows[MMA_INSTRUCTIONS], v_rows[KEYS_PER_LANE];
        if (whole && WHOLE_TILES) {
            cache.k.near(k_rows, indices.of_keys[0], n, PagedKV::key_row(0), 4);
            cache.v.near(v_rows, indices.of_values[0], n, PagedKV::value_row(0), 1);
        } else {
            for (int i = 0; i < MMA_INSTRUCTIONS; ++i) {
                k_rows[i] = cache.k.at(indices.of_keys[i % KEY_LOOKUPS], cache.clamped(n + PagedKV::key_row(i)));
            }
            for (int i = 0; i < KEYS_PER_LANE; ++i) {
                const int key = cache.clamped(n + PagedKV::value_row(i));
                v_rows[i] = cache.v.at(indices.of_values[i / KEYS_PER_LOOKUP], key);
            }
        }
        float scores[ELEMENTS_PER_LANE];
        apply_scale(scores, compute_scores(k_rows, q_tile + q_offset), score_scale, p.softcap_log2);
        if (n + MMA_M > seen_stop || (LEFT && n < seen_first)) {
            apply_mask(scores, mask, n);
        }
        float lane_max = scores[0];
        for (int i = 1; i < ELEMENTS_PER_LANE; ++i) {
            lane_max = math_max_number(lane_max, scores[i]);
        }
        lane_max = SCALE_ONLY ? lane_max * score_scale : lane_max;
        if (any_lane(lane_max > softmax.limit)) {
            const float factor = softmax.update_max(column_max(lane_max));
            for (int tile = 0; tile < V_TILES; ++tile) {
                acc_o[tile] *= factor;
            }
        }
        for (int i = 0; i < ELEMENTS_PER_LANE; ++i) {
            scores[i] = exp2_ftz(SCALE_ONLY ? math_fma(scores[i], score_scale, -softmax.offset)
                                            : scores[i] - softmax.offset);
            softmax.row_sum += scores[i];
        }
        accumulate_pv<0>(acc_o, v_rows, p_fragment<T>(scores));
    }

    const float row_sum = column_sum(softmax.row_sum) * Softmax::UNSCALE;
    if (lane_part() == 0) {
        wave_row_maxima[wave][lane_column()] = softmax.row_max;
        wave_row_sums[wave][lane_column()] = row_sum;
    }
    lds_barrier();
    float block_max = -INF_F, block_sum = 0.0f;
    for (int w = 0; w < WAVES; ++w) {
        block_max = math_max_number(block_max, wave_row_maxima[w][lane_column()]);
    }
    const float base = exponent_base(block_max);
    for (int w = 0; w < WAVES; ++w) {
        block_sum += exp2_ftz(wave_row_maxima[w][lane_column()] - base) * wave_row_sums[w][lane_column()];
    }
    if (thread_x() < work.columns()) {
        p.max_partial[work.partial_index(thread_x())] = block_max;
        p.sum_partial[work.partial_index(thread_x())] = block_sum;
    }
    store_partial<0>(acc_o, exp2_ftz(softmax.row_max - base) * Softmax::UNSCALE, V_SCALE, wave, exchange, work,
                     p.o_partial);
}

// --- the splits' combination ---
//
// In their order: a block takes one query of one head and COMBINE_COLUMNS columns of its o. Line i of its threads adds
// every COMBINE_LINES-th split from i on, then the lines are added, in order as well.

constexpr int COMBINE_COLUMNS = 32;
constexpr int COMBINE_LINES = 8;
constexpr int COMBINE_THREADS = COMBINE_LINES * COMBINE_COLUMNS;

// The softmax of some keys: row_max and row_sum of their scores, and a column of P @ v, both times exp2(-row_max).
struct Partial {
    float row_max = -INF_F, row_sum = 0.0f, acc_o = 0.0f;

    DEVICE float base() const { return row_max == -INF_F ? 0.0f : row_max; }

    DEVICE void add(float other_max, float other_sum, float other_o) {
        const float before = row_max;
        row_max = math_max_number(row_max, other_max);
        const float own = exp2_fast(before - base()), weight = exp2_fast(other_max - base());
        row_sum = row_sum * own + other_sum * weight;
        acc_o = acc_o * own + other_o * weight;
    }
};

// The partial results are of [z, head, query, split]; there is room for `splits`, of which a sequence has at most
// `max_splits`.
KERNEL(COMBINE_THREADS) void attention_decode_combine(const AttentionParams params, int splits, int max_splits) {
    const AttentionParams& p = params;
    const int index = block_x();
    const int query = index % p.seqlen_q, head = index / p.seqlen_q % p.heads, z = index / p.seqlen_q / p.heads;
    const int length = length_of(p.seq_lens, z, p.seqlen_k);
    const int count = KvSplits<CHUNK, LEFT>(length, p.seqlen_q, p.left, max_splits).count;
    const int64_t first = static_cast<int64_t>(index) * splits;
    const float *const o_partial = p.o_partial + first * E;
    const float *const max_partial = p.max_partial + first, *const sum_partial = p.sum_partial + first;

    const int line = thread_x() / COMBINE_COLUMNS, place = thread_x() % COMBINE_COLUMNS;
    const int column = block_y() * COMBINE_COLUMNS + place;
    const bool inside = column < E;
    Partial own;
    for (int split = line; split < count; split += COMBINE_LINES) {
        const float acc_o = inside ? o_partial[static_cast<int64_t>(split) * E + column] : 0.0f;
        own.add(max_partial[split], sum_partial[split], acc_o);
    }
    SHARED float board[3][COMBINE_LINES][COMBINE_COLUMNS];
    board[0][line][place] = own.row_max;
    board[1][line][place] = own.row_sum;
    board[2][line][place] = own.acc_o;
    barrier();
    if (line != 0 || !inside) {
        return;
    }
#pragma unroll
    for (int i = 1; i < COMBINE_LINES; ++i) {
        own.add(board[0][i][place], board[1][i][place], board[2][i][place]);
    }
    if (SINKS) {
        own.add(p.sinks[head] * LOG2_E, 1.0f, 0.0f);
    }
    const bool seen = own.row_sum > 0.0f || own.row_sum != own.row_sum;
    const float result = seen ? div_rn(own.acc_o, own.row_sum) : 0.0f;
    T* const o = static_cast<T*>(p.o) + z * p.o_batch + head * p.o_head + query * p.o_row;
    o[column] = from_float<T>(result);
    if (column == 0) {
        p.lse[index] = seen ? own.row_max * LN_2 + math_log(own.row_sum) : -INF_F;
    }
}
