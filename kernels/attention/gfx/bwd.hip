// dk and dv (or one of them), or dq, of attention on AMD's matrix units, without atomics.
//
// One kernel computes dk and dv, one dq, and both work alike: a block owns rows (keys, or queries of one head), and
// streams the others, STREAM_ROWS at a time. Each side has two tensors, of HEAD_D and of HEAD_E columns: k and v, or
// q and do. Products of the streamed rows with a wave's own give S and dP, own rows in columns; P and dS, rounded, are
// the second operand of the accumulators, which are transposed. dS makes the accumulators of HEAD_D columns (dk, dq),
// P those of HEAD_E (dv). Where registers and LDS do not hold dk and dv of large heads, each has a launch of its own;
// that of dv needs no dS, and so v not at all.
//
// The streamed rows have one buffer of LDS (bwd_streams.h), and a step two barriers; the next rows are loaded while the
// products with these run. On gfx9 an accumulator fragment's two instructions are computed one after the other, so that
// few registers hold S and dP, and rows that all of a block's own see have a loop without masks. S is computed once for dk and dv and again for dq. Blocks of keys go through the query heads that share
// their key head one after the other, in float32 accumulators.
//
// Defines: ELEMENT (bf16, f16); OWNS_KEYS: whether blocks own keys, else queries; HEAD_D, HEAD_E: the head sizes, as
// multiples of 32; EVEN_D, EVEN_E: whether they are exact; ACC_D, ACC_E: which accumulators are computed;
// STREAM_ROWS; WAVES, TILES_PER_WAVE: a wave owns TILES_PER_WAVE * 16 rows; OWN_IN_REGISTERS: whether in registers,
// else in LDS; SOFTCAP, BIAS; VARLEN: packed sequences (attention_varlen_backward); PREFETCH: whether the next rows are
// loaded under the products; BLOCKS_PER_CU: blocks that a compute unit should hold; BUFFER_LOADS: whether streamed rows
// come by buffer descriptors (stream.h); PARAMS_LAYOUT (params.h).
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

#include "bwd_streams.h"

using TileD = LdsTile<HEAD_D>;
using TileE = LdsTile<HEAD_E>;
using Mask = MaskBounds<OWNS_KEYS, WAVE_ROWS>;
constexpr int P_SCALE_LOG2 = OWNS_KEYS ? P_SCALE_LOG2_OF<T> : 0;
constexpr bool SPLIT_LOOP = WARP == 64;                // rows that all see have a loop without masks
constexpr bool LOAD_BETWEEN = PREFETCH && WARP == 64;  // the next rows come when the scores' registers are free
constexpr float P_UNSCALE = 1.0f / (1 << P_SCALE_LOG2);

// --- the rows that a wave owns ---

// This wave's first row of the block's.
DEVICE int wave_row() { return __builtin_amdgcn_readfirstlane(thread_x() / WARP) * WAVE_ROWS; }

// Two elements with the other sign.
DEVICE uint32_t negated(uint32_t pair) { return pair ^ 0x80008000u; }

// A block's own rows as second operands, those of HEAD_E columns with the other sign: delta - dP then is what the
// instructions add up from delta on. `tile` is one of the wave's TILES_PER_WAVE.
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
                for (uint32_t& word : held_e[t][i].registers.w) {
                    word = negated(word);
                }
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
            for (words<16>& chunk : copy_e.registers) {
                for (uint32_t& word : chunk.w) {
                    word = negated(word);
                }
            }
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

// lse_log2 and delta of the queries of a lane's ACCUMULATORS scores: of a streamed row each, or all of its own row.
struct QueryStats {
    accumulators lse_log2, delta;

