// rms_norm over the last dimension and its gradient, in float32, rounded once.
//
// PASS names the one kernel to build. FORWARD, BACKWARD and BACKWARD_ROWS hold the row in registers;
// FORWARD_STREAM and BACKWARD_STREAM read rows of any length twice. BACKWARD also sums dweight over the rows
// of its persistent blocks; beside BACKWARD_ROWS and BACKWARD_STREAM, BACKWARD_COLUMNS does that in a pass of
// its own from the saved 1 / rms of each row. FORWARD_RING and BACKWARD_RING take long rows through shared
// memory on Hopper (ring.h). HAS_WEIGHT = 0: `weight` is null. SAVE = 0: `saved` is null. RESIDENT:
// blocks per multiprocessor that BACKWARD leaves registers for. WEIGHT_OFFSET and CAST_BEFORE_WEIGHT: columns.h.
// ADD = 1 (fused_add_rms_norm): the norm of x + residual, rounded to T and stored as new_residual, whose gradient
// dnew_residual is added to dx.
#define CENTERED 0
#define HAS_BIAS 0
#include "_lib/rows/norm_rows.h"
#include "rms.h"

// Parameters of the gradients that only ADD has.
#if ADD
#define ADDED_GRADIENT const T *dnew_residual,
#define ADDED_GRADIENT_STRIDE int64_t dnew_residual_stride,
#else
#define ADDED_GRADIENT
#define ADDED_GRADIENT_STRIDE
#endif

#if PASS == FORWARD
ROW_KERNEL
void rms_norm_forward(const T* x, const W* weight, T* y, ADDED_ROWS int64_t rows,
                      int length, int64_t x_stride, int64_t y_stride,
                      ADDED_STRIDES float eps) {
    enter_pdl();
    SHARED RowPartial<1> partial;
    rows_start(partial);
    const int64_t row = static_cast<int64_t>(row_block()) * ROWS + row_slot();
    const int count = row < rows ? length : 0;

    Vector<T, VEC> held[CHUNKS];
    load_vectors<true>(held, lane_ptr(x + row * x_stride), 0, count);
    const Parameters<int, PREFETCH_PARAMETERS> parameters{lane_ptr(weight), nullptr, 0, count};    // before any wait
#if ADD
    add_rows(held, lane_ptr(residual + row * residual_stride), lane_ptr(new_residual + row * new_residual_stride), 0,
             count);
#endif
    T* target = lane_ptr(y + row * y_stride);
    float sum[1] = {lane_squares(held)};
    rows_ready();
    sum_row(sum, partial);
    rematerialize(held, rows);

    const float r = inverse_rms(sum[0], length, eps);
    normalize(held, parameters, target, 0, count, 0.0f, r);
}
#endif

#if PASS == FORWARD_STREAM
KERNEL(THREADS)
void rms_norm_forward_stream(const T* x, const W* weight, T* y, ADDED_ROWS
                             int64_t length, int64_t x_stride, int64_t y_stride,
                             ADDED_STRIDES float eps) {
    enter_pdl();
    SHARED RowPartial<1> partial;
    const T* source = lane_ptr(x + block_x() * x_stride);
#if ADD
    const T* other = lane_ptr(residual + block_x() * residual_stride);
    T* sums = lane_ptr(new_residual + block_x() * new_residual_stride);
#endif
    T* target = lane_ptr(y + block_x() * y_stride);

    float sum[1] = {0.0f};
    for (int64_t base = 0; base < length; base += TILE) {
        Vector<T, VEC> held[CHUNKS];
        load_vectors<false>(held, source, base, length);
#if ADD
        add_rows(held, other, sums, base, length);
#endif
        sum[0] += lane_squares(held);
    }
    sum_row(sum, partial);
#if ADD
    source = sums;    // every lane reads what it wrote itself
#endif

    const float r = inverse_rms(sum[0], length, eps);
    for (int64_t base = 0; base < length; base += TILE) {
        Vector<T, VEC> held[CHUNKS];
        load_vectors<true>(held, source, base, length);
        const Parameters<int64_t> parameters{lane_ptr(weight), nullptr, base, length};
        normalize(held, parameters, target, base, length, 0.0f, r);
    }
}
#endif

// With r = 1 / rms, g = dy * weight and n = x * r: dx = r * (g - n * mean(g * n)), dweight = sum of dy * n.
// r is never squared or cubed: it may be as large as 2^63.

