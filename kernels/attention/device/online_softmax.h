// The online softmax of a block of scores in registers, in the accumulator layout of mma.sync and wgmma (mask.h): a
// thread has two rows, a quad shares them. AMD's: gfx/column_softmax.h.
//
// Scores are in base 2, the scale holds log2(e). A row's row_max moves, and its sums are rescaled, only where it grew
// by more than RESCALE_THRESHOLD; the rest cancels in acc_o / row_sum.
#pragma once

#include "prelude.h"

#include "softmax.h"

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

struct OnlineSoftmax {
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
            const bool moves = grown > RESCALE_THRESHOLD || now != now;
            rescale[r] = moves ? exp2_fast(-grown) : 1.0f;
            row_max[r] = moves ? now : row_max[r];
        }
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const float base = exponent_base(row_max[r], scale);
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
        float base = exponent_base(row_max[r], scale), total = quad_sum(row_sum[r]), share = 1.0f;
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
};

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
