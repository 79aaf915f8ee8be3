// dk and dv (or one of them), or dq, of attention on AMD's matrix units, without atomics.
//
// One kernel computes dk and dv, one dq, and both work alike: a block owns rows (keys, or queries of one head), and
// streams the others, STREAM_ROWS at a time. Each side has two tensors, of HEAD_D and of HEAD_E columns: k and v, or
// q and do. Products of the streamed rows with a wave's own give S and dP, own rows in columns; P and dS, rounded, are
// the second operand of the accumulators, which are transposed. dS makes the accumulators of HEAD_D columns (dk, dq),
// P those of HEAD_E (dv). Where registers and LDS do not hold dk and dv of large heads, each has a launch of its own;
// that of dv needs no dS, and so v not at all.
//
// The streamed rows have one buffer of LDS, and a step two barriers; the next rows are loaded while the products with
// these run. S is computed once for dk and dv and again for dq. Blocks of keys go through the query heads that share
// their key head one after the other, in float32 accumulators.
//
// Defines: ELEMENT (bf16, f16); OWNS_KEYS: whether blocks own keys, else queries; HEAD_D, HEAD_E: the head sizes, as
// multiples of 32; EVEN_D, EVEN_E: whether they are exact; ACC_D, ACC_E: which accumulators are computed;
// STREAM_ROWS; WAVES, TILES_PER_WAVE: a wave owns TILES_PER_WAVE * 16 rows; OWN_IN_REGISTERS: whether in registers,
// else in LDS; SOFTCAP, BIAS; VARLEN: packed sequences (attention_varlen_backward); PREFETCH: whether the next rows are loaded
// under the products; BLOCKS_PER_CU: blocks that a compute unit should hold; PARAMS_LAYOUT (params.h).
#include "attention/device/mask.h"
#include "attention/device/params.h"
#include "attention/device/seqlen_info.h"
#include "attention/device/softmax.h"
#include "attention/device/tile_scheduler.h"
#include "tiles.h"

using T = ELEMENT;
constexpr int THREADS = WAVES * WARP;
constexpr int WAVE_ROWS = TILES_PER_WAVE * MMA_N;  // own rows of a wave
constexpr int TILE = WAVES * WAVE_ROWS;
static_assert(STREAM_ROWS % MMA_K == 0 && HEAD_D % 32 == 0 && HEAD_E % 32 == 0, "LDS rows are whole swizzle groups");

using TileD = LdsTile<HEAD_D>;
using TileE = LdsTile<HEAD_E>;
using TransposedTile = LdsTile<STREAM_ROWS>;  // a row per column
using Mask = MaskBounds<OWNS_KEYS, WAVE_ROWS>;
constexpr int P_SCALE_LOG2 = OWNS_KEYS ? P_SCALE_LOG2_OF<T> : 0;
constexpr float P_UNSCALE = 1.0f / (1 << P_SCALE_LOG2);

// --- the streamed rows ---

struct TensorPair {
    HeadRows<T> d, e;
};

// STREAM_ROWS rows of a pair. A thread moves ELEMENTS_PER_LANE rows of COLUMNS columns of one of the two, so that it
// can store them both ways.
struct PairCopy {
    static constexpr int COLUMNS = 4;
    static constexpr int THREADS_PER_ROW_D = HEAD_D / COLUMNS;
    static constexpr int THREADS_PER_ROW = THREADS_PER_ROW_D + HEAD_E / COLUMNS;
    static constexpr int TOTAL = THREADS_PER_ROW * STREAM_ROWS / ELEMENTS_PER_LANE;
    static constexpr int COUNT = (TOTAL + THREADS - 1) / THREADS;

    words<COLUMNS * 2> registers[COUNT][ELEMENTS_PER_LANE];
    int thread;

