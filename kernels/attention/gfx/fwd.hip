// o = softmax(scores) @ v per head on AMD's matrix units, and the scores' lse.
//
// A block owns TILE_M queries of one head, a wave GROUPS * 16 of them, and walks the keys that they see in
// blocks of TILE_N. Scores are computed transposed, keys by queries: a query's scores then lie in the lanes
// of one column, and rounded they are the second operand of o^T = v^T p^T without leaving the registers.
// Keys lie in LDS as they come, values transposed. The next keys are on their way under the products with
// these, the next values under the products with those; each has one buffer, and a step two barriers.
//
// Scores are powers of two: `scale` (and `cap`) hold log2(e).
//
// Defines: T (bf16, f16); HEAD_D, HEAD_E: the head sizes, as multiples of 32; WHOLE_D, WHOLE_E: whether
// they are exact; TILE_N, WAVES, GROUPS; SHARERS: waves with the same queries, each of which makes its part
// of o's columns; LEFT, RIGHT: whether the keys are bounded on that side of the diagonal; PLAIN: whether
// scores are products times a positive scale and nothing else; SOFTCAP, BIAS, SINKS; Q_SHARED: whether
// queries lie in LDS; RAGGED: whether sequences are packed (attention_varlen).
#include "seqlen_info.h"
#include "online_softmax.h"
#include "stage.h"

constexpr int THREADS = WAVES * WARP;
constexpr int WAVE_M = GROUPS * COLUMNS;
constexpr int TILE_M = WAVES / SHARERS * WAVE_M;
constexpr int AHEAD = 2;  // operands on their way from LDS under the products; 4 spill on gfx942
constexpr int STRIPS = TILE_N / DEPTH;
constexpr int STEPS_D = HEAD_D / DEPTH;
constexpr int WAVE_E = HEAD_E / SHARERS;
constexpr int STRIPS_E = WAVE_E / DEPTH;
static_assert(TILE_N % 32 == 0 && HEAD_D % 32 == 0 && HEAD_E % 32 == 0, "lines of LDS are whole groups");

using KeyTile = LdsTile<HEAD_D>;
using ValueTile = LdsTile<TILE_N>;
constexpr int K_BYTES = KeyTile::bytes(TILE_N);
constexpr int V_BYTES = ValueTile::bytes(HEAD_E);
constexpr int Q_BYTES = Q_SHARED ? KeyTile::bytes(TILE_M) : 0;

// What a block computes: queries from `row` on, below `q.end`, and the keys from `key` to `key_end`, of
// which query i sees j where low <= j - i <= high.
struct Work {
    HeadRows<T> q, k, v;
    const T* bias;
    int64_t bias_row;
    int row, key, key_end, low, high;
};

struct Scores {
    float scale, cap;
};

// A wave's queries: its own operand in registers, or in LDS.
struct Queries {
#if Q_SHARED
    const char* tile;
    int first;  // the wave's first line of it
    DEVICE Columns get(int group, int step) const {
        return KeyTile::columns(tile, first + group * COLUMNS, step * DEPTH);
    }
#else
    Columns held[GROUPS][STEPS_D];
    DEVICE Columns get(int group, int step) const { return held[group][step]; }
#endif
};

DEVICE Queries load_queries(const Work& work, int row, char* lds) {
    Queries queries;
#if Q_SHARED
    RowStage<T, HEAD_D, TILE_M, THREADS> stage;
    stage.template load<WHOLE_D>(work.q, work.row);
    stage.store(lds);
    queries.tile = lds;
    queries.first = row - work.row;
#else
    for (int g = 0; g < GROUPS; ++g) {
        const int own = min(row + g * COLUMNS + lane_column(), work.q.end - 1);
        const T* const line = work.q.data + own * work.q.step;
        for (int i = 0; i < STEPS_D; ++i) {
            queries.held[g][i] = columns_from(line, i * DEPTH, WHOLE_D ? HEAD_D : work.q.width - i * DEPTH);
        }
    }
#endif
    return queries;
}

