// The log-probability of one class per row of logits, the entropy of the row's softmax, and their gradient, in float32.
//
// PASS names the one kernel to build: FORWARD reads a row once, BACKWARD is elementwise given each row's entropy and
// lse. No address follows from an index outside the row: its log-probability and its gradient are NaN.
#define FORWARD 1
#define BACKWARD 2

#include "_lib/rows/elementwise.h"
#include "_lib/rows/log_sum_exp.h"

#if PASS == FORWARD
KERNEL(THREADS)
void selected_logprob_forward(const T* logits, const int64_t* index, float* logprob, float* entropy, float* lse,
                              int64_t rows, int length, int64_t logits_stride, float inverse_temperature) {
    enter_pdl();
    SHARED RowPartial<LogSumExp<MOMENT>::COUNT> partial;
    const int64_t row = static_cast<int64_t>(row_block()) * ROWS + row_slot();
    const int count = row < rows ? length : 0;
    const int64_t wanted = row < rows ? index[row] : -1;
    const T* source = logits + row * logits_stride;
    const bool there = wanted >= 0 && wanted < length;
    const float at = there ? to_float(source[wanted]) * inverse_temperature : not_a_number();

    LogSumExp<MOMENT> part =
        scan_row<MOMENT, true>(source, count, [&](auto x) { return x * inverse_temperature; });
    merge_lanes(part, partial);
    if (row_lane() != 0 || row >= rows) return;
    const float log_sum = math_log(part.sum());
    logprob[row] = (at - part.maximum()) - log_sum;
    entropy[row] = log_sum - div_rn(part.third(), part.sum());
    lse[row] = part.maximum() + log_sum;
}
#endif

#if PASS == BACKWARD
// With p = exp(score - lse), log(p) = score - lse and H = entropy:
// (dlogprob * (one-hot - p) - dentropy * p * (log(p) + H) + dlse * p) / temperature.
KERNEL(THREADS)
void selected_logprob_backward(const float* dlogprob, const float* dentropy, const T* logits, const int64_t* index,
                               const float* entropy, const float* lse, const float* dlse, T* dlogits, int64_t rows,
                               int64_t length, int64_t logits_stride, int64_t dlogits_stride, int across,
                               float inverse_temperature) {
    enter_pdl();
    const RowSlice slice = row_slice(rows, length, across);
    const bool real = slice.length > 0;
    const int64_t wanted = real ? index[slice.row] : -1;
    float of_logprob = real ? dlogprob[slice.row] : 0.0f;
    if (wanted < 0 || wanted >= length) of_logprob = not_a_number();
    const float of_entropy = real ? dentropy[slice.row] : 0.0f;
    const float own = real ? entropy[slice.row] : 0.0f;
    const float total = real ? lse[slice.row] : 0.0f;
    const float of_power = (dlse != nullptr && real ? dlse[slice.row] : 0.0f) - of_logprob;

    Vector<T, VEC> held[CHUNKS];
    load_vectors<true>(held, lane_ptr(logits + slice.row * logits_stride), slice.base, slice.length);
    store_values(dlogits + slice.row * dlogits_stride, slice, [&](int c, int i) {
        const float log_power = math_fma(held[c][i], inverse_temperature, -total);
        const float power = exponential(log_power);
        // A class of probability 0 adds nothing, whatever its logarithm.
        const float surprise = power == 0.0f ? 0.0f : power * (log_power + own);
        float value = of_power * power - of_entropy * surprise;
        if (slice.base + chunk_column(c) + i == wanted) value += of_logprob;
        return value * inverse_temperature;
    });
}
#endif
