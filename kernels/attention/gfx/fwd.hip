// o = softmax(scores) @ v per head on AMD's matrix units, and the scores' lse.
//
// A block computes TILE_M queries of one head, a wave TILES_PER_WAVE * 16 of them, and loops over the keys that they
// see in blocks of TILE_N. Scores are computed transposed, keys by queries: a query's scores then lie in the lanes of
// one column, and P, rounded, is the second operand of o^T = v^T P^T without leaving the registers. K lies in LDS as
// it comes, V transposed. The next K is loaded while the products with this one run, the next V while those with this
// one do; each has one buffer, and a step two barriers.
//
// Of attention_fp8, q, k and v are codes of 8 bits: codes.h says what changes.
//
// Defines: ELEMENT (bf16, f16), of o, and but for codes of q, k and v; FORMAT: of codes, none where there are none, with
// NATIVE (codes.h); HEAD_D, HEAD_E: the head sizes, as multiples of 32; EVEN_D, EVEN_E: whether they are exact;
// TILE_N, WAVES, TILES_PER_WAVE; WAVES_E: waves with the same queries, each of which computes its part of o's columns;
// LEFT, RIGHT: whether the window is bounded on that side of the diagonal; SCALE_ONLY: whether scores are products
// times a positive scale and nothing else; SOFTCAP, BIAS, SINKS; Q_IN_LDS: whether Q lies in LDS; VARLEN: packed
// sequences (attention_varlen); BUFFER_LOADS: whether k and v come by buffer descriptors (stream.h); PARAMS_LAYOUT
// (params.h).
#include "attention/device/params.h"
#include "attention/device/seqlen_info.h"
#include "attention/device/softmax.h"
#include "attention/device/tile_scheduler.h"
#include "stream.h"

// What the numbers of q, products and o are multiplied by: the first is 1 but for codes whose scales are not above 0.
struct HeadScales {
    float query, score, value;
};

#ifdef FORMAT
#include "codes.h"
#define BIAS 0  // formats have a bias of another kind
#else
#define CODE_SCALES
#define NATIVE_CODES 0
#define WIDE_MMA 0
using T = ELEMENT;
using KeyElement = T;
using ValueElement = T;
#endif

// Types: T of operands, KeyElement (of q and k) and ValueElement of what memory has, Result of o.
using Result = ELEMENT;
using Softmax = ColumnSoftmax<T>;
constexpr int THREADS = WAVES * WARP;
constexpr int WAVE_M = TILES_PER_WAVE * MMA_N;
constexpr int TILE_M = WAVES / WAVES_E * WAVE_M;
constexpr int PREFETCH = 2;  // operands on their way from LDS under the products; 4 spill on gfx942
// Whether P are added two at a time. CDNA's v_pk_add_f32 makes products wait, where an addition alone does not: worth
// it where the vector pipe is busier than the matrix pipe, with small heads.
constexpr bool SUM_PAIRS = WARP == 32 || HEAD_D + HEAD_E <= 128;
// Whether the sum of a lane's new P, in place of the largest score, says that row_max lags too far. The loop has no
// maximum then, but scores are computed once more where row_max moves.
constexpr bool CHECK_SUMS = WARP == 64 && HEAD_D + HEAD_E <= 128 && !NATIVE_CODES;
// Which waves issue before the SIMD's others: those that compute products, or those in their softmax. The waves then
// take turns at the matrix pipe and the vector pipe; first comes what needs the busier one.
constexpr bool PRODUCTS_FIRST = HEAD_D + HEAD_E > 128 && !NATIVE_CODES;
static_assert(!CHECK_SUMS || TILE_N / LANES_PER_COLUMN <= 16, "see ColumnSoftmax");
constexpr int FRAGMENTS_N = TILE_N / MMA_M;
// Of a row of q and k, and of a column of v, 16 bits each.
constexpr int NUMBERS = ElementTraits<KeyElement>::NUMBERS;
constexpr int ROW_D = HEAD_D / NUMBERS, COLUMN_N = TILE_N / NUMBERS;
constexpr int STEPS_D = ROW_D / MMA_K;
constexpr int STEPS_N = COLUMN_N / MMA_K;
constexpr int WAVE_E = HEAD_E / WAVES_E;
constexpr int FRAGMENTS_E = WAVE_E / MMA_M;
static_assert(TILE_N % 32 == 0 && ROW_D % 32 == 0 && HEAD_E % 32 == 0, "LDS rows are whole swizzle groups");

