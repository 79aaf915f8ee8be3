// dk and dv, or dq, of attention with matrix instructions of a warp (mma.sync). For sm_80 and later, any head size,
// alignment and stride between rows; the same input gives the same bits.
//
// One kernel finds dk and dv, one dq, and both do the same. Products of a warp's own lines with
// those that pass by are the scores and, with the other tensors, their gradients. They stay in registers: rounded,
// they are the first operand of the sums. What passes by has two buffers: while a block multiplies with one, the other
// is filled (cp.async). Blocks of keys go through the query heads that share their key head one after the other.
//
// A block owns rows (keys, or queries of one head), and the others pass by, STEP at a time. Each side has two
// tensors, of HEAD_D and of HEAD_E columns: k and v, or q and do.
//
// Defines: ELEMENT (bf16, f16); KEYS: whether keys are owned, else queries; HEAD_D, HEAD_E: the head sizes, as
// multiples of 16; SUM_D, SUM_E: whether the block makes dk or dq, and dv; WARPS, M_TILES: a warp owns M_TILES * 16
// rows; STEP (of 16); COPY_BYTES, STORE_BYTES: 16 where rows that are read, or written, are aligned to that, else 2;
// SOFTCAP, BIAS; VARLEN: tiles are those that varlen_tiles.cu found; PARAMS_LAYOUT (params.h).
#include "prelude.h"

#include "_lib/ptx/thread_idx.h"
#include "attention/device/mask.h"
#include "attention/device/params.h"
#include "attention/device/seqlen_info.h"
#include "attention/device/softmax.h"
#include "tiles.h"

using T = ELEMENT;
constexpr int THREADS = WARPS * 32;
constexpr int OWN = M_TILES * 16;  // rows of a warp
constexpr int TILE = WARPS * OWN;
constexpr int SCORES = STEP / 2;  // a thread's, of 16 own rows by STEP
static_assert(HEAD_D % 16 == 0 && HEAD_E % 16 == 0 && STEP % 16 == 0, "whole matrix instructions");
static_assert(SUM_D || SUM_E, "something to make");

constexpr int P_SCALE_LOG2 = KEYS ? P_SCALE_LOG2_OF<T> : 0;
constexpr float P_UNSCALE = 1.0f / (1 << P_SCALE_LOG2);
using Mask = MaskBounds<KEYS, OWN>;  // bounds of a warp's rows

// What ptxas does with registers, by NVRTC 13.0, 2026-11-23 (docs/notes/attention_mma.md). On sm_90a and sm_100 both
// constants cost up to 45 registers.
constexpr bool SM80 = __CUDA_ARCH__ < 900;
// Whether the bounds are rematerialized at each use, from constant memory or a sequence's diagonal, not kept across the
// loop: dk and dv, heads of 64, 24 bytes of stack to 0; of varlen in float16 170 registers to 167, a third block; dq of
// rows by the element, 8 bytes to 0. Not where it costs: dv alone (168 to 222), dk and dv by 32 rows a warp and the
// element (0 to 24 bytes), varlen's dq (159 to 164), a bias (128 to 130).
constexpr bool REMATERIALIZE_MASK =
    SM80 && SUM_D && !BIAS && (KEYS ? M_TILES == 1 || COPY_BYTES == 16 : !VARLEN && COPY_BYTES == 2);
// Whether the steps are counted, or dq looks where the next one starts: with a bias and heads of 32 96 registers, not
// 110. Without a bias it costs 5 registers or 8 bytes of stack.
constexpr bool COUNTED = !SM80 || KEYS || !BIAS;

constexpr int D_PITCH = pitch_of(HEAD_D), E_PITCH = pitch_of(HEAD_E);
constexpr int OWN_D_BYTES = TILE * D_PITCH, OWN_E_BYTES = SUM_D ? TILE * E_PITCH : 0;
constexpr int OWN_BYTES = OWN_D_BYTES + OWN_E_BYTES + (KEYS ? 0 : TILE * 8);  // statistics lie with queries
constexpr int STAGE_BYTES = STEP * (D_PITCH + E_PITCH) + (KEYS ? STEP * 8 : 0);

// products (own lines by STEP) = own lines @ lines that pass by, transposed.
template <int WIDTH> DEVICE void multiply(float (&products)[M_TILES][SCORES], const char* own, const char* passing) {
    constexpr int PITCH = pitch_of(WIDTH);
    const uint32_t rows = first_operand(shared_address(own), PITCH, reload_thread_idx() % 32);
    const uint32_t columns = second_operand(shared_address(passing), PITCH, reload_thread_idx() % 32);
    multiply_rows<T, WIDTH>(products, rows, columns);
}

