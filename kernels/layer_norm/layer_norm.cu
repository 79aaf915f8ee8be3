// layer_norm over the last dimension and its gradient, in float32, rounded once; the variance is that of
// centred values: about each warp's own mean and then merged (FORWARD), or about the row's mean.
//
// PASS names the one kernel to build. FORWARD, BACKWARD and BACKWARD_ROWS hold the row in registers;
// FORWARD_STREAM and BACKWARD_STREAM read rows of any length three times. BACKWARD also sums dweight and
// dbias over the rows of its persistent blocks; beside BACKWARD_ROWS and BACKWARD_STREAM, BACKWARD_COLUMNS does that
// in a pass of its own from the saved mean and 1 / deviation of each row. HAS_WEIGHT, HAS_BIAS = 0: the
// pointer is null. FORWARD_RING and BACKWARD_RING take long rows through shared memory on Hopper (ring.h).
// SAVE = 0: `saved` is null. RESIDENT: blocks per multiprocessor that BACKWARD leaves
// registers for.
#define CENTERED 1
#include "_lib/rows/moments.h"
#include "_lib/rows/norm_rows.h"

// The sum over the vectors that the lane holds.
DEVICE float lane_sum(const Vector<T, VEC> (&held)[CHUNKS]) {
#ifdef HAS_PAIRS
    if constexpr (VEC > 1) {
        float_pair sum = 0.0f;
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) {
#pragma unroll
            for (int i = 0; i < VEC; i += 2) sum += float_pair{held[c][i], held[c][i + 1]};
        }
        return sum.x + sum.y;
    }
#endif
    float sum = 0.0f;
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
#pragma unroll
        for (int i = 0; i < VEC; ++i) sum += held[c][i];
    }
    return sum;
}

#ifdef HAS_PAIRS
// The squared distances of a vector's elements from the mean, added to `sum`; a select or a branch per vector, for one
// per element.
template <class Index>
DEVICE float_pair add_squares(const Vector<T, VEC>& held, float_pair sum, float mean, Index column, Index length) {
    float_pair centred[VEC > 1 ? VEC / 2 : 1];
    const float_pair centre = -mean;
#pragma unroll
    for (int i = 0; i < VEC / 2; ++i) centred[i] = float_pair{held[2 * i], held[2 * i + 1]} + centre;
    if constexpr (TAIL) {
        if (column + VEC > length) {
#pragma unroll
            for (int i = 0; i < VEC; ++i) {
                if (column + i >= length) centred[i / 2][i % 2] = 0.0f;
            }
        }
    }
    float_pair added = sum;
#pragma unroll
    for (int i = 0; i < VEC / 2; ++i) added = pair_fma(centred[i], centred[i], added);
    return TAIL || column < length ? added : sum;
}
#endif

template <class Index>
DEVICE float lane_squares(const Vector<T, VEC> (&held)[CHUNKS], float mean, Index base, Index length) {
#ifdef HAS_PAIRS
    if constexpr (VEC > 1) {
        float_pair sum = 0.0f;
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) sum = add_squares(held[c], sum, mean, base + chunk_column(c), length);
        return sum.x + sum.y;
    }
#endif
    float sum = 0.0f;
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
#pragma unroll
        for (int i = 0; i < VEC; ++i) {
            const float centred = held[c][i] - mean;
            if (inside(base + chunk_column(c), i, length)) sum = math_fma(centred, centred, sum);
        }
    }
    return sum;
}

#if PASS == FORWARD
ROW_KERNEL
void layer_norm_forward(const T* x, const W* weight, const W* bias, T* y, int64_t rows, int length,
                        int64_t x_stride, int64_t y_stride, float eps) {
    enter_pdl();
    SHARED RowPartial<2> partial;
    rows_start(partial);
    const int64_t row = static_cast<int64_t>(row_block()) * ROWS + row_slot();
    const int count = row < rows ? length : 0;
    const ElementCounts counts(length);

    Vector<T, VEC> held[CHUNKS];
    load_vectors<true>(held, lane_ptr(x + row * x_stride), 0, count);
    const Parameters<int, PREFETCH_PARAMETERS> parameters{lane_ptr(weight), lane_ptr(bias), 0, count};
    Moments moments(counts);
    moments.value[0] = reduce_warp<Sum, WARP_LANES>(lane_sum(held)) * counts.inverse_warp();
    rematerialize(held, rows);
    moments.value[1] = reduce_warp<Sum, WARP_LANES>(lane_squares(held, moments.value[0], 0, count));
    rows_ready();
    if constexpr (LANES > WARP) {
        if (warp_lane() == 0) {
            partial.of_warp[warp_index()][0] = moments.value[0];
            partial.of_warp[warp_index()][1] = moments.value[1];
        }
        merge_row(moments, partial);
    }
    const float r = math_rsqrt(math_fma(moments.value[1], counts.row, eps));
    rematerialize(held, rows);
    T* target = lane_ptr(y + row * y_stride);
    normalize(held, parameters, target, 0, count, moments.value[0], r);
}
#endif

