// softmax over the last dimension and its gradient, in float32, rounded once.
//
// PASS names the one kernel to build: FORWARD and BACKWARD hold the row in registers, FORWARD_STREAM and
// BACKWARD_STREAM read rows of any length twice, CHUNKS vectors per lane at a time.
#include "_common/rows.h"

#define FORWARD 1
#define FORWARD_STREAM 2
#define BACKWARD 3
#define BACKWARD_STREAM 4

#ifndef RESIDENT
#define RESIDENT 1
#endif

// exp(x) within |x| + 2 units in the last place: a third fewer instructions than math_exp.
DEVICE float exponential(float x) { return math_exp2(x * 1.44269504f); }

// The shift of an exponential: a row of -inf so far must not turn what follows into NaN.
DEVICE float finite_shift(float maximum) { return maximum == -INF_F ? 0.0f : maximum; }

#if PASS == FORWARD
// Exponentials stay in registers while they fit beside the row; else they are computed again.
#ifdef NOKEEP
constexpr bool KEEP = false;
#else
constexpr bool KEEP = CHUNKS * VEC <= 32;
#endif

KERNEL_RESIDENT(THREADS, RESIDENT) CLUSTERED
void softmax_forward(const T* x, T* y, int64_t rows, int length, int64_t x_stride, int64_t y_stride) {
    SHARED RowPartial<1> partial_max;
    SHARED RowPartial<1> partial_sum;
    rows_start(partial_max, partial_sum);
    const int64_t row = static_cast<int64_t>(row_block()) * ROWS + row_slot();
    const int count = row < rows ? length : 0;
    const T* source = at_lane(x + row * x_stride);
    T* target = at_lane(y + row * y_stride);

    cell<T, VEC> held[CHUNKS];
    load_cells<true>(held, source, 0, count);

    // NaN passes over the maximum and comes back through the sum.
    float maximum[1] = {-INF_F};
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
#pragma unroll
        for (int i = 0; i < VEC; ++i) {
            if (inside(chunk_column(c), i, count)) maximum[0] = math_max_number(maximum[0], held[c][i]);
        }
    }
    rows_ready();
    reduce_row<Max, 1>(maximum, partial_max);
    drop_unpacked(held, rows);

    float kept[KEEP ? CHUNKS : 1][VEC];
    float sum[1] = {0.0f};
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
#pragma unroll
        for (int i = 0; i < VEC; ++i) {
            if (inside(chunk_column(c), i, count)) {
                const float e = exponential(held[c][i] - maximum[0]);
                if constexpr (KEEP) kept[c][i] = e;
                sum[0] += e;
            }
        }
    }
    reduce_row<Sum, 1>(sum, partial_sum);

    const float scale = div_rn(1.0f, sum[0]);
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
        float value[VEC];
#pragma unroll
        for (int i = 0; i < VEC; ++i) {
            value[i] = (KEEP ? kept[KEEP ? c : 0][i] : exponential(held[c][i] - maximum[0])) * scale;
        }
        store_cell(target + c * CHUNK, chunk_column(c), count, value);
    }
}
#endif

#if PASS == FORWARD_STREAM
KERNEL(THREADS)
void softmax_forward_stream(const T* x, T* y, int64_t length, int64_t x_stride, int64_t y_stride) {
    SHARED RowPartial<1> partial_max;
    SHARED RowPartial<1> partial_sum;
    const T* source = at_lane(x + block_x() * x_stride);
    T* target = at_lane(y + block_x() * y_stride);

    float maximum = -INF_F;
    float sum[1] = {0.0f};
    for (int64_t base = 0; base < length; base += TILE) {
        cell<T, VEC> held[CHUNKS];
        load_cells<false>(held, source, base, length);
        float larger = maximum;
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) {
#pragma unroll
            for (int i = 0; i < VEC; ++i) {
                if (inside(base + chunk_column(c), i, length)) larger = math_max_number(larger, held[c][i]);
            }
        }
        const float shift = finite_shift(larger);
        float added = 0.0f;
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) {
#pragma unroll
            for (int i = 0; i < VEC; ++i) {
                if (inside(base + chunk_column(c), i, length)) added += exponential(held[c][i] - shift);
            }
        }
        sum[0] = sum[0] * exponential(maximum - shift) + added;
        maximum = larger;
    }
    float row_max[1] = {maximum};
    reduce_row<Max, 1>(row_max, partial_max);
    sum[0] *= exponential(maximum - finite_shift(row_max[0]));
    reduce_row<Sum, 1>(sum, partial_sum);

    const float scale = div_rn(1.0f, sum[0]);
    for (int64_t base = 0; base < length; base += TILE) {
        cell<T, VEC> held[CHUNKS];
        load_cells<true>(held, source, base, length);
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) {
            float value[VEC];
#pragma unroll
            for (int i = 0; i < VEC; ++i) value[i] = exponential(held[c][i] - row_max[0]) * scale;
            store_cell(target + base + c * CHUNK, base + chunk_column(c), length, value);
        }
    }
}
#endif