// sums (own lines by WIDTH) += p (own lines by STEP) @ lines that pass by.
template <int WIDTH>
DEVICE void add(float (&sums)[M_TILES][WIDTH / 2], const float (&p)[M_TILES][SCORES], const char* passing) {
    add_product<T, WIDTH>(sums, p, first_operand(shared_address(passing), pitch_of(WIDTH), reload_thread_idx() % 32));
}

template <int WIDTH, int LINES> DEVICE void copy(char* to, const Rows<const T>& from, int first) {
    copy_tile<WIDTH, LINES, THREADS, COPY_BYTES>(to, from, first, reload_thread_idx());
}

// A query's lse, as a power of two, and its delta.
struct Stats {
    float lse_log2, delta;
};
DEVICE Stats load_stats(const char* at) {
    const words<8> pair = load_words<8>(at);
    return {float_of(pair.w[0]), float_of(pair.w[1])};
}

// Of LINES queries from `first` on; those from `end` on have any.
template <int LINES> DEVICE void copy_stats(char* to, const float* stats, int first, int end) {
    for (int line = thread_x(); line < LINES; line += THREADS) {
        const int64_t there = min(first + line, end - 1);
        copy_pair(shared_address(to + line * 8), stats + there * 2);
    }
}

struct Context {
    const AttentionParams& params;
    Mask kept_mask;
    int varlen_diagonal;  // of the block's sequence
    int first, end;  // the block's own rows
    const T* bias;  // of the query head, of query i at i * bias_row
    int64_t bias_row;
    const char* shared;

    DEVICE float bias_at(int own, int line) const {
        if (!BIAS || own >= end || line >= kept_mask.end) return 0.0f;
        return to_float(bias[KEYS ? line * bias_row + own : own * bias_row + line]);
    }
    DEVICE Mask mask() const {
        if (!REMATERIALIZE_MASK) return kept_mask;
        if (VARLEN) return {varlen_diagonal - params.left, varlen_diagonal + params.right, kept_mask.end};
        const int queries = params.seqlen_q;
        const int low = params.seqlen_k - queries - params.left, high = params.seqlen_k - queries + params.right;
        return {low, high, kept_mask.end};
    }
};

// What the warp's lines from `first` on do not see of the lines from `start` on becomes 0.
DEVICE void apply_mask(float (&p)[M_TILES][SCORES], const Mask& mask, int first, int start) {
    const int lane = reload_thread_idx() % 32;
#pragma unroll
    for (int g = 0; g < M_TILES; ++g)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int own = first + g * 16 + r * 8 + lane / 4, from = start + lane % 4 * 2;
            const int begin = mask.first(own) - from, end = mask.last(own) - from;
#pragma unroll
            for (int j = 0; j < STEP / 8; ++j)
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    const int at = j * 8 + e;
                    if (at < begin || at > end) p[g][j * 4 + r * 2 + e] = 0.0f;
                }
        }
}

// Adds what the STEP lines from `start` on give, which lie in shared memory, with their statistics if queries.
DEVICE void add_lines(const Context& context, const char* passing, int start, float (&acc_d)[M_TILES][HEAD_D / 2],
                      float (&acc_e)[M_TILES][HEAD_E / 2]) {
    const char *const d = passing, *const e = d + STEP * D_PITCH, *const stats = e + STEP * E_PITCH;
    const int first = context.first + reload_thread_idx() / 32 * OWN;  // the warp's
    if (context.mask().all_hidden<STEP>(start, first)) return;
    // Opaque: else the compiler keeps a pointer to each of its elements of bias across the loop, 156 registers instead
    // of 128 (NVRTC 13.0, sm_80, heads of 64, 2026-11-22).
    int bias_own = first;
    if (BIAS && !KEYS) asm volatile("" : "+r"(bias_own));
    // Score j * 4 + r * 2 + i of a group is that of own line r * 8 and line 8 * j + i that passes by, of the thread's.
    const int thread = reload_thread_idx(), own = thread % 32 / 4, column = thread % 4 * 2;
    const char* const own_stats = context.shared + OWN_D_BYTES + OWN_E_BYTES + (thread / 32 * OWN + own) * 8;
    const auto stats_of = [&](int g, int j, int i) {
        return load_stats(KEYS ? stats + (column + j * 8 + i % 2) * 8 : own_stats + (g * 2 + i / 2) * 64);
    };
    float p[M_TILES][SCORES], ds[M_TILES][SCORES], softcap_grad[M_TILES][SCORES];
    multiply<HEAD_D>(p, context.shared + reload_thread_idx() / 32 * OWN * D_PITCH, d);
#pragma unroll
    for (int g = 0; g < M_TILES; ++g)
#pragma unroll
        for (int j = 0; j < STEP / 8; ++j)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                float& x = p[g][j * 4 + i];
                const float bias = context.bias_at(bias_own + g * 16 + i / 2 * 8 + own, start + column + j * 8 + i % 2);
                x = p_of<SOFTCAP, BIAS, P_SCALE_LOG2>(x, bias, stats_of(g, j, i).lse_log2, context.params.score_scale,
                                                      context.params.softcap_log2, softcap_grad[g][j * 4 + i]);
            }
    if (!context.mask().all_seen<STEP>(start, first)) apply_mask(p, context.mask(), first, start);
    if constexpr (SUM_E) add<HEAD_E>(acc_e, p, e);
    if constexpr (SUM_D) {
        multiply<HEAD_E>(ds, context.shared + OWN_D_BYTES + reload_thread_idx() / 32 * OWN * E_PITCH, e);
#pragma unroll
        for (int g = 0; g < M_TILES; ++g)
#pragma unroll
            for (int j = 0; j < STEP / 8; ++j)
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    float& x = ds[g][j * 4 + i];  // dP
                    const float unscaled = P_SCALE_LOG2 ? p[g][j * 4 + i] * P_UNSCALE : p[g][j * 4 + i];
                    x = (x - stats_of(g, j, i).delta) * unscaled;
                    if (SOFTCAP) x *= softcap_grad[g][j * 4 + i];
                }
        add<HEAD_D>(acc_d, ds, d);
    }
}