// Whether V is transposed on the way from LDS. With the element loads of odd heads scalar registers would spill.
#if defined(__gfx950__) && BUFFER_LOADS && !NATIVE_CODES
#define COLUMN_TILE 1
#else
#define COLUMN_TILE 0
#endif

using KeyTile = LdsTile<ROW_D>;
constexpr int K_BYTES = KeyTile::bytes(TILE_N);
#if COLUMN_TILE
using ValueTile = ColumnTile<HEAD_E>;
using ValueFragments = ColumnFragments<HEAD_E>;
using ValueCopy = TileCopy<ValueElement, HEAD_E, TILE_N, THREADS, ValueTile>;
constexpr int V_BYTES = ValueTile::bytes(TILE_N);
#else
using ValueTile = LdsTile<COLUMN_N>;
using ValueFragments = LdsFragments<COLUMN_N>;
using ValueCopy = TransposedTileCopy<ValueElement, HEAD_E, TILE_N, THREADS>;
constexpr int V_BYTES = ValueTile::bytes(HEAD_E);
#endif
constexpr int Q_BYTES = Q_IN_LDS ? KeyTile::bytes(TILE_M) : 0;

// What a block computes: queries from `row` on, below `q.end`, and the keys from `key` to `key_end`, of which query i
// sees j where low <= j - i <= high.
struct BlockProblem {
    HeadRows<KeyElement> q, k;
    HeadRows<ValueElement> v;
    const Result* bias;
    int64_t bias_row;
    int row, key, key_end, low, high;
};

struct ScoreScale {
    float scale, cap;
};

// A wave's queries as second operands: in registers, or in LDS.
template <bool IN_LDS> struct QueryFragments;

template <> struct QueryFragments<true> {
    const char* tile;
    int first;  // the wave's first row of it

    DEVICE QueryFragments(const BlockProblem& problem, int row, float factor, char* lds) {
        TileCopy<KeyElement, ROW_D, TILE_M, THREADS> copy;
        copy.template load<EVEN_D>(problem.q, problem.row);
        for (auto& chunk : copy.registers) {
            chunk = ElementTraits<KeyElement>::multiply(chunk, factor);
        }
        copy.store(lds);
        tile = lds;
        first = row - problem.row;
    }
    DEVICE BFragment get(int t, int step) const { return KeyTile::load_b(tile, first + t * MMA_N, step * MMA_K); }
};

template <> struct QueryFragments<false> {
    BFragment held[TILES_PER_WAVE][STEPS_D];

    DEVICE QueryFragments(const BlockProblem& problem, int row, float factor, char*) {
        for (int t = 0; t < TILES_PER_WAVE; ++t) {
            const int own = min(row + t * MMA_N + lane_column(), problem.q.end - 1);
            const KeyElement* const data = problem.q.data + own * problem.q.stride;
            for (int i = 0; i < STEPS_D; ++i) {
                held[t][i] = load_b_global(data, i * MMA_K, EVEN_D ? HEAD_D : problem.q.width - i * MMA_K * NUMBERS, factor);
            }
        }
    }
    DEVICE BFragment get(int t, int step) const { return held[t][step]; }
};

using Queries = QueryFragments<Q_IN_LDS>;

// --- one block of keys ---

// The bias of the lane's keys; what is loaded for keys that do not exist is masked later.
DEVICE void load_bias(vec<Result, ELEMENTS_PER_LANE> (&bias)[FRAGMENTS_N], const BlockProblem& problem, int row, int key) {
    const Result* const data = problem.bias + min(row, problem.q.end - 1) * problem.bias_row;
    const int own_key = key + lane_part() * ELEMENTS_PER_LANE;
    if (key + TILE_N <= problem.key_end) {
        for (int n = 0; n < FRAGMENTS_N; ++n) {
            bias[n] = __builtin_bit_cast(vec<Result, ELEMENTS_PER_LANE>, load_unaligned<16>(data + own_key + n * MMA_M));
        }
        return;
    }
    for (int n = 0; n < FRAGMENTS_N; ++n) {
        for (int i = 0; i < ELEMENTS_PER_LANE; ++i) {
            bias[n].v[i] = data[min(own_key + n * MMA_M + i, problem.key_end - 1)];
        }
    }
}

