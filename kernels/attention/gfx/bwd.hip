// dk and dv (or one of them), or dq, of attention on AMD's matrix units, without atomics; see bwd.h.
//
// The streamed rows have one buffer of LDS, and a step two barriers; the next rows are loaded while the products with
// these run. S is computed once for dk and dv and again for dq. Blocks of keys go through the query heads that share
// their key head one after the other, in float32 accumulators.
//
// Defines: bwd.h's; PREFETCH: whether the next rows are loaded under the products; BLOCKS_PER_CU: blocks that a
// compute unit should hold.
#include "bwd.h"

// What `p_of` takes.
struct ScoreScale {
    float scale, cap;
};

struct BlockProblem {
    TensorPair own, streamed;
    const T* bias;  // row i at i * bias_row
    int64_t bias_row;
    const float *lse_log2, *delta;  // of the head's queries
    Mask mask;
    ScoreScale score_scale;
    int first, begin, stop;  // the block's first own row, and where the streamed rows begin and stop

    DEVICE BlockProblem(const BlockRows& rows, const ScoreScale& score_scale) : score_scale(score_scale) {
        mask = {rows.low, rows.high, rows.stop};
        first = rows.first;
        begin = rows.begin + max(mask.first(first) - rows.begin, 0) / STREAM_ROWS * STREAM_ROWS;
        stop = mask.last(min(first + TILE, rows.end) - 1) + 1;
    }
};

struct Accumulators {
    AccumulatorFragment d[HEAD_D / MMA_M][TILES_PER_WAVE], e[HEAD_E / MMA_M][TILES_PER_WAVE];

    DEVICE Accumulators() {
        clear(d);
        clear(e);
    }
    template <int FRAGMENTS> static DEVICE void clear(AccumulatorFragment (&acc)[FRAGMENTS][TILES_PER_WAVE]) {
#pragma unroll
        for (auto& fragments : acc) {
            for (AccumulatorFragment& fragment : fragments) {
                fragment.fill(0);
            }
        }
    }
};

// A float32 of each of ELEMENTS_PER_LANE neighbouring queries. Those that do not exist lie in memory all the same.
struct QueryValues {
    float v[ELEMENTS_PER_LANE];
    DEVICE void load(const float* from) {
        const auto low = load_unaligned<16>(from), high = load_unaligned<16>(from + 4);
        for (int i = 0; i < 4; ++i) {
            v[i] = float_of(low.w[i]);
            v[i + 4] = float_of(high.w[i]);
        }
    }
};

// A lane's elements of the bias: streamed rows from `row` on, and own row `own`.
DEVICE void load_bias(const BlockProblem& problem, int row, int own, float (&bias)[ELEMENTS_PER_LANE]) {
    for (int i = 0; i < ELEMENTS_PER_LANE; ++i) {
        bias[i] = 0;
    }
    if (own >= problem.own.d.end) {
        return;
    }
    if (OWNS_KEYS) {
        for (int i = 0; i < ELEMENTS_PER_LANE; ++i) {
            if (row + i < problem.mask.end) {
                bias[i] = to_float(problem.bias[(row + i) * problem.bias_row + own]);
            }
        }
    } else {
        const words<16> part = load_bounded<16>(problem.bias + own * problem.bias_row + row, problem.mask.end - row);
        const auto values = __builtin_bit_cast(vec<T, ELEMENTS_PER_LANE>, part);
        for (int i = 0; i < ELEMENTS_PER_LANE; ++i) {
            bias[i] = to_float(values.v[i]);
        }
    }
}

// A scheduling barrier between phases: operands that are loaded early take registers.
DEVICE void end_phase() { __builtin_amdgcn_sched_barrier(0); }

// Makes `row`, where own rows lie in LDS, opaque: addresses are computed again and take no registers in between.
DEVICE void reload_row(int& row) {
    if constexpr (!OWN_IN_REGISTERS) {
        asm volatile("" : "+s"(row));
    }
}

// After product i of a loop: so many operands are loaded ahead.
DEVICE void limit_prefetch(int i) {
    constexpr int AHEAD = WARP == 64 ? 4 : 2;
    if (i % AHEAD == AHEAD - 1) {
        end_phase();
    }
}