#if PASS == BACKWARD
KERNEL_RESIDENT(THREADS, RESIDENT) CLUSTERED
void softmax_backward(const T* dy, const T* y, T* dx, int64_t rows, int length, int64_t dy_stride,
                      int64_t y_stride, int64_t dx_stride) {
    SHARED RowPartial<1> partial;
    rows_start(partial);
    const int64_t row = static_cast<int64_t>(row_block()) * ROWS + row_slot();
    const int count = row < rows ? length : 0;

    cell<T, VEC> held_dy[CHUNKS];
    cell<T, VEC> held_y[CHUNKS];
    load_cells<true>(held_dy, at_lane(dy + row * dy_stride), 0, count);
    load_cells<true>(held_y, at_lane(y + row * y_stride), 0, count);
    T* dx_row = at_lane(dx + row * dx_stride);
    float sum[1] = {0.0f};
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
#pragma unroll
        for (int i = 0; i < VEC; ++i) sum[0] = math_fma(held_dy[c][i], held_y[c][i], sum[0]);
    }
    rows_ready();
    reduce_row<Sum, 1>(sum, partial);
    drop_unpacked(held_dy, rows);
    drop_unpacked(held_y, rows);
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
        float value[VEC];
#pragma unroll
        for (int i = 0; i < VEC; ++i) value[i] = held_y[c][i] * (held_dy[c][i] - sum[0]);
        store_cell(dx_row + c * CHUNK, chunk_column(c), count, value);
    }
}
#endif

#if PASS == BACKWARD_STREAM
KERNEL(THREADS)
void softmax_backward_stream(const T* dy, const T* y, T* dx, int64_t length, int64_t dy_stride,
                             int64_t y_stride, int64_t dx_stride) {
    SHARED RowPartial<1> partial;
    const T* dy_row = at_lane(dy + block_x() * dy_stride);
    const T* y_row = at_lane(y + block_x() * y_stride);
    T* dx_row = at_lane(dx + block_x() * dx_stride);

    float sum[1] = {0.0f};
    for (int64_t base = 0; base < length; base += TILE) {
        cell<T, VEC> held_dy[CHUNKS];
        cell<T, VEC> held_y[CHUNKS];
        load_cells<false>(held_dy, dy_row, base, length);
        load_cells<false>(held_y, y_row, base, length);
        float added = 0.0f;
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) {
#pragma unroll
            for (int i = 0; i < VEC; ++i) added = math_fma(held_dy[c][i], held_y[c][i], added);
        }
        sum[0] += added;
    }
    reduce_row<Sum, 1>(sum, partial);
    for (int64_t base = 0; base < length; base += TILE) {
        cell<T, VEC> held_dy[CHUNKS];
        cell<T, VEC> held_y[CHUNKS];
        load_cells<true>(held_dy, dy_row, base, length);
        load_cells<true>(held_y, y_row, base, length);
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) {
            float value[VEC];
#pragma unroll
            for (int i = 0; i < VEC; ++i) value[i] = held_y[c][i] * (held_dy[c][i] - sum[0]);
            store_cell(dx_row + base + c * CHUNK, base + chunk_column(c), length, value);
        }
    }
}
#endif
