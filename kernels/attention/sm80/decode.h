// A few queries against tiles of keys and values in shared memory, with warp-wide matrix instructions: what a block
// works on, the running softmax of a warp, and the sums of a block's warps. How tiles get there is the kernel's part.
//
// A block takes one split of one sequence's keys, one key head, and up to 16 rows: queries times the heads that share
// the key head. Each warp walks tiles of 16 keys of its own.
//
// Defines: ELEMENT (bf16 or f16); D, E: head sizes; WARPS; CHUNK, LEFT (kv_splits.h); RIGHT, SOFTCAP: whether there are
// such bounds; DIRECT: whether the one split's sums are the result; PARAMS_LAYOUT (params.h).
#pragma once

#include "prelude.h"

#include "_lib/ptx/matrix.h"
#include "_lib/ptx/mma.h"
#include "attention/device/kv_splits.h"
#include "attention/device/online_softmax.h"
#include "attention/device/params.h"

using T = ELEMENT;
constexpr int ROWS = 16;
constexpr int KEYS = 16;            // of a tile, which lies in one page
constexpr int STEP = WARPS * KEYS;  // from a warp's tile to its next
constexpr int D_STEPS = (D + 15) / 16, E_STEPS = (E + 15) / 16;
constexpr int SUMS_PITCH = E_STEPS * 16 + 4;
constexpr int SUMS_BYTES = ROWS * SUMS_PITCH * 4;
static_assert(SPLIT_ALIGN % KEYS == 0, "tiles end where splits do");

// As quad_max, but of numbers alone.
DEVICE float quad_max_number(float x) {
    x = math_max_number(x, shuffle_xor(x, 1));
    return math_max_number(x, shuffle_xor(x, 2));
}
DEVICE float finite_or_zero(float m) { return m == -INF_F ? 0.0f : m; }

// `tiles` of rows of a key head; `splits` of the keys that memory has room for, `max_splits` that a sequence is cut
// into.
struct Splits {
    int tiles, splits, max_splits;
};

// Keys begin to end of sequence z, key head `head`, rows from tile * ROWS on.
struct WorkTile {
    int z, split, tile, head, length, begin, end;

    DEVICE WorkTile(const AttentionParams& p, const Splits& s) {
        const int index = block_x() / p.kv_heads;  // heads of one token lie side by side
        head = block_x() % p.kv_heads;
        tile = index % s.tiles;
        split = index / s.tiles % s.splits;
        z = index / s.tiles / s.splits;
        length = length_of(p.seq_lens, z, p.seqlen_k);
        const KvSplits kv_splits(length, p.seqlen_q, p.left, s.max_splits);
        begin = kv_splits.first + split * kv_splits.size;
        end = length - begin < kv_splits.size ? length : begin + kv_splits.size;
    }
};

// A tile's rows as the matrix instructions have them: this lane's are lane / 4 and that plus 8.
struct Rows {
    int query[2];
    uint32_t words[D_STEPS][4];

    DEVICE Rows(const AttentionParams& p, const WorkTile& work, int lane) {
        const int qheads_per_kvhead = p.qheads_per_kvhead;
        const T* at[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int number = work.tile * ROWS + lane / 4 + i * 8;
            query[i] = number / qheads_per_kvhead;
            const T* own = static_cast<const T*>(p.q) + work.z * p.q_batch + query[i] * p.q_row +
                           (work.head * qheads_per_kvhead + number % qheads_per_kvhead) * p.q_head;
            at[i] = query[i] < p.seqlen_q ? own : nullptr;
        }
#pragma unroll
        for (int step = 0; step < D_STEPS; ++step)
#pragma unroll
            for (int w = 0; w < 4; ++w) {
                const int column = step * 16 + w / 2 * 8 + lane % 4 * 2;
                words[step][w] =
                    at[w % 2] != nullptr && column < D ? *reinterpret_cast<const uint32_t*>(at[w % 2] + column) : 0;
            }
    }
};

// Of a warp's tiles so far: each row's greatest score, the sum of exp2(score - row_max), and that times the values.
struct DecodeSoftmax {
    float row_max[2] = {-INF_F, -INF_F}, row_sum[2] = {0.0f, 0.0f};
    float acc_o[E_STEPS * 2][4] = {};