// Whether some of the wave's queries, from `row` on, exists and may see a key of the block from `key` on.
DEVICE bool wave_sees(const BlockProblem& problem, int row, int key) {
    return row < problem.q.end && (!RIGHT || key < row + WAVE_M + problem.high) &&
           (!LEFT || key + TILE_N > row + problem.low);
}

// Whether all of them see all of its keys.
DEVICE bool wave_sees_all(const BlockProblem& problem, int row, int key) {
    return key + TILE_N <= (RIGHT ? min(problem.key_end, row + problem.high + 1) : problem.key_end) &&
           (!LEFT || key >= row + WAVE_M - 1 + problem.low);
}

// Products become scores, all but the scale where SCALE_ONLY, for the lane's query `row` and keys from `key` on.
DEVICE void apply_scale(AccumulatorFragment (&scores)[FRAGMENTS_N], const BlockProblem& problem, const ScoreScale& how,
                        int row, int key) {
    if constexpr (SCALE_ONLY) {
        return;
    }
    vec<Result, ELEMENTS_PER_LANE> bias[FRAGMENTS_N];
    if constexpr (BIAS) {
        load_bias(bias, problem, row, key);
    }
#pragma unroll
    for (int n = 0; n < FRAGMENTS_N; ++n) {
#pragma unroll
        for (int i = 0; i < ELEMENTS_PER_LANE; ++i) {
            float x = scores[n].get(i);
            if constexpr (SOFTCAP) {
                x = how.cap * math_fma(-2.0f, rcp_fast(1.0f + exp2_ftz(x * how.scale)), 1.0f);
            } else {
                x *= how.scale;
            }
            if constexpr (BIAS) {
                x = math_fma(to_float(bias[n].v[i]), LOG2_E, x);
            }
            scores[n].set(i, x);
        }
    }
}

// Scores of keys that are not seen become -inf, for the lane's query `row` and keys from `key` on.
DEVICE void apply_mask(AccumulatorFragment (&scores)[FRAGMENTS_N], const BlockProblem& problem, int row, int key) {
    const int own_key = key + lane_part() * ELEMENTS_PER_LANE;
    const int last = RIGHT ? min(problem.key_end - 1, row + problem.high) - own_key : problem.key_end - 1 - own_key;
    const int first = row + problem.low - own_key;
#pragma unroll
    for (int n = 0; n < FRAGMENTS_N; ++n) {
#pragma unroll
        for (int i = 0; i < ELEMENTS_PER_LANE; ++i) {
            const int at = n * MMA_M + i;
            if (at > last || (LEFT && at < first)) {
                scores[n].set(i, -INF_F);
            }
        }
    }
}

// The largest of the scores that a lane has of its query; of NaN and a number the number.
DEVICE float max_of_lane(const AccumulatorFragment (&scores)[FRAGMENTS_N], const ScoreScale& how) {
    float lane_max = -INF_F;
#pragma unroll
    for (int n = 0; n < FRAGMENTS_N; ++n) {
        for (int i = 0; i < ELEMENTS_PER_LANE; ++i) {
            lane_max = math_max_number(lane_max, scores[n].get(i));
        }
    }
    return SCALE_ONLY ? lane_max * how.scale : lane_max;
}