    // Reads the thread index again where it is needed: what is computed from it takes no registers in between.
    DEVICE void reload_thread_idx() {
        thread = thread_x();
        asm volatile("" : "+v"(thread));
    }
    DEVICE int id(int i) const { return thread + i * THREADS; }
    DEVICE bool exists(int i) const { return TOTAL % THREADS == 0 || id(i) < TOTAL; }
    DEVICE bool is_d(int i) const { return id(i) % THREADS_PER_ROW < THREADS_PER_ROW_D; }
    DEVICE int column(int i) const { return (id(i) % THREADS_PER_ROW - (is_d(i) ? 0 : THREADS_PER_ROW_D)) * COLUMNS; }

    // The rows from `first` on, of which at least one exists; the others become zeros.
    DEVICE void load(const TensorPair& from, int first) {
        reload_thread_idx();
        for (int i = 0; i < COUNT; ++i) {
            if (!exists(i)) {
                continue;
            }
            const int row = first + id(i) / THREADS_PER_ROW * ELEMENTS_PER_LANE;
            const int64_t stride = is_d(i) ? from.d.stride : from.e.stride;
            const int remaining = (is_d(i) ? from.d.width : from.e.width) - column(i);
            const T* const data = (is_d(i) ? from.d.data : from.e.data) + column(i);
            for (int r = 0; r < ELEMENTS_PER_LANE; ++r) {
                const T* const address = data + min(row + r, from.d.end - 1) * stride;
                registers[i][r] = EVEN_D && EVEN_E ? load_unaligned<COLUMNS * 2>(address)
                                                   : load_bounded<COLUMNS * 2>(address, remaining);
            }
            if (first + STREAM_ROWS > from.d.end) {
                clear_beyond(registers[i], row, from.d.end);
            }
        }
    }

    template <class Tile> DEVICE void store_rows(int i, char* tile) const {
        const int row = id(i) / THREADS_PER_ROW * ELEMENTS_PER_LANE;
        for (int r = 0; r < ELEMENTS_PER_LANE; ++r) {
            char* const to =
                tile + Tile::offset(row + r, column(i) / ELEMENTS_PER_LANE) + column(i) % ELEMENTS_PER_LANE * 2;
            store_words<COLUMNS * 2>(to, registers[i][r]);
        }
    }

    DEVICE void store_transposed(int i, char* tile) const {
        for (int c = 0; c < COLUMNS; ++c) {
            const int offset = TransposedTile::offset(column(i) + c, id(i) / THREADS_PER_ROW);
            store_words<16>(tile + offset, transposed_column(registers[i], c));
        }
    }
};

// The streamed rows in LDS: as rows, and transposed for the accumulators' products.
struct StreamedTile {
    char *d, *e, *d_transposed, *e_transposed;

    static constexpr int BYTES_E = ACC_D ? TileE::bytes(STREAM_ROWS) : 0;
    static constexpr int BYTES_TRANSPOSED_D = ACC_D ? TransposedTile::bytes(HEAD_D) : 0;
    static constexpr int BYTES_TRANSPOSED_E = ACC_E ? TransposedTile::bytes(HEAD_E) : 0;
    static constexpr int BYTES = TileD::bytes(STREAM_ROWS) + BYTES_E + BYTES_TRANSPOSED_D + BYTES_TRANSPOSED_E;

    DEVICE explicit StreamedTile(char* lds) {
        d = lds;
        e = d + TileD::bytes(STREAM_ROWS);
        d_transposed = e + BYTES_E;
        e_transposed = d_transposed + BYTES_TRANSPOSED_D;
    }

    DEVICE void store(PairCopy& copy) const {
        copy.reload_thread_idx();
        for (int i = 0; i < PairCopy::COUNT; ++i) {
            if (!copy.exists(i)) {
                continue;
            }
            if (copy.is_d(i)) {
                copy.store_rows<TileD>(i, d);
                if (ACC_D) {
                    copy.store_transposed(i, d_transposed);
                }
            } else {
                if (ACC_D) {
                    copy.store_rows<TileE>(i, e);
                }
                if (ACC_E) {
                    copy.store_transposed(i, e_transposed);
                }
            }
        }
    }
};

// --- the rows that a wave owns ---

// This wave's first row of the block's.
DEVICE int wave_row() { return __builtin_amdgcn_readfirstlane(thread_x() / WARP) * WAVE_ROWS; }

