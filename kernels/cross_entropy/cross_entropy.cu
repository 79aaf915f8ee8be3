// Cross-entropy of rows of logits against a target each, and its gradient, in float32.
//
// PASS names the one kernel to build: FORWARD reads a row once, BACKWARD is elementwise given each row's lse;
// FORWARD_COLUMNS and BACKWARD_COLUMNS are the same of logits in any strides, such as those of x @ weight.T as
// (weight @ x.T).T, whose rows lie side by side; of many classes FORWARD_PARTS reads SPAN each, and MERGE_PARTS makes
// the losses of these parts. SOFTCAP, SMOOTHING and WEIGHT say whether there is one; `weight` has a
// number per class. A row whose target is `ignore_index` adds nothing, and FORWARD and BACKWARD do not read it. No address
// follows from a target outside the row: its loss and its gradient are NaN.
//
// In the kernels of columns a lane holds VEC rows of logits (VEC is 1 where these are not neighbours), and LANES lanes one
// class of them; the block's slots of lanes take different classes.
#define FORWARD 1
#define BACKWARD 2
#define FORWARD_COLUMNS 3
#define BACKWARD_COLUMNS 4
#define FORWARD_PARTS 5
#define MERGE_PARTS 6

#include "_lib/rows/elementwise.h"
#include "_lib/rows/log_sum_exp.h"
#include "_lib/rows/softcap.h"

DEVICE Softcapped score_of(float x, float softcap) {
    if constexpr (SOFTCAP) return softcapped(x, softcap);
    return {x, 1.0f};
}

#if PASS != BACKWARD && PASS != BACKWARD_COLUMNS
constexpr Third THIRD = !SMOOTHING ? NOTHING : WEIGHT ? WEIGHTED : ELEMENTS;

// Stores a row's loss and lse. `at` is the score of its target, which lies inside the row if `there`.
DEVICE void store_loss(const LogSumExp<THIRD>& part, float at, bool there, bool ignored, int64_t row, int64_t wanted,
                       int length, const float* weight, float* loss, float* lse, float label_smoothing, float z_loss) {
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

#if PASS == FORWARD
KERNEL(THREADS)
void cross_entropy_forward(const T* logits, const int64_t* target, const float* weight, float* loss, float* lse,
                           int64_t rows, int length, int64_t logits_stride, int64_t ignore_index,
                           float label_smoothing, float softcap, float z_loss) {
    enter_pdl();
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
    store_loss(part, at, there, ignored, row, wanted, length, weight, loss, lse, label_smoothing, z_loss);
}
#endif

#if PASS == FORWARD_COLUMNS || PASS == FORWARD_PARTS || PASS == BACKWARD_COLUMNS
// The lane's rows from `first` on of the classes base, base + ROWS and so on, CHUNKS of them; `source` is where the first of
// these begins. Zeros beyond the last row and class.
DEVICE void load_classes(Vector<T, VEC> (&held)[CHUNKS], const T* source, int64_t class_stride, int64_t first, int64_t rows,
                         int64_t base, int64_t length) {
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
        held[c] = load_vector<true>(source + c * ROWS * class_stride, first, base + c * ROWS < length ? rows : 0);
    }
}
#endif

#if PASS == FORWARD_COLUMNS || PASS == FORWARD_PARTS || PASS == MERGE_PARTS
constexpr int WIDTH = LANES * VEC;    // rows of logits that a block takes
constexpr int COUNT = LogSumExp<THIRD>::COUNT;

// `value` of each row of logits, reduced over the slots in all of them. All threads of the block call it.
template <class Op> DEVICE void reduce_slots(float (&value)[VEC], float (&exchanged)[ROWS][WIDTH]) {
    const int slot = row_slot(), first = row_lane() * VEC;
#pragma unroll
    for (int i = 0; i < VEC; ++i) exchanged[slot][first + i] = value[i];
    barrier();
    for (int half = ROWS / 2; half > 0; half /= 2) {
        if (slot < half) {
#pragma unroll
            for (int i = 0; i < VEC; ++i) {
                exchanged[slot][first + i] = Op::apply(exchanged[slot][first + i], exchanged[slot + half][first + i]);
            }
        }
        barrier();
    }
#pragma unroll
    for (int i = 0; i < VEC; ++i) value[i] = exchanged[0][first + i];
    barrier();
}

