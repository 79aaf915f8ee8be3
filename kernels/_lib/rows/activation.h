// Activation functions of one element in float32, each to a few units in the last place of its own value, in the
// tails too. KIND is one of the numbers below; planners give them as -DACTIVATION.
#pragma once

#include "prelude.h"

#define ACTIVATION_NONE 0
#define ACTIVATION_RELU 1
#define ACTIVATION_GELU 2
#define ACTIVATION_GELU_TANH 3
#define ACTIVATION_SILU 4
#define ACTIVATION_QUICK_GELU 5
#define ACTIVATION_RELU2 6

// x / (1 + 2^t), by one exponential and one reciprocal: x * sigmoid(y) with t = -log2(e) * y.
DEVICE float times_logistic(float x, float t) { return x * rcp_fast(1.0f + exp2_fast(t)); }

// gelu_tanh is x * sigmoid(2u), u = sqrt(2 / pi) * (x + 0.044715 * x^3), as 0.5 * (1 + tanh(u)) == sigmoid(2u).
DEVICE float times_tanh_logistic(float x) {
    return times_logistic(x, x * math_fma(x * x, -2.30220820f * 0.044715f, -2.30220820f));
}

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

// t * p is Mills' ratio Phi(-a) / phi(a) over sqrt(2 pi), within 6e-7 of itself + a / sqrt(2 pi): a polynomial p in
// t = 1 / (1 + 0.3 a), fitted for _lib/triton/math.py.
struct Mills {
    float t;
    float p;
};
DEVICE Mills mills_factors(float a) {
    const float t = rcp_fast(math_fma(a, 0.3f, 1.0f));
    float p = math_fma(t, -0.07948413957942683f, 0.22228710771478521f);
    p = math_fma(t, p, -0.022730104914963103f);
    p = math_fma(t, p, 0.14635294797016904f);
    p = math_fma(t, p, 0.11351832039622001f);
    return {t, math_fma(t, p, 0.12005557237315888f)};
}

// times_normal_tail with errors that 16 bits do not see: 6e-7 of its value * (1 + x^2) for negative x.
DEVICE float times_normal_short(float x) {
    const Mills m = mills_factors(math_abs(x));
    const float half = exp2_fast(-0.36067376022f * x * x);
    const float other = m.t * m.p * half;
    return x < 0.0f ? x * half * other : x * math_fma(-half, other, 1.0f);
}

// x * Phi(x), Phi the normal distribution. The smaller of Phi(x) and Phi(-x) is computed, never 1 + erf, which cancels;
// exp(-a^2 / 2) goes in as two roots of it, so that the product falls below float32's range no sooner than its value.
// At -infinity it is NaN, as torch's gelu is.
DEVICE float times_normal_tail(float x) {
    const float a = math_min_number(math_abs(x), 20.0f);
    const float half = math_exp2(-0.36067376f * a * a);
    const float tail = half * scaled_tail(a) * half;
    return x * (x < 0.0f ? tail : 1.0f - tail);
}

// WIDE: the result is kept as float32. relu and relu2 keep NaN.
template <int KIND, bool WIDE> DEVICE float activation_of(float x) {
    if constexpr (KIND == ACTIVATION_RELU) {
        return math_max(x, 0.0f);
    } else if constexpr (KIND == ACTIVATION_GELU) {
        return WIDE ? times_normal_tail(x) : times_normal_short(x);
    } else if constexpr (KIND == ACTIVATION_GELU_TANH) {
        return times_tanh_logistic(x);
    } else if constexpr (KIND == ACTIVATION_SILU) {
        return times_logistic(x, -1.44269504f * x);
    } else if constexpr (KIND == ACTIVATION_QUICK_GELU) {
        return times_logistic(x, -1.702f * 1.44269504f * x);
    } else {
        static_assert(KIND == ACTIVATION_RELU2, "ACTIVATION is none of the numbers above");
        const float r = math_max(x, 0.0f);
        return r * r;
    }
}
