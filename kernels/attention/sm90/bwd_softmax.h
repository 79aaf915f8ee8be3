// P and dS on registers: a warpgroup's 64 keys by QUERIES, transposed.
//
// Defines: bwd_seqlen_info.h's; SOFTCAP.
#pragma once

#include "bwd_seqlen_info.h"

#include "_lib/ptx/thread_idx.h"

constexpr int SCORES = QUERIES / 2;  // of a thread: 64 keys by QUERIES

DEVICE float2 load_pair(uint32_t at) {
    float2 pair;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(pair.x), "=f"(pair.y) : "r"(at) : "memory");
    return pair;
}

// P, and with SOFTCAP the derivative of the cap. `stats` are the queries' in shared memory, from the thread's first
// pair on; their lse_log2 holds P_SCALE_LOG2.
DEVICE void softmax_of(float* p, float* softcap_grad, const float* scores, uint32_t stats,
                       const AttentionParams& params) {
#pragma unroll
    for (int j = 0; j < QUERIES / 8; ++j) {
        const float2 lse_log2 = load_pair(stats + j * 64);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            float grad;
            p[j * 4 + i] = p_of<SOFTCAP, false, 0>(scores[j * 4 + i], 0.0f, i % 2 ? lse_log2.y : lse_log2.x,
                                                   params.score_scale, params.softcap_log2, grad);
            if constexpr (SOFTCAP) softcap_grad[j * 4 + i] = grad;
        }
    }
}

// Zeros where a query does not see a key. Thread `first` holds the first of the keys.
DEVICE void apply_mask(float* p, const BwdSeqlenInfo& seqlen, int query_block, int first_key, int first) {
    const int lane = reload_thread_idx() % 32;
    const int key = first_key + (reload_thread_idx() - first) / 32 * 16 + lane / 4;
#pragma unroll
    for (int down = 0; down < 2; ++down) {
        const int row = key + down * 8;
        const int diagonal = row - seqlen.offset() - query_block * QUERIES - lane % 4 * 2;
        const int from = row < seqlen.keys ? diagonal - seqlen.right : QUERIES;
        const int to = diagonal + seqlen.left;
#pragma unroll
        for (int j = 0; j < QUERIES / 8; ++j) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                float& x = p[j * 4 + down * 2 + i];
                x = j * 8 + i >= from && j * 8 + i <= to ? x : 0;
            }
        }
    }
}

// dS, rounded, from P and dP; with a `softcap_grad` of null the P have been multiplied with it.
DEVICE void softmax_backward(uint32_t* ds16, const uint32_t* p16, const float* dp, const float* softcap_grad,
                             uint32_t stats) {
#pragma unroll
    for (int j = 0; j < QUERIES / 8; ++j) {
        const float2 delta = load_pair(stats + j * 64 + 8);
#pragma unroll
        for (int down = 0; down < 2; ++down) {
            const int i = j * 4 + down * 2;
            const uint32_t pair = p16[j * 2 + down];
            float low = to_float(T{static_cast<uint16_t>(pair)}) * (dp[i] * P_UNSCALE - delta.x);
            float high = to_float(T{static_cast<uint16_t>(pair >> 16)}) * (dp[i + 1] * P_UNSCALE - delta.y);
            if (SOFTCAP && softcap_grad != nullptr) {
                low *= softcap_grad[i];
                high *= softcap_grad[i + 1];
            }
            ds16[j * 2 + down] = pack2<T>(low, high);
        }
    }
}
