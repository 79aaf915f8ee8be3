// dk and dv (or one of them), or dq, of attention on AMD's matrix units, without atomics; see bwd.h.
//
// The lines that pass by have one buffer of LDS, and a step two barriers; the next ones are on their way under the
// products with these. Scores are computed once for dk and dv and again for dq. Blocks of keys go through the query
// heads that share their key head one after the other, in float32 sums.
//
// Defines: bwd.h's; PREFETCH: whether the next lines are on their way under the products; RESIDENT: blocks
// that a compute unit should hold.
#include "bwd.h"

struct Work {
    Pair own, passing;
    const T* bias;  // row i at i * bias_row
    int64_t bias_row;
    const float *peak, *delta;  // of the head's queries
    Sight sight;
    Scores scores;
    int first, begin, stop;  // the block's first own line, and where the others begin and stop

    DEVICE Work(const Span& span, const Scores& scores) : scores(scores) {
        sight = {span.low, span.high, span.stop};
        first = span.first;
        begin = span.begin + max(sight.first(first) - span.begin, 0) / STEP * STEP;
        stop = sight.last(min(first + TILE, span.end) - 1) + 1;
    }
};

struct Sums {
    Strip d[HEAD_D / DEPTH][GROUPS], e[HEAD_E / DEPTH][GROUPS];

    DEVICE Sums() {
        clear(d);
        clear(e);
    }
    template <int STRIPS> static DEVICE void clear(Strip (&sums)[STRIPS][GROUPS]) {
#pragma unroll
        for (auto& strips : sums) {
            for (Strip& strip : strips) {
                strip.fill(0);
            }
        }
    }
};

// RUN numbers of neighbouring queries. Those that do not exist lie in memory all the same.
struct Numbers {
    float v[RUN];
    DEVICE void load(const float* from) {
        const auto low = load_unaligned<16>(from), high = load_unaligned<16>(from + 4);
        for (int i = 0; i < 4; ++i) {
            v[i] = float_of(low.w[i]);
            v[i + 4] = float_of(high.w[i]);
        }
    }
};

// A column's RUN elements of the bias: lines `line`.. that pass by, and own line `own`.
DEVICE void load_bias(const Work& work, int line, int own, float (&bias)[RUN]) {
    for (int i = 0; i < RUN; ++i) {
        bias[i] = 0;
    }
    if (own >= work.own.d.end) {
        return;
    }
    if (KEYS) {
        for (int i = 0; i < RUN; ++i) {
            if (line + i < work.sight.end) {
                bias[i] = to_float(work.bias[(line + i) * work.bias_row + own]);
            }
        }
    } else {
        const words<16> part = load_bounded<16>(work.bias + own * work.bias_row + line, work.sight.end - line);
        const auto run = __builtin_bit_cast(vec<T, RUN>, part);
        for (int i = 0; i < RUN; ++i) {
            bias[i] = to_float(run.v[i]);
        }
    }
}

// What comes after is not moved before: operands that are fetched early take registers.
DEVICE void phase() { __builtin_amdgcn_sched_barrier(0); }

// Where own lines lie in LDS: addresses that follow from `at` are found again, and take no registers in between.
DEVICE void ask(int& at) {
#if !HELD
    asm volatile("" : "+s"(at));
#endif
}

// After product i of a loop: so many operands are fetched ahead.
DEVICE void pace(int i) {
    constexpr int AHEAD = WARP == 64 ? 4 : 2;
    if (i % AHEAD == AHEAD - 1) {
        phase();
    }
}

