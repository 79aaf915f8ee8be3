// o = softmax(scores) @ v per head with matrix instructions of a warp (mma.sync), and the scores' lse. For sm_80 and
// later, any head size, alignment and stride between rows.
//
// A block owns TILE_M queries of one head, a warp GROUPS * 16 of them, and walks blocks of TILE_N keys from the last
// that a query of the tile sees to the first. Queries stay in shared memory; keys and values have one buffer each.
// Values are on their way (cp.async) under the products of queries and keys, the next keys under the rest of the
// step. Scores stay in registers: rounded, they are the first operand of the product with the values. A
// multiprocessor has room for two blocks, so that one multiplies while the other waits or exponentiates.
//
// Scores are powers of two: `scale` holds log2(e). Maxima move as in sm90/fwd.cu.
//
// Defines: ELEMENT (bf16, f16); HEAD_D, HEAD_E: the head sizes, as multiples of 16; TILE_N (of 16), WARPS, GROUPS;
// COPY_BYTES, STORE_BYTES: 16 where rows of q, k and v, or of o, are aligned to that, else 2; LEFT, RIGHT: whether the
// keys are bounded on that side of the diagonal; SCALED: whether products are multiplied by `inner` at once, where the
// scale is not positive; SOFTCAP, SINKS; RAGGED: packed sequences, whose tiles varlen_tiles.cu found. Rows beyond a
// sequence are read as zeros, so its neighbours' values do not matter.
#include "prelude.h"

#include "attention/device/online_softmax.h"
#include "tiles.h"
#if RAGGED
#include "attention/device/varlen.h"
#endif

using T = ELEMENT;
constexpr int THREADS = WARPS * 32;
constexpr int WARP_M = GROUPS * 16, TILE_M = WARPS * WARP_M;
constexpr int D_PITCH = pitch_of(HEAD_D), E_PITCH = pitch_of(HEAD_E);
constexpr int Q_BYTES = TILE_M * D_PITCH, K_BYTES = TILE_N * D_PITCH;
static_assert(HEAD_D % 16 == 0 && HEAD_E % 16 == 0 && TILE_N % 16 == 0, "whole matrix instructions");

struct Sizes {
    int m, n, d, e, heads, share, tiles, left, right;
    float scale;  // of scores, times log2(e); with SOFTCAP of what is left after the cap
    float inner;  // SOFTCAP: what the exponent of the cap's tanh takes; SCALED: the scale, times log2(e)
};

// What a block works on: a head's queries from `first_row` on, counted from the first of its sequence.
struct Place {
    int batch, head, first_row, m, n;
    int64_t first_query, first_key;
    bool outside;  // of all sequences
};

#if RAGGED
struct Table {
    const int* bounds;
    const int* tiles;
    const uint32_t* counts;
    int count;
};
// Heads of a tile follow one another. A block beyond the tiles has no queries.
DEVICE Place place_of(const Sizes& s, const Table& table) {
    const uint32_t at = block_x() / s.heads;
    if (at >= table.counts[0]) return {};
    const int* const tile = table.tiles + at * 2;
    const Sequence own = sequence_of(table.bounds, tile[0], table.count);
    return {0, block_x() % s.heads, tile[1] * TILE_M, own.queries, own.outside ? 0 : own.keys, own.first_query,
            own.first_key, own.outside};
}
#else
struct Table {};
// Tiles with most keys go first.
DEVICE Place place_of(const Sizes& s, const Table&) {
    const int order = block_x() % s.tiles, line = block_x() / s.tiles;
    return {line / s.heads, line % s.heads, (RIGHT ? s.tiles - 1 - order : order) * TILE_M, s.m, s.n, 0, 0, false};
}
#endif

