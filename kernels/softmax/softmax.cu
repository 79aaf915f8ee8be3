// softmax over the last dimension and its gradient, in float32, rounded once.
//
// PASS names the one kernel to build: FORWARD and BACKWARD hold the row in registers, FORWARD_STREAM and
// BACKWARD_STREAM read rows of any length twice, CHUNKS vectors per lane at a time. LOG = 1: log_softmax.
#include "_lib/rows/log_sum_exp.h"

#define FORWARD 1
#define FORWARD_STREAM 2
#define BACKWARD 3
#define BACKWARD_STREAM 4

#ifndef LOG
#define LOG 0
#endif

// The maximum of a part of a row, and the sum of the exponentials about it.
struct MaxAndSum {
    float value[2];

    template <int PARTS> DEVICE void merge_warps() {
        const float maximum = reduce_warp<Max, PARTS>(value[0]);
        value[1] = reduce_warp<Sum, PARTS>(value[1] * exponential(value[0] - finite_shift(maximum)));
        value[0] = maximum;
    }
    template <int PARTS> DEVICE void merge_blocks() { merge_warps<PARTS>(); }
};

// Leaves the warp's part where `merge_row` finds it.
template <class Partial> DEVICE void write_partial(const MaxAndSum& max_sum, Partial& partial) {
    if (warp_lane() == 0) {
        partial.of_warp[warp_index()][0] = max_sum.value[0];
        partial.of_warp[warp_index()][1] = max_sum.value[1];
    }
}

#if PASS == FORWARD
// Sixteen-bit rows bring twice the arithmetic per byte, so that instructions count. What is rounded to 16
// bits cannot tell an error of 2^-20, and 2^LIFT * exp(x) keeps what would be subnormal: the sum takes the
// lift back.
// A logarithm is a difference that may be far smaller than its terms: LOG has no part in this.
constexpr bool NARROW = sizeof(T) == 2;
constexpr bool LIFTED = NARROW && !LOG;
constexpr float LIFT = 24.0f;
DEVICE float lifted_exponential(float x) {
    if (LIFTED) return exp2_fast(math_fma(x, 1.44269504f, LIFT));
    return LOG ? addend(x) : exponential(x);
}

// Exponentials stay in registers while they fit beside the row and enough blocks; else they are computed
// again. In 16 bits that pays where RESIDENT blocks are wanted (16384 columns in bfloat16: kept, two blocks
// 0.94 of the copy; again, three blocks 0.99; H200, 2026-11-22).
#ifdef RESIDENT
constexpr int MOST_KEPT = sizeof(T) == 2 ? 16 : 32;
#else
constexpr int MOST_KEPT = 32;
#endif
constexpr bool KEEP = !LOG && CHUNKS * VEC <= MOST_KEPT && CLUSTER * THREADS <= 2048;

// On AMD GPUs what lies beyond the row is held as -inf, whose exponential is 0: a select or a branch less per element.
#if defined(__AMDGCN__)
#define FILLED 1
#define IN_ROW(c, i) true
#else
#define FILLED 0
#define IN_ROW(c, i) inside(chunk_column(c), i, count)
#endif

// The greatest of the lane's elements; NaN passes over it.
template <int WIDTH> DEVICE float lane_maximum(const Vector<T, WIDTH> (&held)[CHUNKS], int count) {
#ifdef HAS_MAX_PAIR
    if constexpr (NARROW && WIDTH > 1) {
        Vector<T, 2> most;
        most.round({-INF_F, -INF_F});
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) {
            if (chunk_column(c) >= count) continue;
#pragma unroll
            for (int i = 0; i < WIDTH / 2; ++i) most.word(0) = max_pair<T>(most.word(0), held[c].word(i));
        }
        return math_max_number(most[0], most[1]);
    }
#endif
#if FILLED
    return filled_maximum(held, count);
#else
    float maximum = -INF_F;
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) {
            if (inside(chunk_column(c), i, count)) maximum = math_max_number(maximum, held[c][i]);
        }
    }
    return maximum;
#endif
}

// Between blocks one exchange of (maximum, sum) costs less than two of one value; between the warps of a
// block the registers that it takes cost more than a barrier (1024 columns: 35 instead of 32, 0.985 of the
// copy instead of 1.020, H200, 2026-11-21).
#define IN_PAIRS (CLUSTER > 1)

