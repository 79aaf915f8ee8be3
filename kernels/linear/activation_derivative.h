// dz = dy * activation'(z) for one element, in float32. -DACTIVATION=1..4 chooses, numbered as in
// ../matmul/epilogue.h.
#pragma once

#include "_lib/rows/sigmoid.h"

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

// Phi(z) + z * phi(z). The small tail is computed, so that no term cancels but in the maths; z - z undoes
// the clamp: both are NaN at infinity.
DEVICE float gelu_derivative(float z) {
    const float a = math_min_number(math_abs(z), 20.0f);
    const float e = math_exp2(-0.72134752f * a * a);
    const float tail = e * math_fma(-0.39894228f, a, scaled_tail(a));
    return (z < 0.0f ? tail : 1.0f - tail) + (z - z);
}

// With the form sigmoid(y) = (1 + tanh(y / 2)) / 2, y = 2 * sqrt(2 / pi) * (z + 0.044715 * z^3):
// sigmoid(y) * (1 + z * y' * sigmoid(-y)).
DEVICE float gelu_tanh_derivative(float z) {
    const float a = math_min_number(math_abs(z), 20.0f);
    const float square = a * a;
    const float y = 1.59576912f * a * math_fma(0.044715f, square, 1.0f);
    const float derivative = 1.59576912f * math_fma(3.0f * 0.044715f, square, 1.0f);
    const Sigmoid s = sigmoid(y);
    const float curvature = a * derivative * s.value * s.complement;
    return (z < 0.0f ? s.complement - curvature : s.value + curvature) + (z - z);
}

DEVICE float silu_derivative(float z) {
    const Sigmoid s = sigmoid(z);
    return s.value * math_fma(z, s.complement, 1.0f);
}

// dy * gelu_derivative(z) within 1e-6 of its terms, enough for 16 bits: with a = |z| and Mills' ratio R(a) = Phi(-a) /
// phi(a), the derivative is s = phi(a) * (R(a) - a) for negative z, else 1 - s. sqrt(1 / (2 pi)) * R is a polynomial in
// 1 / (1 + 0.3 a), fitted for _lib/triton/math.py; phi goes in as two roots of it, so that it keeps its range.
DEVICE float times_gelu_derivative(float dy, float z) {
    const float a = math_abs(z);
    const float t = rcp_fast(math_fma(a, 0.3f, 1.0f));
    float r = math_fma(t, -0.07948413957942683f, 0.22228710771478521f);
    r = math_fma(t, r, -0.022730104914963103f);
    r = math_fma(t, r, 0.14635294797016904f);
    r = math_fma(t, r, 0.11351832039622001f);
    r = math_fma(t, r, 0.12005557237315888f);
    r = math_fma(t, r, -0.3989422804f * a);
    const float half = exp2_fast(-0.36067376022f * z * z);
    const float other = r * half;
    return z < 0.0f ? dy * half * other : dy * math_fma(-half, other, 1.0f);
}

DEVICE float backward(float dy, float z) {
#if ACTIVATION == ACTIVATION_RELU
    return z <= 0.0f ? 0.0f : dy;
#elif ACTIVATION == ACTIVATION_GELU
    return sizeof(T) == 2 ? times_gelu_derivative(dy, z) : dy * gelu_derivative(z);
#elif ACTIVATION == ACTIVATION_GELU_TANH
    return dy * gelu_tanh_derivative(z);
#else
    return dy * silu_derivative(z);
#endif
}