// A block's own rows as second operands; `tile` is one of the wave's TILES_PER_WAVE.
template <bool IN_REGISTERS> struct OwnRows;

template <> struct OwnRows<true> {
    static constexpr int BYTES = 0;
    BFragment held_d[TILES_PER_WAVE][HEAD_D / MMA_K], held_e[TILES_PER_WAVE][HEAD_E / MMA_K];  // the latter for dS

    DEVICE OwnRows(const TensorPair& from, int first, char*) {
        for (int t = 0; t < TILES_PER_WAVE; ++t) {
            const int64_t row = min(first + wave_row() + t * MMA_N + lane_column(), from.d.end - 1);
            for (int i = 0; i < HEAD_D / MMA_K; ++i) {
                const int k = i * MMA_K;
                const int remaining = (EVEN_D ? HEAD_D : from.d.width) - k;
                held_d[t][i] = load_b_global(from.d.data + row * from.d.stride, k, remaining);
            }
            for (int i = 0; ACC_D && i < HEAD_E / MMA_K; ++i) {
                const int k = i * MMA_K;
                const int remaining = (EVEN_E ? HEAD_E : from.e.width) - k;
                held_e[t][i] = load_b_global(from.e.data + row * from.e.stride, k, remaining);
            }
        }
    }
    DEVICE BFragment d(int tile, int k) const { return held_d[tile][k / MMA_K]; }
    DEVICE BFragment e(int tile, int k) const { return held_e[tile][k / MMA_K]; }
};

template <> struct OwnRows<false> {
    static constexpr int BYTES = TileD::bytes(TILE) + (ACC_D ? TileE::bytes(TILE) : 0);
    const char* lds;

    DEVICE OwnRows(const TensorPair& from, int first, char* to) {
        TileCopy<T, HEAD_D, TILE, THREADS> copy_d;
        copy_d.template load<EVEN_D>(from.d, first);
        copy_d.store(to);
        if (ACC_D) {
            TileCopy<T, HEAD_E, TILE, THREADS> copy_e;
            copy_e.template load<EVEN_E>(from.e, first);
            copy_e.store(to + TileD::bytes(TILE));
        }
        lds = to;
    }
    DEVICE BFragment d(int tile, int k) const { return TileD::load_b(lds, wave_row() + tile * MMA_N, k); }
    DEVICE BFragment e(int tile, int k) const {
        return TileE::load_b(lds + TileD::bytes(TILE), wave_row() + tile * MMA_N, k);
    }
};

using Own = OwnRows<OWN_IN_REGISTERS>;

// --- what a block computes ---

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

    DEVICE void set_stats(const AttentionParams& p, int64_t batch_head) {
        lse_log2 = p.stats + batch_head * 2 * p.seqlen_q;
        delta = lse_log2 + p.seqlen_q;
    }

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

// A head's rows in memory, which exist below `end`.
DEVICE TensorPair pair_of(const void* d, const void* e, int64_t d_row, int64_t e_row, int end,
                          const AttentionParams& p) {
    return {{static_cast<const T*>(d), d_row, end, p.head_dim}, {static_cast<const T*>(e), e_row, end, p.head_dim_v}};
}

DEVICE BlockRows rows_of(int tile, const VarlenTables& tables, const AttentionParams& p) {
    const int queries = p.seqlen_q, keys = p.seqlen_k, diagonal = VARLEN ? 0 : keys - queries;
    return block_rows<VARLEN, OWNS_KEYS, TILE>(tile, tables, queries, keys, diagonal - p.left, diagonal + p.right);
}

