// dz = dy * activation'(z) for one element, in float32. -DACTIVATION chooses, by the numbers of activation.h.
#pragma once

#include "_lib/rows/activation.h"
#include "_lib/rows/sigmoid.h"

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

// With y = 1.702 * z: the derivative of silu at y.
DEVICE float quick_gelu_derivative(float z) { return silu_derivative(1.702f * z); }

// dy * gelu_derivative(z) within 1e-6 of its terms, enough for 16 bits: with a = |z| and Mills' ratio R(a) = Phi(-a) /
// phi(a), the derivative is s = phi(a) * (R(a) - a) for negative z, else 1 - s. phi goes in as two roots of it, so that
// it keeps its range.
DEVICE float times_gelu_derivative(float dy, float z) {
    const float a = math_abs(z);
    const Mills m = mills_factors(a);
    const float r = math_fma(m.t, m.p, -0.3989422804f * a);
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
#elif ACTIVATION == ACTIVATION_QUICK_GELU
    return dy * quick_gelu_derivative(z);
#elif ACTIVATION == ACTIVATION_RELU2
    return z <= 0.0f ? 0.0f : 2.0f * (dy * z);
#else
    return dy * silu_derivative(z);
#endif
}
