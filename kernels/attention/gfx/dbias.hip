// The gradient of attention's bias on AMD's matrix units: P * (do @ v^T - delta), of TILE queries by TILE keys a block.
//
// Both products take TILE_K columns of their rows at a time through LDS, so that heads of any size need the same
// registers. Keys are the fragments' rows and queries their columns: a lane has ELEMENTS_PER_LANE neighbouring keys of
// a query, 16 bytes of bias and of its gradient. Nothing is reduced between blocks. What no query sees is not read, and
// its gradient is zero.
//
// Defines: ELEMENT (bf16, f16); TILE, TILE_K; EVEN_HEADS: whether heads are multiples of TILE_K; SOFTCAP;
// PARAMS_LAYOUT (params.h).
#include "attention/device/mask.h"
#include "attention/device/params.h"
#include "attention/device/softmax.h"
#include "attention/device/tile_scheduler.h"
#include "tiles.h"

using T = ELEMENT;
constexpr int FRAGMENTS_M = 2, FRAGMENTS_N = 4;  // of a wave: keys and queries
constexpr int WAVE_KEYS = FRAGMENTS_M * MMA_M, WAVE_QUERIES = FRAGMENTS_N * MMA_N;
constexpr int THREADS = TILE / WAVE_KEYS * (TILE / WAVE_QUERIES) * WARP;

using Operand = LdsTile<TILE_K>;
using OperandCopy = TileCopy<T, TILE_K, TILE, THREADS>;
using Mask = MaskBounds<false, TILE>;

// The block's first query and key, and the wave's within the block. An idle wave's do not exist, or see each other not.
struct TileOrigin {
    int query, key, wave_query, wave_key;
    bool idle;
};

struct Accumulators {
    AccumulatorFragment fragment[FRAGMENTS_M][FRAGMENTS_N];

    DEVICE Accumulators() {
        for (auto& fragments : fragment) {
            for (AccumulatorFragment& each : fragments) {
                each.fill(0);
            }
        }
    }
};

DEVICE HeadRows<T> from_column(const HeadRows<T>& rows, int column) {
    return {rows.data + column, rows.stride, rows.end, rows.width - column};
}

// acc += keys * queries^T, over all their columns.
DEVICE void gemm(const HeadRows<T>& queries, const HeadRows<T>& keys, const TileOrigin& at, char* lds,
                 Accumulators& acc) {
    char* const lds_keys = lds + Operand::bytes(TILE);
    const int columns = queries.width;
    OperandCopy copy_queries, copy_keys;
    const auto load = [&](int start) {
        copy_queries.template load<EVEN_HEADS>(from_column(queries, start), at.query);
        copy_keys.template load<EVEN_HEADS>(from_column(keys, start), at.key);
    };
    load(0);
#pragma unroll 1
    for (int start = 0; start < columns; start += TILE_K) {
        lds_barrier();
        copy_queries.store(lds);
        copy_keys.store(lds_keys);
        lds_barrier();
        if (start + TILE_K < columns) {
            load(start + TILE_K);
        }
        if (at.idle) {
            continue;
        }
        int wave_query = at.wave_query, wave_key = at.wave_key;
        asm volatile("" : "+s"(wave_query), "+s"(wave_key));  // opaque: addresses take no registers in between
#pragma unroll
        for (int k = 0; k < TILE_K; k += MMA_K) {
            if (!EVEN_HEADS && start + k >= columns) {
                break;
            }
            BFragment b[FRAGMENTS_N];
            for (int n = 0; n < FRAGMENTS_N; ++n) {
                b[n] = Operand::load_b(lds, wave_query + n * MMA_N, k);
            }
            for (int m = 0; m < FRAGMENTS_M; ++m) {
                const AFragment a = Operand::load_a(lds_keys, wave_key + m * MMA_M, k);
                for (int n = 0; n < FRAGMENTS_N; ++n) {
                    mma<T>(acc.fragment[m][n], a, b[n]);
                }
                __builtin_amdgcn_sched_barrier(0);  // operands that are loaded early take registers
            }
        }
    }
}

// A tensor of queries by keys of one head, such as the bias.
template <class Element> struct ScoreMatrix {
    Element* data;
    int64_t row_stride;
    int queries, keys;

    DEVICE bool has(int query, int key) const { return query < queries && key < keys; }

    // ELEMENTS_PER_LANE keys from `key` on; those that do not exist are zero.
    DEVICE words<16> load(int query, int key) const {
        return has(query, key) ? load_bounded<16>(data + query * row_stride + key, keys - key) : words<16>{};
    }
    DEVICE void store(int query, int key, words<16> values) const {
        if (!has(query, key)) {
            return;
        }
        Element* const address = data + query * row_stride + key;
        if (key + ELEMENTS_PER_LANE <= keys) {
            __builtin_memcpy(address, &values, sizeof values);
            return;
        }
        const auto each = __builtin_bit_cast(vec<Element, ELEMENTS_PER_LANE>, values);
        for (int i = 0; i < ELEMENTS_PER_LANE; ++i) {
            if (key + i < keys) {
                address[i] = each.v[i];
            }
        }
    }
};

