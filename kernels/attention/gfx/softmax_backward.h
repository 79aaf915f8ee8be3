// What the gradient kernels share on AMD's matrix units: which scores the mask shows, and the backward of the softmax.
//
// A block owns keys and streams the queries that see them (dk, dv), or owns queries and streams keys (dq, dbias).
//
// Defines: T (bf16, f16); OWNS_KEYS: whether blocks own keys, else queries; SOFTCAP, BIAS.
#pragma once

#include "online_softmax.h"

// Query i sees key j where low <= j - i <= high. The streamed rows that an own row sees (or that see it); bounds are
// tested for OWN own rows at a time.
template <int OWN> struct MaskBounds {
    int low, high, end;  // streamed rows exist below `end`

    DEVICE int first(int own) const { return OWNS_KEYS ? own - high : own + low; }
    DEVICE int last(int own) const { return min(OWNS_KEYS ? own - low : own + high, end - 1); }

    // Whether all scores of ROWS streamed rows from `row` on and OWN own rows from `own` on are hidden, or none is.
    template <int ROWS = MMA_M> DEVICE bool all_hidden(int row, int own) const {
        return row + ROWS <= first(own) || row > last(own + OWN - 1);
    }
    template <int ROWS = MMA_M> DEVICE bool all_seen(int row, int own) const {
        return row >= first(own + OWN - 1) && row + ROWS - 1 <= last(own);
    }
};

// P is rounded to 16 bits times 2^P_SCALE_LOG2: small values would be subnormal in float16.
template <class Type> constexpr int P_SCALE_LOG2_OF = 0;
template <> constexpr int P_SCALE_LOG2_OF<f16> = 14;
constexpr int P_SCALE_LOG2 = P_SCALE_LOG2_OF<T>;
constexpr float P_UNSCALE = 1.0f / (1 << P_SCALE_LOG2);

// How products become scores in base 2: `scale` holds log2(e), or with a softcap 2 * log2(e) / softcap; `cap` is
// softcap * log2(e). tanh(x) = 1 - 2 / (1 + exp(2 * x)).
struct ScoreScale {
    float scale, cap;
};

// `ds`: the gradient of the product, before scale and softcap; `dbias`: of the score behind the softcap.
struct SoftmaxGradient {
    float p, ds, dbias;
};

// P (times 2^P_SCALE_LOG2 where blocks own keys) and the gradients of a product `x`; `dp`: the gradient of P.
DEVICE SoftmaxGradient softmax_backward(const ScoreScale& how, float x, float bias, float lse_log2, float dp,
                                        float delta) {
    constexpr bool SCALED = OWNS_KEYS && P_SCALE_LOG2 > 0;
    float score = x * how.scale, softcap_grad = 1.0f;
    if (SOFTCAP) {
        const float tanh = 1.0f - 2.0f * rcp_fast(1.0f + exp2_ftz(score));
        score = tanh * how.cap;
        softcap_grad = 1.0f - tanh * tanh;
    }
    if (BIAS) {
        score += bias * LOG2_E;
    }
    const float p = exp2_ftz(score - (SCALED ? lse_log2 - P_SCALE_LOG2 : lse_log2));
    const float dbias = (dp - delta) * (SCALED ? P_UNSCALE : 1.0f) * p;
    return {p, SOFTCAP ? dbias * softcap_grad : dbias, dbias};
}
