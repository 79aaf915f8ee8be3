// The root mean square of a row: a lane's part of the sum, and the reciprocal of the root; and the parameters that
// kernels of sums have besides, with ADD. Behind norm_rows.h.
#pragma once

#if ADD
#define ADDED_ROWS const T *residual, T *new_residual,
#define ADDED_STRIDES int64_t residual_stride, int64_t new_residual_stride,
#else
#define ADDED_ROWS
#define ADDED_STRIDES
#endif

DEVICE float lane_squares(const Vector<T, VEC> (&held)[CHUNKS]) {
    float sum = 0.0f;
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
#pragma unroll
        for (int i = 0; i < VEC; ++i) sum = math_fma(held[c][i], held[c][i], sum);
    }
    return sum;
}

template <class Index> DEVICE float inverse_rms(float sum, Index length, float eps) {
    return math_rsqrt(div_rn(sum, static_cast<float>(length)) + eps);
}