// A warp's sums times `factor`, as rows from `row` on. They go through its lines of `place`.
template <int WIDTH>
DEVICE void store_sums(const float (&sums)[M_TILES][WIDTH / 2], float factor, char* place, const Rows<T>& to, int row) {
    constexpr int PITCH = pitch_of(WIDTH);
    const int lane = thread_x() % 32;
#pragma unroll
    for (int g = 0; g < M_TILES; ++g)
#pragma unroll
        for (int i = 0; i < WIDTH / 2; i += 2) {
            const int line = g * 16 + i / 2 % 2 * 8 + lane / 4;
            *reinterpret_cast<uint32_t*>(place + line * PITCH + i / 4 * 16 + lane % 4 * 4) =
                pack2<T>(sums[g][i] * factor, sums[g][i + 1] * factor);
        }
    __syncwarp();
    store_lines<WIDTH, OWN, STORE_BYTES>(to, place, row);
}

// Which tile of which head a block owns: one tile of all heads, then the next. Of queries a head's last see most keys,
// of keys the first most queries; a table has its tiles in order. Measured 2026-11-22 (H200), head by head: causal
// 4 to 9 % slower, full within 2 %.
struct BlockTile {
    int64_t batch;
    int head, tile;
};
DEVICE BlockTile block_tile(int block, int lines, int heads, int tiles) {
    const int line = block % lines, order = block / lines;
    return {line / heads, line % heads, KEYS || VARLEN ? order : tiles - 1 - order};
}