// Merges the slots' parts of each row in all of them. All threads of the block call it.
DEVICE void merge_slots(LogSumExp<THIRD> (&part)[VEC], float (&exchanged)[ROWS][WIDTH]) {
    float value[VEC];
#pragma unroll
    for (int i = 0; i < VEC; ++i) value[i] = part[i].maximum();
    reduce_slots<Max>(value, exchanged);
#pragma unroll
    for (int i = 0; i < VEC; ++i) part[i].move(value[i]);
#pragma unroll
    for (int k = 1; k < COUNT; ++k) {
        if (k == 3 && THIRD != WEIGHTED) continue;
#pragma unroll
        for (int i = 0; i < VEC; ++i) value[i] = part[i].value[k];
        reduce_slots<Sum>(value, exchanged);
#pragma unroll
        for (int i = 0; i < VEC; ++i) part[i].value[k] = value[i];
    }
}
#endif

#if PASS == FORWARD_COLUMNS || PASS == FORWARD_PARTS
// Adds the classes begin to end - 1 of the lane's rows, every ROWS-th of them, to `part`.
DEVICE void scan_columns(LogSumExp<THIRD> (&part)[VEC], const T* logits, int64_t row_stride, int64_t class_stride,
                         int64_t first, int64_t rows, int begin, int end, const float* weight, float softcap) {
    const T* source = logits + first * row_stride + (begin + row_slot()) * class_stride;
    const int64_t step = CHUNKS * ROWS * class_stride;
    Vector<T, VEC> held[CHUNKS];
    load_classes(held, source, class_stride, first, rows, begin + row_slot(), end);
    for (int base = begin + row_slot(); base < end; base += CHUNKS * ROWS) {
        Vector<T, VEC> next[CHUNKS];    // in flight while these are added
        source += step;
        load_classes(next, source, class_stride, first, rows, base + CHUNKS * ROWS, end);
#pragma unroll
        for (int i = 0; i < VEC; ++i) {
            float larger = held[0][i];
#pragma unroll
            for (int c = 1; c < CHUNKS; ++c) {
                if (base + c * ROWS < end) larger = math_max_number(larger, held[c][i]);
            }
            const float score = score_of(larger, softcap).value;
            const float shift = part[i].move(math_max_number(part[i].maximum(), score));
#pragma unroll
            for (int c = 0; c < CHUNKS; ++c) {
                const int column = base + c * ROWS;
                if (column >= end) continue;
                part[i].add(score_of(held[c][i], softcap).value, shift, THIRD == WEIGHTED ? weight[column] : 1.0f);
            }
        }
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) held[c] = next[c];
    }
}
#endif

#if PASS == FORWARD_PARTS
// Writes the sums of SPAN classes to `parts`, [parts, COUNT, rows]; `across` blocks lie side by side.
KERNEL(THREADS)
void cross_entropy_forward_parts(const T* logits, const float* weight, float* parts, int64_t rows, int length,
                                 int64_t row_stride, int64_t class_stride, int across, float softcap) {
    enter_pdl();
    SHARED float exchanged[ROWS][WIDTH];
    const unsigned block = static_cast<unsigned>(block_x()), group = block / static_cast<unsigned>(across);
    const int64_t first = static_cast<int64_t>(block - group * across) * WIDTH + row_lane() * VEC;
    const int begin = static_cast<int>(group) * SPAN;
    LogSumExp<THIRD> part[VEC];
    scan_columns(part, logits, row_stride, class_stride, first, rows, begin, min(begin + SPAN, length), weight, softcap);
    merge_slots(part, exchanged);
    if (row_slot() != 0) return;
    float* place = parts + static_cast<int64_t>(group) * COUNT * rows + first;
#pragma unroll
    for (int k = 0; k < COUNT; ++k) {
        if (k == 3 && THIRD != WEIGHTED) continue;
#pragma unroll
        for (int i = 0; i < VEC; ++i) {
            if (first + i < rows) place[k * rows + i] = part[i].value[k];
        }
    }
}
#endif

