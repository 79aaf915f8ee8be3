// The softmax and its gradient from stored statistics, an element at a time: P = exp2(score - lse_log2) and
// dS = P * (dP - delta), delta = sum(dO * O) - dlse.
#pragma once

#include "prelude.h"

// P becomes 16 bits times 2^P_SCALE_LOG2_OF<T>: in float16 small ones would be subnormal.
template <class T> constexpr int P_SCALE_LOG2_OF = 0;
template <> constexpr int P_SCALE_LOG2_OF<f16> = 14;

// A score in base 2, from the product of its query and key; with Softcap also the derivative of the cap.
template <bool Softcap>
DEVICE float score_of(float product, float score_scale, float softcap_log2, float& softcap_grad) {
    if constexpr (Softcap) {
        // tanh through exp2, for the approximate tanh is too coarse.
        const float curve = 1.0f - 2.0f * rcp_fast(1.0f + exp2_fast(product * score_scale));
        softcap_grad = 1.0f - curve * curve;
        return curve * softcap_log2;
    } else {
        return product * score_scale;
    }
}