ROW_KERNEL
void softmax_forward(const T* x, T* y, int64_t rows, int length, int64_t x_stride, int64_t y_stride) {
    enter_pdl();
#if !IN_PAIRS
    SHARED RowPartial<1> partial_max;
#endif
    SHARED RowPartial<IN_PAIRS ? 2 : 1> partial;
    rows_start(partial);
    const int64_t row = static_cast<int64_t>(row_block()) * ROWS + row_slot();
    const int count = row < rows ? length : 0;

    Vector<T, VEC> held[CHUNKS];
#if FILLED
    load_filled<true>(held, lane_ptr(x + row * x_stride), count, from_float<T>(-INF_F));
#else
    load_vectors<true>(held, lane_ptr(x + row * x_stride), 0, count);
#endif

    // NaN passes over the maximum and comes back through the sum.
    MaxAndSum max_sum;
    max_sum.value[0] = reduce_warp<Max, WARP_LANES>(lane_maximum(held, count));
#if !IN_PAIRS
    if constexpr (LANES > WARP) {
        if (warp_lane() == 0) partial_max.of_warp[warp_index()][0] = max_sum.value[0];
        Combined<Max, 1> highest;
        merge_row(highest, partial_max);
        max_sum.value[0] = highest.value[0];
    }
#endif
    const float shift = IN_PAIRS ? finite_shift(max_sum.value[0]) : max_sum.value[0];
    rematerialize(held, rows);

    float kept[KEEP ? CHUNKS : 1][VEC];
    max_sum.value[1] = 0.0f;
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
        if (FILLED && TAIL && chunk_column(c) >= count) continue;
#pragma unroll
        for (int i = 0; i < VEC; ++i) {
            if (IN_ROW(c, i)) {
                const float e = lifted_exponential(held[c][i] - shift);
                if constexpr (KEEP) kept[c][i] = e;
                max_sum.value[1] += e;
            }
        }
    }
    rows_ready();
#if IN_PAIRS
    max_sum.value[1] = reduce_warp<Sum, WARP_LANES>(max_sum.value[1]);
    write_partial(max_sum, partial);
    merge_row(max_sum, partial);
#else
    float sum[1] = {max_sum.value[1]};
    sum_row(sum, partial);
    max_sum.value[1] = sum[0];
#endif

#if LOG
    T* target = lane_ptr(y + row * y_stride);
    const float log_sum = math_log(max_sum.value[1]);
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
        float value[VEC];
#pragma unroll
        for (int i = 0; i < VEC; ++i) value[i] = held[c][i] - max_sum.value[0] - log_sum;
        store_vector(target + c * CHUNK, chunk_column(c), count, value);
    }
#else
    // In pairs, a row of -inf alone has 1 / 0 here, and 0 times that.
    const float inverse = div_rn(1.0f, max_sum.value[1]);
    const float last = IN_PAIRS ? finite_shift(max_sum.value[0]) : max_sum.value[0];
    const float moved = KEEP && IN_PAIRS ? exponential(shift - last) : 1.0f;
    // A lifted sum's inverse times `moved` could be subnormal where their product with an exponential is not.
    const float scale = LIFTED ? inverse : moved * inverse;
    T* target = lane_ptr(y + row * y_stride);
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
        float value[VEC];
#pragma unroll
        for (int i = 0; i < VEC; ++i) {
            value[i] = (KEEP ? kept[KEEP ? c : 0][i] : lifted_exponential(held[c][i] - last)) * scale;
            if constexpr (LIFTED) value[i] *= moved;
        }
        store_vector(target + c * CHUNK, chunk_column(c), count, value);
    }
#endif
}
#endif