// Scores become P, rounded, as the second operand of the product with V. Returns the sum of the lane's.
DEVICE float p_of_scores(const AccumulatorFragment (&scores)[FRAGMENTS_N], const Softmax& softmax,
                         const ScoreScale& how, BFragment (&p)[STEPS_N]) {
    float sums[2] = {0.0f, 0.0f};
#pragma unroll
    for (int n = 0; n < FRAGMENTS_N; ++n) {
        float values[ELEMENTS_PER_LANE];
        for (int i = 0; i < ELEMENTS_PER_LANE; ++i) {
            const float x = scores[n].get(i);
            values[i] = exp2_ftz(SCALE_ONLY ? math_fma(x, how.scale, -softmax.offset) : x - softmax.offset);
            sums[i % 2] += values[i];
            if constexpr (!SUM_PAIRS) {
                asm("" : "+v"(sums[i % 2]));  // else the compiler pairs them with each other or the next tile's
            }
        }
        PFragments<T>::set(p, n, values);
    }
    return sums[0] + sums[1];
}

// Between a wave's products and its softmax.
template <bool PRODUCTS> DEVICE void begin_phase() {
    if constexpr (WARP == 64) {
        __builtin_amdgcn_s_setprio(PRODUCTS == PRODUCTS_FIRST);
    }
}

using Scores = AccumulatorFragment[TILES_PER_WAVE][FRAGMENTS_N];

// The wave's scores of one block of keys, -inf where MASKED and not seen.
template <bool MASKED>
DEVICE void compute_scores(Scores& scores, const Queries& queries, const BlockProblem& problem, const ScoreScale& how,
                           int row, int key, const LdsFragments<ROW_D>& keys) {
    for (int t = 0; t < TILES_PER_WAVE; ++t) {
        for (int n = 0; n < FRAGMENTS_N; ++n) {
            scores[t][n].fill(0.0f);
        }
    }
    begin_phase<true>();
#if WIDE_MMA
    prefetch<STEPS_D / 2 * FRAGMENTS_N, PREFETCH>(
        [&](int i) { return load_wide(keys, i % FRAGMENTS_N * MMA_M, i / FRAGMENTS_N * (2 * MMA_K)); },
        [&](int i, const WideFragment& a) {
            const int step = i / FRAGMENTS_N * 2;
            for (int t = 0; t < TILES_PER_WAVE; ++t) {
                mma_wide(scores[t][i % FRAGMENTS_N], a, queries.get(t, step), queries.get(t, step + 1));
            }
        });
#else
    prefetch<STEPS_D * FRAGMENTS_N, PREFETCH>(
        [&](int i) { return keys.load(i % FRAGMENTS_N * MMA_M, i / FRAGMENTS_N * MMA_K); },
        [&](int i, const AFragment& a) {
            for (int t = 0; t < TILES_PER_WAVE; ++t) {
                mma<T>(scores[t][i % FRAGMENTS_N], a, queries.get(t, i / FRAGMENTS_N));
            }
        });
#endif
    for (int t = 0; t < TILES_PER_WAVE; ++t) {
        for (int n = 0; n < FRAGMENTS_N; ++n) {
            scores[t][n].materialize();
        }
    }
    begin_phase<false>();
    for (int t = 0; t < TILES_PER_WAVE; ++t) {
        const int own_row = row + t * MMA_N + lane_column();
        apply_scale(scores[t], problem, how, own_row, key);
        if (MASKED && !wave_sees_all(problem, row, key)) {
            apply_mask(scores[t], problem, own_row, key);
        }
    }
}

struct ForwardState {
    AccumulatorFragment acc_o[TILES_PER_WAVE][FRAGMENTS_E];
    Softmax softmax[TILES_PER_WAVE];
    int column;         // the wave's first of o
    bool first = true;  // whether the wave has seen no keys

    DEVICE void rescale_o(int t, float factor) {
        for (int e = 0; e < FRAGMENTS_E; ++e) {
            acc_o[t][e].scale(factor);
        }
    }

