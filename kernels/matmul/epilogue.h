// What happens to a float32 sum before it is rounded once: bias, then activation. For CUDA and HIP.
//
// -DBIAS=0|1 and -DACTIVATION=0..4 choose at compile time; kernels always take a bias pointer, which is
// null where BIAS is 0.
#pragma once

#include "prelude.h"

#define ACTIVATION_NONE 0
#define ACTIVATION_RELU 1
#define ACTIVATION_GELU 2
#define ACTIVATION_GELU_TANH 3
#define ACTIVATION_SILU 4

#ifndef BIAS
#define BIAS 0
#endif
#ifndef ACTIVATION
#define ACTIVATION ACTIVATION_NONE
#endif

// x * sigmoid(y), by one exponential and one reciprocal.
DEVICE float times_sigmoid(float x, float y) {
    return div_fast(x, 1.0f + math_exp2(-1.44269504f * y));
}

// relu keeps NaN. gelu is x * Phi(x); gelu_tanh uses 0.5 * (1 + tanh(u)) == sigmoid(2u) with
// u = sqrt(2 / pi) * (x + 0.044715 * x^3).
DEVICE float activate(float x) {
#if ACTIVATION == ACTIVATION_RELU
    return math_max(x, 0.0f);
#elif ACTIVATION == ACTIVATION_GELU
    return 0.5f * x * (1.0f + math_erf(x * 0.70710678f));
#elif ACTIVATION == ACTIVATION_GELU_TANH
    return times_sigmoid(x, 1.59576912f * x * (1.0f + 0.044715f * x * x));
#elif ACTIVATION == ACTIVATION_SILU
    return times_sigmoid(x, x);
#else
    return x;
#endif
}

// The bias of one column, in float32.
template <class T> DEVICE float bias_at(const T* bias, int64_t column) {
#if BIAS
    return to_float(bias[column]);
#else
    return 0.0f;
#endif
}

DEVICE float finish(float sum, float bias) {
#if BIAS
    sum += bias;
#endif
    return activate(sum);
}
