// Before bwd.cu, per query: its lse as a power of two, and delta = sum(do * o) - dlse. A query that sees no
// key gets an infinite lse, with which every weight is 0. 16 lanes take a row.
//
// Defines: ELEMENT (bf16, f16); COPY_BYTES: 16 where rows are aligned to that, else 2; DLSE.
#include "prelude.h"

#include "copy.h"

using T = ELEMENT;
constexpr int THREADS = 256;
constexpr int LANES = 16, ROWS = THREADS / LANES;
constexpr int RUN = COPY_BYTES / 2;  // elements at a time
constexpr float LOG2_E = 1.44269504088896f;

DEVICE float times(const T* a, const T* b, int there) {
    if (RUN == 8 && there >= RUN) return product_of<T>(load_words<16>(a), load_words<16>(b));
    float sum = 0;
    for (int i = 0; i < RUN && i < there; ++i) sum = math_fma(to_float(a[i]), to_float(b[i]), sum);
    return sum;
}

KERNEL(THREADS)
void attention_backward_mma_rows(const T* dout, const T* out, const float* lse, const float* dlse, float* stats,
                                 int heads, int queries, int columns, int tiles, int64_t dout_batch,
                                 int64_t dout_head, int64_t dout_row, int64_t out_batch, int64_t out_head,
                                 int64_t out_row, int64_t lse_batch, int64_t lse_head, int64_t lse_row,
                                 int64_t dlse_batch, int64_t dlse_head, int64_t dlse_row) {
    const int64_t line = block_x() / tiles, batch = line / heads, head = line % heads;
    const int64_t row = block_x() % tiles * ROWS + thread_x() / LANES;
    const int lane = thread_x() % LANES;
    const bool inside = row < queries;
    float sum = 0;
    if (inside) {
        dout += batch * dout_batch + head * dout_head + row * dout_row;
        out += batch * out_batch + head * out_head + row * out_row;
        for (int column = lane * RUN; column < columns; column += LANES * RUN)
            sum += times(dout + column, out + column, columns - column);
    }
#pragma unroll
    for (int apart = 1; apart < LANES; apart *= 2) sum += shuffle_xor(sum, apart);
    if (inside && lane == 0) {
        const float base = lse[batch * lse_batch + head * lse_head + row * lse_row];
        const float given = DLSE ? dlse[batch * dlse_batch + head * dlse_head + row * dlse_row] : 0;
        float* const to = stats + (line * queries + row) * 2;
        to[0] = base == -INF_F ? INF_F : base * LOG2_E;
        to[1] = sum - given;
    }
}