#if PASS == FORWARD_STREAM
KERNEL(THREADS)
void layer_norm_forward_stream(const T* x, const W* weight, const W* bias, T* y, int64_t length,
                               int64_t x_stride, int64_t y_stride, float eps) {
    enter_pdl();
    SHARED RowPartial<1> partial[2];
    const T* source = lane_ptr(x + block_x() * x_stride);
    T* target = lane_ptr(y + block_x() * y_stride);
    const float per_element = div_rn(1.0f, static_cast<float>(length));

    float sum[1] = {0.0f};
    for (int64_t base = 0; base < length; base += TILE) {
        Vector<T, VEC> held[CHUNKS];
        load_vectors<false>(held, source, base, length);
        sum[0] += lane_sum(held);
    }
    sum_row(sum, partial[0]);
    const float mean = sum[0] * per_element;

    float squares[1] = {0.0f};
    for (int64_t base = 0; base < length; base += TILE) {
        Vector<T, VEC> held[CHUNKS];
        load_vectors<false>(held, source, base, length);
        squares[0] += lane_squares(held, mean, base, length);
    }
    sum_row(squares, partial[1]);
    const float r = math_rsqrt(math_fma(squares[0], per_element, eps));

    for (int64_t base = 0; base < length; base += TILE) {
        Vector<T, VEC> held[CHUNKS];
        load_vectors<true>(held, source, base, length);
        const Parameters<int64_t> parameters{lane_ptr(weight), lane_ptr(bias), base, length};
        normalize(held, parameters, target, base, length, mean, r);
    }
}
#endif

// With r = 1 / deviation, g = dy * weight and n = (x - mean) * r:
// dx = r * (g - mean(g) - n * mean(g * n)), dweight = sum of dy * n, dbias = sum of dy.

#if PASS == BACKWARD_ROWS || PASS == BACKWARD_STREAM
// sum[0] += x, sum[1] += g
template <class Index>
DEVICE void add_means(float (&sum)[2], const Held& held, const W* scales, Index base, Index length) {
    float added[2] = {lane_sum(held.x), 0.0f};
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
        const Vector<W, VEC> factor = parameter_vector<HAS_WEIGHT>(scales, c, base, length);
#pragma unroll
        for (int i = 0; i < VEC; ++i) {
            const float d = held.dy[c][i];
            added[1] = HAS_WEIGHT ? math_fma(d, factor[i], added[1]) : added[1] + d;
        }
    }
    sum[0] += added[0];
    sum[1] += added[1];
}

// sum[0] += (x - mean)^2, sum[1] += g * (x - mean)
template <class Index>
DEVICE void add_products(float (&sum)[2], const Held& held, const W* scales, float mean, Index base,
                         Index length) {
    float added[2] = {lane_squares(held.x, mean, base, length), 0.0f};
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
        const Vector<W, VEC> factor = parameter_vector<HAS_WEIGHT>(scales, c, base, length);
#pragma unroll
        for (int i = 0; i < VEC; ++i) {
            const float g = held.scaled(c, i, factor);
            added[1] = math_fma(g, held.x[c][i] - mean, added[1]);
        }
    }
    sum[0] += added[0];
    sum[1] += added[1];
}

#endif

#if PASS == BACKWARD
// The means of the next row are summed beside the products of this one: one barrier per row.
template <int AHEAD>
DEVICE void add_means(float& sum_x, float& sum_g, const RowPair& pair, const Scale& scale) {
    Vector<T, VEC> held[CHUNKS];
    pair.read<AHEAD>(held, 1);
    sum_x = lane_sum(held);
    pair.read<AHEAD>(held, 0);
    sum_g = 0.0f;
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
#pragma unroll
        for (int i = 0; i < VEC; ++i) sum_g = scale.add(held[c][i], c, i, sum_g);
    }
}

