// The epilogue of a float32 sum: bias, then activation; rounded once after it. For CUDA and HIP.
//
// -DBIAS=0|1 and -DACTIVATION=0..4 choose at compile time; kernels always take a bias pointer, which is
// null where BIAS is 0. With -DPREACTIVATION=1 they also round and store the activation's input to z, which has
// c's layout. With -DGATED=1 b is two matrices, gate and up, b_outer elements apart, and c = activation(a @ gate) *
// (a @ up): a tile of TILE_N columns of the product holds gate and up of TILE_N / 2 columns of c.
#pragma once

#include "_lib/rows/activation.h"

#ifndef BIAS
#define BIAS 0
#endif
#ifndef ACTIVATION
#define ACTIVATION ACTIVATION_NONE
#endif
#ifndef PREACTIVATION
#define PREACTIVATION 0
#endif
#ifndef GATED
#define GATED 0
#endif
#if GATED && (BIAS || PREACTIVATION)
#error "a gated product has neither a bias nor a preactivation"
#endif

#if PREACTIVATION
#define Z_PARAMETER(T) T *z,
#define Z_ARGUMENT z
#else
#define Z_PARAMETER(T)
#define Z_ARGUMENT nullptr
#endif

// x * Phi(x): log2(1 / Phi(x) - 1) as an odd minimax polynomial up to |x| = 6, and linear beyond, where Phi
// is 0 or 1 to 1e-9. The error is 1.5e-7 of |x|.
DEVICE float times_normal(float x) {
    const float s = math_min_number(x * x, 36.0f);
    float p = -0x1.5c37d4p-28f;
    p = math_fma(p, s, 0x1.99c60ap-22f);
    p = math_fma(p, s, -0x1.7fdb70p-17f);
    p = math_fma(p, s, 0x1.4ea9d4p-13f);
    p = math_fma(p, s, 0x1.8a7892p-14f);
    p = math_fma(p, s, -0x1.ad6798p-4f);
    p = math_fma(p, s, -0x1.26aeccp+1f);
    return times_logistic(x, p * x);
}

// relu keeps NaN. gelu is shorter here than in activation.h: after a sum, an error of |x| units is in the bound.
DEVICE float activate(float x) {
#if ACTIVATION == ACTIVATION_RELU
    return math_max(x, 0.0f);
#elif ACTIVATION == ACTIVATION_GELU
    return times_normal(x);
#elif ACTIVATION == ACTIVATION_GELU_TANH
    return times_tanh_logistic(x);
#elif ACTIVATION == ACTIVATION_SILU
    return times_logistic(x, -1.44269504f * x);
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

// The activation's input.
DEVICE float preactivation(float sum, float bias) {
#if BIAS
    sum += bias;
#endif
    return sum;
}

DEVICE float finish(float sum, float bias) { return activate(preactivation(sum, bias)); }

DEVICE float finish_gated(float gate, float up) { return activate(gate) * up; }
