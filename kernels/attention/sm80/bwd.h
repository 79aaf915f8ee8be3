// What bwd.cu works on: which rows see which, and P of a score.
//
// A block owns rows (keys, or queries of one head), and the others pass by, STEP at a time. Each side has two
// tensors, of HEAD_D and of HEAD_E columns: k and v, or q and do.
//
// Defines: ELEMENT (bf16, f16); KEYS: whether keys are owned, else queries; HEAD_D, HEAD_E: the head sizes, as
// multiples of 16; SUM_D, SUM_E: whether the block makes dk or dq, and dv; WARPS, M_TILES: a warp owns M_TILES * 16
// rows; STEP (of 16); COPY_BYTES, STORE_BYTES: 16 where rows that are read, or written, are aligned to that, else 2;
// SOFTCAP, BIAS; VARLEN: tiles are those that varlen_tiles.cu found; PARAMS_LAYOUT (params.h).
#pragma once

#include "prelude.h"

#include "_lib/ptx/thread_idx.h"
#include "attention/device/params.h"
#include "attention/device/softmax_backward.h"
#include "attention/device/varlen.h"
#include "tiles.h"

using T = ELEMENT;
constexpr int THREADS = WARPS * 32;
constexpr int OWN = M_TILES * 16;  // rows of a warp
constexpr int TILE = WARPS * OWN;
constexpr int SCORES = STEP / 2;  // a thread's, of 16 own rows by STEP
constexpr float LOG2_E = 1.44269504088896f;
static_assert(HEAD_D % 16 == 0 && HEAD_E % 16 == 0 && STEP % 16 == 0, "whole matrix instructions");
static_assert(SUM_D || SUM_E, "something to make");

constexpr int P_SCALE_LOG2 = KEYS ? P_SCALE_LOG2_OF<T> : 0;
constexpr float P_UNSCALE = 1.0f / (1 << P_SCALE_LOG2);

constexpr int D_PITCH = pitch_of(HEAD_D), E_PITCH = pitch_of(HEAD_E);

// --- which rows see which ---

// Own rows from `first` on, below `end`; those that pass by, from `begin` on, below `stop`. Query i sees key j where
// low <= j - i <= high.
struct RowSpan {
    int first, end, begin, stop, low, high;

    // The rows that pass by that own row `own` sees.
    DEVICE int first_seen(int own) const { return KEYS ? own - high : own + low; }
    DEVICE int last_seen(int own) const { return min(KEYS ? own - low : own + high, stop - 1); }

    // Of the STEP rows from `row` on, what a warp's rows from `own` on see.
    DEVICE bool none(int row, int own) const {
        return row + STEP <= first_seen(own) || row > last_seen(own + OWN - 1);
    }
    DEVICE bool all(int row, int own) const {
        return row >= first_seen(own + OWN - 1) && row + STEP - 1 <= last_seen(own);
    }
};

// Times 2^P_SCALE_LOG2, P of a product of a query and a key.
DEVICE float p_of(const AttentionParams& params, float product, float bias, float lse_log2, float& softcap_grad) {
    float score = score_of<SOFTCAP>(product, params.score_scale, params.softcap_log2, softcap_grad);
    if (BIAS) score += bias * LOG2_E;
    return exp2_fast(score - (P_SCALE_LOG2 ? lse_log2 - P_SCALE_LOG2 : lse_log2));
}
