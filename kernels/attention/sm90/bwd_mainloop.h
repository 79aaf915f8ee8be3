// What the main loops of bwd*.cu share: tensor maps, the barriers of what is copied, zeros beyond the end of a sequence,
// and P and dS on registers.
//
// Copies do not know where a sequence ends, and a NaN beyond it, times 0, is a NaN. So a block of keys, values,
// queries or their gradients that crosses the end is announced to a warp, which clears the rows beyond and
// announces it to the others: what they see is zeros, as beyond the end of a tensor.
//
// Defines: bwd.h's; STAGES.
#pragma once

#include "bwd.h"

#include "_lib/ptx/mbarrier.h"

struct Maps {
    const TensorMap *q, *k, *v, *dout, *dk, *dv;
    GlobalRows dk_rows, dv_rows;  // varlen

    DEVICE Maps(const TensorMap& q, const TensorMap& k, const TensorMap& v, const TensorMap& dout, const TensorMap& dk,
                const TensorMap& dv, const AttentionParams& p)
        : q(&q), k(&k), v(&v), dout(&dout), dk(&dk), dv(&dv),
          dk_rows{static_cast<T*>(p.dk), p.dk_head, p.dk_row, p.head_dim},
          dv_rows{static_cast<T*>(p.dv), p.dv_head, p.dv_row, p.head_dim_v} {}
    DEVICE void prefetch() const {
        tma_prefetch_descriptor(q);
        tma_prefetch_descriptor(k);
        tma_prefetch_descriptor(v);
        tma_prefetch_descriptor(dout);
    }
};

// Barriers of 8 bytes of the stages of queries and their gradients: filled, and free again. Varlen: filled, but for the
// rows that are not the sequence's own.
struct StageBarriers {
    uint32_t first;

    DEVICE uint32_t q_full(int stage) const { return first + stage * 32; }
    DEVICE uint32_t q_empty(int stage) const { return q_full(stage) + 8; }
    DEVICE uint32_t dout_full(int stage) const { return q_full(stage) + 16; }
    DEVICE uint32_t dout_empty(int stage) const { return q_full(stage) + 24; }
    DEVICE uint32_t k_partial() const { return q_full(STAGES); }
    DEVICE uint32_t v_partial() const { return k_partial() + 8; }
    DEVICE uint32_t q_partial(int stage) const { return k_partial() + 16 + stage * 16; }
    DEVICE uint32_t dout_partial(int stage) const { return q_partial(stage) + 8; }

    // So many arrivals free a stage of queries, and of gradients.
    DEVICE void init(int q_readers, int dout_readers) const {
        for (int stage = 0; stage < STAGES; ++stage) {
            mbarrier_init(q_full(stage), 1);
            mbarrier_init(q_empty(stage), q_readers);
            mbarrier_init(dout_full(stage), 1);
            mbarrier_init(dout_empty(stage), dout_readers);
        }
        if constexpr (VARLEN)
            for (int i = 0; i < 2 + 2 * STAGES; ++i) mbarrier_init(k_partial() + i * 8, 1);
    }
};

// Once the `phase`-th `partial` is over: zeros in COLUMNS of `rows` rows from row `from` on, then `full`. Lines are
// whole, so it does not matter how they are swizzled.
template <int COLUMNS>
DEVICE void zero_rows(uint32_t at, int from, int rows, uint32_t partial, uint32_t phase, uint32_t full) {
    mbarrier_wait(partial, phase);
    const int lane = reload_thread_idx() % 32;
#pragma unroll 1
    for (int block = 0; block < COLUMNS / 64; ++block) {
#pragma unroll 1
        for (int byte = from * SWIZZLE_BYTES + lane * 16; byte < rows * SWIZZLE_BYTES; byte += 512)
            asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(at + block * rows * SWIZZLE_BYTES + byte),
                         "r"(0)
                         : "memory");
    }
    fence_proxy_async();
    __syncwarp();
    if (lane == 0) mbarrier_arrive(full);
}

// COLUMNS of LINES rows as blocks of 64 columns.
template <int COLUMNS, int LINES>
DEVICE void load_rows(uint32_t to, const TensorMap* map, uint32_t barrier, int row, int head, int batch) {
#pragma unroll
    for (int block = 0; block < COLUMNS / 64; ++block)
        tma_load_4d(to + block * LINES * SWIZZLE_BYTES, map, barrier, block * 64, row, head, batch);
}

// A warp is through with a stage: four arrivals a warpgroup.
DEVICE void release(uint32_t empty) {
    __syncwarp();
    if (reload_thread_idx() % 32 == 0) mbarrier_arrive(empty);
}

// --- P and dS: a warpgroup's 64 keys by QUERIES, transposed ---

constexpr int SCORES = QUERIES / 2;  // of a thread: 64 keys by QUERIES

DEVICE float2 load_pair(uint32_t at) {
    float2 pair;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(pair.x), "=f"(pair.y) : "r"(at) : "memory");
    return pair;
}

// P, and with Softcap the derivative of the cap. `stats` are the queries' in shared memory, from the thread's first
// pair on; their lse_log2 holds P_SCALE_LOG2.
template <bool Softcap>
DEVICE void softmax_of(float* p, float* softcap_grad, const float* scores, uint32_t stats,
                       const AttentionParams& params) {
#pragma unroll
    for (int j = 0; j < QUERIES / 8; ++j) {
        const float2 lse_log2 = load_pair(stats + j * 64);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            float grad;
            p[j * 4 + i] = p_of<Softcap, false, 0>(scores[j * 4 + i], 0.0f, i % 2 ? lse_log2.y : lse_log2.x,
                                                   params.score_scale, params.softcap_log2, grad);
            if constexpr (Softcap) softcap_grad[j * 4 + i] = grad;
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
template <bool Softcap>
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
            if (Softcap && softcap_grad != nullptr) {
                low *= softcap_grad[i];
                high *= softcap_grad[i + 1];
            }
            ds16[j * 2 + down] = pack2<T>(low, high);
        }
    }
}
