// The logistic function and its complement from one exponential, neither by cancellation.
#pragma once

#include "prelude.h"

struct Sigmoid {
    float value;         // 1 / (1 + exp(-x))
    float complement;    // 1 / (1 + exp(x))
};

// x * log2(e) is rounded: that moves the smaller of the two by |x| / 2 units in the last place.
DEVICE Sigmoid sigmoid(float x) {
    const float t = math_exp2(-1.44269504f * math_abs(x));
    const float larger = rcp_fast(1.0f + t);
    const float smaller = t * larger;
    return x < 0.0f ? Sigmoid{smaller, larger} : Sigmoid{larger, smaller};
}