    // P of one block of keys. Whether a query's row_max moves does not depend on the wave's other queries: its lanes
    // agree on their largest score, or sum, before they compare.
    template <bool MASKED>
    DEVICE void compute_p(const Queries& queries, const BlockProblem& problem, const ScoreScale& how, int row, int key,
                          BFragment (&p)[TILES_PER_WAVE][STEPS_N], const LdsFragments<ROW_D>& keys) {
        float sums[TILES_PER_WAVE] = {};
        const auto p_of = [&](const Scores& scores) {
            for (int t = 0; t < TILES_PER_WAVE; ++t) {
                sums[t] = p_of_scores(scores[t], softmax[t], how, p[t]);
            }
        };
        if constexpr (CHECK_SUMS) {
            bool moves = true;
            if (!first) {
                Scores scores;
                compute_scores<MASKED>(scores, queries, problem, how, row, key, keys);
                p_of(scores);
                moves = false;
                for (int t = 0; t < TILES_PER_WAVE; ++t) {
                    moves |= sums[t] > softmax[t].sum_limit;
                }
            }
            if (__builtin_expect(any_lane(moves), false)) {
                first = false;
                Scores scores;  // once more: registers did not hold them beside P
                compute_scores<MASKED>(scores, queries, problem, how, row, key, keys);
                for (int t = 0; t < TILES_PER_WAVE; ++t) {
                    const float lane_max = max_of_lane(scores[t], how);
                    rescale_o(t, softmax[t].update_max(column_max(lane_max), column_max(sums[t])));
                }
                p_of(scores);
            }
        } else {
            Scores scores;
            compute_scores<MASKED>(scores, queries, problem, how, row, key, keys);
            float lane_max[TILES_PER_WAVE];
            bool moves = false;
            for (int t = 0; t < TILES_PER_WAVE; ++t) {
                lane_max[t] = max_of_lane(scores[t], how);
                moves |= lane_max[t] > softmax[t].limit;
            }
            if (any_lane(moves)) {
                for (int t = 0; t < TILES_PER_WAVE; ++t) {
                    rescale_o(t, softmax[t].update_max(column_max(lane_max[t])));
                }
            }
            p_of(scores);
        }
        for (int t = 0; t < TILES_PER_WAVE; ++t) {
            softmax[t].row_sum += sums[t];
        }
    }

    // acc_o += P @ V.
    DEVICE void accumulate_pv(const BFragment (&p)[TILES_PER_WAVE][STEPS_N],
                               const ValueFragments& values) {
        begin_phase<true>();
        prefetch<STEPS_N * FRAGMENTS_E, PREFETCH>(
            [&](int i) { return values.load(column + i % FRAGMENTS_E * MMA_M, i / FRAGMENTS_E * MMA_K); },
            [&](int i, const AFragment& a) {
                for (int t = 0; t < TILES_PER_WAVE; ++t) {
                    mma<T>(acc_o[t][i % FRAGMENTS_E], a, p[t][i / FRAGMENTS_E]);
                }
            });
    }
};

// --- a block ---

// The keys that some query of the block sees, in blocks of TILE_N, and those that all of them see: from the first to
// before the second.
struct KeyRange {
    int first, stop, seen_first, seen_stop;
};
DEVICE KeyRange key_range(const BlockProblem& problem) {
    KeyRange range = {problem.key, problem.key_end, problem.key, problem.key_end};
    if (LEFT) {
        range.seen_first = problem.row + TILE_M - 1 + problem.low;
        const int seen = min(max(problem.row + problem.low, problem.key), problem.key_end);
        range.first = problem.key + (seen - problem.key) / TILE_N * TILE_N;
    }
    if (RIGHT) {
        range.stop = min(min(problem.row + TILE_M, problem.q.end) + problem.high, problem.key_end);
        range.seen_stop = min(problem.row + problem.high + 1, problem.key_end);
    }
    return range;
}

template <bool VALUE> struct Constant {
    static constexpr bool value = VALUE;
};

// Tiles of rows that follow each other, by loads to their own addresses.
template <class Copy, bool EVEN> class CopyStream {
    Copy copy;
    HeadRows<typename Copy::Element> rows;
    int next;
    char* tile;

  public:
    DEVICE void start(const HeadRows<typename Copy::Element>& from, int first, int end, char* to) {
        tile = to;
        rows = from;
        rows.end = end;
        next = first;
    }
    DEVICE void load() {
        if (next < rows.end) {
            copy.template load<EVEN>(rows, next);
        }
        next += TILE_N;
    }
    DEVICE void store() const { copy.store(tile); }
};
#if !BUFFER_LOADS
using KeyStream = CopyStream<TileCopy<KeyElement, ROW_D, TILE_N, THREADS>, EVEN_D>;
using ValueStream = CopyStream<ValueCopy, EVEN_E>;
#else
using KeyStream = TileStream<KeyElement, ROW_D, TILE_N, THREADS>;
#if COLUMN_TILE
using ValueStream = TileStream<ValueElement, HEAD_E, TILE_N, THREADS, ValueTile>;
#else
using ValueStream = TransposedTileStream<ValueElement, HEAD_E, TILE_N, THREADS>;
#endif
#endif

