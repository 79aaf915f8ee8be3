// Scores, P and the softcap's derivative, an element at a time. Scores are in base 2. For CUDA and HIP.
#pragma once

#include "prelude.h"

constexpr float LN_2 = 0.693147180559945f;
constexpr float LOG2_E = 1.44269504088896f;
constexpr float RESCALE_THRESHOLD = 8.0f;  // lazy rescaling: how far row_max may lag, so that P are at most 2^8

// P becomes 16 bits times 2^P_SCALE_LOG2_OF<T>: in float16 small ones would be subnormal.
template <class T> constexpr int P_SCALE_LOG2_OF = 0;
template <> constexpr int P_SCALE_LOG2_OF<f16> = 14;

// The base-2 exponential by one instruction; denormal results are flushed to zero.
#ifdef __CUDACC_RTC__
DEVICE float exp2_ftz(float x) { return exp2_fast(x); }
#else
DEVICE float exp2_ftz(float x) { return __builtin_amdgcn_exp2f(x); }
#endif

// A score, from the product of its query and key; with Softcap also the derivative of the cap. `score_scale` holds
// log2(e), or with Softcap 2 * log2(e) / softcap; `softcap_log2` is softcap * log2(e).
template <bool Softcap>
DEVICE float score_of(float product, float score_scale, float softcap_log2, float& softcap_grad) {
    if constexpr (Softcap) {
        // tanh(x) = 1 - 2 / (1 + e^2x), for the approximate tanh is too coarse.
        const float tanh = 1.0f - 2.0f * rcp_fast(1.0f + exp2_ftz(product * score_scale));
        softcap_grad = 1.0f - tanh * tanh;
        return tanh * softcap_log2;
    } else {
        return product * score_scale;
    }
}

// P times 2^P_SCALE_LOG2, from the product, the bias (with Bias) and the row's lse_log2.
template <bool Softcap, bool Bias, int P_SCALE_LOG2>
DEVICE float p_of(float product, float bias, float lse_log2, float score_scale, float softcap_log2,
                  float& softcap_grad) {
    float score = score_of<Softcap>(product, score_scale, softcap_log2, softcap_grad);
    if (Bias) score += bias * LOG2_E;
    return exp2_ftz(score - (P_SCALE_LOG2 ? lse_log2 - P_SCALE_LOG2 : lse_log2));
}