// `lines`: batches times heads, key heads with KEYS; `tiles`: of each of them.
KERNEL(THREADS)
void attention_bwd_sm80(const AttentionParams params, int lines, int tiles) {
    DYNAMIC_SHARED(shared);
    const AttentionParams& p = params;
    const int heads = KEYS ? p.kv_heads : p.heads, queries = p.seqlen_q, keys = p.seqlen_k;
    const int qheads_per_kvhead = p.qheads_per_kvhead, width_d = p.head_dim, width_e = p.head_dim_v;
    // Own rows: keys and values, or queries and their gradients; the others pass by.
    const T* const own_d = static_cast<const T*>(KEYS ? p.k : p.q);
    const T* const own_e = static_cast<const T*>(KEYS ? p.v : p.dout);
    const T* const passing_d = static_cast<const T*>(KEYS ? p.q : p.k);
    const T* const passing_e = static_cast<const T*>(KEYS ? p.dout : p.v);
    const int64_t own_d_batch = KEYS ? p.k_batch : p.q_batch, own_d_head = KEYS ? p.k_head : p.q_head;
    const int64_t own_d_row = KEYS ? p.k_row : p.q_row, own_e_batch = KEYS ? p.v_batch : p.dout_batch;
    const int64_t own_e_head = KEYS ? p.v_head : p.dout_head, own_e_row = KEYS ? p.v_row : p.dout_row;
    const int64_t passing_d_batch = KEYS ? p.q_batch : p.k_batch, passing_d_head = KEYS ? p.q_head : p.k_head;
    const int64_t passing_d_row = KEYS ? p.q_row : p.k_row, passing_e_batch = KEYS ? p.dout_batch : p.v_batch;
    const int64_t passing_e_head = KEYS ? p.dout_head : p.v_head, passing_e_row = KEYS ? p.dout_row : p.v_row;
    const float* stats = p.stats;
    const auto [batch, head, tile] = block_tile(block_x(), lines, heads, tiles);
    const VarlenTables tables(p);
    if (VARLEN && !tables.has(tile)) return;
    const int diagonal = VARLEN ? 0 : keys - queries;
    BlockRows span = block_rows<VARLEN, KEYS, TILE>(tile, tables, queries, keys, diagonal - p.left, diagonal + p.right);
    const Mask mask = {span.low, span.high, span.stop};
    span.begin += max(mask.first(span.first) - span.begin, 0) / STEP * STEP;
    const int stop = mask.last(min(span.first + TILE, span.end) - 1) + 1;

    // The heads that pass by: queries' of a key head, or the one key head.
    const int first_head = KEYS ? head * qheads_per_kvhead : head / qheads_per_kvhead;
    const int query_heads = KEYS ? heads * qheads_per_kvhead : heads;
    Rows<const T> d = {passing_d + batch * passing_d_batch + first_head * passing_d_head, passing_d_row,
                       span.stop, width_d};
    Rows<const T> e = {passing_e + batch * passing_e_batch + first_head * passing_e_head, passing_e_row,
                       span.stop, width_e};
    stats += 2 * (batch * query_heads + (KEYS ? first_head : head)) * queries;

    const T* bias = static_cast<const T*>(p.bias) + batch * p.bias_batch + (KEYS ? first_head : head) * p.bias_head;
    Context context = {p, mask, span.low + p.left, span.first, span.end, bias, p.bias_row, shared};
    char* const stages = shared + OWN_BYTES;

    float acc_d[M_TILES][HEAD_D / 2], acc_e[M_TILES][HEAD_E / 2];
#pragma unroll
    for (int g = 0; g < M_TILES; ++g) {
#pragma unroll
        for (int i = 0; i < HEAD_D / 2; ++i) acc_d[g][i] = 0.0f;
#pragma unroll
        for (int i = 0; i < HEAD_E / 2; ++i) acc_e[g][i] = 0.0f;
    }

    const auto copy_passing = [&](char* to, int start) {
        copy<HEAD_D, STEP>(to, d, start);
        copy<HEAD_E, STEP>(to + STEP * D_PITCH, e, start);
        if (KEYS) copy_stats<STEP>(to + STEP * (D_PITCH + E_PITCH), stats, start, span.stop);
        commit_copies();
    };
    const int steps = span.begin < stop ? (stop - span.begin + STEP - 1) / STEP : 0;
    if (steps > 0) {
        const Rows<const T> rows_d = {own_d + batch * own_d_batch + head * own_d_head, own_d_row, span.end, width_d};
        const Rows<const T> rows_e = {own_e + batch * own_e_batch + head * own_e_head, own_e_row, span.end, width_e};
        copy<HEAD_D, TILE>(shared, rows_d, span.first);
        if (SUM_D) copy<HEAD_E, TILE>(shared + OWN_D_BYTES, rows_e, span.first);
        if (!KEYS) copy_stats<TILE>(shared + OWN_D_BYTES + OWN_E_BYTES, stats, span.first, span.end);
        copy_passing(stages, span.begin);
    }
    int start = span.begin, stage = 0;
#pragma unroll 1
    for (int left = steps * (KEYS ? qheads_per_kvhead : 1); COUNTED ? left > 0 : start < stop; --left) {
        wait_copies<0>();
        barrier();  // the lines are there, and nobody still reads those before them
        const int at = start;
        context.bias = bias;
        start += STEP;
        if (KEYS && start >= stop) {
            start = span.begin;
            d.base += passing_d_head;
            e.base += passing_e_head;
            stats += 2u * static_cast<uint32_t>(p.seqlen_q);  // read again: `queries` would stay in a register
            bias += p.bias_head;
        }
        if (COUNTED ? left > 1 : start < stop) copy_passing(stages + (stage ^ 1) * STAGE_BYTES, start);
        add_lines(context, stages + stage * STAGE_BYTES, at, acc_d, acc_e);
        stage ^= 1;
    }

    barrier();  // results take the place of what was copied
    const BlockTile place = block_tile(reload_block_idx(), lines, heads, tiles);
    const int warp = thread_x() / 32, row = span.first + warp * OWN;
    if constexpr (SUM_D) {
        const Rows<T> result = {static_cast<T*>(KEYS ? p.dk : p.dq) + place.batch * (KEYS ? p.dk_batch : p.dq_batch) +
                                   place.head * (KEYS ? p.dk_head : p.dq_head),
                               KEYS ? p.dk_row : p.dq_row,
                               span.end, width_d};
        store_sums<HEAD_D>(acc_d, p.scale, shared + warp * OWN * D_PITCH, result, row);
    }
    if constexpr (SUM_E) {
        const Rows<T> result = {static_cast<T*>(p.dv) + place.batch * p.dv_batch + place.head * p.dv_head, p.dv_row,
                               span.end, width_e};
        char* const to = shared + OWN_D_BYTES * SUM_D + warp * OWN * E_PITCH;
        store_sums<HEAD_E>(acc_e, P_UNSCALE, to, result, row);
    }
}