// Accumulates over MMA_M streamed rows, those from `at` on of the ones in LDS. `lse_log2` and `delta`: of the wave's
// queries.
DEVICE void accumulate(const BlockProblem& problem, const StreamedTile& streamed, const Own& own,
                       const float (&lse_log2)[TILES_PER_WAVE], const float (&delta)[TILES_PER_WAVE], int start, int at,
                       Accumulators& acc) {
    const int first_own = problem.first + wave_row();
    if (problem.mask.all_hidden<MMA_M>(start + at, first_own)) {
        return;
    }
    const int row = start + at + lane_part() * ELEMENTS_PER_LANE;  // this lane's first
    QueryValues streamed_lse_log2, streamed_delta;
    if (OWNS_KEYS) {
        streamed_lse_log2.load(problem.lse_log2 + row);
        streamed_delta.load(problem.delta + row);
    }
    reload_row(at);
    AccumulatorFragment s[TILES_PER_WAVE], dp[TILES_PER_WAVE];
    for (int t = 0; t < TILES_PER_WAVE; ++t) {
        s[t].fill(0);
    }
#pragma unroll
    for (int k = 0; k < HEAD_D; k += MMA_K) {
        const AFragment a = TileD::load_a(streamed.d, at, k);
        for (int t = 0; t < TILES_PER_WAVE; ++t) {
            mma<T>(s[t], a, own.d(t, k));
        }
        limit_prefetch(k / MMA_K);
    }
    end_phase();
    reload_row(at);
    for (int t = 0; t < TILES_PER_WAVE; ++t) {
        dp[t].fill(0);
    }
#pragma unroll
    for (int k = 0; ACC_D && k < HEAD_E; k += MMA_K) {
        const AFragment a = TileE::load_a(streamed.e, at, k);
        for (int t = 0; t < TILES_PER_WAVE; ++t) {
            mma<T>(dp[t], a, own.e(t, k));
        }
        limit_prefetch(k / MMA_K);
    }
    end_phase();
    reload_row(at);
    BFragment p[TILES_PER_WAVE], ds[TILES_PER_WAVE];
    const bool all_seen = problem.mask.all_seen<MMA_M>(start + at, first_own);
    for (int t = 0; t < TILES_PER_WAVE; ++t) {
        const int own_row = first_own + t * MMA_N + lane_column();
        const int first = problem.mask.first(own_row), last = problem.mask.last(own_row);
        float bias[ELEMENTS_PER_LANE] = {}, lane_p[ELEMENTS_PER_LANE], lane_ds[ELEMENTS_PER_LANE];
        if (BIAS) {
            load_bias(problem, row, own_row, bias);
        }
        for (int i = 0; i < ELEMENTS_PER_LANE; ++i) {
            float softcap_grad = 1.0f;
            lane_p[i] = p_of<SOFTCAP, BIAS, P_SCALE_LOG2>(
                s[t].get(i), bias[i], OWNS_KEYS ? streamed_lse_log2.v[i] : lse_log2[t], problem.score_scale.scale,
                problem.score_scale.cap, softcap_grad);
            const float row_delta = OWNS_KEYS ? streamed_delta.v[i] : delta[t];
            const float dscore = (dp[t].get(i) - row_delta) * P_UNSCALE * lane_p[i];
            lane_ds[i] = SOFTCAP ? dscore * softcap_grad : dscore;
        }
        if (!all_seen) {
            for (int i = 0; i < ELEMENTS_PER_LANE; ++i) {
                const bool seen = row + i >= first && row + i <= last;
                lane_p[i] = seen ? lane_p[i] : 0;
                lane_ds[i] = seen ? lane_ds[i] : 0;
            }
        }
        if (ACC_E) {
            p[t] = as_b_fragment<T>(lane_p);
        }
        if (ACC_D) {
            ds[t] = as_b_fragment<T>(lane_ds);
        }
    }
    end_phase();
    reload_row(at);
#pragma unroll
    for (int i = 0; ACC_E && i < HEAD_E / MMA_M; ++i) {
        const AFragment a = TransposedTile::load_a(streamed.e_transposed, i * MMA_M, at);
        for (int t = 0; t < TILES_PER_WAVE; ++t) {
            mma<T>(acc.e[i][t], a, p[t]);
        }
        limit_prefetch(i);
    }
    end_phase();
    reload_row(at);
#pragma unroll
    for (int i = 0; ACC_D && i < HEAD_D / MMA_M; ++i) {
        const AFragment a = TransposedTile::load_a(streamed.d_transposed, i * MMA_M, at);
        for (int t = 0; t < TILES_PER_WAVE; ++t) {
            mma<T>(acc.d[i][t], a, ds[t]);
        }
        limit_prefetch(i);
    }
}

