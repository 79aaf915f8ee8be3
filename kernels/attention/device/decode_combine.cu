// Adds up what the chunks of a sequence's keys gave, in their order. For CUDA and HIP.
//
// A block takes one query of one head and COLUMNS columns of its o. Line i of its threads adds every LINES-th
// chunk from i on, then the lines are added, in order as well.
//
// Defines: T; E: columns of o; CHUNK, LEFT (kv_splits.h); SINKS.
#include "prelude.h"

#include "kv_splits.h"

constexpr int COLUMNS = 32;
constexpr int LINES = 8;
constexpr int THREADS = LINES * COLUMNS;
constexpr float LOG2_E = 1.44269504088896340736f;
constexpr float LN_2 = 0.69314718055994530942f;

// A sum of weights' products with one column of values, and the weights' own; both are `exp2(top)` worth.
struct Partial {
    float top = -INF_F, total = 0.0f, sum = 0.0f;

    DEVICE float base() const { return top == -INF_F ? 0.0f : top; }

    DEVICE void add(float other_top, float other_total, float other_sum) {
        const float before = top;
        top = math_max_number(top, other_top);
        const float own = exp2_fast(before - base()), weight = exp2_fast(other_top - base());
        total = total * own + other_total * weight;
        sum = sum * own + other_sum * weight;
    }
};

KERNEL(THREADS)
void attention_merge(T* o, int64_t o_batch, int64_t o_head, int64_t o_row, float* lse, const float* parts,
                     const float* tops, const float* totals, const float* sinks, const int32_t* lens,
                     int capacity, int queries, int slots, int most, int left, int heads) {
    const int index = block_x();
    const int query = index % queries, head = index / queries % heads, z = index / queries / heads;
    const int count = Chunks(length_of(lens, z, capacity), queries, left, most).count;
    const int64_t slot = static_cast<int64_t>(index) * slots;
    parts += slot * E;
    tops += slot;
    totals += slot;

    const int line = thread_x() / COLUMNS, place = thread_x() % COLUMNS;
    const int column = block_y() * COLUMNS + place;
    const bool inside = column < E;
    Partial own;
    for (int chunk = line; chunk < count; chunk += LINES) {
        const float sum = inside ? parts[static_cast<int64_t>(chunk) * E + column] : 0.0f;
        own.add(tops[chunk], totals[chunk], sum);
    }
    SHARED float board[3][LINES][COLUMNS];
    board[0][line][place] = own.top;
    board[1][line][place] = own.total;
    board[2][line][place] = own.sum;
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
    const bool seen = own.total > 0.0f || own.total != own.total;
    const float result = seen ? div_rn(own.sum, own.total) : 0.0f;
    o[z * o_batch + head * o_head + query * o_row + column] = from_float<T>(result);
    if (column == 0) {
        lse[index] = seen ? own.top * LN_2 + math_log(own.total) : -INF_F;
    }
}
