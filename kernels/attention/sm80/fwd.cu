// o = softmax(scores) @ v per head with matrix instructions of a warp (mma.sync), and the scores' lse. For sm_80 and
// later, any head size, alignment and stride between rows; dense and varlen.
//
// A block owns TILE_M queries of one head, a warp M_TILES * 16 of them, and walks blocks of TILE_N keys from the last
// that a query of the tile sees to the first. Queries stay in shared memory; keys and values have one buffer each.
// Values are on their way (cp.async) under the products of queries and keys, the next keys under the rest of the
// step. Scores stay in registers: rounded, they are the first operand of the product with the values. A
// multiprocessor has room for two blocks, so that one multiplies while the other waits or exponentiates.
//
// Defines: ELEMENT (bf16, f16); HEAD_D, HEAD_E: the head sizes, as multiples of 16; TILE_N (of 16), WARPS, M_TILES;
// COPY_BYTES, STORE_BYTES: 16 where rows of q, k and v, or of o, are aligned to that, else 2; LEFT, RIGHT: whether the
// keys are bounded on that side of the diagonal; SCALED: whether products are scaled at once, where the scale is not
// positive; SOFTCAP, SINKS; VARLEN: tiles are those that varlen_tiles.cu found. Rows beyond a sequence are read as
// zeros, so its neighbours' values do not matter. PARAMS_LAYOUT (params.h).
#include "prelude.h"

#include "attention/device/mask.h"
#include "attention/device/params.h"
#include "attention/device/softmax.h"
#include "attention/device/tile_scheduler.h"
#include "tiles.h"

using T = ELEMENT;
constexpr int THREADS = WARPS * 32;
constexpr int WARP_M = M_TILES * 16, TILE_M = WARPS * WARP_M;
constexpr int D_PITCH = pitch_of(HEAD_D), E_PITCH = pitch_of(HEAD_E);
constexpr int Q_BYTES = TILE_M * D_PITCH, K_BYTES = TILE_N * D_PITCH;
constexpr int SCORES = TILE_N / 2, ACC_O = HEAD_E / 2;  // a thread's, of a warp's 16 rows
static_assert(HEAD_D % 16 == 0 && HEAD_E % 16 == 0 && TILE_N % 16 == 0, "whole matrix instructions");

