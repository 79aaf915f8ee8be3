// c and its epilogue, for matrix kernels of AMD's GPUs.
//
// -DC_ROW_MAJOR: 1 where c's rows are contiguous. -DSPLIT_K=1: c is a batch of float32 partial sums instead, one matrix
// for each part of `k_step` along K, without an epilogue; its rows are padded to runs of 8 columns (splitk_reduce.hip).
#pragma once

#include "matmul/epilogue.h"
#include "prelude.h"

#ifndef SPLIT_K
#define SPLIT_K 0
#endif

#if SPLIT_K
typedef float Sum;
#define SPLIT_PARAMETER int k_step,
#define SPLIT_DEPTH(K, part) min(k_step, K - static_cast<int>(part) * k_step)
#else
typedef T Sum;
#define SPLIT_PARAMETER
#define SPLIT_DEPTH(K, part) K
#endif

struct Output {
    Sum* data;
    T* before;  // z of epilogue.h, or null
    const T* bias;
    int64_t row, col;
    int M, N;
};

// Stores RUN neighbouring columns of one row, from column n on: one rounding, one store where they fit.
template <int RUN> DEVICE void store_values(const Output& c, T* data, int m, int n, const float (&values)[RUN]) {
#if C_ROW_MAJOR
    T* const to = data + m * c.row + n;
    if (n + RUN <= c.N) {
        words<RUN * 2> pairs;
        for (int i = 0; i < RUN; i += 2) {
            pairs.w[i / 2] = pack2<T>(values[i], values[i + 1]);
        }
        __builtin_memcpy(to, &pairs, sizeof pairs);
        return;
    }
    const int64_t col = 1;
#else
    T* const to = data + m * c.row + n * c.col;
    const int64_t col = c.col;
#endif
    for (int i = 0; i < RUN; ++i) {
        if (n + i < c.N) {
            to[i * col] = from_float<T>(values[i]);
        }
    }
}

// The epilogue of RUN columns: bias, activation, store.
template <int RUN>
DEVICE void store_run(const Output& c, int m, int n, const float (&sums)[RUN], const float (&bias)[RUN]) {
#if SPLIT_K
    if (m < c.M && n < c.row) {
        __builtin_memcpy(c.data + m * c.row + n, sums, sizeof sums);
    }
#else
    if (m >= c.M || n >= c.N) {
        return;
    }
    float values[RUN];
    for (int i = 0; i < RUN; ++i) {
        values[i] = preactivation(sums[i], bias[i]);
    }
#if PREACTIVATION
    store_values(c, c.before, m, n, values);
#endif
    for (int i = 0; i < RUN; ++i) {
        values[i] = activate(values[i]);
    }
    store_values(c, c.data, m, n, values);
#endif
}

// The epilogue of RUN columns of gate and up.
template <int RUN>
DEVICE void store_gated_run(const Output& c, int m, int n, const float (&gate)[RUN], const float (&up)[RUN]) {
#if !SPLIT_K
    if (m >= c.M || n >= c.N) {
        return;
    }
    float values[RUN];
    for (int i = 0; i < RUN; ++i) {
        values[i] = finish_gated(gate[i], up[i]);
    }
    store_values(c, c.data, m, n, values);
#endif
}

template <int RUN> DEVICE void load_bias(const Output& c, int n, float (&bias)[RUN]) {
    for (int i = 0; i < RUN; ++i) {
        bias[i] = bias_at(c.bias, min(n + i, c.N - 1));
    }
}
