// Rows of rms_norm and layer_norm in registers: the passes, of which PASS names the one to build, and what
// they share. CENTERED = 1: x less the mean of its row (layer_norm).
#pragma once

#include "columns.h"

#define FORWARD 1
#define FORWARD_STREAM 2
#define BACKWARD 3
#define BACKWARD_ROWS 4
#define BACKWARD_STREAM 5
#define BACKWARD_COLUMNS 6
#define BACKWARD_RING 7
#define FORWARD_RING 8

// Chunk c of a parameter; `parameter` is a `lane_ptr`. Zeros where there is none.
template <bool THERE, class Index>
DEVICE Vector<W, VEC> parameter_vector(const W* parameter, int c, Index base, Index length) {
    Vector<W, VEC> found;
    found.clear();
    if constexpr (THERE) {
        found = load_vector<false>(parameter + base + c * CHUNK, base + chunk_column(c), length);
    }
    return found;
}

// A lane's vectors of dy and x.
struct Held {
    Vector<T, VEC> dy[CHUNKS];
    Vector<T, VEC> x[CHUNKS];

    template <bool STREAMING, class Index>
    DEVICE void load(const T* dy_row, const T* x_row, Index base, Index length) {
        load_vectors<STREAMING>(dy, dy_row, base, length);
        load_vectors<STREAMING>(x, x_row, base, length);
    }
    // dy times its weight, which is `factor`'s.
    DEVICE float scaled(int c, int i, const Vector<W, VEC>& factor) const {
        return HAS_WEIGHT ? dy[c][i] * factor[i] : dy[c][i];
    }
};

// x as normalized: its distance from the mean in deviations.
DEVICE float normalized(float x, float mean, float r) {
    if constexpr (CENTERED) return (x - mean) * r;
    return x * r;
}

// Stores y = n * weight + bias of the vectors from column `base` on.
template <class Index>
DEVICE void normalize(const Vector<T, VEC> (&held)[CHUNKS], const W* scales, const W* shifts, T* target,
                      Index base, Index length, float mean, float r) {
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
        const Vector<W, VEC> scale = parameter_vector<HAS_WEIGHT>(scales, c, base, length);
        const Vector<W, VEC> shift = parameter_vector<HAS_BIAS>(shifts, c, base, length);
        float value[VEC];
#pragma unroll
        for (int i = 0; i < VEC; ++i) {
            value[i] = normalized(held[c][i], mean, r);
            if constexpr (HAS_WEIGHT) value[i] *= scale[i];
            if constexpr (HAS_BIAS) value[i] += shift[i];
        }
        store_vector(target + base + c * CHUNK, base + chunk_column(c), length, value);
    }
}

// Stores dx = r * (g - mean(g) - n * mean(g * n)), without mean(g) unless CENTERED. `length` bounds the weights,
// `count` what is stored.
template <class Index>
DEVICE void store_gradient(T* dx_row, const Held& held, const W* scales, float mean, float r, float mean_g,
                           float mean_gn, Index base, Index length, Index count) {
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
        const Vector<W, VEC> factor = parameter_vector<HAS_WEIGHT>(scales, c, base, length);
        float value[VEC];
#pragma unroll
        for (int i = 0; i < VEC; ++i) {
            const float n = normalized(held.x[c][i], mean, r);
            const float g = held.scaled(c, i, factor);
            value[i] = r * math_fma(-n, mean_gn, CENTERED ? g - mean_g : g);
        }
        store_vector(dx_row + base + c * CHUNK, base + chunk_column(c), count, value);
    }
}

// The sums of dy * n (weight) and of dy (bias) over every `blocks`-th row from block_y on, one vector of columns per
// thread. `saved` has 1 / deviation of each row, with CENTERED its mean before that.
DEVICE void sum_columns(const T* dy, const T* x, const float* saved, float* columns, int64_t rows, int64_t length,
                        int64_t dy_stride, int64_t x_stride, int blocks) {
    const int64_t column = (static_cast<int64_t>(block_x()) * THREADS + thread_x()) * VEC;
    float sum_weight[VEC] = {};
    float sum_bias[VEC] = {};
#pragma unroll 4
    for (int64_t row = block_y(); row < rows; row += blocks) {
        const Vector<T, VEC> held_dy = load_vector<true>(dy + row * dy_stride + column, column, length);
        if constexpr (HAS_WEIGHT) {
            const Vector<T, VEC> held_x = load_vector<true>(x + row * x_stride + column, column, length);
            const float mean = CENTERED ? saved[2 * row] : 0.0f;
            const float r = CENTERED ? saved[2 * row + 1] : saved[row];
#pragma unroll
            for (int i = 0; i < VEC; ++i) {
                sum_weight[i] = math_fma(held_dy[i], normalized(held_x[i], mean, r), sum_weight[i]);
            }
        }
        if constexpr (HAS_BIAS) {
#pragma unroll
            for (int i = 0; i < VEC; ++i) sum_bias[i] += held_dy[i];
        }
    }
    float* target = columns + block_y() * length + column;
    float* target_bias = target + (HAS_WEIGHT ? blocks * length : 0);
#if defined(__AMDGCN__)
    constexpr bool WIDE = true;
#else
    constexpr bool WIDE = false;  // as measured; 16 bytes at a time puts 24 on the stack (65,536 of float32)
#endif
    if constexpr (HAS_WEIGHT) store_sums<WIDE>(target, column, length, sum_weight);
    if constexpr (HAS_BIAS) store_sums<WIDE>(target_bias, column, length, sum_bias);
}
