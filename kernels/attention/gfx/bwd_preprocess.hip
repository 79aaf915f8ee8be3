// Before bwd.hip, per query: lse_log2, its lse in base 2, and delta = sum(do * o) - dlse. A query that sees no key
// gets an infinite lse_log2, with which every P is 0. 16 lanes take a row.
//
// Defines: T (bf16, f16); DLSE.
#include "_lib/amdgcn/lds.h"
#include "attention/device/softmax.h"

constexpr int THREADS = 256;
constexpr int LANES = 16, ROWS = THREADS / LANES, ELEMENTS = 8;

KERNEL(THREADS)
void attention_bwd_preprocess(const T* dout, const T* out, const float* lse, const float* dlse, float* lse_log2,
                              float* delta, int heads, int queries, int columns, int tiles, int64_t dout_batch,
                              int64_t dout_head, int64_t dout_row, int64_t out_batch, int64_t out_head,
                              int64_t out_row, int64_t lse_batch, int64_t lse_head, int64_t lse_row,
                              int64_t dlse_batch, int64_t dlse_head, int64_t dlse_row) {
    const int64_t batch_head = block_x() / tiles, batch = batch_head / heads, head = batch_head % heads;
    const int64_t row = block_x() % tiles * ROWS + thread_x() / LANES;
    const int lane = thread_x() % LANES;
    const bool inside = row < queries;
    float sum = 0;
    if (inside) {
        dout += batch * dout_batch + head * dout_head + row * dout_row;
        out += batch * out_batch + head * out_head + row * out_row;
        for (int column = lane * ELEMENTS; column < columns; column += LANES * ELEMENTS) {
            const auto d = __builtin_bit_cast(vec<T, ELEMENTS>, load_bounded<16>(dout + column, columns - column));
            const auto o = __builtin_bit_cast(vec<T, ELEMENTS>, load_bounded<16>(out + column, columns - column));
            for (int i = 0; i < ELEMENTS; ++i) {
                sum = math_fma(to_float(d.v[i]), to_float(o.v[i]), sum);
            }
        }
    }
    for (int apart = 1; apart < LANES; apart *= 2) {
        sum += shuffle_xor(sum, apart);
    }
    if (inside && lane == 0) {
        const float natural = lse[batch * lse_batch + head * lse_head + row * lse_row];
        const float lse_gradient = DLSE ? dlse[batch * dlse_batch + head * dlse_head + row * dlse_row] : 0;
        lse_log2[batch_head * queries + row] = natural == -INF_F ? INF_F : natural * LOG2_E;
        delta[batch_head * queries + row] = sum - lse_gradient;
    }
}