#if OWNS_KEYS
// `blocks` in all, of which a head has `tiles`.
KERNEL_RESIDENT(THREADS, BLOCKS_PER_CU) void attention_bwd_dkdv(const AttentionParams params, int tiles, int blocks) {
    const AttentionParams& p = params;
    SHARED __attribute__((aligned(16))) char lds[StreamedTile::BYTES + Own::BYTES];
    const XcdTile work = xcd_tile<VARLEN>(blocks, tiles, p.kv_heads, false);
    const int64_t batch = work.batch, kv_head = work.head;
    const VarlenTables tables(p);
    if (VARLEN && !tables.has(work.tile)) {
        return;
    }
    const BlockRows rows = rows_of(work.tile, tables, p);
    if (rows.first >= rows.end) {
        return;
    }
    const T *const q = static_cast<const T*>(p.q), *const k = static_cast<const T*>(p.k);
    const T *const v = static_cast<const T*>(p.v), *const dout = static_cast<const T*>(p.dout);
    BlockProblem problem(rows, {p.score_scale, p.softcap_log2});
    problem.own = pair_of(k + batch * p.k_batch + kv_head * p.k_head, v + batch * p.v_batch + kv_head * p.v_head,
                          p.k_row, p.v_row, rows.end, p);
    problem.bias_row = p.bias_row;
    const StreamedTile streamed(lds);
    const Own own(problem.own, rows.first, lds + StreamedTile::BYTES);
    Accumulators acc;
#pragma unroll 1
    for (int64_t head = kv_head * p.qheads_per_kvhead; head < (kv_head + 1) * p.qheads_per_kvhead; ++head) {
        problem.streamed = pair_of(q + batch * p.q_batch + head * p.q_head,
                                   dout + batch * p.dout_batch + head * p.dout_head, p.q_row, p.dout_row, rows.stop, p);
        problem.bias = static_cast<const T*>(p.bias) + batch * p.bias_batch + head * p.bias_head;
        problem.set_stats(p, batch * p.heads + head);
        mainloop(problem, streamed, own, acc);
    }
    if (ACC_D) {
        T* const dk = static_cast<T*>(p.dk) + batch * p.dk_batch + kv_head * p.dk_head;
        store_gradient(acc.d, p.scale, dk, p.dk_row, p.head_dim, rows);
    }
    if (ACC_E) {
        T* const dv = static_cast<T*>(p.dv) + batch * p.dv_batch + kv_head * p.dv_head;
        store_gradient(acc.e, P_UNSCALE, dv, p.dv_row, p.head_dim_v, rows);
    }
}
#else
KERNEL_RESIDENT(THREADS, BLOCKS_PER_CU) void attention_bwd_dq(const AttentionParams params, int tiles, int blocks) {
    const AttentionParams& p = params;
    SHARED __attribute__((aligned(16))) char lds[StreamedTile::BYTES + Own::BYTES];
    const XcdTile work = xcd_tile<VARLEN>(blocks, tiles, p.heads, true);
    const int64_t batch = work.batch, head = work.head, kv_head = head / p.qheads_per_kvhead;
    const VarlenTables tables(p);
    if (VARLEN && !tables.has(work.tile)) {
        return;
    }
    const BlockRows rows = rows_of(work.tile, tables, p);
    if (rows.first >= rows.end) {
        return;
    }
    const T *const q = static_cast<const T*>(p.q), *const k = static_cast<const T*>(p.k);
    const T *const v = static_cast<const T*>(p.v), *const dout = static_cast<const T*>(p.dout);
    BlockProblem problem(rows, {p.score_scale, p.softcap_log2});
    problem.own = pair_of(q + batch * p.q_batch + head * p.q_head, dout + batch * p.dout_batch + head * p.dout_head,
                          p.q_row, p.dout_row, rows.end, p);
    problem.streamed = pair_of(k + batch * p.k_batch + kv_head * p.k_head, v + batch * p.v_batch + kv_head * p.v_head,
                               p.k_row, p.v_row, rows.stop, p);
    problem.bias = static_cast<const T*>(p.bias) + batch * p.bias_batch + head * p.bias_head;
    problem.bias_row = p.bias_row;
    problem.set_stats(p, batch * p.heads + head);
    const StreamedTile streamed(lds);
    const Own own(problem.own, rows.first, lds + StreamedTile::BYTES);
    Accumulators acc;
    mainloop(problem, streamed, own, acc);
    T* const dq = static_cast<T*>(p.dq) + batch * p.dq_batch + head * p.dq_head;
    store_gradient(acc.d, p.scale, dq, p.dq_row, p.head_dim, rows);
}
#endif