#if PASS == FORWARD_STREAM
KERNEL(THREADS)
void softmax_forward_stream(const T* x, T* y, int64_t length, int64_t x_stride, int64_t y_stride) {
    enter_pdl();
    SHARED RowPartial<2> partial;
    const T* source = lane_ptr(x + block_x() * x_stride);
    T* target = lane_ptr(y + block_x() * y_stride);

    float maximum = -INF_F;
    float sum = 0.0f;
    for (int64_t base = 0; base < length; base += TILE) {
        Vector<T, VEC> held[CHUNKS];
        load_vectors<false>(held, source, base, length);
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
        sum = sum * exponential(maximum - shift) + added;
        maximum = larger;
    }
    MaxAndSum max_sum{{maximum, sum}};
    max_sum.merge_warps<WARP>();
    write_partial(max_sum, partial);
    merge_row(max_sum, partial);

    const float scale = LOG ? math_log(max_sum.value[1]) : div_rn(1.0f, max_sum.value[1]);
    for (int64_t base = 0; base < length; base += TILE) {
        Vector<T, VEC> held[CHUNKS];
        load_vectors<true>(held, source, base, length);
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) {
            float value[VEC];
#pragma unroll
#if LOG
            for (int i = 0; i < VEC; ++i) value[i] = held[c][i] - max_sum.value[0] - scale;
#else
            for (int i = 0; i < VEC; ++i) value[i] = exponential(held[c][i] - max_sum.value[0]) * scale;
#endif
            store_vector(target + base + c * CHUNK, base + chunk_column(c), length, value);
        }
    }
}
#endif

// A term of the sum in the gradient, and the gradient: dx = y * (dy - sum(dy * y)), or dx = dy - exp(y) * sum(dy).
DEVICE float add_term(float dy, float y, float sum) { return LOG ? sum + dy : math_fma(dy, y, sum); }
DEVICE float gradient(float dy, float y, float sum) {
    return LOG ? math_fma(-sum, exponential(y), dy) : y * (dy - sum);
}

#if PASS == BACKWARD
ROW_KERNEL
void softmax_backward(const T* dy, const T* y, T* dx, int64_t rows, int length, int64_t dy_stride,
                      int64_t y_stride, int64_t dx_stride) {
    enter_pdl();
    SHARED RowPartial<1> partial;
    rows_start(partial);
    const int64_t row = static_cast<int64_t>(row_block()) * ROWS + row_slot();
    const int count = row < rows ? length : 0;

    Vector<T, VEC> held_dy[CHUNKS];
    Vector<T, VEC> held_y[CHUNKS];
    load_vectors<true>(held_dy, lane_ptr(dy + row * dy_stride), 0, count);
    load_vectors<true>(held_y, lane_ptr(y + row * y_stride), 0, count);
    T* dx_row = lane_ptr(dx + row * dx_stride);
    float sum[1] = {0.0f};
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
#pragma unroll
        for (int i = 0; i < VEC; ++i) sum[0] = add_term(held_dy[c][i], held_y[c][i], sum[0]);
    }
    rows_ready();
    sum_row(sum, partial);
    rematerialize(held_dy, rows);
    rematerialize(held_y, rows);
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
        float value[VEC];
#pragma unroll
        for (int i = 0; i < VEC; ++i) value[i] = gradient(held_dy[c][i], held_y[c][i], sum[0]);
        store_vector(dx_row + c * CHUNK, chunk_column(c), count, value);
    }
}
#endif

#if PASS == BACKWARD_STREAM
KERNEL(THREADS)
void softmax_backward_stream(const T* dy, const T* y, T* dx, int64_t length, int64_t dy_stride,
                             int64_t y_stride, int64_t dx_stride) {
    enter_pdl();
    SHARED RowPartial<1> partial;
    const T* dy_row = lane_ptr(dy + block_x() * dy_stride);
    const T* y_row = lane_ptr(y + block_x() * y_stride);
    T* dx_row = lane_ptr(dx + block_x() * dx_stride);

    float sum[1] = {0.0f};
    for (int64_t base = 0; base < length; base += TILE) {
        Vector<T, VEC> held_dy[CHUNKS];
        Vector<T, VEC> held_y[CHUNKS];
        load_vectors<false>(held_dy, dy_row, base, length);
        load_vectors<false>(held_y, y_row, base, length);
        float added = 0.0f;
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) {
#pragma unroll
            for (int i = 0; i < VEC; ++i) added = add_term(held_dy[c][i], held_y[c][i], added);
        }
        sum[0] += added;
    }
    sum_row(sum, partial);
    for (int64_t base = 0; base < length; base += TILE) {
        Vector<T, VEC> held_dy[CHUNKS];
        Vector<T, VEC> held_y[CHUNKS];
        load_vectors<true>(held_dy, dy_row, base, length);
        load_vectors<true>(held_y, y_row, base, length);
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) {
            float value[VEC];
#pragma unroll
            for (int i = 0; i < VEC; ++i) value[i] = gradient(held_dy[c][i], held_y[c][i], sum[0]);
            store_vector(dx_row + base + c * CHUNK, base + chunk_column(c), length, value);
        }
    }
}
#endif
