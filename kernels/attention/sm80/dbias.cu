// dbias, the gradient of attention's bias, with matrix instructions of a warp (mma.sync): p * (do @ v.T - delta), and 0
// where a key is not seen. For sm_80 and later, any head size, alignment and stride between rows.
//
// A block owns TILE_M queries of one head, a warp M_TILES * 16 of them, and walks `chunk` keys in blocks of TILE_N.
// Queries and do stay in shared memory; keys and values have one buffer each: values are on their way (cp.async)
// under the products of queries and keys, the next keys under the rest of the step. Their lines are spread so that
// a lane has eight keys that follow one another, of which it reads bias and stores dbias at once. Sums of do * o are
// found here, once a block.
//
// Defines: ELEMENT (bf16, f16); HEAD_D, HEAD_E: the head sizes, as multiples of 16; TILE_N (of 32), WARPS, M_TILES;
// COPY_BYTES, BIAS_BYTES: 16 where rows of q, k, v, do and o, or of bias and dbias, are aligned to that, else 2;
// LEFT, RIGHT: whether the keys are bounded on that side of the diagonal; SOFTCAP, DLSE; PARAMS_LAYOUT
// (params.h).
#include "prelude.h"

#include "attention/device/params.h"
#include "attention/device/softmax.h"
#include "tiles.h"

using T = ELEMENT;
constexpr int THREADS = WARPS * 32;
constexpr int WARP_M = M_TILES * 16, TILE_M = WARPS * WARP_M;
constexpr int D_PITCH = pitch_of(HEAD_D), E_PITCH = pitch_of(HEAD_E);
constexpr int SCORES = TILE_N / 2;   // a thread's, of 16 rows
constexpr int ROWS = M_TILES * 2;    // a thread's
constexpr int CHUNKS = (HEAD_E / 8 + 3) / 4;  // of 16 bytes: a thread's of a row of do or o
static_assert(HEAD_D % 16 == 0 && HEAD_E % 16 == 0 && TILE_N % 32 == 0, "whole matrix instructions, whole quads");

// Of 32 keys a thread has 8, 16 bytes, of each of its rows: the keys from its `column` on, as lines of keys and values
// are spread. Score 4 * j + 2 * r + e of a group is that of key j % 4 * 2 + e of them.
DEVICE int column_of(int block) { return block * 32 + thread_x() % 4 * 8; }

// A thread's pairs of bias, as its scores lie.
DEVICE void read_bias(uint32_t (&pairs)[M_TILES][SCORES / 2], const Rows<const T>& bias, int row, int key) {
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        const int line = row + i * 8;
        const T* const from = bias.base + line * bias.row + key;
#pragma unroll
        for (int block = 0; block < TILE_N / 32; ++block) {
            const int here = line < bias.count ? bias.width - key - column_of(block) : 0;
            words<16> w = {};
            if (BIAS_BYTES != 16) w = gather(from + column_of(block), here);
            else if (here > 0) w = load_words<16>(from + column_of(block));
#pragma unroll
            for (int j = 0; j < 4; ++j) pairs[i / 2][(block * 4 + j) * 2 + i % 2] = w.w[j];
        }
    }
}

DEVICE void store_block(const float (&values)[M_TILES][SCORES], const Rows<T>& to, int row, int key) {
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        const int line = row + i * 8;
#pragma unroll
        for (int block = 0; block < TILE_N / 32; ++block) {
            T* const place = to.base + line * to.row + key + column_of(block);
            const int here = line < to.count ? to.width - key - column_of(block) : 0;
            words<16> w;
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const float* const pair = values[i / 2] + (block * 4 + j) * 4 + i % 2 * 2;
                w.w[j] = pack2<T>(pair[0], pair[1]);
            }
            if (BIAS_BYTES != 16) scatter(place, w, here);
            else if (here > 0) store_words(place, w);
        }
    }
}

// Zeros where a key is not seen, for the thread's queries `row` and the eighth after it.
DEVICE void zero_unseen(float* values, int row, int key, int m, int n, int left, int right) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const int diagonal = row + r * 8 + n - m - key - column_of(0);
#pragma unroll
        for (int j = 0; j < SCORES / 4; ++j) {
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const int at = j / 4 * 32 + j % 4 * 2 + e;
                const bool hidden = (RIGHT && at > diagonal + right) || (LEFT && at < diagonal - left);
                if (hidden) values[j * 4 + r * 2 + e] = 0.0f;
            }
        }
    }
}