ROW_KERNEL
void layer_norm_backward(const T* dy, const T* x, const W* weight, T* dx, float* columns, int64_t rows,
                         int length, int64_t dy_stride, int64_t x_stride, int64_t dx_stride, float eps,
                         int blocks) {
    enter_pdl();
    SHARED RowPartial<4> partial[2];
    rows_start(partial[0], partial[1]);
    const int64_t row = static_cast<int64_t>(row_block()) * ROWS + row_slot();
    const int64_t step = static_cast<int64_t>(blocks) * ROWS;
    int64_t left = rows - static_cast<int64_t>(row_block()) * ROWS;    // from the block's first on
    RowPair pair(dy, x, dy_stride, x_stride, row, step, length);
    pair.start(left);
    Scale scale;
    scale.load(weight, length);
    const float per_element = div_rn(1.0f, static_cast<float>(length));
    float sum_weight[CHUNKS][VEC] = {};
    float sum_bias[CHUNKS][VEC] = {};
    rows_ready();

    float sum[4] = {};    // of x and g of the next row; of (x - mean)^2 and g * (x - mean) of this one
    if (left > 0) {
        pair.wait();
        add_means<0>(sum[0], sum[1], pair, scale);
        sum_row(sum, partial[0]);
    }
    for (int iteration = 1; left > 0; left -= step, ++iteration) {
        const int count = left > row_slot() ? length : 0;
        const float mean = sum[0] * per_element;
        const float mean_g = sum[1] * per_element;
        Vector<T, VEC> held_dy[CHUNKS];
        Vector<T, VEC> held_x[CHUNKS];
        pair.read(held_dy, 0);
        pair.read(held_x, 1);
        sum[2] = lane_squares(held_x, mean, 0, count);
        sum[3] = 0.0f;
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) {
#pragma unroll
            for (int i = 0; i < VEC; ++i) {
                sum[3] = math_fma(scale.times(held_dy[c][i], c, i), held_x[c][i] - mean, sum[3]);
            }
        }
        sum[0] = sum[1] = 0.0f;
        if (left > step) {
            pair.wait<1>();
            add_means<1>(sum[0], sum[1], pair, scale);
        }
        sum_row(sum, partial[iteration & 1], iteration >> 1 & 1);
        pair.release(left);
        rematerialize(held_dy, rows);
        rematerialize(held_x, rows);
        const float r = math_rsqrt(math_fma(sum[2], per_element, eps));
        const float mean_gn = sum[3] * per_element * r;
        // A slot without a row has r = 1 / sqrt(eps), which may be infinite.
        if (ROWS == 1 || count > 0) {
            T* dx_row = lane_ptr(dx + (rows - left + row_slot()) * dx_stride);
#pragma unroll
            for (int c = 0; c < CHUNKS; ++c) {
                float value[VEC];
#pragma unroll
                for (int i = 0; i < VEC; ++i) {
                    const float n = (held_x[c][i] - mean) * r;
                    const float d = held_dy[c][i];
                    value[i] = r * math_fma(-n, mean_gn, scale.times(d, c, i) - mean_g);
                    if constexpr (HAS_WEIGHT) sum_weight[c][i] = math_fma(d, n, sum_weight[c][i]);
                    if constexpr (HAS_BIAS) sum_bias[c][i] += d;
                }
                store_vector(dx_row + c * CHUNK, chunk_column(c), count, value);
            }
        }
        pair.advance(left);
    }
    SHARED float scratch[COLUMN_SCRATCH];
    float* target = columns + static_cast<int64_t>(row_block()) * length;
    if constexpr (HAS_WEIGHT) write_columns(sum_weight, scratch, target, length);
    if constexpr (HAS_BIAS) {
        if constexpr (HAS_WEIGHT) target += static_cast<int64_t>(blocks) * length;
        write_columns(sum_bias, scratch, target, length);
    }
}
#endif