#if PASS == BACKWARD
ROW_KERNEL
void rms_norm_backward(const T* dy, const T* x, const W* weight, T* dx, ADDED_GRADIENT float* columns,
                       int64_t rows, int length, int64_t dy_stride, int64_t x_stride, int64_t dx_stride,
                       ADDED_GRADIENT_STRIDE float eps, int blocks) {
    enter_pdl();
    SHARED RowPartial<2> partial[2];
    rows_start(partial[0], partial[1]);
    const int64_t row = static_cast<int64_t>(row_block()) * ROWS + row_slot();
    const int64_t step = static_cast<int64_t>(blocks) * ROWS;
    int64_t left = rows - static_cast<int64_t>(row_block()) * ROWS;    // from the block's first on
    RowPair pair(dy, x, dy_stride, x_stride, row, step, length);
    pair.start(left);
    Scale scale;
    scale.load(weight, length);
    const float mean = div_rn(1.0f, static_cast<float>(length));
    float sum_weight[CHUNKS][VEC] = {};
    rows_ready();

    for (int iteration = 0; left > 0; left -= step, ++iteration) {
        const int count = left > row_slot() ? length : 0;
        Vector<T, VEC> held_dy[CHUNKS];
        Vector<T, VEC> held_x[CHUNKS];
        pair.wait();
        pair.read(held_dy, 0);
        pair.read(held_x, 1);
#if ADD
        Vector<T, VEC> added[CHUNKS];
        load_vectors<true>(added, lane_ptr(dnew_residual + (rows - left + row_slot()) * dnew_residual_stride), 0, count);
#endif
        float sum[2] = {0.0f, 0.0f};
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) {
#pragma unroll
            for (int i = 0; i < VEC; ++i) {
                const float value = held_x[c][i];
                const float g = scale.times(held_dy[c][i], c, i);
                sum[0] = math_fma(value, value, sum[0]);
                sum[1] = math_fma(g, value, sum[1]);
            }
        }
        sum_row(sum, partial[iteration & 1], iteration >> 1 & 1);
        pair.release(left);
        rematerialize(held_dy, rows);
        rematerialize(held_x, rows);
        const float r = math_rsqrt(math_fma(sum[0], mean, eps));
        const float mean_gn = sum[1] * mean * r;
        // A slot without a row has r = 1 / sqrt(eps), which may be infinite.
        if (ROWS == 1 || count > 0) {
            T* dx_row = lane_ptr(dx + (rows - left + row_slot()) * dx_stride);
#pragma unroll
            for (int c = 0; c < CHUNKS; ++c) {
                float value[VEC];
#pragma unroll
                for (int i = 0; i < VEC; ++i) {
                    const float n = held_x[c][i] * r;
                    const float d = held_dy[c][i];
                    sum_weight[c][i] = math_fma(d, before_weight(n), sum_weight[c][i]);
                    value[i] = r * math_fma(-n, mean_gn, scale.times(d, c, i));
#if ADD
                    value[i] += added[c][i];
#endif
                }
                store_vector(dx_row + c * CHUNK, chunk_column(c), count, value);
            }
        }
        pair.advance(left);
    }
    SHARED float scratch[COLUMN_SCRATCH];
    write_columns(sum_weight, scratch, columns + static_cast<int64_t>(row_block()) * length, length);
}
#endif

#if PASS == BACKWARD_ROWS || PASS == BACKWARD_STREAM
// sum[0] += x^2, sum[1] += g * x
template <class Index>
DEVICE void add_products(float (&sum)[2], const Held& held, const W* scales, Index base, Index length) {
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
        const Vector<W, VEC> scale = parameter_vector<HAS_WEIGHT>(scales, c, base, length);
#pragma unroll
        for (int i = 0; i < VEC; ++i) {
            const float value = held.x[c][i], g = held.scaled(c, i, scale);
            sum[0] = math_fma(value, value, sum[0]);
            sum[1] = math_fma(g, value, sum[1]);
        }
    }
}

#endif

