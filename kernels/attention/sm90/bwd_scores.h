// From scores to probabilities and to the scores' gradients, on registers: a warpgroup's 64 keys by QUERIES, transposed.
//
// Defines: bwd.h's; CAPPED.
#pragma once

#include "bwd.h"
#include "bwd_async.h"

constexpr int SCORES = QUERIES / 2;  // of a thread: 64 keys by QUERIES

struct Factors {
    float scale;       // of dk
    float to_score;    // from a product to what is capped or, without a cap, to a score in base 2
    float cap;         // to a score in base 2, from what the cap leaves in -1 .. 1
};

// Probabilities, and with CAPPED what the cap's slope leaves of a gradient. `stats` are the queries' in shared memory,
// from the thread's first pair on.
DEVICE void weigh(float* chance, float* bend, const float* scores, uint32_t stats, const Factors& factors) {
#pragma unroll
    for (int j = 0; j < QUERIES / 8; ++j) {
        const float2 lse = load_pair(stats + j * 64);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float x = scores[j * 4 + i];
            const float less = i % 2 ? lse.y : lse.x;
#if CAPPED
            // tanh through exp2, for the approximate tanh is too coarse.
            const float t = 1 - 2 * rcp_fast(1 + exp2_fast(x * factors.to_score));
            bend[j * 4 + i] = 1 - t * t;
            chance[j * 4 + i] = exp2_fast(t * factors.cap - less);
#else
            chance[j * 4 + i] = exp2_fast(x * factors.to_score - less);
#endif
        }
    }
}

// Zeros where a query does not see a key. Thread `first` holds the first of the keys.
DEVICE void hide(float* chance, const Sight& sight, int query_block, int first_key, int first) {
    const int lane = reload_thread_idx() % 32;
    const int key = first_key + (reload_thread_idx() - first) / 32 * 16 + lane / 4;
#pragma unroll
    for (int down = 0; down < 2; ++down) {
        const int row = key + down * 8;
        const int diagonal = row - sight.offset() - query_block * QUERIES - lane % 4 * 2;
        const int from = row < sight.keys ? diagonal - sight.right : QUERIES;
        const int to = diagonal + sight.left;
#pragma unroll
        for (int j = 0; j < QUERIES / 8; ++j) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                float& x = chance[j * 4 + down * 2 + i];
                x = j * 8 + i >= from && j * 8 + i <= to ? x : 0;
            }
        }
    }
}

// Gradients of the scores, from probabilities and their gradients; of a `bend` of null, it is in the probabilities.
DEVICE void bend_back(uint32_t* packed, const uint32_t* chances, const float* slopes, const float* bend,
                      uint32_t stats) {
#pragma unroll
    for (int j = 0; j < QUERIES / 8; ++j) {
        const float2 delta = load_pair(stats + j * 64 + 8);
#pragma unroll
        for (int down = 0; down < 2; ++down) {
            const int i = j * 4 + down * 2;
            const uint32_t pair = chances[j * 2 + down];
            float low = to_float(T{static_cast<uint16_t>(pair)}) * (slopes[i] * LOWERED - delta.x);
            float high = to_float(T{static_cast<uint16_t>(pair >> 16)}) * (slopes[i + 1] * LOWERED - delta.y);
            if (CAPPED && bend != nullptr) {
                low *= bend[i];
                high *= bend[i + 1];
            }
            packed[j * 2 + down] = pack2<T>(low, high);
        }
    }
}