#if PASS == BACKWARD_ROWS
KERNEL(THREADS)
void layer_norm_backward_rows(const T* dy, const T* x, const W* weight, T* dx, float* saved, int64_t rows,
                              int length, int64_t dy_stride, int64_t x_stride, int64_t dx_stride, float eps) {
    enter_pdl();
    SHARED RowPartial<2> partial[2];
    const float per_element = div_rn(1.0f, static_cast<float>(length));
    const W* scales = lane_ptr(weight);
    const int64_t row = static_cast<int64_t>(row_block()) * ROWS + row_slot();
    const int count = row < rows ? length : 0;
    Held held;
    held.load<true>(lane_ptr(dy + row * dy_stride), lane_ptr(x + row * x_stride), 0, count);
    T* dx_row = lane_ptr(dx + row * dx_stride);
    float means[2] = {0.0f, 0.0f};
    add_means(means, held, scales, 0, count);
    sum_row(means, partial[0]);
    const float mean = means[0] * per_element;

    rematerialize(held.dy, rows);
    rematerialize(held.x, rows);
    float products[2] = {0.0f, 0.0f};
    add_products(products, held, scales, mean, 0, count);
    sum_row(products, partial[1]);
    const float r = math_rsqrt(math_fma(products[0], per_element, eps));
    if (SAVE && count > 0 && row_lane() == 0) {
        saved[2 * row] = mean;
        saved[2 * row + 1] = r;
    }

    rematerialize(held.dy, rows);
    rematerialize(held.x, rows);
    const float mean_g = means[1] * per_element;
    const float mean_gn = products[1] * per_element * r;
    store_gradient(dx_row, held, scales, mean, r, mean_g, mean_gn, 0, count, count);
}
#endif

#if PASS == BACKWARD_STREAM
KERNEL(THREADS)
void layer_norm_backward_stream(const T* dy, const T* x, const W* weight, T* dx, float* saved, int64_t length,
                                int64_t dy_stride, int64_t x_stride, int64_t dx_stride, float eps) {
    enter_pdl();
    SHARED RowPartial<2> partial[2];
    const T* dy_row = lane_ptr(dy + block_x() * dy_stride);
    const T* x_row = lane_ptr(x + block_x() * x_stride);
    T* dx_row = lane_ptr(dx + block_x() * dx_stride);
    const W* scales = lane_ptr(weight);
    const float per_element = div_rn(1.0f, static_cast<float>(length));

    float means[2] = {0.0f, 0.0f};
    for (int64_t base = 0; base < length; base += TILE) {
        Held held;
        held.load<false>(dy_row, x_row, base, length);
        add_means(means, held, scales, base, length);
    }
    sum_row(means, partial[0]);
    const float mean = means[0] * per_element;

    float products[2] = {0.0f, 0.0f};
    for (int64_t base = 0; base < length; base += TILE) {
        Held held;
        held.load<false>(dy_row, x_row, base, length);
        add_products(products, held, scales, mean, base, length);
    }
    sum_row(products, partial[1]);
    const float r = math_rsqrt(math_fma(products[0], per_element, eps));
    if (SAVE && thread_x() == 0) {
        saved[2 * static_cast<int64_t>(block_x())] = mean;
        saved[2 * static_cast<int64_t>(block_x()) + 1] = r;
    }

    const float mean_g = means[1] * per_element;
    const float mean_gn = products[1] * per_element * r;
    for (int64_t base = 0; base < length; base += TILE) {
        Held held;
        held.load<true>(dy_row, x_row, base, length);
        store_gradient(dx_row, held, scales, mean, r, mean_g, mean_gn, base, length, length);
    }
}
#endif

#if PASS == BACKWARD_COLUMNS
KERNEL(THREADS)
void layer_norm_backward_columns(const T* dy, const T* x, const float* saved, float* columns, int64_t rows,
                                 int64_t length, int64_t dy_stride, int64_t x_stride, int blocks) {
    enter_pdl();
    sum_columns(dy, x, saved, columns, rows, length, dy_stride, x_stride, blocks);
}
#endif

#if PASS == BACKWARD_RING
#include "_lib/rows/norm_gradient.h"
RING_KERNEL
void layer_norm_backward_ring(const T* dy, const T* x, const W* weight, T* dx, float* columns, int64_t rows,
                        int length, int64_t dy_stride, int64_t x_stride, int64_t dx_stride, float eps,
                        int blocks) {
    enter_pdl();
    ring_gradient(dy, x, weight, dx, columns, rows, length, dy_stride, x_stride, dx_stride, eps, blocks);
}
#endif

#if PASS == FORWARD_RING
#include "_lib/rows/norm_forward.h"
RING_KERNEL
void layer_norm_forward_ring(const T* x, const W* weight, const W* bias, T* y, int64_t rows, int length,
                             int64_t x_stride, int64_t y_stride, float eps, int blocks) {
    enter_pdl();
    ring_norm(x, weight, bias, y, rows, length, x_stride, y_stride, eps, blocks);
}
#endif