#if PASS == FORWARD_COLUMNS || PASS == MERGE_PARTS
// The losses of the lane's rows of logits in any strides, whose sums are `part`.
DEVICE void store_losses(const LogSumExp<THIRD> (&part)[VEC], const T* logits, const int64_t* target, const float* weight,
                         float* loss, float* lse, int64_t first, int64_t rows, int length, int64_t row_stride,
                         int64_t class_stride, int64_t ignore_index, float label_smoothing, float softcap, float z_loss) {
#pragma unroll
    for (int i = 0; i < VEC; ++i) {
        const int64_t row = first + i;
        if (row >= rows) break;
        const int64_t wanted = target[row];
        const bool ignored = wanted == ignore_index;
        const bool there = !ignored && wanted >= 0 && wanted < length;
        const T* of_row = logits + row * row_stride;
        const float at = there ? score_of(to_float(of_row[wanted * class_stride]), softcap).value : not_a_number();
        store_loss(part[i], at, there, ignored, row, wanted, length, weight, loss, lse, label_smoothing, z_loss);
    }
}
#endif

#if PASS == FORWARD_COLUMNS
KERNEL(THREADS)
void cross_entropy_forward_columns(const T* logits, const int64_t* target, const float* weight, float* loss, float* lse,
                                   int64_t rows, int length, int64_t row_stride, int64_t class_stride,
                                   int64_t ignore_index, float label_smoothing, float softcap, float z_loss) {
    enter_pdl();
    SHARED float exchanged[ROWS][WIDTH];
    const int64_t first = static_cast<int64_t>(block_x()) * WIDTH + row_lane() * VEC;
    LogSumExp<THIRD> part[VEC];
    scan_columns(part, logits, row_stride, class_stride, first, rows, 0, length, weight, softcap);
    merge_slots(part, exchanged);
    if (row_slot() != 0 || first >= rows) return;
    store_losses(part, logits, target, weight, loss, lse, first, rows, length, row_stride, class_stride, ignore_index,
                 label_smoothing, softcap, z_loss);
}
#endif

#if PASS == MERGE_PARTS
// The losses of rows whose sums are `count` parts. A slot takes every ROWS-th part; then the slots are merged.
KERNEL(THREADS)
void cross_entropy_merge_parts(const T* logits, const int64_t* target, const float* weight, const float* parts, float* loss,
                               float* lse, int64_t rows, int length, int64_t row_stride, int64_t class_stride, int count,
                               int64_t ignore_index, float label_smoothing, float softcap, float z_loss) {
    static_assert(VEC == 1, "a lane has one row");
    enter_pdl();
    SHARED float exchanged[ROWS][WIDTH];
    const int64_t row = static_cast<int64_t>(block_x()) * WIDTH + row_lane();
    LogSumExp<THIRD> part[1];
    for (int index = row_slot(); row < rows && index < count; index += ROWS) {
        LogSumExp<THIRD> other;
        const float* place = parts + static_cast<int64_t>(index) * COUNT * rows + row;
#pragma unroll
        for (int k = 0; k < COUNT; ++k) {
            if (k != 3 || THIRD == WEIGHTED) other.value[k] = place[k * rows];
        }
        const float larger = math_max_number(part[0].maximum(), other.maximum());
        part[0].move(larger);
        other.move(larger);
#pragma unroll
        for (int k = 1; k < COUNT; ++k) part[0].value[k] += other.value[k];
    }
    merge_slots(part, exchanged);
    if (row_slot() != 0 || row >= rows) return;
    store_losses(part, logits, target, weight, loss, lse, row, rows, length, row_stride, class_stride, ignore_index,
                 label_smoothing, softcap, z_loss);
}
#endif

#if PASS == BACKWARD || PASS == BACKWARD_COLUMNS
// With p = exp(score - lse), o = (1 - smoothing) * weight[target] and m = smoothing * weight_mean:
// (dloss * ((o + m + 2 * z_loss * lse) * p - o * one-hot - smoothing * weight / classes) + dlse * p) * score'.
struct RowGradient {
    int64_t wanted;
    bool ignored;
    float total, of_power, even, sharp;