    // Of the streamed rows from `row` on, the same for all lanes, and then the lane's. Those that do not exist lie in
    // memory all the same.
    static DEVICE accumulators load(const float* from, int row, int lane_row) {
        const char* const of_all = reinterpret_cast<const char*>(from + row);
        uint32_t of_lane = lane_row * 4;
        asm volatile("" : "+v"(of_lane));  // else a lane keeps the sum, 64 bits of each
        accumulators values;
        for (int i = 0; i < ACCUMULATORS; i += 4) {
            const auto four = load_unaligned<16>(reinterpret_cast<const float*>(of_all + of_lane) + i);
            for (int j = 0; j < 4; ++j) {
                values[i + j] = float_of(four.w[j]);
            }
        }
        return values;
    }
    DEVICE void load_own(const BlockProblem& problem, int row) {
        const float lse = problem.lse_log2[row], d = problem.delta[row];
        for (int i = 0; i < ACCUMULATORS; ++i) {
            lse_log2[i] = lse;
            delta[i] = d;
        }
    }
};

// Whether products are added to delta, or delta to them: with one delta for all of a column that saves registers.
constexpr bool DELTA_FIRST = OWNS_KEYS || WARP == 64;
constexpr int STATS = OWNS_KEYS ? 1 : TILES_PER_WAVE;

// The bias of a lane's scores: streamed rows from `row` on, and own row `own`.
DEVICE void load_bias(const BlockProblem& problem, int row, int own, float (&bias)[ACCUMULATORS]) {
    for (float& each : bias) {
        each = 0;
    }
    if (own >= problem.own.d.end) {
        return;
    }
    if (OWNS_KEYS) {
        for (int i = 0; i < ACCUMULATORS; ++i) {
            if (row + i < problem.mask.end) {
                bias[i] = to_float(problem.bias[(row + i) * problem.bias_row + own]);
            }
        }
    } else {
        constexpr int BYTES = ACCUMULATORS * 2;
        const auto part =
            load_bounded<BYTES>(problem.bias + own * problem.bias_row + row, problem.mask.end - row);
        const auto values = __builtin_bit_cast(vec<T, ACCUMULATORS>, part);
        for (int i = 0; i < ACCUMULATORS; ++i) {
            bias[i] = to_float(values.v[i]);
        }
    }
}

// Makes `row`, where own rows lie in LDS, opaque: addresses are computed again and take no registers in between.
DEVICE void reload_row(int& row) {
    if constexpr (!OWN_IN_REGISTERS) {
        asm volatile("" : "+s"(row));
    }
}

// lane_column(), so that what follows from it is computed again and takes no registers in between.
DEVICE int lane_column_again() {
    int thread = thread_x();
    asm volatile("" : "+v"(thread));
    return thread % MMA_N;
}

// P and dS of the wave's own rows, with the other sign, as the second operands of the accumulators' products.
struct Gradients {
    BFragment p[TILES_PER_WAVE], ds[TILES_PER_WAVE];
};

// One instruction's scores of a wave: streamed rows from `row` on, the lane's first, of each tile of own rows.
struct Scores {
    accumulators p[TILES_PER_WAVE], dp[TILES_PER_WAVE];            // S, then P; delta - dP
    accumulators softcap_grad[SOFTCAP ? TILES_PER_WAVE : 1];

    // S become P.
    DEVICE void exponentiate(const BlockProblem& problem, const QueryStats (&stats)[STATS], int row) {
        for (int t = 0; t < TILES_PER_WAVE; ++t) {
            const accumulators lse_log2 = stats[OWNS_KEYS ? 0 : t].lse_log2;
            float bias[ACCUMULATORS] = {};
            if (BIAS) {
                load_bias(problem, row, problem.first + wave_row() + t * MMA_N + lane_column_again(), bias);
            }
            for (int j = 0; j < ACCUMULATORS; ++j) {
                const ScoreScale& how = problem.score_scale;
                const float x = p[t][j];
                if constexpr (SOFTCAP || BIAS) {
                    float grad;
                    p[t][j] = p_of<SOFTCAP, BIAS, 0>(x, bias[j], lse_log2[j], how.scale, how.cap, grad);
                    if (SOFTCAP) {
                        softcap_grad[t][j] = grad;
                    }
                } else {
                    p[t][j] = exp2_ftz(math_fma(x, how.scale, -lse_log2[j]));
                }
            }
        }
    }

