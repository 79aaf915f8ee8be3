// dz = dy * activation'(z), elementwise, in float32, rounded once. -DACTIVATION=1..4 chooses, numbered as in
// ../matmul/epilogue.h.
#include "_common/elementwise.h"
#include "_common/sigmoid.h"

#define ACTIVATION_RELU 1
#define ACTIVATION_GELU 2
#define ACTIVATION_GELU_TANH 3
#define ACTIVATION_SILU 4

// Phi(-a) * exp(a^2 / 2) for 0 <= a <= 20: a minimax polynomial in (a - 4) / (a + 4), over a + 4; relative
// error 1.3e-7.
DEVICE float scaled_tail(float a) {
    const float r = rcp_fast(a + 4.0f);
    const float u = (a - 4.0f) * r;
    float p = 0x1.4ed6dap-12f;
    p = math_fma(p, u, 0x1.75682p-10f);
    p = math_fma(p, u, -0x1.e030aep-9f);
    p = math_fma(p, u, -0x1.e97d62p-8f);
    p = math_fma(p, u, 0x1.ef3c0ap-5f);
    p = math_fma(p, u, -0x1.7e04e6p-3f);
    p = math_fma(p, u, 0x1.8c6c4cp-2f);
    p = math_fma(p, u, -0x1.373e28p-1f);
    p = math_fma(p, u, 0x1.82b4bep-1f);
    return p * r;
}

// Phi(z) + z * phi(z). The tail that is small is computed, so nothing cancels but what the maths cancels;
// z - z brings back what the clamp hides: both are NaN at infinity.
DEVICE float gelu_slope(float z) {
    const float a = math_min_number(math_abs(z), 20.0f);
    const float e = math_exp2(-0.72134752f * a * a);
    const float tail = e * math_fma(-0.39894228f, a, scaled_tail(a));
    return (z < 0.0f ? tail : 1.0f - tail) + (z - z);
}

// With the form sigmoid(y) = (1 + tanh(y / 2)) / 2, y = 2 * sqrt(2 / pi) * (z + 0.044715 * z^3):
// sigmoid(y) * (1 + z * y' * sigmoid(-y)).
DEVICE float gelu_tanh_slope(float z) {
    const float a = math_min_number(math_abs(z), 20.0f);
    const float square = a * a;
    const float y = 1.59576912f * a * math_fma(0.044715f, square, 1.0f);
    const float slope = 1.59576912f * math_fma(3.0f * 0.044715f, square, 1.0f);
    const Sigmoid s = sigmoid(y);
    const float steep = a * slope * s.value * s.complement;
    return (z < 0.0f ? s.complement - steep : s.value + steep) + (z - z);
}

DEVICE float silu_slope(float z) {
    const Sigmoid s = sigmoid(z);
    return s.value * math_fma(z, s.complement, 1.0f);
}

DEVICE float backward(float dy, float z) {
#if ACTIVATION == ACTIVATION_RELU
    return z <= 0.0f ? 0.0f : dy;
#elif ACTIVATION == ACTIVATION_GELU
    return dy * gelu_slope(z);
#elif ACTIVATION == ACTIVATION_GELU_TANH
    return dy * gelu_tanh_slope(z);
#else
    return dy * silu_slope(z);
#endif
}

KERNEL(THREADS)
void activation_backward(const T* dy, const T* z, T* dz, int64_t rows, int64_t length, int64_t dy_stride,
                         int64_t z_stride, int64_t dz_stride, int across) {
    const Place place = locate(rows, length, across);
    cell<T, VEC> held_dy[CHUNKS];
    cell<T, VEC> held_z[CHUNKS];
    load_cells<true>(held_dy, at_lane(dy + place.row * dy_stride), place.base, place.length);
    load_cells<true>(held_z, at_lane(z + place.row * z_stride), place.base, place.length);
    store_values(dz + place.row * dz_stride, place,
                 [&](int c, int i) { return backward(held_dy[c][i], held_z[c][i]); });
}