DEVICE void mainloop(ForwardState& state, const Queries& queries, const BlockProblem& problem, const ScoreScale& how,
                     int row, char* lds) {
    const KeyRange range = key_range(problem);
    if (range.first >= range.stop) {
        return;
    }
    const LdsFragments<ROW_D> keys(lds);
    const ValueFragments values(lds + K_BYTES);
    KeyStream next_keys;
    ValueStream next_values;
    next_keys.start(problem.k, range.first, range.stop, lds);
    next_values.start(problem.v, range.first, range.stop, lds + K_BYTES);
    next_keys.load();
    next_values.load();
    next_keys.store();
    lds_barrier();
    const auto step = [&](auto masked, int key) {
        next_keys.load();
        constexpr bool MASKED = decltype(masked)::value;
        const bool sees = !MASKED || wave_sees(problem, row, key);
        BFragment p[TILES_PER_WAVE][STEPS_N];
        if (sees) {
            state.template compute_p<MASKED>(queries, problem, how, row, key, p, keys);
        }
        next_values.store();
        lds_barrier();
        next_keys.store();
        next_values.load();
        if (sees) {
            state.accumulate_pv(p, values);
        }
        lds_barrier();
    };
    for (int key = range.first; key < range.stop; key += TILE_N) {
        for (; key >= range.seen_first && key + TILE_N <= range.seen_stop; key += TILE_N) {
            step(Constant<false>{}, key);
        }
        if (key < range.stop) {
            step(Constant<true>{}, key);
        }
    }
}

struct Outputs {
    Result* o;
    float* lse;
    int64_t o_row, lse_row;
    int e;
    float sink, value;  // o is multiplied by the latter
};

// The epilogue of 16 queries, the lane's in `row`: divides, rounds and stores o from column `first` on, and lse.
DEVICE void epilogue(const AccumulatorFragment (&acc_o)[FRAGMENTS_E], const Softmax& softmax, const Outputs& to,
                     int row, int first) {
    float row_sum = column_sum(softmax.row_sum) * Softmax::UNSCALE, factor = 1.0f;
    float base = exponent_base(softmax.row_max);
    if constexpr (SINKS) {
        const float row_max = math_max_number(softmax.row_max, to.sink);
        base = exponent_base(row_max);
        factor = exp2_ftz(softmax.row_max - base);
        row_sum = row_sum * factor + exp2_ftz(to.sink - base);
    }
    const float inv_sum = row_sum == 0.0f ? 0.0f : factor * Softmax::UNSCALE * rcp_fast(row_sum) * to.value;
    const float normalizer = inv_sum != inv_sum ? __builtin_nanf("") : inv_sum;  // pack2_b may lose a sink's
    if (lane_part() == 0 && first == 0) {
        to.lse[row * to.lse_row] = math_fma(base, LN_2, math_log(row_sum));
    }
    Result* const o = to.o + row * to.o_row;
#pragma unroll
    for (int e = 0; e < FRAGMENTS_E; ++e) {
        const int column = first + e * MMA_M + lane_part() * ELEMENTS_PER_LANE;
        words<16> packed;
        for (int i = 0; i < ELEMENTS_PER_LANE; i += 2) {
            float low = acc_o[e].get(i) * normalizer, high = acc_o[e].get(i + 1) * normalizer;
            asm("" : "+v"(low), "+v"(high));  // as in from_float<f16>
            packed.w[i / 2] = pack2_b<Result>(low, high);
        }
        const auto rounded = __builtin_bit_cast(vec<Result, ELEMENTS_PER_LANE>, packed);
        if (EVEN_E || column + ELEMENTS_PER_LANE <= to.e) {
            __builtin_memcpy(o + column, &rounded, sizeof rounded);
        } else {
            for (int i = 0; i < ELEMENTS_PER_LANE; ++i) {
                if (column + i < to.e) {
                    o[column + i] = rounded.v[i];
                }
            }
        }
    }
}