KERNEL(THREADS)
void attention_forward_mma(const T* q, const T* k, const T* v, const float* sinks, T* o, float* lse, int m, int n,
                           int d, int e, int heads, int share, int tiles, int left, int right, float scale,
                           float inner, int64_t q_batch, int64_t q_head, int64_t q_row, int64_t k_batch,
                           int64_t k_head, int64_t k_row, int64_t v_batch, int64_t v_head, int64_t v_row,
                           int64_t o_batch, int64_t o_head, int64_t o_row, int64_t lse_batch, int64_t lse_head,
                           int64_t lse_row
#if RAGGED
                           , const int* bounds, const int* tile_list, const uint32_t* counts, int count
#endif
) {
    DYNAMIC_SHARED(shared);
    Sizes s = {m, n, d, e, heads, share, tiles, left, right, scale, inner};
#if RAGGED
    const Place place = place_of(s, {bounds, tile_list, counts, count});
    if (place.m == 0) return;
#else
    const Place place = place_of(s, {});
#endif
    s.m = place.m, s.n = place.n;
    const int head = place.head, key_head = head / s.share, first_row = place.first_row;
    const int64_t batch = place.batch, first_query = place.first_query, first_key = place.first_key;
    const Rows<const T> queries = {q + batch * q_batch + head * q_head + first_query * q_row, q_row, s.m, s.d};
    const Rows<const T> keys = {k + batch * k_batch + key_head * k_head + first_key * k_row, k_row, s.n, s.d};
    const Rows<const T> values = {v + batch * v_batch + key_head * v_head + first_key * v_row, v_row, s.n, s.e};
    char *const k_tile = shared + Q_BYTES, *const v_tile = k_tile + K_BYTES;

    const int lane = thread_x() % 32, warp = thread_x() / 32;
    const int row = first_row + warp * WARP_M;  // the warp's first; the thread's, of a group, are lane / 4 behind
    const int diagonal = row + s.n - s.m;
    const uint32_t own_queries = first_operand(shared_address(shared) + warp * WARP_M * D_PITCH, D_PITCH, lane);
    const uint32_t own_keys = second_operand(shared_address(k_tile), D_PITCH, lane);
    const uint32_t own_values = first_operand(shared_address(v_tile), E_PITCH, lane);

    float sums[GROUPS][SUMS], scores[GROUPS][SCORES], top[GROUPS][2], sum[GROUPS][2], factor[GROUPS][2];
#pragma unroll
    for (int g = 0; g < GROUPS; ++g) {
        top[g][0] = top[g][1] = -INF_F;
        sum[g][0] = sum[g][1] = 0.0f;
#pragma unroll
        for (int i = 0; i < SUMS; ++i) sums[g][i] = 0.0f;
    }

    // The keys that some query of the tile sees.
    int begin = 0, end = s.n;
    if (LEFT) begin = max(first_row + s.n - s.m - s.left, 0) / TILE_N * TILE_N;
    if (RIGHT) end = min(min(first_row + TILE_M, s.m) + s.n - s.m + s.right, end);
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
        const bool beyond = key + TILE_N > (RIGHT ? min(s.n, diagonal + s.right + 1) : s.n);
        const bool edge = beyond || (LEFT && key < diagonal + WARP_M - 1 - s.left);
#pragma unroll
        for (int g = 0; g < GROUPS; ++g) {
#if SOFTCAP
            cap(scores[g], s.inner);
#elif SCALED
#pragma unroll
            for (int i = 0; i < SCORES; ++i) scores[g][i] *= s.inner;
#endif
            if (edge) mask(scores[g], row + g * 16 + lane / 4, key, s.m, s.n, s.left, s.right);
            soften(scores[g], top[g], sum[g], factor[g], s.scale);
            rescale(sums[g], factor[g]);
        }
        add_product<T, HEAD_E>(sums, scores, own_values);
    }

    barrier();  // o takes the place of what was copied
    char* const lines = shared + warp * WARP_M * E_PITCH;
    const float sink = SINKS && !place.outside ? sinks[head] * LOG2_E : -INF_F;
    lse += batch * lse_batch + head * lse_head + first_query * lse_row;
#pragma unroll
    for (int g = 0; g < GROUPS; ++g)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int line = g * 16 + r * 8 + lane / 4;
            const Result result = result_of(top[g][r], sum[g][r], sink, s.scale);
            if (lane % 4 == 0 && row + line < s.m) lse[(row + line) * lse_row] = result.lse;
#pragma unroll
            for (int j = 0; j < HEAD_E / 8; ++j) {
                const float* const pair = sums[g] + j * 4 + r * 2;
                *reinterpret_cast<uint32_t*>(lines + line * E_PITCH + j * 16 + lane % 4 * 4) =
                    pack2<T>(pair[0] * result.share, pair[1] * result.share);
            }
        }
    __syncwarp();
    const Rows<T> to = {o + batch * o_batch + head * o_head + first_query * o_row, o_row, s.m, s.e};
    store_lines<HEAD_E, WARP_M, STORE_BYTES>(to, lines, row);
}