    // P and -dS, rounded, as the i-th instruction's words. `masked`: whether some may be hidden.
    DEVICE void round(const BlockProblem& problem, const QueryStats (&stats)[STATS], int row, bool masked, int i,
                      words<16> (&p_words)[TILES_PER_WAVE], words<16> (&ds_words)[TILES_PER_WAVE]) {
        for (int t = 0; t < TILES_PER_WAVE; ++t) {
            float ds[ACCUMULATORS];
            for (int j = 0; j < ACCUMULATORS; ++j) {
                ds[j] = (DELTA_FIRST ? dp[t][j] : dp[t][j] + stats[t].delta[j]) * p[t][j];
                if (P_SCALE_LOG2) {
                    ds[j] *= P_UNSCALE;
                }
                if (SOFTCAP) {
                    ds[j] *= softcap_grad[t][j];
                }
                if (WARP == 64) {
                    asm("" : "+v"(ds[j]));  // products of two at once would make the matrix pipe wait
                }
            }
            if (masked) {
                const int own_row = problem.first + wave_row() + t * MMA_N + lane_column_again();
                const int first = problem.mask.first(own_row), last = problem.mask.last(own_row);
                for (int j = 0; j < ACCUMULATORS; ++j) {
                    const bool seen = row + j >= first && row + j <= last;
                    p[t][j] = seen ? p[t][j] : 0;
                    ds[j] = seen ? ds[j] : 0;
                }
            }
            for (int j = 0; j < ACCUMULATORS; j += 2) {
                const int word = (i * ACCUMULATORS + j) / 2;
                if (ACC_E) {
                    p_words[t].w[word] = pack2_b<T>(p[t][j], p[t][j + 1]);
                }
                if (ACC_D) {
                    ds_words[t].w[word] = pack2_b<T>(ds[j], ds[j + 1]);
                }
            }
        }
    }
};

// First operands on their way from LDS under the products. More spill where accumulators and own rows leave few
// registers; on gfx11 an operand is twice as large.
constexpr int HELD = TILES_PER_WAVE * (HEAD_D * ACC_D + HEAD_E * ACC_E) * MMA_N / WARP +
                     (OWN_IN_REGISTERS ? TILES_PER_WAVE * (HEAD_D + HEAD_E * ACC_D) * 8 / WARP : 0);
// Whether S become P behind the products of dP: with a bias gfx12 spills else.
constexpr bool EXP_LATE = WARP == 32 && sizeof(operand) == 16 && BIAS;
#if defined(__GFX9__)
constexpr int PREFETCH_OPERANDS = HELD <= 160 ? 3 : 1;
#elif defined(__GFX11__)
constexpr int PREFETCH_OPERANDS = 1;
#else
constexpr int PREFETCH_OPERANDS = BIAS ? 1 : 2;
#endif