    // Of a row that is there (`real`); of others and ignored ones nothing is read.
    DEVICE RowGradient(int64_t row, bool real, int64_t length, const float* dloss, const float* dlse,
                       const int64_t* target, const float* weight, const float* weight_mean, const float* lse,
                       int64_t ignore_index, float label_smoothing, float z_loss) {
        wanted = real ? target[row] : ignore_index;
        ignored = wanted == ignore_index;
        float upstream = ignored ? 0.0f : dloss[row];
        const bool outside = wanted < 0 || wanted >= length;
        if (!ignored && outside) upstream = not_a_number();
        total = ignored ? 0.0f : lse[row];
        float own = 1.0f - label_smoothing, both = 1.0f;
        if constexpr (WEIGHT) {
            if (weight != nullptr && !ignored && !outside) own *= weight[wanted];
            both = own + label_smoothing * (SMOOTHING && weight_mean != nullptr ? weight_mean[0] : 1.0f);
        }
        of_power = upstream * math_fma(2.0f * z_loss, total, both);
        if (dlse != nullptr && !ignored) of_power += dlse[row];
        even = upstream * label_smoothing / static_cast<float>(length);
        sharp = upstream * own;
    }
    // The gradient of the logit x of a class, of which `of_class` is the weight; `hot` says that it is the target.
    DEVICE float of(float x, bool hot, float of_class, float softcap) const {
        const Softcapped score = score_of(x, softcap);
        float value = of_power * exponential(score.value - total);
        if constexpr (SMOOTHING) value -= WEIGHT ? even * of_class : even;
        if (hot) value -= sharp;
        return value * score.slope;
    }
};
#endif

#if PASS == BACKWARD
KERNEL(THREADS)
void cross_entropy_backward(const float* dloss, const float* dlse, const T* logits, const int64_t* target,
                            const float* weight, const float* weight_mean, const float* lse, T* dlogits, int64_t rows,
                            int64_t length, int64_t logits_stride, int64_t dlogits_stride, int across,
                            int64_t ignore_index, float label_smoothing, float softcap, float z_loss) {
    enter_pdl();
    const RowSlice slice = row_slice(rows, length, across);
    const RowGradient row(slice.row, slice.length > 0, length, dloss, dlse, target, weight, weight_mean, lse,
                          ignore_index, label_smoothing, z_loss);
    Vector<T, VEC> held[CHUNKS];
    load_vectors<true>(held, lane_ptr(logits + slice.row * logits_stride), slice.base, row.ignored ? 0 : slice.length);
    store_values(dlogits + slice.row * dlogits_stride, slice, [&](int c, int i) {
        const int64_t column = slice.base + chunk_column(c) + i;
        float of_class = 1.0f;
        if constexpr (SMOOTHING && WEIGHT) {
            if (weight != nullptr && column < slice.length) of_class = weight[column];
        }
        return row.of(held[c][i], column == row.wanted, of_class, softcap);
    });
}
#endif

#if PASS == BACKWARD_COLUMNS
KERNEL(THREADS)
void cross_entropy_backward_columns(const float* dloss, const float* dlse, const T* logits, const int64_t* target,
                                    const float* weight, const float* weight_mean, const float* lse, T* dlogits,
                                    int64_t rows, int64_t length, int64_t row_stride, int64_t class_stride,
                                    int64_t dlogits_row_stride, int64_t dlogits_class_stride, int across,
                                    int64_t ignore_index, float label_smoothing, float softcap, float z_loss) {
    enter_pdl();
    const unsigned block = static_cast<unsigned>(block_x()), group = block / static_cast<unsigned>(across);
    const int64_t first = static_cast<int64_t>(block - group * across) * LANES * VEC + row_lane() * VEC;
    if (first >= rows) return;
    const int64_t base = static_cast<int64_t>(group) * CHUNKS * ROWS + row_slot();
    Vector<T, VEC> held[CHUNKS];
    load_classes(held, logits + first * row_stride + base * class_stride, class_stride, first, rows, base, length);
    float found[CHUNKS][VEC];
#pragma unroll
    for (int i = 0; i < VEC; ++i) {
        const RowGradient row(first + i, first + i < rows, length, dloss, dlse, target, weight, weight_mean, lse, ignore_index,
                              label_smoothing, z_loss);
        const int offset = static_cast<int>(row.wanted - base);    // of a target outside the row all is NaN
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) {
            const int64_t column = base + c * ROWS;
            float of_class = 1.0f;
            if constexpr (SMOOTHING && WEIGHT) {
                if (weight != nullptr && column < length) of_class = weight[column];
            }
            found[c][i] = row.ignored ? 0.0f : row.of(held[c][i], offset == c * ROWS, of_class, softcap);
        }
    }
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
        T* place = dlogits + first * dlogits_row_stride + (base + c * ROWS) * dlogits_class_stride;
        store_vector(place, first, base + c * ROWS < length ? rows : 0, found[c]);
    }
}
#endif