// Zeros for the block's queries and the keys from `first` to `stop`, a multiple of TILE_N or the last.
DEVICE void clear(const Rows<T>& to, int first_row, int first, int stop) {
    constexpr int RUN = BIAS_BYTES / 2;
    const int lane = thread_x() % 32, last = min(first_row + TILE_M, to.count);
    for (int line = first_row + thread_x() / 32; line < last; line += WARPS)
        for (int column = first + lane * RUN; column < stop; column += 32 * RUN) {
            T* const place = to.base + line * to.row + column;
            if constexpr (BIAS_BYTES == 16) store_words(place, words<16>{});
            else *place = T{0};
        }
}

// A thread's chunks of its rows of o: every fourth of a row.
DEVICE void read_rows(words<16> (&own)[ROWS][CHUNKS], const Rows<const T>& from, int row) {
#pragma unroll
    for (int i = 0; i < ROWS; ++i)
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) {
            const int line = row + i * 8, column = (c * 4 + thread_x() % 4) * 8;
            const int here = line < from.count ? from.width - column : 0;
            const T* const place = from.base + line * from.row + column;
            own[i][c] = {};
            if constexpr (COPY_BYTES == 16) {
                if (here > 0) own[i][c] = load_words<16>(place);
            } else {
                own[i][c] = gather(place, here);
            }
        }
}

// `tiles`: of a head's queries; `chunks` of `chunk` keys each.
KERNEL(THREADS)
void attention_dbias_sm80(const AttentionParams params, int tiles, int chunks, int chunk) {
    const AttentionParams& p = params;
    const int m = p.seqlen_q, n = p.seqlen_k, d = p.head_dim, e = p.head_dim_v, heads = p.heads;
    const int left = p.left, right = p.right;
    DYNAMIC_SHARED(shared);
    char *const do_tile = shared + TILE_M * D_PITCH, *const k_tile = do_tile + TILE_M * E_PITCH;
    char* const v_tile = k_tile + TILE_N * D_PITCH;
    const int line = block_x() / chunks / tiles, first_row = block_x() / chunks % tiles * TILE_M;
    const int64_t batch = line / heads, head = line % heads, kv_head = head / p.qheads_per_kvhead;
    const Rows<const T> queries = {static_cast<const T*>(p.q) + batch * p.q_batch + head * p.q_head, p.q_row, m, d};
    const Rows<const T> grads = {
        static_cast<const T*>(p.dout) + batch * p.dout_batch + head * p.dout_head, p.dout_row, m, e};
    const Rows<const T> keys = {static_cast<const T*>(p.k) + batch * p.k_batch + kv_head * p.k_head, p.k_row, n, d};
    const Rows<const T> values = {static_cast<const T*>(p.v) + batch * p.v_batch + kv_head * p.v_head, p.v_row, n, e};
    const Rows<const T> outputs = {static_cast<const T*>(p.o) + batch * p.o_batch + head * p.o_head, p.o_row, m, e};
    const Rows<const T> from = {
        static_cast<const T*>(p.bias) + batch * p.bias_batch + head * p.bias_head, p.bias_row, m, n};
    const Rows<T> to = {static_cast<T*>(p.dbias) + batch * p.dbias_batch + head * p.dbias_head, p.dbias_row, m, n};

    // The keys of the chunk that some query of the tile sees; the others get zeros.
    const int first = block_x() % chunks * chunk, last = min(first + chunk, n);
    int begin = first, end = last;
    if (LEFT) begin = max(max(first_row + n - m - left, 0) / TILE_N * TILE_N, begin);
    if (RIGHT) end = min(min(first_row + TILE_M, m) + n - m + right, end);
    if (begin >= end) {
        clear(to, first_row, first, last);
        return;
    }
    copy_tile<HEAD_D, TILE_M, THREADS, COPY_BYTES>(shared, queries, first_row, thread_x());
    copy_tile<HEAD_E, TILE_M, THREADS, COPY_BYTES>(do_tile, grads, first_row, thread_x());
    copy_tile<HEAD_D, TILE_N, THREADS, COPY_BYTES, true>(k_tile, keys, begin, thread_x());
    commit_copies();
    clear(to, first_row, first, begin);
    clear(to, first_row, begin + (end - begin + TILE_N - 1) / TILE_N * TILE_N, last);

    const int lane = thread_x() % 32, warp_row = thread_x() / 32 * WARP_M;
    const int row = first_row + warp_row + lane / 4;  // the thread's first; the next are 8 apart
    const int diagonal = first_row + warp_row + n - m;
    const uint32_t own_queries = first_operand(shared_address(shared) + warp_row * D_PITCH, D_PITCH, lane);
    const uint32_t own_grads = first_operand(shared_address(do_tile) + warp_row * E_PITCH, E_PITCH, lane);
    const uint32_t own_keys = second_operand(shared_address(k_tile), D_PITCH, lane);
    const uint32_t own_values = second_operand(shared_address(v_tile), E_PITCH, lane);

    // Of the thread's rows: lse as a power of two, and delta = sum(do * o) - dlse. A query that sees no key gets an
    // lse of +inf, with which every weight is 0.
    float lse_log2[ROWS], delta[ROWS];
    {
        words<16> own[ROWS][CHUNKS];
        read_rows(own, outputs, row);
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
            const int64_t at = row + i * 8;
            const bool inside = at < m;
            const float given = inside ? p.lse[batch * p.lse_batch + head * p.lse_head + at * p.lse_row] : -INF_F;
            lse_log2[i] = given == -INF_F ? INF_F : given * LOG2_E;
            delta[i] = DLSE && inside ? -p.dlse[batch * p.dlse_batch + head * p.dlse_head + at * p.dlse_row] : 0.0f;
        }
        wait_copies<0>();
        barrier();
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
            const char* const place = do_tile + (warp_row + lane / 4 + i * 8) * E_PITCH;
            float sum = 0.0f;
#pragma unroll
            for (int c = 0; c < CHUNKS; ++c) {
                const int at = c * 4 + lane % 4;
                if (at < HEAD_E / 8) sum += product_of<T>(load_words<16>(place + at * 16), own[i][c]);
            }
            delta[i] += quad_sum(sum);
        }
    }