// P and dS of MMA_M streamed rows, those from `at` on of the ones in LDS. `stats`: of the wave's queries. MASKED: whether
// some score may be hidden.
template <bool MASKED>
DEVICE void compute_gradients(const BlockProblem& problem, const Streamed& streamed, const Own& own,
                              QueryStats (&stats)[STATS], int start, int at, Gradients& to) {
    constexpr int S_OPERANDS = HEAD_D / MMA_K, DP_OPERANDS = ACC_D ? HEAD_E / MMA_K : 0;
    constexpr int OPERANDS = S_OPERANDS + DP_OPERANDS;  // of an instruction's rows
    const bool masked = SPLIT_LOOP ? MASKED : !problem.mask.all_seen<MMA_M>(start + at, problem.first + wave_row());
    Scores scores;
    words<16> p[TILES_PER_WAVE], ds[TILES_PER_WAVE];
    int row = at;
    prefetch<OPERANDS * MMA_INSTRUCTIONS, PREFETCH_OPERANDS>(
        [&](int i) {
            const int half = i / OPERANDS, j = i % OPERANDS;
            if (j == 0 || j == S_OPERANDS) {
                reload_row(row);
            }
            return j < S_OPERANDS ? streamed.d(half, row, j * MMA_K)
                                  : streamed.e(half, row, (j - S_OPERANDS) * MMA_K);
        },
        [&](int i, operand a) {
            const int half = i / OPERANDS, j = i % OPERANDS;
            const int lane_row = lane_part() * ELEMENTS_PER_LANE + half * ACCUMULATORS;
            if (OWNS_KEYS && j == 0) {
                stats[0].lse_log2 = QueryStats::load(problem.lse_log2, start + at, lane_row) - P_SCALE_LOG2;
            }
            if (OWNS_KEYS && ACC_D && j == 0) {
                stats[0].delta = QueryStats::load(problem.delta, start + at, lane_row);
            }
            for (int t = 0; t < TILES_PER_WAVE; ++t) {
                accumulators &s = scores.p[t], &dp = scores.dp[t];
                if (j < S_OPERANDS) {
                    s = mma_instruction<T>(a, own.d(t, j * MMA_K).registers, j == 0 ? accumulators(0) : s);
                } else {
                    const accumulators c = j > S_OPERANDS ? dp : DELTA_FIRST ? stats[OWNS_KEYS ? 0 : t].delta : accumulators(0);
                    dp = mma_instruction<T>(a, own.e(t, (j - S_OPERANDS) * MMA_K).registers, c);
                }
            }
            if (j == (EXP_LATE ? OPERANDS : S_OPERANDS) - 1) {
                scores.exponentiate(problem, stats, start + at + lane_row);
            }
            if (j == OPERANDS - 1) {
                scores.round(problem, stats, start + at + lane_row, masked, half, p, ds);
            }
        });
    for (int t = 0; t < TILES_PER_WAVE; ++t) {
        if (ACC_E) {
            to.p[t] = as_b_fragment(p[t]);
        }
        if (ACC_D) {
            to.ds[t] = as_b_fragment(ds[t]);
        }
    }
}

// Accumulates over these rows.
DEVICE void accumulate(const Streamed& streamed, const Gradients& from, int at, Accumulators& acc) {
    constexpr int OPERANDS_E = ACC_E ? HEAD_E / MMA_M * MMA_INSTRUCTIONS : 0;
    constexpr int OPERANDS_D = ACC_D ? HEAD_D / MMA_M * MMA_INSTRUCTIONS : 0;
    prefetch<OPERANDS_E + OPERANDS_D, PREFETCH_OPERANDS>(
        [&](int i) {
            const bool e = i < OPERANDS_E;
            const int j = e ? i : i - OPERANDS_E, column = j / MMA_INSTRUCTIONS * MMA_M, half = j % MMA_INSTRUCTIONS;
            if (j == 0) {
                reload_row(at);
            }
            return e ? streamed.e_column(half, column, at) : streamed.d_column(half, column, at);
        },
        [&](int i, operand a) {
            const bool e = i < OPERANDS_E;
            const int j = e ? i : i - OPERANDS_E, fragment = j / MMA_INSTRUCTIONS, half = j % MMA_INSTRUCTIONS;
            for (int t = 0; t < TILES_PER_WAVE; ++t) {
                accumulators& sum = e ? acc.e[fragment][t].registers[half] : acc.d[fragment][t].registers[half];
                sum = mma_instruction<T>(a, (e ? from.p[t] : from.ds[t]).registers, sum);
            }
        });
}

// The streamed rows that all of a block's rows see, or that see them all.
struct SeenRows {
    int begin, stop;
};
DEVICE SeenRows seen_rows(const BlockProblem& problem) {
    return {problem.mask.first(problem.first + TILE - 1), problem.mask.last(problem.first) + 1};
}

template <bool VALUE> struct Constant {
    static constexpr bool value = VALUE;
};

