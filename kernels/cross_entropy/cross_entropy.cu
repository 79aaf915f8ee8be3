// Cross-entropy of rows of logits against a target each, and its gradient, in float32.
//
// PASS names the one kernel to build: FORWARD reads a row once, BACKWARD is elementwise given each row's lse. SOFTCAP,
// SMOOTHING and WEIGHT say whether there is one; `weight` has a number per class. A row whose target is `ignore_index`
// is not read. No address follows from a target outside the row: its loss and its gradient are NaN.
#define FORWARD 1
#define BACKWARD 2

#include "_lib/rows/elementwise.h"
#include "_lib/rows/log_sum_exp.h"
#include "_lib/rows/softcap.h"

DEVICE Softcapped score_of(float x, float softcap) {
    if constexpr (SOFTCAP) return softcapped(x, softcap);
    return {x, 1.0f};
}

#if PASS == FORWARD
KERNEL(THREADS)
void cross_entropy_forward(const T* logits, const int64_t* target, const float* weight, float* loss, float* lse,
                           int64_t rows, int length, int64_t logits_stride, int64_t ignore_index,
                           float label_smoothing, float softcap, float z_loss) {
    enter_pdl();
    constexpr Third THIRD = !SMOOTHING ? NOTHING : WEIGHT ? WEIGHTED : ELEMENTS;
    SHARED RowPartial<LogSumExp<THIRD>::COUNT> partial;
    const int64_t row = static_cast<int64_t>(row_block()) * ROWS + row_slot();
    const int64_t wanted = row < rows ? target[row] : ignore_index;
    const bool ignored = wanted == ignore_index;
    const T* source = logits + row * logits_stride;
    const bool there = !ignored && wanted >= 0 && wanted < length;
    const float at = there ? score_of(to_float(source[wanted]), softcap).value : not_a_number();

    LogSumExp<THIRD> part = scan_row<THIRD, !SOFTCAP>(source, ignored ? 0 : length, [&](auto x) {
        if constexpr (SOFTCAP) return softcapped(x, softcap).value;
        else return x;
    }, weight);
    merge_lanes(part, partial);
    if (row_lane() != 0 || row >= rows) return;
    const float log_sum = math_log(part.sum());
    const float total = part.maximum() + log_sum;
    float value = part.maximum() - at;
    if constexpr (WEIGHT) {
        value = (there ? weight[wanted] : 1.0f) * (value + log_sum);
        if constexpr (SMOOTHING) {
            const float mean = part.third() / static_cast<float>(length);
            const float of_weight = part.weights() / static_cast<float>(length);
            const float even = math_fma(of_weight, log_sum, math_fma(of_weight, part.maximum(), -mean));
            value = math_fma(label_smoothing, even, (1.0f - label_smoothing) * value);
        }
    } else {
        if constexpr (SMOOTHING) {
            const float mean = part.third() / static_cast<float>(length);
            value = math_fma(label_smoothing, part.maximum() - mean, (1.0f - label_smoothing) * value);
        }
        value += log_sum;
    }
    if (z_loss != 0.0f) value = math_fma(z_loss * total, total, value);
    loss[row] = ignored ? 0.0f : value;
    lse[row] = ignored ? 0.0f : total;
}
#endif

#if PASS == BACKWARD
// With p = exp(score - lse), o = (1 - smoothing) * weight[target] and m = smoothing * weight_mean:
// (dloss * ((o + m + 2 * z_loss * lse) * p - o * one-hot - smoothing * weight / classes) + dlse * p) * score'.
KERNEL(THREADS)
void cross_entropy_backward(const float* dloss, const float* dlse, const T* logits, const int64_t* target,
                            const float* weight, const float* weight_mean, const float* lse, T* dlogits, int64_t rows,
                            int64_t length, int64_t logits_stride, int64_t dlogits_stride, int across,
                            int64_t ignore_index, float label_smoothing, float softcap, float z_loss) {
    enter_pdl();
    const RowSlice slice = row_slice(rows, length, across);
    const bool real = slice.length > 0;
    const int64_t wanted = real ? target[slice.row] : ignore_index;
    const bool ignored = wanted == ignore_index;
    float upstream = ignored ? 0.0f : dloss[slice.row];
    const bool outside = wanted < 0 || wanted >= length;
    if (!ignored && outside) upstream = not_a_number();
    const float total = ignored ? 0.0f : lse[slice.row];
    float own = 1.0f - label_smoothing, both = 1.0f;
    if constexpr (WEIGHT) {
        if (weight != nullptr && !ignored && !outside) own *= weight[wanted];
        both = own + label_smoothing * (SMOOTHING && weight_mean != nullptr ? weight_mean[0] : 1.0f);
    }
    float of_power = upstream * math_fma(2.0f * z_loss, total, both);
    if (dlse != nullptr && !ignored) of_power += dlse[slice.row];
    const float even = upstream * label_smoothing / static_cast<float>(length);
    const float sharp = upstream * own;

    Vector<T, VEC> held[CHUNKS];
    load_vectors<true>(held, lane_ptr(logits + slice.row * logits_stride), slice.base, ignored ? 0 : slice.length);
    store_values(dlogits + slice.row * dlogits_stride, slice, [&](int c, int i) {
        const Softcapped score = score_of(held[c][i], softcap);
        float value = of_power * exponential(score.value - total);
        const int64_t column = slice.base + chunk_column(c) + i;
        if constexpr (SMOOTHING) {
            float of_class = even;
            if constexpr (WEIGHT) of_class *= weight != nullptr && column < slice.length ? weight[column] : 1.0f;
            value -= of_class;
        }
        if (column == wanted) value -= sharp;
        return value * score.slope;
    });
}
#endif
