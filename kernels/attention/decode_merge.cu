// Adds up what the chunks of a sequence's keys gave, in their order. For CUDA and HIP.
//
// A block takes one query of one head and COLUMNS columns of its o: line i of its threads adds every LINES-th chunk
// from i on, then the lines are added.
//
// Defines: T; E: columns of o; CHUNK: the fewest keys of a chunk; LEFT: whether the window ends on the left; SINKS.
#include "prelude.h"

#include "chunks.h"

constexpr int COLUMNS = 32;
constexpr int LINES = 8;
constexpr int THREADS = LINES * COLUMNS;
constexpr float LOG2_E = 1.44269504088896340736f;
constexpr float LN_2 = 0.69314718055994530942f;

// The largest value of any thread.
DEVICE float block_max(float value) {
    SHARED float values[THREADS];
    values[thread_x()] = value;
    for (int half = THREADS / 2; half > 0; half /= 2) {
        barrier();
        if (thread_x() < half) {
            values[thread_x()] = math_max_number(values[thread_x()], values[thread_x() + half]);
        }
    }
    barrier();
    return values[0];
}

// What the lines' threads of this column hold, added in order.
DEVICE float over_lines(float value, float (&values)[LINES][COLUMNS]) {
    values[thread_x() / COLUMNS][thread_x() % COLUMNS] = value;
    barrier();
    float sum = 0.0f;
#pragma unroll
    for (int line = 0; line < LINES; ++line) {
        sum += values[line][thread_x() % COLUMNS];
    }
    return sum;
}

KERNEL(THREADS)
void attention_merge(T* o, int64_t o_batch, int64_t o_head, int64_t o_row, float* lse, const float* parts,
                     const float* tops, const float* totals, const float* sinks, const int32_t* lens, int capacity,
                     int queries, int slots, int most, int left, int heads) {
    const int64_t index = block_x();
    const int query = index % queries, head = index / queries % heads;
    const int64_t z = index / queries / heads;
    const int length = length_of(lens, z, capacity);
    const int count = Chunks(length, queries, left, most).count;
    parts += index * slots * E;
    tops += index * slots;
    totals += index * slots;

    float top = -INF_F;
    for (int chunk = thread_x(); chunk < count; chunk += THREADS) {
        top = math_max_number(top, tops[chunk]);
    }
    top = block_max(top);
    float sink = -INF_F;
    if (SINKS) {
        sink = sinks[head] * LOG2_E;
        top = math_max_number(top, sink);
    }
    const float base = top == -INF_F ? 0.0f : top;

    const int column = block_y() * COLUMNS + thread_x() % COLUMNS;
    const bool inside = column < E;
    float sum = 0.0f, total = 0.0f;
    for (int chunk = thread_x() / COLUMNS; chunk < count; chunk += LINES) {
        const float weight = exp2_fast(tops[chunk] - base);
        total += weight * totals[chunk];
        sum += weight * (inside ? parts[static_cast<int64_t>(chunk) * E + column] : 0.0f);
    }
    SHARED float sums[LINES][COLUMNS], divisors[LINES][COLUMNS];
    sum = over_lines(sum, sums);
    total = over_lines(total, divisors);
    if (SINKS) {
        total += exp2_fast(sink - base);
    }
    if (thread_x() >= COLUMNS) {
        return;
    }
    const bool seen = total > 0.0f || total != total;
    if (inside) {
        o[z * o_batch + head * o_head + query * o_row + column] = from_float<T>(seen ? div_rn(sum, total) : 0.0f);
    }
    if (column == 0) {
        lse[index] = seen ? top * LN_2 + math_log(total) : -INF_F;
    }
}