// Accumulates over all streamed rows.
DEVICE void mainloop(const BlockProblem& problem, const StreamedTile& streamed, const Own& own, Accumulators& acc) {
    if (problem.begin >= problem.stop) {
        return;
    }
    float lse_log2[TILES_PER_WAVE] = {}, delta[TILES_PER_WAVE] = {};
    if (!OWNS_KEYS) {
        for (int t = 0; t < TILES_PER_WAVE; ++t) {
            const int own_row = min(problem.first + wave_row() + t * MMA_N + lane_column(), problem.own.d.end - 1);
            lse_log2[t] = problem.lse_log2[own_row];
            delta[t] = problem.delta[own_row];
        }
    }
    PairCopy copy;
    if (PREFETCH) {
        copy.load(problem.streamed, problem.begin);
    }
#pragma unroll 1
    for (int start = problem.begin; start < problem.stop; start += STREAM_ROWS) {
        if (!PREFETCH) {
            copy.load(problem.streamed, start);
        }
        lds_barrier();
        streamed.store(copy);
        lds_barrier();
        if (PREFETCH && start + STREAM_ROWS < problem.stop) {
            copy.load(problem.streamed, start + STREAM_ROWS);
        }
#pragma unroll 1
        for (int at = 0; at < STREAM_ROWS; at += MMA_M) {
            accumulate(problem, streamed, own, lse_log2, delta, start, at, acc);
        }
    }
}

// Stores accumulators times `factor` to the wave's rows of `to`.
template <int FRAGMENTS>
DEVICE void store_gradient(const AccumulatorFragment (&acc)[FRAGMENTS][TILES_PER_WAVE], float factor, T* to,
                           int64_t row_stride, int width, const BlockRows& rows) {
    for (int t = 0; t < TILES_PER_WAVE; ++t) {
        const int64_t row = rows.first + wave_row() + t * MMA_N + lane_column();
        if (row >= rows.end) {
            continue;
        }
#pragma unroll
        for (int i = 0; i < FRAGMENTS; ++i) {
            const int column = i * MMA_M + lane_part() * ELEMENTS_PER_LANE;
            T* const address = to + row * row_stride + column;
            if (column + ELEMENTS_PER_LANE <= width) {
                words<ELEMENTS_PER_LANE * 2> rounded;
                for (int j = 0; j < ELEMENTS_PER_LANE; j += 2) {
                    rounded.w[j / 2] = pack2<T>(acc[i][t].get(j) * factor, acc[i][t].get(j + 1) * factor);
                }
                __builtin_memcpy(address, &rounded, sizeof rounded);
                continue;
            }
            for (int j = 0; j < ELEMENTS_PER_LANE; ++j) {
                if (column + j < width) {
                    address[j] = from_float<T>(acc[i][t].get(j) * factor);
                }
            }
        }
    }
}