// Accumulates over all streamed rows.
DEVICE void mainloop(const BlockProblem& problem, Streamed& streamed, const Own& own, Accumulators& acc) {
    if (problem.begin >= problem.stop) {
        return;
    }
    QueryStats stats[STATS];
    if (!OWNS_KEYS) {
        for (int t = 0; t < TILES_PER_WAVE; ++t) {
            const int own_row = problem.first + wave_row() + t * MMA_N + lane_column();
            stats[t].load_own(problem, min(own_row, problem.own.d.end - 1));
        }
    }
    streamed.start(problem.streamed, problem.begin, problem.stop);
    if (PREFETCH) {
        streamed.load();
    }
    const auto step = [&](auto masked, int start) {
        constexpr bool MASKED = decltype(masked)::value;
        if (!PREFETCH) {
            streamed.load();
        }
        lds_barrier();
        streamed.store();
        lds_barrier();
        const auto load_next = [&] {
            if (BUFFER_LOADS || start + STREAM_ROWS < problem.stop) {
                streamed.load();
            }
        };
        if (PREFETCH && !LOAD_BETWEEN) {
            load_next();
        }
#pragma unroll 1
        for (int at = 0; at < STREAM_ROWS; at += MMA_M) {
            const bool hidden = MASKED && problem.mask.all_hidden<MMA_M>(start + at, problem.first + wave_row());
            Gradients gradients;
            if (!hidden) {
                compute_gradients<MASKED>(problem, streamed, own, stats, start, at, gradients);
            }
            if (LOAD_BETWEEN) {
                load_next();
            }
            if (!hidden) {
                accumulate(streamed, gradients, at, acc);
            }
        }
    };
    if constexpr (!SPLIT_LOOP) {
#pragma unroll 1
        for (int start = problem.begin; start < problem.stop; start += STREAM_ROWS) {
            step(Constant<true>{}, start);
        }
        return;
    }
    const SeenRows seen = seen_rows(problem);
#pragma unroll 1
    for (int start = problem.begin; start < problem.stop; start += STREAM_ROWS) {
#pragma unroll 1
        for (; start >= seen.begin && start + STREAM_ROWS <= seen.stop; start += STREAM_ROWS) {
            step(Constant<false>{}, start);
        }
        if (start < problem.stop) {
            step(Constant<true>{}, start);
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
            AccumulatorFragment sum = acc[i][t];
            Streamed::in_column_order(sum);
            if (column + ELEMENTS_PER_LANE <= width) {
                words<ELEMENTS_PER_LANE * 2> rounded;
                for (int j = 0; j < ELEMENTS_PER_LANE; j += 2) {
                    rounded.w[j / 2] = pack2<T>(sum.get(j) * factor, sum.get(j + 1) * factor);
                }
                __builtin_memcpy(address, &rounded, sizeof rounded);
                continue;
            }
            for (int j = 0; j < ELEMENTS_PER_LANE; ++j) {
                if (column + j < width) {
                    address[j] = from_float<T>(sum.get(j) * factor);
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
    SHARED __attribute__((aligned(256))) char lds[Streamed::BYTES + Own::BYTES];
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
    Streamed streamed(lds);
    const Own own(problem.own, rows.first, lds + Streamed::BYTES);
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
        store_gradient(acc.d, -p.scale, dk, p.dk_row, p.head_dim, rows);
    }
    if (ACC_E) {
        T* const dv = static_cast<T*>(p.dv) + batch * p.dv_batch + kv_head * p.dv_head;
        store_gradient(acc.e, P_UNSCALE, dv, p.dv_row, p.head_dim_v, rows);
    }
}
#else
KERNEL_RESIDENT(THREADS, BLOCKS_PER_CU) void attention_bwd_dq(const AttentionParams params, int tiles, int blocks) {
    const AttentionParams& p = params;
    SHARED __attribute__((aligned(256))) char lds[Streamed::BYTES + Own::BYTES];
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
    Streamed streamed(lds);
    const Own own(problem.own, rows.first, lds + Streamed::BYTES);
    Accumulators acc;
    mainloop(problem, streamed, own, acc);
    T* const dq = static_cast<T*>(p.dq) + batch * p.dq_batch + head * p.dq_head;
    store_gradient(acc.d, -p.scale, dq, p.dq_row, p.head_dim, rows);
}
#endif