#pragma unroll 1
    for (int key = begin; key < end; key += TILE_N) {
        float scores[M_TILES][SCORES], ds[M_TILES][SCORES];
        uint32_t pairs[M_TILES][SCORES / 2];
        wait_copies<0>();
        barrier();  // the keys are there, and nobody still reads values
        copy_tile<HEAD_E, TILE_N, THREADS, COPY_BYTES, true>(v_tile, values, key, thread_x());
        commit_copies();
        // Opaque where elements are loaded one by one: else the compiler keeps a pointer to each row and block of bias
        // and dbias across the loop, 168 registers instead of 130 (NVRTC 13.0, sm_80, 2026-11-22).
        int column = key;
        if (BIAS_BYTES != 16) asm volatile("" : "+r"(column));
        read_bias(pairs, from, row, column);
        multiply_rows<T, HEAD_D>(scores, own_queries, own_keys);
        wait_copies<0>();
        barrier();  // the values are there, and nobody still reads keys
        if (key + TILE_N < end) {
            copy_tile<HEAD_D, TILE_N, THREADS, COPY_BYTES, true>(k_tile, keys, key + TILE_N, thread_x());
            commit_copies();
        }
#pragma unroll
        for (int g = 0; g < M_TILES; ++g) {
            if (SOFTCAP) apply_softcap<SCORES>(scores[g], p.score_scale);
#pragma unroll
            for (int i = 0; i < SCORES; ++i) {
                const T added = element_of<T>(pairs[g], i);
                const float scale = SOFTCAP ? p.softcap_log2 : p.score_scale;
                const float score = math_fma(scores[g][i], scale, -lse_log2[g * 2 + i / 2 % 2]);
                scores[g][i] = exp2_fast(math_fma(to_float(added), LOG2_E, score));
            }
        }
        multiply_rows<T, HEAD_E>(ds, own_grads, own_values);
        const bool edge = (RIGHT && key + TILE_N > diagonal + right + 1) ||
                          (LEFT && key < diagonal + WARP_M - 1 - left);
#pragma unroll
        for (int g = 0; g < M_TILES; ++g) {
#pragma unroll
            for (int i = 0; i < SCORES; ++i) ds[g][i] = scores[g][i] * (ds[g][i] - delta[g * 2 + i / 2 % 2]);
            if (edge) zero_unseen(ds[g], row + g * 16, key, m, n, left, right);
        }
        store_block(ds, to, row, column);
    }
}
