// The online softmax of 16 queries whose scores are a Strip's columns. Scores are powers of two.
//
// A query's running maximum moves, and its sums are rescaled, only where it grew by more than SLACK; what
// is left cancels between o and its divisor. A score of -inf hides its key. NaN reaches the sum by itself;
// +inf becomes NaN in `base_of`.
#pragma once

#include "fragment.h"

constexpr float SLACK = 8.0f;
constexpr float LOG2_E = 1.44269504088896f;
constexpr float LN_2 = 0.693147180559945f;

// The base-2 exponential by one instruction; denormal results are zero.
DEVICE float exp2_flushed(float x) { return __builtin_amdgcn_exp2f(x); }

// What a query's exponents are less: 0 where it saw no key, NaN where it saw a score of +inf.
DEVICE float base_of(float top) { return top == -INF_F ? 0.0f : top + (top - top); }

struct Softmax {
    float top = -INF_F;
    float total = 0.0f;  // of the rows that this lane holds

    // `highest`: of the lane's new scores. Returns what earlier sums are worth from now on.
    DEVICE float move(float highest) {
        const float now = math_max_number(top, column_max(highest));
        const float grown = now - top;  // NaN where both are infinite and alike
        const bool moves = grown > SLACK;
        const float factor = moves ? exp2_flushed(-grown) : 1.0f;
        top = moves ? now : top;
        total *= factor;
        return factor;
    }
};
