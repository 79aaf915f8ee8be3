// Combines the splits of a sequence's keys, in their order. For CUDA and HIP.
//
// A block takes one query of one head and COLUMNS columns of its o. Line i of its threads adds every LINES-th
// split from i on, then the lines are added, in order as well.
//
// Defines: T; E: columns of o; CHUNK, LEFT (kv_splits.h); SINKS.
#include "prelude.h"

#include "kv_splits.h"
#include "softmax.h"

constexpr int COLUMNS = 32;
constexpr int LINES = 8;
constexpr int THREADS = LINES * COLUMNS;

// The softmax of some keys: row_max and row_sum of their scores, and a column of P @ v, both times exp2(-row_max).
struct Partial {
    float row_max = -INF_F, row_sum = 0.0f, acc_o = 0.0f;

    DEVICE float base() const { return row_max == -INF_F ? 0.0f : row_max; }

    DEVICE void add(float other_max, float other_sum, float other_o) {
        const float before = row_max;
        row_max = math_max_number(row_max, other_max);
        const float own = exp2_fast(before - base()), weight = exp2_fast(other_max - base());
        row_sum = row_sum * own + other_sum * weight;
        acc_o = acc_o * own + other_o * weight;
    }
};

// `o_partial`, `max_partial`, `sum_partial`: of [z, head, query, split], what the splits found; there is room for
// `splits`, of which a sequence has at most `max_splits`.
KERNEL(THREADS)
void attention_decode_combine(T* o, int64_t o_batch, int64_t o_head, int64_t o_row, float* lse,
                              const float* o_partial, const float* max_partial, const float* sum_partial,
                              const float* sinks, const int32_t* lens, int capacity, int queries, int splits,
                              int max_splits, int left, int heads) {
    const int index = block_x();
    const int query = index % queries, head = index / queries % heads, z = index / queries / heads;
    const int count = KvSplits(length_of(lens, z, capacity), queries, left, max_splits).count;
    const int64_t first = static_cast<int64_t>(index) * splits;
    o_partial += first * E;
    max_partial += first;
    sum_partial += first;

    const int line = thread_x() / COLUMNS, place = thread_x() % COLUMNS;
    const int column = block_y() * COLUMNS + place;
    const bool inside = column < E;
    Partial own;
    for (int split = line; split < count; split += LINES) {
        const float acc_o = inside ? o_partial[static_cast<int64_t>(split) * E + column] : 0.0f;
        own.add(max_partial[split], sum_partial[split], acc_o);
    }
    SHARED float board[3][LINES][COLUMNS];
    board[0][line][place] = own.row_max;
    board[1][line][place] = own.row_sum;
    board[2][line][place] = own.acc_o;
    barrier();
    if (line != 0 || !inside) {
        return;
    }
#pragma unroll
    for (int i = 1; i < LINES; ++i) {
        own.add(board[0][i][place], board[1][i][place], board[2][i][place]);
    }
    if (SINKS) {
        own.add(sinks[head] * LOG2_E, 1.0f, 0.0f);
    }
    const bool seen = own.row_sum > 0.0f || own.row_sum != own.row_sum;
    const float result = seen ? div_rn(own.acc_o, own.row_sum) : 0.0f;
    o[z * o_batch + head * o_head + query * o_row + column] = from_float<T>(result);
    if (column == 0) {
        lse[index] = seen ? own.row_max * LN_2 + math_log(own.row_sum) : -INF_F;
    }
}