#if OWNS_KEYS
KERNEL_RESIDENT(THREADS, BLOCKS_PER_CU)
void attention_bwd_dkdv(const T* dout, const T* q, const T* k, const T* v, const T* bias, const float* lse_log2,
                        const float* delta, T* dk, T* dv, const int* bounds, const int* tile_list,
                        const uint32_t* counts, int count, int kv_heads, int qheads_per_kvhead, int queries, int keys,
                        int columns_d, int columns_e, int low, int high, float to_score, float cap, float factor, int tiles,
                        int blocks, int64_t dout_batch, int64_t dout_head, int64_t dout_row, int64_t q_batch,
                        int64_t q_head, int64_t q_row, int64_t k_batch, int64_t k_head, int64_t k_row, int64_t v_batch,
                        int64_t v_head, int64_t v_row, int64_t bias_batch, int64_t bias_head, int64_t bias_row,
                        int64_t dk_batch, int64_t dk_head, int64_t dk_row, int64_t dv_batch, int64_t dv_head,
                        int64_t dv_row) {
    SHARED __attribute__((aligned(16))) char lds[StreamedTile::BYTES + Own::BYTES];
    const WorkTile work = work_tile<VARLEN>(blocks, tiles, kv_heads, false);
    const int64_t batch = work.batch, kv_head = work.head;
    const VarlenTables tables = {bounds, tile_list, counts, count};
    if (VARLEN && !tables.has(work.tile)) {
        return;
    }
    const BlockRows rows = block_rows<VARLEN, OWNS_KEYS, TILE>(work.tile, tables, queries, keys, low, high);
    if (rows.first >= rows.end) {
        return;
    }
    BlockProblem problem(rows, {to_score, cap});
    problem.own.d = {k + batch * k_batch + kv_head * k_head, k_row, rows.end, columns_d};
    problem.own.e = {v + batch * v_batch + kv_head * v_head, v_row, rows.end, columns_e};
    problem.bias_row = bias_row;
    const StreamedTile streamed(lds);
    const Own own(problem.own, rows.first, lds + StreamedTile::BYTES);
    Accumulators acc;
#pragma unroll 1
    for (int64_t head = kv_head * qheads_per_kvhead; head < (kv_head + 1) * qheads_per_kvhead; ++head) {
        const int64_t batch_head = batch * kv_heads * qheads_per_kvhead + head;
        problem.streamed.d = {q + batch * q_batch + head * q_head, q_row, rows.stop, columns_d};
        problem.streamed.e = {dout + batch * dout_batch + head * dout_head, dout_row, rows.stop, columns_e};
        problem.bias = bias + batch * bias_batch + head * bias_head;
        problem.lse_log2 = lse_log2 + batch_head * queries;
        problem.delta = delta + batch_head * queries;
        mainloop(problem, streamed, own, acc);
    }
    if (ACC_D) {
        store_gradient(acc.d, factor, dk + batch * dk_batch + kv_head * dk_head, dk_row, columns_d, rows);
    }
    if (ACC_E) {
        store_gradient(acc.e, P_UNSCALE, dv + batch * dv_batch + kv_head * dv_head, dv_row, columns_e, rows);
    }
}
#else
KERNEL_RESIDENT(THREADS, BLOCKS_PER_CU)
void attention_bwd_dq(const T* dout, const T* q, const T* k, const T* v, const T* bias, const float* lse_log2,
                      const float* delta, T* dq, const int* bounds, const int* tile_list, const uint32_t* counts,
                      int count, int heads, int qheads_per_kvhead, int queries, int keys, int columns_d, int columns_e,
                      int low, int high, float to_score, float cap, float factor, int tiles, int blocks, int64_t dout_batch,
                      int64_t dout_head, int64_t dout_row, int64_t q_batch, int64_t q_head, int64_t q_row,
                      int64_t k_batch, int64_t k_head, int64_t k_row, int64_t v_batch, int64_t v_head, int64_t v_row,
                      int64_t bias_batch, int64_t bias_head, int64_t bias_row, int64_t dq_batch, int64_t dq_head,
                      int64_t dq_row) {
    SHARED __attribute__((aligned(16))) char lds[StreamedTile::BYTES + Own::BYTES];
    const WorkTile work = work_tile<VARLEN>(blocks, tiles, heads, true);
    const int64_t batch = work.batch, head = work.head, batch_head = batch * heads + head;
    const int64_t kv_head = head / qheads_per_kvhead;
    const VarlenTables tables = {bounds, tile_list, counts, count};
    if (VARLEN && !tables.has(work.tile)) {
        return;
    }
    const BlockRows rows = block_rows<VARLEN, OWNS_KEYS, TILE>(work.tile, tables, queries, keys, low, high);
    if (rows.first >= rows.end) {
        return;
    }
    BlockProblem problem(rows, {to_score, cap});
    problem.own.d = {q + batch * q_batch + head * q_head, q_row, rows.end, columns_d};
    problem.own.e = {dout + batch * dout_batch + head * dout_head, dout_row, rows.end, columns_e};
    problem.streamed.d = {k + batch * k_batch + kv_head * k_head, k_row, rows.stop, columns_d};
    problem.streamed.e = {v + batch * v_batch + kv_head * v_head, v_row, rows.stop, columns_e};
    problem.bias = bias + batch * bias_batch + head * bias_head;
    problem.bias_row = bias_row;
    problem.lse_log2 = lse_log2 + batch_head * queries;
    problem.delta = delta + batch_head * queries;
    const StreamedTile streamed(lds);
    const Own own(problem.own, rows.first, lds + StreamedTile::BYTES);
    Accumulators acc;
    mainloop(problem, streamed, own, acc);
    store_gradient(acc.d, factor, dq + batch * dq_batch + head * dq_head, dq_row, columns_d, rows);
}
#endif