// --- one block of keys ---

#if BIAS
// The bias of the lane's keys; what is added to keys that do not exist is hidden later.
DEVICE void load_bias(vec<T, RUN> (&bias)[STRIPS], const Work& work, int row, int key) {
    const T* const line = work.bias + min(row, work.q.end - 1) * work.bias_row;
    const int own_key = key + lane_part() * RUN;
    if (key + TILE_N <= work.key_end) {
        for (int s = 0; s < STRIPS; ++s) {
            bias[s] = __builtin_bit_cast(vec<T, RUN>, load_unaligned<16>(line + own_key + s * DEPTH));
        }
        return;
    }
    for (int s = 0; s < STRIPS; ++s) {
        for (int i = 0; i < RUN; ++i) {
            bias[s].v[i] = line[min(own_key + s * DEPTH + i, work.key_end - 1)];
        }
    }
}
#endif

// Products become scores (all but the scale where PLAIN), those of keys that are not seen -inf, for the
// lane's query `row` and keys from `key` on.
DEVICE void finish_scores(Strip (&scores)[STRIPS], const Work& work, const Scores& how, int row, int key,
                          bool edge) {
    const int own_key = key + lane_part() * RUN;
#if BIAS
    vec<T, RUN> bias[STRIPS];
    load_bias(bias, work, row, key);
#endif
    const int last = RIGHT ? min(work.key_end - 1, row + work.high) - own_key : work.key_end - 1 - own_key;
    const int first = row + work.low - own_key;
#pragma unroll
    for (int s = 0; s < STRIPS; ++s) {
#pragma unroll
        for (int i = 0; i < RUN; ++i) {
            float x = scores[s].get(i);
#if SOFTCAP
            x = how.cap * math_fma(-2.0f, rcp_fast(1.0f + exp2_flushed(x * how.scale)), 1.0f);
#elif !PLAIN
            x *= how.scale;
#endif
#if BIAS
            x = math_fma(to_float(bias[s].v[i]), LOG2_E, x);
#endif
            const int at = s * DEPTH + i;
            if (edge && (at > last || (LEFT && at < first))) {
                x = -INF_F;
            }
            scores[s].set(i, x);
        }
    }
}

// Scores become weights, rounded, as the second operand of the product with the values.
DEVICE float weigh(const Strip (&scores)[STRIPS], Softmax& state, const Scores& how,
                   Columns (&weights)[STRIPS]) {
    float highest = -INF_F;
#pragma unroll
    for (int s = 0; s < STRIPS; ++s) {
        for (int i = 0; i < RUN; ++i) {
            highest = math_max_number(highest, scores[s].get(i));
        }
    }
    const float factor = state.move(PLAIN ? highest * how.scale : highest);
    const float base = base_of(state.top);
    float parts[2] = {0.0f, 0.0f};
#pragma unroll
    for (int s = 0; s < STRIPS; ++s) {
        float values[RUN];
        for (int i = 0; i < RUN; ++i) {
            const float x = scores[s].get(i);
            values[i] = exp2_flushed(PLAIN ? math_fma(x, how.scale, -base) : x - base);
            parts[i % 2] += values[i];
        }
        weights[s] = as_columns<T>(values);
    }
    state.total += parts[0] + parts[1];
    return factor;
}

struct Attend {
    Strip sums[GROUPS][STRIPS_E];
    Softmax state[GROUPS];
    int column;  // the wave's first of o

