// Rows of rms_norm and layer_norm in registers: the passes, of which PASS names the one to build, and what
// they share. CENTERED = 1: x less the mean of its row (layer_norm). ADD = 1 (fused_add_rms_norm): the row is the sum
// of two, rounded to T; in a gradient, a row is added to dx.
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

#ifndef ADD
#define ADD 0
#endif

// held = held + other, rounded once, which is stored as `sums`. The rows are `lane_ptr`s.
template <class Index>
DEVICE void add_rows(Vector<T, VEC> (&held)[CHUNKS], const T* other, T* sums, Index base, Index length) {
    Vector<T, VEC> added[CHUNKS];
    load_vectors<true>(added, other, base, length);
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
        float sum[VEC];
#pragma unroll
        for (int i = 0; i < VEC; ++i) sum[i] = held[c][i] + added[c][i];
        held[c].round(sum);
#pragma unroll
        for (int i = 0; i < VEC; ++i) sum[i] = held[c][i];
        store_vector(sums + base + c * CHUNK, base + chunk_column(c), length, sum);
    }
}

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
        return HAS_WEIGHT ? dy[c][i] * offset_weight(factor[i]) : dy[c][i];
    }
};

// x as normalized: its distance from the mean in deviations.
DEVICE float normalized(float x, float mean, float r) {
    if constexpr (CENTERED) return (x - mean) * r;
    return x * r;
}

// The row kernels' parameters: read where they are used, or (PREFETCHED) held from before the reduction on, so that
// their loads wait beside the row's own (gfx950, 4096 columns of bfloat16: 42.8 us modelled without, 41.6 with).
#if defined(__AMDGCN__)
constexpr bool PREFETCH_PARAMETERS = (HAS_WEIGHT + HAS_BIAS) * CHUNKS * VEC * sizeof(W) <= 64;    // 16 registers
#else
constexpr bool PREFETCH_PARAMETERS = false;
#endif
template <class Index, bool PREFETCHED = false> struct Parameters {
    const W* scales;
    const W* shifts;
    Index base, length;

    DEVICE Vector<W, VEC> scale(int c) const { return parameter_vector<HAS_WEIGHT>(scales, c, base, length); }
    DEVICE Vector<W, VEC> shift(int c) const { return parameter_vector<HAS_BIAS>(shifts, c, base, length); }
};
template <class Index> struct Parameters<Index, true> {
    Vector<W, VEC> scales[CHUNKS];
    Vector<W, VEC> shifts[CHUNKS];

    DEVICE Parameters(const W* weight, const W* bias, Index base, Index length) {
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) {
            scales[c] = parameter_vector<HAS_WEIGHT>(weight, c, base, length);
            shifts[c] = parameter_vector<HAS_BIAS>(bias, c, base, length);
        }
    }
    DEVICE const Vector<W, VEC>& scale(int c) const { return scales[c]; }
    DEVICE const Vector<W, VEC>& shift(int c) const { return shifts[c]; }
};

// Stores y = n * weight + bias of the vectors from column `base` on; without STORED it takes their place, rounded to T.
template <bool STORED = true, class Rows, class Index, bool PREFETCHED>
DEVICE void normalize(Rows& held, const Parameters<Index, PREFETCHED>& parameters, T* target, Index base, Index length,
                      float mean, float r) {
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
        const Vector<W, VEC> scale = parameters.scale(c);
        const Vector<W, VEC> shift = parameters.shift(c);
        float value[VEC];
#pragma unroll
        for (int i = 0; i < VEC; ++i) {
            value[i] = normalized(held[c][i], mean, r);
            if constexpr (HAS_WEIGHT) value[i] = before_weight(value[i]) * offset_weight(scale[i]);
            if constexpr (HAS_BIAS) value[i] += shift[i];
        }
        if constexpr (STORED) {
            store_vector(target + base + c * CHUNK, base + chunk_column(c), length, value);
        } else {
            held[c].round(value);
        }
    }
}

// Stores dx = r * (g - mean(g) - n * mean(g * n)), without mean(g) unless CENTERED, with ADD plus `added`, a
// `lane_ptr`. `length` bounds the weights, `count` what is stored.
template <class Index>
DEVICE void store_gradient(T* dx_row, const Held& held, const W* scales, float mean, float r, float mean_g,
                           float mean_gn, Index base, Index length, Index count, const T* added = nullptr) {
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
#if ADD
        const Vector<T, VEC> more = load_vector<true>(added + base + c * CHUNK, base + chunk_column(c), count);
#endif
        const Vector<W, VEC> factor = parameter_vector<HAS_WEIGHT>(scales, c, base, length);
        float value[VEC];
#pragma unroll
        for (int i = 0; i < VEC; ++i) {
            const float n = normalized(held.x[c][i], mean, r);
            const float g = held.scaled(c, i, factor);
            value[i] = r * math_fma(-n, mean_gn, CENTERED ? g - mean_g : g);
#if ADD
            value[i] += more[i];
#endif
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
                const float n = before_weight(normalized(held_x[i], mean, r));
                sum_weight[i] = math_fma(held_dy[i], n, sum_weight[i]);
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