// `tiles`: of a head's queries.
KERNEL_RESIDENT(THREADS, 2) void attention_forward(const AttentionParams params, int tiles CODE_SCALES) {
    const AttentionParams& p = params;
    SHARED __attribute__((aligned(16))) char lds[K_BYTES + V_BYTES + Q_BYTES];
    const XcdTile work = xcd_tile<VARLEN>(grid_x(), tiles, p.heads, RIGHT);
    const int kv_head = work.head / p.qheads_per_kvhead;
    const float head_sink = SINKS ? p.sinks[work.head] * LOG2_E : -INF_F;
    const VarlenTables tables(p);
    if (VARLEN && !tables.has(work.tile)) {
        return;
    }
    const auto seqlen = seqlen_info<VARLEN>(tables, work.tile, p.seqlen_q, p.seqlen_k);
    const int tile = VARLEN ? tables.tile_in_sequence(work.tile) : work.tile;
    const int row_end = seqlen.first_query + seqlen.m, key_end = seqlen.first_key + seqlen.n;
    const int diagonal = key_end - row_end;
    const BlockProblem problem = {
        {static_cast<const KeyElement*>(p.q) + work.batch * p.q_batch + work.head * p.q_head, p.q_row, row_end,
         p.head_dim},
        {static_cast<const KeyElement*>(p.k) + work.batch * p.k_batch + kv_head * p.k_head, p.k_row, key_end,
         p.head_dim},
        {static_cast<const ValueElement*>(p.v) + work.batch * p.v_batch + kv_head * p.v_head, p.v_row, key_end,
         p.head_dim_v},
        static_cast<const Result*>(p.bias) + work.batch * p.bias_batch + work.head * p.bias_head,
        p.bias_row,
        seqlen.first_query + tile * TILE_M,
        seqlen.first_key,
        key_end,
        diagonal - p.left,
        diagonal + p.right,
    };
    const float sink = seqlen.outside ? -INF_F : head_sink;
#ifdef FORMAT
    const HeadScales scales = head_scales<SOFTCAP>(p.score_scale, CODE_SCALE(q_scale).of(work.batch, kv_head),
                                                   CODE_SCALE(k_scale).of(work.batch, kv_head),
                                                   CODE_SCALE(v_scale).of(work.batch, kv_head));
#else
    const HeadScales scales = {1.0f, p.score_scale, 1.0f};
#endif
    const Outputs to = {static_cast<Result*>(p.o) + work.batch * p.o_batch + work.head * p.o_head,
                        p.lse + work.batch * p.lse_batch + work.head * p.lse_head,
                        p.o_row, p.lse_row, p.head_dim_v, sink, scales.value};
    const int wave = __builtin_amdgcn_readfirstlane(thread_x() / WARP);
    const int row = problem.row + wave / WAVES_E * WAVE_M;
    const Queries queries(problem, row, scales.query, lds + K_BYTES + V_BYTES);
    ForwardState state;
    state.column = wave % WAVES_E * WAVE_E;
    for (int t = 0; t < TILES_PER_WAVE; ++t) {
        for (int e = 0; e < FRAGMENTS_E; ++e) {
            state.acc_o[t][e].fill(0.0f);
        }
    }
    mainloop(state, queries, problem, {scales.score, p.softcap_log2}, row, lds);
    for (int t = 0; t < TILES_PER_WAVE; ++t) {
#if COLUMN_TILE
        for (int e = 0; e < FRAGMENTS_E; ++e) {
            in_column_order(state.acc_o[t][e]);
        }
#endif
        const int own = row + t * MMA_N + lane_column();
        if (own < row_end) {
            epilogue(state.acc_o[t], state.softmax[t], to, own, state.column);
        }
    }
}