// Adds what DEPTH lines give, those from `at` on of the ones in LDS. `peak` and `delta`: of the wave's queries.
DEVICE void add_lines(const Work& work, const Passing& passing, const Own& own, const float (&peak)[GROUPS],
                      const float (&delta)[GROUPS], int start, int at, Sums& sums) {
    const int wave_line = work.first + own_line();
    if (work.sight.none(start + at, wave_line)) {
        return;
    }
    const int line = start + at + lane_part() * RUN;  // this lane's first
    Numbers peaks, deltas;
    if (KEYS) {
        peaks.load(work.peak + line);
        deltas.load(work.delta + line);
    }
    ask(at);
    Strip scores[GROUPS], above[GROUPS];
    for (int g = 0; g < GROUPS; ++g) {
        scores[g].fill(0);
    }
#pragma unroll
    for (int k = 0; k < HEAD_D; k += DEPTH) {
        const Rows rows = TileD::rows(passing.d, at, k);
        for (int g = 0; g < GROUPS; ++g) {
            multiply<T>(scores[g], rows, own.d(g, k));
        }
        pace(k / DEPTH);
    }
    phase();
    ask(at);
    for (int g = 0; g < GROUPS; ++g) {
        above[g].fill(0);
    }
#pragma unroll
    for (int k = 0; SUM_D && k < HEAD_E; k += DEPTH) {
        const Rows rows = TileE::rows(passing.e, at, k);
        for (int g = 0; g < GROUPS; ++g) {
            multiply<T>(above[g], rows, own.e(g, k));
        }
        pace(k / DEPTH);
    }
    phase();
    ask(at);
    Columns weights[GROUPS], gradients[GROUPS];
    const bool all = work.sight.all(start + at, wave_line);
    for (int g = 0; g < GROUPS; ++g) {
        const int mine = wave_line + g * COLUMNS + lane_column();
        const int first = work.sight.first(mine), last = work.sight.last(mine);
        float bias[RUN] = {}, weight[RUN], gradient[RUN];
        if (BIAS) {
            load_bias(work, line, mine, bias);
        }
        for (int i = 0; i < RUN; ++i) {
            const Slope slope = slope_of(work.scores, scores[g].get(i), bias[i], KEYS ? peaks.v[i] : peak[g],
                                         above[g].get(i), KEYS ? deltas.v[i] : delta[g]);
            weight[i] = slope.weight;
            gradient[i] = slope.gradient;
        }
        if (!all) {
            for (int i = 0; i < RUN; ++i) {
                const bool seen = line + i >= first && line + i <= last;
                weight[i] = seen ? weight[i] : 0;
                gradient[i] = seen ? gradient[i] : 0;
            }
        }
        if (SUM_E) {
            weights[g] = as_columns<T>(weight);
        }
        if (SUM_D) {
            gradients[g] = as_columns<T>(gradient);
        }
    }
    phase();
    ask(at);
#pragma unroll
    for (int i = 0; SUM_E && i < HEAD_E / DEPTH; ++i) {
        const Rows rows = TileAcross::rows(passing.e_across, i * DEPTH, at);
        for (int g = 0; g < GROUPS; ++g) {
            multiply<T>(sums.e[i][g], rows, weights[g]);
        }
        pace(i);
    }
    phase();
    ask(at);
#pragma unroll
    for (int i = 0; SUM_D && i < HEAD_D / DEPTH; ++i) {
        const Rows rows = TileAcross::rows(passing.d_across, i * DEPTH, at);
        for (int g = 0; g < GROUPS; ++g) {
            multiply<T>(sums.d[i][g], rows, gradients[g]);
        }
        pace(i);
    }
}

// Adds what all the lines that pass by give.
DEVICE void walk(const Work& work, const Passing& passing, const Own& own, Sums& sums) {
    if (work.begin >= work.stop) {
        return;
    }
    float peak[GROUPS] = {}, delta[GROUPS] = {};
    if (!KEYS) {
        for (int g = 0; g < GROUPS; ++g) {
            const int mine = min(work.first + own_line() + g * COLUMNS + lane_column(), work.own.d.end - 1);
            peak[g] = work.peak[mine];
            delta[g] = work.delta[mine];
        }
    }
    PairStage stage;
    if (PREFETCH) {
        stage.load(work.passing, work.begin);
    }
#pragma unroll 1
    for (int start = work.begin; start < work.stop; start += STEP) {
        if (!PREFETCH) {
            stage.load(work.passing, start);
        }
        lds_barrier();
        passing.store(stage);
        lds_barrier();
        if (PREFETCH && start + STEP < work.stop) {
            stage.load(work.passing, start + STEP);
        }
#pragma unroll 1
        for (int at = 0; at < STEP; at += DEPTH) {
            add_lines(work, passing, own, peak, delta, start, at, sums);
        }
    }
}

// Stores sums times `factor` to the wave's rows of `to`.
template <int STRIPS>
DEVICE void store_sums(const Strip (&sums)[STRIPS][GROUPS], float factor, T* to, int64_t row_step, int width,
                       const Span& span) {
    for (int g = 0; g < GROUPS; ++g) {
        const int64_t row = span.first + own_line() + g * COLUMNS + lane_column();
        if (row >= span.end) {
            continue;
        }
#pragma unroll
        for (int i = 0; i < STRIPS; ++i) {
            const int column = i * DEPTH + lane_part() * RUN;
            T* const at = to + row * row_step + column;
            if (column + RUN <= width) {
                words<RUN * 2> packed;
                for (int j = 0; j < RUN; j += 2) {
                    packed.w[j / 2] = pack2<T>(sums[i][g].get(j) * factor, sums[i][g].get(j + 1) * factor);
                }
                __builtin_memcpy(at, &packed, sizeof packed);
                continue;
            }
            for (int j = 0; j < RUN; ++j) {
                if (column + j < width) {
                    at[j] = from_float<T>(sums[i][g].get(j) * factor);
                }
            }
        }
    }
}