#if PASS == BACKWARD_ROWS
KERNEL(THREADS)
void rms_norm_backward_rows(const T* dy, const T* x, const W* weight, T* dx, ADDED_GRADIENT float* saved,
                            int64_t rows, int length, int64_t dy_stride, int64_t x_stride, int64_t dx_stride,
                            ADDED_GRADIENT_STRIDE float eps) {
    enter_pdl();
    SHARED RowPartial<2> partial;
    const int64_t row = static_cast<int64_t>(row_block()) * ROWS + row_slot();
    const int count = row < rows ? length : 0;
    const float mean = div_rn(1.0f, static_cast<float>(length));
    Held held;
    held.load<true>(lane_ptr(dy + row * dy_stride), lane_ptr(x + row * x_stride), 0, count);
    T* dx_row = lane_ptr(dx + row * dx_stride);
    const W* scales = lane_ptr(weight);
    float sum[2] = {0.0f, 0.0f};
    add_products(sum, held, scales, 0, length);
    sum_row(sum, partial);
    rematerialize(held.dy, rows);
    rematerialize(held.x, rows);
    const float r = math_rsqrt(math_fma(sum[0], mean, eps));
    const float mean_gn = sum[1] * mean * r;
    if (SAVE && row < rows && row_lane() == 0) saved[row] = r;
#if ADD
    const T* added = lane_ptr(dnew_residual + row * dnew_residual_stride);
#else
    const T* added = nullptr;
#endif
    store_gradient(dx_row, held, scales, 0.0f, r, 0.0f, mean_gn, 0, length, count, added);
}
#endif

#if PASS == BACKWARD_STREAM
KERNEL(THREADS)
void rms_norm_backward_stream(const T* dy, const T* x, const W* weight, T* dx, ADDED_GRADIENT float* saved,
                              int64_t length, int64_t dy_stride, int64_t x_stride, int64_t dx_stride,
                              ADDED_GRADIENT_STRIDE float eps) {
    enter_pdl();
    SHARED RowPartial<2> partial;
    const T* dy_row = lane_ptr(dy + block_x() * dy_stride);
    const T* x_row = lane_ptr(x + block_x() * x_stride);
    T* dx_row = lane_ptr(dx + block_x() * dx_stride);
    const W* scales = lane_ptr(weight);
    const float mean = div_rn(1.0f, static_cast<float>(length));

    float sum[2] = {0.0f, 0.0f};
    for (int64_t base = 0; base < length; base += TILE) {
        Held held;
        held.load<false>(dy_row, x_row, base, length);
        float added[2] = {0.0f, 0.0f};
        add_products(added, held, scales, base, length);
        sum[0] += added[0];
        sum[1] += added[1];
    }
    sum_row(sum, partial);

    const float r = math_rsqrt(math_fma(sum[0], mean, eps));
    const float mean_gn = sum[1] * mean * r;
    if (SAVE && thread_x() == 0) saved[block_x()] = r;
#if ADD
    const T* added = lane_ptr(dnew_residual + block_x() * dnew_residual_stride);
#else
    const T* added = nullptr;
#endif
    for (int64_t base = 0; base < length; base += TILE) {
        Held held;
        held.load<true>(dy_row, x_row, base, length);
        store_gradient(dx_row, held, scales, 0.0f, r, 0.0f, mean_gn, base, length, length, added);
    }
}
#endif

#if PASS == BACKWARD_COLUMNS
KERNEL(THREADS)
void rms_norm_backward_columns(const T* dy, const T* x, const float* saved, float* columns, int64_t rows,
                               int64_t length, int64_t dy_stride, int64_t x_stride, int blocks) {
    enter_pdl();
    sum_columns(dy, x, saved, columns, rows, length, dy_stride, x_stride, blocks);
}
#endif

#if PASS == BACKWARD_RING
#include "_lib/rows/norm_gradient.h"
RING_KERNEL
void rms_norm_backward_ring(const T* dy, const T* x, const W* weight, T* dx, float* columns, int64_t rows,
                      int length, int64_t dy_stride, int64_t x_stride, int64_t dx_stride, float eps,
                      int blocks) {
    enter_pdl();
    ring_gradient(dy, x, weight, dx, columns, rows, length, dy_stride, x_stride, dx_stride, eps, blocks);
}
#endif

#if PASS == FORWARD_RING
#include "_lib/rows/norm_forward.h"
RING_KERNEL
void rms_norm_forward_ring(const T* x, const W* weight, T* y, int64_t rows, int length,
                           int64_t x_stride, int64_t y_stride, float eps, int blocks) {
    enter_pdl();
    ring_norm(x, weight, nullptr, y, rows, length, x_stride, y_stride, eps, blocks);
}
#endif