    // A tile from key n on. It says where this lane's line of 16 columns of either is: `keys(step)`, `values(step)`.
    template <class Tile>
    DEVICE void add(const Tile& tile, const Rows& rows, int n, const WorkTile& work, const AttentionParams& p,
                    int lane) {
        float products[2][2][4] = {};  // two sums each, so that the instructions do not wait for one another
#pragma unroll
        for (int step = 0; step < D_STEPS; ++step) {
            uint32_t b[4];
            ldmatrix_x4(b, tile.keys(step));
            Product<T>::add(products[0][step % 2], rows.words[step], b[0], b[1]);
            Product<T>::add(products[1][step % 2], rows.words[step], b[2], b[3]);
        }
        float scores[2][4];
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                float score = (products[half][0][j] + products[half][1][j]) * p.score_scale;
                if (SOFTCAP) score = p.softcap_log2 * (1.0f - 2.0f / (1.0f + exp2_fast(score)));
                scores[half][j] = score;
            }
        if (LEFT || RIGHT || n + KEYS > work.end) {
#pragma unroll
            for (int half = 0; half < 2; ++half)
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    const int key = n + half * 8 + lane % 4 * 2 + j % 2;
                    const int last = work.length - p.seqlen_q + rows.query[j / 2];
                    bool seen = key < work.end;
                    if (RIGHT) seen = seen && key <= last + p.right;
                    if (LEFT) seen = seen && key >= last - p.left;
                    if (!seen) scores[half][j] = -INF_F;
                }
        }
        float rescale[2];
        bool grows = false;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const float lane_max = math_max_number(math_max_number(scores[0][2 * r], scores[0][2 * r + 1]),
                                               math_max_number(scores[1][2 * r], scores[1][2 * r + 1]));
            const float highest = math_max_number(row_max[r], quad_max_number(lane_max));
            const float base = finite_or_zero(highest);
            grows = grows || highest > row_max[r];
            rescale[r] = exp2_fast(row_max[r] - base);
            row_max[r] = highest;
            float sum = 0.0f;
#pragma unroll
            for (int half = 0; half < 2; ++half)
#pragma unroll
                for (int j = 0; j < 2; ++j) {
                    const float p = exp2_fast(scores[half][2 * r + j] - base);
                    scores[half][2 * r + j] = p;
                    sum += p;
                }
            row_sum[r] = row_sum[r] * (row_max[r] == -INF_F ? 1.0f : rescale[r]) + sum;
        }
        if (__any_sync(0xffffffffu, grows)) {
#pragma unroll
            for (int i = 0; i < E_STEPS * 2; ++i)
#pragma unroll
                for (int j = 0; j < 4; ++j) acc_o[i][j] *= rescale[j / 2];
        }
        const uint32_t packed[4] = {pack2<T>(scores[0][0], scores[0][1]), pack2<T>(scores[0][2], scores[0][3]),
                               pack2<T>(scores[1][0], scores[1][1]), pack2<T>(scores[1][2], scores[1][3])};
#pragma unroll
        for (int step = 0; step < E_STEPS; ++step) {
            uint32_t b[4];
            ldmatrix_x4_trans(b, tile.values(step));
            Product<T>::add(acc_o[2 * step], packed, b[0], b[1]);
            Product<T>::add(acc_o[2 * step + 1], packed, b[2], b[3]);
        }
    }
};

// Adds up the sums of a block's warps in their order: with DIRECT to o and lse [z, head, query], else a split's to
// [z, head, query, splits]. A warp's take the place of its tiles, `pitch` bytes from one
// warp's to the next's.
DEVICE void add_warps(const DecodeSoftmax& softmax, char* memory, int pitch, const AttentionParams& p,
                      const WorkTile& work, int splits, int warp, int lane) {
    const int qheads_per_kvhead = p.qheads_per_kvhead;
    SHARED float warp_max[WARPS][ROWS], warp_sum[WARPS][ROWS];
    float* own = reinterpret_cast<float*>(memory + warp * pitch);
#pragma unroll
    for (int i = 0; i < E_STEPS * 2; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j)
            own[(lane / 4 + j / 2 * 8) * SUMS_PITCH + i * 8 + lane % 4 * 2 + j % 2] = softmax.acc_o[i][j];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const float sum = quad_sum(softmax.row_sum[i]);
        if (lane % 4 == 0) {
            warp_max[warp][lane / 4 + i * 8] = softmax.row_max[i];
            warp_sum[warp][lane / 4 + i * 8] = sum;
        }
    }
    barrier();
    const int rows = p.seqlen_q * qheads_per_kvhead - work.tile * ROWS;
    const int count = (rows < ROWS ? rows : ROWS) * E;
    for (int i = thread_x(); i < count; i += WARPS * 32) {
        const int row = i / E, column = i % E;
        float highest = -INF_F;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) highest = math_max_number(highest, warp_max[w][row]);
        const float base = finite_or_zero(highest);
        float sum = 0.0f, divisor = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) {
            const float weight = exp2_fast(warp_max[w][row] - base);
            sum += weight * reinterpret_cast<const float*>(memory + w * pitch)[row * SUMS_PITCH + column];
            divisor += weight * warp_sum[w][row];
        }
        const int number = work.tile * ROWS + row, query = number / qheads_per_kvhead;
        const int head = work.head * qheads_per_kvhead + number % qheads_per_kvhead;
        const int64_t line = static_cast<int64_t>(work.z) * (p.kv_heads * qheads_per_kvhead) + head;
        const int64_t at = line * p.seqlen_q + query;
        if (DIRECT) {
            const bool seen = divisor > 0.0f || divisor != divisor;
            static_cast<T*>(p.o)[work.z * p.o_batch + head * p.o_head + query * p.o_row + column] =
                from_float<T>(seen ? div_rn(sum, divisor) : 0.0f);
            if (column == 0) p.lse[at] = seen ? highest * LN_2 + math_log(divisor) : -INF_F;
        } else {
            p.o_partial[(at * splits + work.split) * E + column] = sum;
            if (column == 0) {
                p.max_partial[at * splits + work.split] = highest;
                p.sum_partial[at * splits + work.split] = divisor;
            }
        }
    }
}
