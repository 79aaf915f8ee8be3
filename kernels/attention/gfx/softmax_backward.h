// Of attention's gradient on AMD's matrix units: which scores count, and what a score passes on.
//
// Lines are owned, and others pass by: keys and queries, or the other way round.
//
// Defines: T (bf16, f16); KEYS: whether keys are owned, else queries; SOFTCAP, BIAS.
#pragma once

#include "online_softmax.h"

// Query i sees key j where low <= j - i <= high. Of the lines that pass by, those of an own line `own`; OWN lines
// are asked about at a time.
template <int OWN> struct SightOf {
    int low, high, end;  // lines that pass by exist below `end`

    DEVICE int first(int own) const { return KEYS ? own - high : own + low; }
    DEVICE int last(int own) const { return min(KEYS ? own - low : own + high, end - 1); }

    // The LINES lines from `line` on, for OWN lines from `own` on.
    template <int LINES = DEPTH> DEVICE bool none(int line, int own) const {
        return line + LINES <= first(own) || line > last(own + OWN - 1);
    }
    template <int LINES = DEPTH> DEVICE bool all(int line, int own) const {
        return line >= first(own + OWN - 1) && line + LINES - 1 <= last(own);
    }
};

// Weights become 16 bits times 2^LIFT: in float16 small ones would be subnormal.
template <class Type> constexpr int LIFT_OF = 0;
template <> constexpr int LIFT_OF<f16> = 14;
constexpr int LIFT = LIFT_OF<T>;
constexpr float LOWERED = 1.0f / (1 << LIFT);

// What products become: `scale` holds log2(e), and with a cap 2 / softcap, `cap` softcap * log2(e); see
// triton/scores.py.
struct Scores {
    float scale, cap;
};

// `gradient`: of the product, before scale and cap; `above`: of the score, behind the cap.
struct Slope {
    float weight, gradient, above;
};

// The weight (times 2^LIFT where keys are owned) and the gradients of a product `x`; `given`: of the weight.
DEVICE Slope slope_of(const Scores& scores, float x, float bias, float peak, float given, float delta) {
    constexpr bool LIFTED = KEYS && LIFT > 0;
    float score = x * scores.scale, bend = 1.0f;
    if (SOFTCAP) {
        const float curve = 1.0f - 2.0f * rcp_fast(1.0f + exp2_flushed(score));
        score = curve * scores.cap;
        bend = 1.0f - curve * curve;
    }
    if (BIAS) {
        score += bias * LOG2_E;
    }
    const float weight = exp2_flushed(score - (LIFTED ? peak - LIFT : peak));
    const float above = (given - delta) * (LIFTED ? LOWERED : 1.0f) * weight;
    return {weight, SOFTCAP ? above * bend : above, above};
}