    DEVICE void step(const Queries& queries, const Work& work, const Scores& how, int row, int key,
                     Columns (&weights)[GROUPS][STRIPS], const char* keys) {
        Strip scores[GROUPS][STRIPS];
        for (int g = 0; g < GROUPS; ++g) {
            for (int s = 0; s < STRIPS; ++s) {
                scores[g][s].fill(0.0f);
            }
        }
        fetch_ahead<STEPS_D * STRIPS, AHEAD>(
            [&](int i) { return KeyTile::rows(keys, i % STRIPS * DEPTH, i / STRIPS * DEPTH); },
            [&](int i, const Rows& rows) {
                for (int g = 0; g < GROUPS; ++g) {
                    multiply<T>(scores[g][i % STRIPS], rows, queries.get(g, i / STRIPS));
                }
            });
        for (int g = 0; g < GROUPS; ++g) {
            for (int s = 0; s < STRIPS; ++s) {
                scores[g][s].settle();
            }
        }
        const int nearest = RIGHT ? min(work.key_end, row + work.high + 1) : work.key_end;
        const bool edge = key + TILE_N > nearest || (LEFT && key < row + WAVE_M - 1 + work.low);
        for (int g = 0; g < GROUPS; ++g) {
            const int own_row = row + g * COLUMNS + lane_column();
            finish_scores(scores[g], work, how, own_row, key, edge);
            const float factor = weigh(scores[g], state[g], how, weights[g]);
            if (any_lane(factor != 1.0f)) {
                for (int e = 0; e < STRIPS_E; ++e) {
                    sums[g][e].scale(factor);
                }
            }
        }
    }

    DEVICE void add(const Columns (&weights)[GROUPS][STRIPS], const char* values) {
        fetch_ahead<STRIPS * STRIPS_E, AHEAD>(
            [&](int i) {
                return ValueTile::rows(values, column + i % STRIPS_E * DEPTH, i / STRIPS_E * DEPTH);
            },
            [&](int i, const Rows& rows) {
                for (int g = 0; g < GROUPS; ++g) {
                    multiply<T>(sums[g][i % STRIPS_E], rows, weights[g][i / STRIPS_E]);
                }
            });
    }
};

// --- a block ---

// The keys that some query of the block sees: blocks of TILE_N from the first to before the second.
struct Span {
    int first, stop;
};
DEVICE Span span_of(const Work& work) {
    Span span = {work.key, work.key_end};
    if (LEFT) {
        const int seen = min(max(work.row + work.low, work.key), work.key_end);
        span.first = work.key + (seen - work.key) / TILE_N * TILE_N;
    }
    if (RIGHT) {
        span.stop = min(min(work.row + TILE_M, work.q.end) + work.high, work.key_end);
    }
    return span;
}

DEVICE void walk(Attend& attend, const Queries& queries, const Work& work, const Scores& how, int row,
                 char* lds) {
    const Span span = span_of(work);
    if (span.first >= span.stop) {
        return;
    }
    char* const keys = lds;
    char* const values = lds + K_BYTES;
    RowStage<T, HEAD_D, TILE_N, THREADS> next_keys;
    ColumnStage<T, HEAD_E, TILE_N, THREADS> next_values;
    next_keys.template load<WHOLE_D>(work.k, span.first);
    next_values.template load<WHOLE_E>(work.v, span.first);
    next_keys.store(keys);
    lds_barrier();
    for (int key = span.first; key < span.stop; key += TILE_N) {
        const bool more = key + TILE_N < span.stop;
        if (more) {
            next_keys.template load<WHOLE_D>(work.k, key + TILE_N);
        }
        Columns weights[GROUPS][STRIPS];
        attend.step(queries, work, how, row, key, weights, keys);
        next_values.store(values);
        lds_barrier();
        if (more) {
            next_keys.store(keys);
            next_values.template load<WHOLE_E>(work.v, key + TILE_N);
        }
        attend.add(weights, values);
        lds_barrier();
    }
}

struct Outputs {
    T* o;
    float* lse;
    int64_t o_row, lse_row;
    int e;
    float sink;
};

