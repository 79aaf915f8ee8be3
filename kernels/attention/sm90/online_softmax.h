// What sm90/fwd.cu and sm80/fwd.cu do with a block of scores in registers. Of a warp's 16 rows, thread t has row
// t / 4 and the eighth below it (r = 0, 1): score 4 * j + 2 * r + e is that of key 8 * j + t % 4 * 2 + e.
#pragma once

#include "prelude.h"

constexpr float LN_2 = 0.693147180559945f;
constexpr float LOG2_E = 1.44269504088896f;
constexpr int SCORES = TILE_N / 2;  // a thread's, of a warp's 16 x TILE_N
constexpr int SUMS = HEAD_E / 2;
constexpr float SLACK = 8;

// Scores of keys from `key` on, for the thread's queries `row` and the eighth after it: -inf where not seen.
DEVICE void mask(float* scores, int row, int key, int m, int n, int left, int right) {
    const int column = key + thread_x() % 4 * 2;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const int diagonal = row + r * 8 + n - m - column;
        const int last = RIGHT ? min(n - 1 - column, diagonal + right) : n - 1 - column;
        const int first = diagonal - left;
#pragma unroll
        for (int j = 0; j < SCORES / 4; ++j) {
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const int at = j * 8 + e;
                if (at > last || (LEFT && at < first)) scores[j * 4 + r * 2 + e] = -INF_F;
            }
        }
    }
}

// softcap * tanh(score / softcap), all but the factor in front: 1 - 2 / (1 + e^2x).
DEVICE void cap(float* scores, float inner) {
#pragma unroll
    for (int i = 0; i < SCORES; ++i)
        scores[i] = math_fma(-2.0f, rcp_fast(1.0f + exp2_fast(scores[i] * inner)), 1.0f);
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
DEVICE float base_of(float top, float scale) {
    const float base = top * scale;
    return top == -INF_F ? 0.0f : base + (base - base);
}

// Scores become weights; `top` and `sum` go on to this block, and `factor` is what earlier sums are worth.
DEVICE void soften(float* scores, float* top, float* sum, float* factor, float scale) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        float most[2] = {-INF_F, -INF_F};
#pragma unroll
        for (int j = 0; j < SCORES / 4; ++j) {
            most[0] = math_max(most[0], scores[j * 4 + r * 2]);
            most[1] = math_max(most[1], scores[j * 4 + r * 2 + 1]);
        }
        const float now = quad_max(math_max(most[0], most[1]));
        const float grown = (now - top[r]) * scale;
        const bool moves = grown > SLACK || now != now;
        factor[r] = moves ? exp2_fast(-grown) : 1.0f;
        top[r] = moves ? now : top[r];
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const float base = base_of(top[r], scale);
        float parts[2] = {sum[r] * factor[r], 0.0f};
#pragma unroll
        for (int j = 0; j < SCORES / 4; ++j) {
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                float& at = scores[j * 4 + r * 2 + e];
                at = exp2_fast(math_fma(at, scale, -base));
                parts[e] += at;
            }
        }
        sum[r] = parts[0] + parts[1];
    }
}

DEVICE void rescale(float* sums, const float* factor) {
    if (!__any_sync(0xffffffffu, factor[0] != 1.0f || factor[1] != 1.0f)) return;
#pragma unroll
    for (int i = 0; i < SUMS; ++i) sums[i] *= factor[i / 2 % 2];
}

template <class T> DEVICE void pack_weights(uint32_t* weights, const float* scores) {
#pragma unroll
    for (int i = 0; i < SCORES / 2; ++i) weights[i] = pack2<T>(scores[i * 2], scores[i * 2 + 1]);
}

// What a row's sums are multiplied by in the end, and its lse. `sink` is a power of two.
struct Result {
    float share, lse;
};
DEVICE Result result_of(float top, float sum, float sink, float scale) {
    float base = base_of(top, scale), total = quad_sum(sum), share = 1.0f;
#if SINKS
    const float most = top == -INF_F ? sink : math_max_number(base, sink);
    if (sink != -INF_F) {
        share = top == -INF_F ? 0.0f : exp2_fast(base - most);
        total = total * share + exp2_fast(sink - most);
        base = most;
    }
#endif
    return {total == 0.0f ? 0.0f : share * rcp_fast(total), base * LN_2 + math_log(total)};
}
