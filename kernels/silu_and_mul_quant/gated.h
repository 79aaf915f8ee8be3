// y = silu(gate) * up of a lane's vectors, in float32, rounded to T: what quantize_fp8's kernels take with GATED. gate and up are
// two neighbouring rows of x.
#pragma once

#include "_lib/rows/activation.h"

constexpr int X_ROWS = 2;

// In gate's place. Beyond the row 0 stays 0.
DEVICE void multiply_by_silu(Vector<T, VEC> (&gate)[CHUNKS], const Vector<T, VEC> (&up)[CHUNKS]) {
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
        float y[VEC];
#pragma unroll
        for (int i = 0; i < VEC; ++i) y[i] = activation_of<ACTIVATION_SILU, !NARROW>(gate[c][i]) * up[c][i];
        gate[c].round(y);
    }
}

template <bool STREAMING, class Index>
DEVICE void load_source(Vector<T, VEC> (&held)[CHUNKS], const T* lane_row, int64_t x_stride, Index base, Index length) {
    Vector<T, VEC> up[CHUNKS];
    load_vectors<STREAMING>(held, lane_row, base, length);
    load_vectors<STREAMING>(up, lane_row + x_stride, base, length);
    multiply_by_silu(held, up);
}

template <class Index>
DEVICE void load_source_parts(Vector<T, VEC> (&held)[CHUNKS], const T* row, int64_t x_stride, Index begin, Index length) {
    Vector<T, VEC> up[CHUNKS];
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) held[c] = load_part(row, begin + c * CHUNK, length);
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) up[c] = load_part(row + x_stride, begin + c * CHUNK, length);
    multiply_by_silu(held, up);
}