// This lane's first key of fragment row `m`, and its query of fragment column `n`.
DEVICE int lane_key(const TileOrigin& at, int m) {
    return at.key + at.wave_key + m * MMA_M + lane_part() * ELEMENTS_PER_LANE;
}
DEVICE int lane_query(const TileOrigin& at, int n) { return at.query + at.wave_query + n * MMA_N + lane_column(); }

// `blocks` in all, of which a head has `tiles`, `key_tiles` of a row.
KERNEL_RESIDENT(THREADS, 2) void attention_dbias(const AttentionParams params, int key_tiles, int tiles, int blocks) {
    const AttentionParams& p = params;
    const int queries = p.seqlen_q, keys = p.seqlen_k, low = keys - queries - p.left, high = keys - queries + p.right;
    SHARED __attribute__((aligned(16))) char lds[2 * Operand::bytes(TILE)];
    const XcdTile work = xcd_tile<false>(blocks, tiles, p.heads, false);
    const int64_t batch = work.batch, head = work.head, kv_head = head / p.qheads_per_kvhead;
    const int wave = __builtin_amdgcn_readfirstlane(thread_x() / WARP);
    constexpr int WAVES_ACROSS_KEYS = TILE / WAVE_KEYS;
    TileOrigin at = {work.tile / key_tiles * TILE, work.tile % key_tiles * TILE,
                     wave / WAVES_ACROSS_KEYS * WAVE_QUERIES, wave % WAVES_ACROSS_KEYS * WAVE_KEYS};
    const ScoreMatrix<T> to = {static_cast<T*>(p.dbias) + batch * p.dbias_batch + head * p.dbias_head, p.dbias_row,
                                 queries, keys};
    const Mask mask = {low, high, keys};
    if (mask.all_hidden<TILE>(at.key, at.query)) {
        for (int n = 0; n < FRAGMENTS_N; ++n) {
            for (int m = 0; m < FRAGMENTS_M; ++m) {
                to.store(lane_query(at, n), lane_key(at, m), {});
            }
        }
        return;
    }
    const int first_query = at.query + at.wave_query, first_key = at.key + at.wave_key;
    const MaskBounds<false, WAVE_QUERIES> wave_mask = {low, high, keys};
    at.idle = !to.has(first_query, first_key) || wave_mask.all_hidden<WAVE_KEYS>(first_key, first_query);
    Accumulators s, dp;
    gemm({static_cast<const T*>(p.q) + batch * p.q_batch + head * p.q_head, p.q_row, queries, p.head_dim},
         {static_cast<const T*>(p.k) + batch * p.k_batch + kv_head * p.k_head, p.k_row, keys, p.head_dim}, at, lds, s);
    gemm({static_cast<const T*>(p.dout) + batch * p.dout_batch + head * p.dout_head, p.dout_row, queries, p.head_dim_v},
         {static_cast<const T*>(p.v) + batch * p.v_batch + kv_head * p.v_head, p.v_row, keys, p.head_dim_v}, at, lds, dp);
    const ScoreMatrix<const T> from = {static_cast<const T*>(p.bias) + batch * p.bias_batch + head * p.bias_head,
                                         p.bias_row, queries, keys};
    words<16> biases[FRAGMENTS_N][FRAGMENTS_M];
    for (int n = 0; n < FRAGMENTS_N; ++n) {
        for (int m = 0; m < FRAGMENTS_M; ++m) {
            biases[n][m] = from.load(lane_query(at, n), lane_key(at, m));
        }
    }
    const float* const lse_log2 = p.stats + (batch * p.heads + head) * 2 * queries;  // of the head's queries
    const float* const delta = lse_log2 + queries;
    for (int n = 0; n < FRAGMENTS_N; ++n) {
        const int query = lane_query(at, n);
        const float own_lse_log2 = lse_log2[min(query, queries - 1)];
        const float own_delta = delta[min(query, queries - 1)];
        for (int m = 0; m < FRAGMENTS_M; ++m) {
            const int key = lane_key(at, m);
            const auto lane_bias = __builtin_bit_cast(vec<T, ELEMENTS_PER_LANE>, biases[n][m]);
            float values[ELEMENTS_PER_LANE];
            for (int j = 0; j < ELEMENTS_PER_LANE; ++j) {
                float softcap_grad;
                const float own_p = p_of<SOFTCAP, true, 0>(s.fragment[m][n].get(j), to_float(lane_bias.v[j]), own_lse_log2,
                                                       p.score_scale, p.softcap_log2, softcap_grad);
                const float dscore = (dp.fragment[m][n].get(j) - own_delta) * own_p;
                const bool seen = key + j >= mask.first(query) && key + j <= mask.last(query);
                values[j] = seen ? dscore : 0;
            }
            words<16> rounded;
            for (int j = 0; j < ELEMENTS_PER_LANE; j += 2) {
                rounded.w[j / 2] = pack2<T>(values[j], values[j + 1]);
            }
            to.store(query, key, rounded);
        }
    }
}
