// Scores, P and the softcap's derivative, an element at a time; and the online softmax of a block of scores, as the
// accumulators of NVIDIA's matrix instructions have them, and AMD's. Scores are in base 2. For CUDA and HIP.
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

// --- the online softmax ---
//
// Lazy rescaling: a row's row_max moves, and its sums are rescaled, only where it grew by more than RESCALE_THRESHOLD;
// the rest cancels in acc_o / row_sum.

#ifdef __CUDACC_RTC__
// In the accumulator layout of mma.sync and wgmma (mask.h): a thread has two rows, a quad shares them. The scale holds
// log2(e).

// softcap * tanh(score / softcap), all but the factor in front: 1 - 2 / (1 + e^2x).
template <int COUNT> DEVICE void apply_softcap(float* scores, float score_scale) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i)
        scores[i] = math_fma(-2.0f, rcp_fast(1.0f + exp2_fast(scores[i] * score_scale)), 1.0f);
}

DEVICE float quad_max(float x) {
    x = math_max(x, shuffle_xor(x, 1));
    return math_max(x, shuffle_xor(x, 2));
}
DEVICE float quad_sum(float x) {
    x += shuffle_xor(x, 1);
    return x + shuffle_xor(x, 2);
}

// What a row's exponents are less: 0 for a row of -inf, NaN for a row with a score of +inf.
DEVICE float exponent_base(float row_max, float scale) {
    const float base = row_max * scale;
    return row_max == -INF_F ? 0.0f : base + (base - base);
}

// A row's factor of acc_o in the end, and its lse.
struct RowResult {
    float inv_sum, lse;
};

// P and row_sum are times 2^P_SCALE_LOG2. With that, P become numbers of few bits and a small range: rescaling is not lazy,
// so that none is above 2^P_SCALE_LOG2.
template <int P_SCALE_LOG2> struct ScaledOnlineSoftmax {
    static constexpr float THRESHOLD = P_SCALE_LOG2 ? 0.0f : RESCALE_THRESHOLD;

    float row_max[2] = {-INF_F, -INF_F}, row_sum[2] = {0.0f, 0.0f};

    // Scores become P; row_max and row_sum go on to this block, and `rescale` is what earlier sums are worth.
    template <int COUNT> DEVICE void step(float* scores, float* rescale, float scale) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float most[2] = {-INF_F, -INF_F};
#pragma unroll
            for (int j = 0; j < COUNT / 4; ++j) {
                most[0] = math_max(most[0], scores[j * 4 + r * 2]);
                most[1] = math_max(most[1], scores[j * 4 + r * 2 + 1]);
            }
            const float now = quad_max(math_max(most[0], most[1]));
            const float grown = (now - row_max[r]) * scale;
            const bool moves = grown > THRESHOLD || now != now;
            rescale[r] = moves ? exp2_fast(-grown) : 1.0f;
            row_max[r] = moves ? now : row_max[r];
        }
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const float base = base_of(r, scale);
            float parts[2] = {row_sum[r] * rescale[r], 0.0f};
#pragma unroll
            for (int j = 0; j < COUNT / 4; ++j) {
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    float& at = scores[j * 4 + r * 2 + e];
                    at = exp2_fast(math_fma(at, scale, -base));
                    parts[e] += at;
                }
            }
            row_sum[r] = parts[0] + parts[1];
        }
    }

    // Of row r, with the head's sink as a power of two (-inf without).
    template <bool Sinks> DEVICE RowResult finalize(int r, float sink, float scale) const {
        float base = base_of(r, scale), total = quad_sum(row_sum[r]), share = 1.0f;
        if constexpr (Sinks) {
            const float most = row_max[r] == -INF_F ? sink : math_max_number(base, sink);
            if (sink != -INF_F) {
                share = row_max[r] == -INF_F ? 0.0f : exp2_fast(base - most);
                total = total * share + exp2_fast(sink - most);
                base = most;
            }
        }
        return {total == 0.0f ? 0.0f : share * rcp_fast(total), base * LN_2 + math_log(total)};
    }

    DEVICE float base_of(int r, float scale) const {
        const float base = exponent_base(row_max[r], scale);
        return P_SCALE_LOG2 ? base - P_SCALE_LOG2 : base;
    }
};
using OnlineSoftmax = ScaledOnlineSoftmax<0>;