// `tiles`: of a head's queries; 0 with VARLEN.
KERNEL(THREADS) void attention_fwd_sm80(const AttentionParams params, int tiles) {
    DYNAMIC_SHARED(shared);
    const AttentionParams& p = params;
    const auto tile = one_tile_a_block<VARLEN, TILE_M, RIGHT>(p, tiles);
    if (VARLEN && tile.seqlen.m == 0) return;
    const int m = tile.seqlen.m, n = tile.seqlen.n, first_row = tile.first_row;
    const int head = tile.head, kv_head = head / p.qheads_per_kvhead;
    const int64_t batch = tile.batch, first_query = tile.seqlen.first_query, first_key = tile.seqlen.first_key;
    const Rows<const T> queries = {
        static_cast<const T*>(p.q) + batch * p.q_batch + head * p.q_head + first_query * p.q_row, p.q_row, m, p.head_dim};
    const Rows<const T> keys = {
        static_cast<const T*>(p.k) + batch * p.k_batch + kv_head * p.k_head + first_key * p.k_row, p.k_row, n, p.head_dim};
    const Rows<const T> values = {static_cast<const T*>(p.v) + batch * p.v_batch + kv_head * p.v_head + first_key * p.v_row,
                                  p.v_row, n, p.head_dim_v};
    char *const k_tile = shared + Q_BYTES, *const v_tile = k_tile + K_BYTES;
    // What the softmax multiplies scores with; behind a cap, or SCALED, they are powers of two but for that.
    const float scale = SOFTCAP ? p.softcap_log2 : SCALED ? 1.0f : p.score_scale;

    const int lane = thread_x() % 32, warp = thread_x() / 32;
    const int row = first_row + warp * WARP_M;  // the warp's first; the thread's, of 16, are lane / 4 behind
    const int diagonal = row + n - m;
    const uint32_t own_queries = first_operand(shared_address(shared) + warp * WARP_M * D_PITCH, D_PITCH, lane);
    const uint32_t own_keys = second_operand(shared_address(k_tile), D_PITCH, lane);
    const uint32_t own_values = first_operand(shared_address(v_tile), E_PITCH, lane);

    float acc_o[M_TILES][ACC_O], scores[M_TILES][SCORES], rescale[M_TILES][2];
    OnlineSoftmax softmax[M_TILES];
#pragma unroll
    for (int g = 0; g < M_TILES; ++g)
#pragma unroll
        for (int i = 0; i < ACC_O; ++i) acc_o[g][i] = 0.0f;

    // The keys that some query of the tile sees.
    int begin = 0, end = n;
    if (LEFT) begin = max(first_row + n - m - p.left, 0) / TILE_N * TILE_N;
    if (RIGHT) end = min(min(first_row + TILE_M, m) + n - m + p.right, end);
    int key = (end - 1) / TILE_N * TILE_N;  // negative or 0 where `end` is
    if (begin < end) {
        copy_tile<HEAD_D, TILE_M, THREADS, COPY_BYTES>(shared, queries, first_row, thread_x());
        copy_tile<HEAD_D, TILE_N, THREADS, COPY_BYTES>(k_tile, keys, key, thread_x());
        commit_copies();
    }
#pragma unroll 1
    for (; key >= begin && begin < end; key -= TILE_N) {
        wait_copies<0>();
        barrier();  // the keys are there, and nobody still reads values
        copy_tile<HEAD_E, TILE_N, THREADS, COPY_BYTES>(v_tile, values, key, thread_x());
        commit_copies();
        multiply_rows<T, HEAD_D>(scores, own_queries, own_keys);
        wait_copies<0>();
        barrier();  // the values are there, and nobody still reads keys
        if (key > begin) {
            copy_tile<HEAD_D, TILE_N, THREADS, COPY_BYTES>(k_tile, keys, key - TILE_N, thread_x());
            commit_copies();
        }
        const bool beyond = key + TILE_N > (RIGHT ? min(n, diagonal + p.right + 1) : n);
        const bool edge = beyond || (LEFT && key < diagonal + WARP_M - 1 - p.left);
#pragma unroll
        for (int g = 0; g < M_TILES; ++g) {
            if constexpr (SOFTCAP) {
                apply_softcap<SCORES>(scores[g], p.score_scale);
            } else if constexpr (SCALED) {
#pragma unroll
                for (int i = 0; i < SCORES; ++i) scores[g][i] *= p.score_scale;
            }
            if (edge)
                apply_mask<LEFT, RIGHT, SCORES>(scores[g], row + g * 16 + lane / 4, key, m, n, p.left, p.right);
            softmax[g].step<SCORES>(scores[g], rescale[g], scale);
            rescale_o<ACC_O>(acc_o[g], rescale[g]);
        }
        add_product<T, HEAD_E>(acc_o, scores, own_values);
    }

    barrier();  // o takes the place of what was copied
    char* const lines = shared + warp * WARP_M * E_PITCH;
    const float sink = SINKS && !tile.seqlen.outside ? p.sinks[head] * LOG2_E : -INF_F;
    float* const lse = p.lse + batch * p.lse_batch + head * p.lse_head + first_query * p.lse_row;
#pragma unroll
    for (int g = 0; g < M_TILES; ++g)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int line = g * 16 + r * 8 + lane / 4;
            const RowResult result = softmax[g].finalize<SINKS>(r, sink, scale);
            if (lane % 4 == 0 && row + line < m) lse[(row + line) * p.lse_row] = result.lse;
#pragma unroll
            for (int j = 0; j < HEAD_E / 8; ++j) {
                const float* const pair = acc_o[g] + j * 4 + r * 2;
                *reinterpret_cast<uint32_t*>(lines + line * E_PITCH + j * 16 + lane % 4 * 4) =
                    pack2<T>(pair[0] * result.inv_sum, pair[1] * result.inv_sum);
            }
        }
    __syncwarp();
    const Rows<T> to = {static_cast<T*>(p.o) + batch * p.o_batch + head * p.o_head + first_query * p.o_row, p.o_row, m,
                        p.head_dim_v};
    store_lines<HEAD_E, WARP_M, STORE_BYTES>(to, lines, row);
}