// Divides, rounds and stores a group's 16 queries, the lane's in `row`: o from column `first` on.
DEVICE void store_group(const Strip (&sums)[STRIPS_E], const Softmax& state, const Outputs& to, int row,
                        int first) {
    float total = column_sum(state.total), share = 1.0f, base = base_of(state.top);
#if SINKS
    const float highest = math_max_number(state.top, to.sink);
    base = base_of(highest);
    share = exp2_flushed(state.top - base);
    total = total * share + exp2_flushed(to.sink - base);
#endif
    const float divided = total == 0.0f ? 0.0f : share * rcp_fast(total);
    if (lane_part() == 0 && first == 0) {
        to.lse[row * to.lse_row] = math_fma(base, LN_2, math_log(total));
    }
    T* const o = to.o + row * to.o_row;
#pragma unroll
    for (int s = 0; s < STRIPS_E; ++s) {
        const int column = first + s * DEPTH + lane_part() * RUN;
        vec<T, RUN> packed;
        for (int i = 0; i < RUN; ++i) {
            packed.v[i] = from_float<T>(sums[s].get(i) * divided);
        }
        if (WHOLE_E || column + RUN <= to.e) {
            __builtin_memcpy(o + column, &packed, sizeof packed);
        } else {
            for (int i = 0; i < RUN; ++i) {
                if (column + i < to.e) {
                    o[column + i] = packed.v[i];
                }
            }
        }
    }
}

KERNEL_RESIDENT(THREADS, 2)
void attention_forward(const T* q, const T* k, const T* v, const T* bias, const float* sinks, T* o,
                       float* lse, const int* bounds, const int* tile_list, const int* counts, int count, int m,
                       int n, int d, int e, int heads, int share, int low, int high, int tiles, float scale,
                       float cap, int64_t q_batch, int64_t q_head, int64_t q_row, int64_t k_batch, int64_t k_head,
                       int64_t k_row, int64_t v_batch, int64_t v_head, int64_t v_row, int64_t bias_batch,
                       int64_t bias_head, int64_t bias_row, int64_t o_batch, int64_t o_head, int64_t o_row,
                       int64_t lse_batch, int64_t lse_head, int64_t lse_row) {
    SHARED __attribute__((aligned(16))) char lds[K_BYTES + V_BYTES + Q_BYTES];
    const Place place = place_of(grid_x(), tiles, heads, RIGHT);
    const int group = place.head / share;
    float sink = SINKS ? sinks[place.head] * LOG2_E : -INF_F;
    int first = place.tile * TILE_M, key = 0;
#if RAGGED
    const Tables tables = {bounds, tile_list, counts, count};
    if (!tables.has(place.tile)) {
        return;
    }
    const Sequence own = tables.sequence(place.tile);
    first = own.first_query + tables.number(place.tile) * TILE_M;
    m = own.first_query + own.queries;
    key = own.first_key;
    n = key + (own.outside ? 0 : own.keys);
    low += n - m;
    high += n - m;
    sink = own.outside ? -INF_F : sink;
#endif
    const Work work = {
        {q + place.batch * q_batch + place.head * q_head, q_row, m, d},
        {k + place.batch * k_batch + group * k_head, k_row, n, d},
        {v + place.batch * v_batch + group * v_head, v_row, n, e},
        bias + place.batch * bias_batch + place.head * bias_head,
        bias_row, first, key, n, low, high,
    };
    const Outputs to = {o + place.batch * o_batch + place.head * o_head,
                        lse + place.batch * lse_batch + place.head * lse_head, o_row, lse_row, e, sink};
    const int wave = __builtin_amdgcn_readfirstlane(thread_x() / WARP);
    const int row = work.row + wave / SHARERS * WAVE_M;
    const Queries queries = load_queries(work, row, lds + K_BYTES + V_BYTES);
    Attend attend;
    attend.column = wave % SHARERS * WAVE_E;
    for (int g = 0; g < GROUPS; ++g) {
        for (int i = 0; i < STRIPS_E; ++i) {
            attend.sums[g][i].fill(0.0f);
        }
    }
    walk(attend, queries, work, {scale, cap}, row, lds);
    for (int g = 0; g < GROUPS; ++g) {
        const int own = row + g * COLUMNS + lane_column();
        if (own < m) {
            store_group(attend.sums[g], attend.state[g], to, own, attend.column);
        }
    }
}