template <int COUNT> DEVICE void rescale_o(float* acc_o, const float* rescale) {
    if (!__any_sync(0xffffffffu, rescale[0] != 1.0f || rescale[1] != 1.0f)) return;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) acc_o[i] *= rescale[i / 2 % 2];
}

// P, rounded, as the first operand of the product with v.
template <class T, int COUNT> DEVICE void pack_p(uint32_t* p, const float* scores) {
#pragma unroll
    for (int i = 0; i < COUNT / 2; ++i) p[i] = pack2<T>(scores[i * 2], scores[i * 2 + 1]);
}
#else
// Of the 16 queries whose scores are an accumulator fragment's columns (gfx/tiles.h): a lane has a part of one query's
// keys, lanes of a column share it. A score of -inf hides its key. NaN reaches row_sum by itself; +inf becomes NaN in
// `exponent_base`.

// A row_max as the base of exponents: 0 where no key is seen, NaN where there is a score of +inf.
DEVICE float exponent_base(float row_max) { return row_max == -INF_F ? 0.0f : row_max + (row_max - row_max); }

// P and row_sum are times 2^P_SCALE_LOG2 until the end. In float16 small P would be subnormal, with few digits, and
// zero to the products of MI200; the largest are 2^15.
template <class T> constexpr int LAZY_P_SCALE_LOG2_OF = 0;
template <> constexpr int LAZY_P_SCALE_LOG2_OF<f16> = 10;
template <class T> constexpr float LAZY_THRESHOLD_OF = RESCALE_THRESHOLD;
template <> constexpr float LAZY_THRESHOLD_OF<f16> = 5.0f;

template <class T> struct ColumnSoftmax {
    static constexpr int P_SCALE_LOG2 = LAZY_P_SCALE_LOG2_OF<T>;
    static constexpr float UNSCALE = 1.0f / (1 << P_SCALE_LOG2);
    static constexpr float MOST = 1 << (P_SCALE_LOG2 + static_cast<int>(LAZY_THRESHOLD_OF<T>));

    float row_max = -INF_F;  // of numbers from which P_SCALE_LOG2 is subtracted without rounding
    float row_sum = 0.0f;    // over the keys that this lane holds
    float limit = -INF_F;    // a score above it moves row_max
    float offset = -P_SCALE_LOG2;  // what is subtracted in the row's exponents
    float sum_limit = -1.0f;  // in place of `limit`, for the sum of a lane's new P

    // `column_max`: of the query's new scores. Returns the factor by which earlier accumulators are rescaled.
    DEVICE float update_max(float column_max) {
        const bool rescales = column_max > limit;
        const float now = P_SCALE_LOG2 ? column_max - P_SCALE_LOG2 + P_SCALE_LOG2 : column_max;
        const float factor = rescales ? exp2_ftz(row_max - now) : 1.0f;
        row_max = rescales ? now : row_max;
        row_sum *= factor;
        limit = row_max + LAZY_THRESHOLD_OF<T>;
        offset = exponent_base(row_max) - P_SCALE_LOG2;
        return factor;
    }

    // The same where P of the new scores were added up before: `lane_sum` is the largest sum of the query's lanes. The
    // first scores move row_max. A sum of at most 16 P above sum_limit has one above 1.
    DEVICE float update_max(float column_max, float lane_sum) {
        limit = lane_sum > sum_limit ? row_max : INF_F;
        const float factor = update_max(column_max);
        sum_limit = row_max == -INF_F ? -1.0f : MOST;
        return factor;
    }
};
#endif