#if KEYS
KERNEL_RESIDENT(THREADS, RESIDENT)
void attention_backward_keys(const T* dout, const T* q, const T* k, const T* v, const T* bias, const float* peak,
                             const float* delta, T* dk, T* dv, const int* bounds, const int* tile_list,
                             const int* counts, int count, int groups, int share, int queries, int keys,
                             int columns_d, int columns_e, int low, int high, float to_score, float cap, float factor,
                             int tiles, int blocks, int64_t dout_batch, int64_t dout_head, int64_t dout_row,
                             int64_t q_batch, int64_t q_head, int64_t q_row, int64_t k_batch,
                             int64_t k_head, int64_t k_row, int64_t v_batch, int64_t v_head, int64_t v_row,
                             int64_t bias_batch, int64_t bias_head, int64_t bias_row, int64_t dk_batch,
                             int64_t dk_head, int64_t dk_row, int64_t dv_batch, int64_t dv_head, int64_t dv_row) {
    SHARED __attribute__((aligned(16))) char lds[Passing::BYTES + Own::BYTES];
    const Place place = place_of(blocks, tiles, groups, false);
    const int64_t batch = place.batch, group = place.head;
    const Span span = span_of(place.tile, {bounds, tile_list, counts, count}, queries, keys, low, high);
    if (span.first >= span.end) {
        return;
    }
    Work work(span, {to_score, cap});
    work.own.d = {k + batch * k_batch + group * k_head, k_row, span.end, columns_d};
    work.own.e = {v + batch * v_batch + group * v_head, v_row, span.end, columns_e};
    work.bias_row = bias_row;
    const Passing passing(lds);
    const Own own(work.own, span.first, lds + Passing::BYTES);
    Sums sums;
#pragma unroll 1
    for (int64_t head = group * share; head < (group + 1) * share; ++head) {
        const int64_t line = batch * groups * share + head;
        work.passing.d = {q + batch * q_batch + head * q_head, q_row, span.stop, columns_d};
        work.passing.e = {dout + batch * dout_batch + head * dout_head, dout_row, span.stop, columns_e};
        work.bias = bias + batch * bias_batch + head * bias_head;
        work.peak = peak + line * queries;
        work.delta = delta + line * queries;
        walk(work, passing, own, sums);
    }
    if (SUM_D) {
        store_sums(sums.d, factor, dk + batch * dk_batch + group * dk_head, dk_row, columns_d, span);
    }
    if (SUM_E) {
        store_sums(sums.e, LOWERED, dv + batch * dv_batch + group * dv_head, dv_row, columns_e, span);
    }
}
#else
KERNEL_RESIDENT(THREADS, RESIDENT)
void attention_backward_queries(const T* dout, const T* q, const T* k, const T* v, const T* bias, const float* peak,
                                const float* delta, T* dq, const int* bounds, const int* tile_list,
                                const int* counts, int count, int heads, int share, int queries, int keys,
                                int columns_d, int columns_e, int low, int high, float to_score, float cap,
                                float factor, int tiles, int blocks, int64_t dout_batch, int64_t dout_head,
                                int64_t dout_row, int64_t q_batch, int64_t q_head, int64_t q_row, int64_t k_batch,
                                int64_t k_head, int64_t k_row, int64_t v_batch, int64_t v_head, int64_t v_row,
                                int64_t bias_batch, int64_t bias_head, int64_t bias_row, int64_t dq_batch,
                                int64_t dq_head, int64_t dq_row) {
    SHARED __attribute__((aligned(16))) char lds[Passing::BYTES + Own::BYTES];
    const Place place = place_of(blocks, tiles, heads, true);
    const int64_t batch = place.batch, head = place.head, line = batch * heads + head, group = head / share;
    const Span span = span_of(place.tile, {bounds, tile_list, counts, count}, queries, keys, low, high);
    if (span.first >= span.end) {
        return;
    }
    Work work(span, {to_score, cap});
    work.own.d = {q + batch * q_batch + head * q_head, q_row, span.end, columns_d};
    work.own.e = {dout + batch * dout_batch + head * dout_head, dout_row, span.end, columns_e};
    work.passing.d = {k + batch * k_batch + group * k_head, k_row, span.stop, columns_d};
    work.passing.e = {v + batch * v_batch + group * v_head, v_row, span.stop, columns_e};
    work.bias = bias + batch * bias_batch + head * bias_head;
    work.bias_row = bias_row;
    work.peak = peak + line * queries;
    work.delta = delta + line * queries;
    const Passing passing(lds);
    const Own own(work.own, span.first, lds + Passing::BYTES);
    Sums sums;
    walk(work, passing, own, sums);
    store_sums(sums.d, factor, dq + batch * dq_batch + head * dq_head, dq_row, columns_d, span);
}
#endif
