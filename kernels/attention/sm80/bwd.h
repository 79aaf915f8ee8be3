// What bwd.cu works on: which lines see which, a score's weight.
//
// A block owns lines (keys, or queries of one head), and the others pass by, STEP at a time. Each side has two
// tensors, of HEAD_D and of HEAD_E columns: k and v, or q and do.
//
// Defines: ELEMENT (bf16, f16); KEYS: whether keys are owned, else queries; HEAD_D, HEAD_E: the head sizes, as
// multiples of 16; SUM_D, SUM_E: whether the block makes dk or dq, and dv; WARPS, GROUPS: a warp owns GROUPS * 16
// lines; STEP (of 16); COPY_BYTES, STORE_BYTES: 16 where rows that are read, or written, are aligned to that, else 2;
// SOFTCAP, BIAS; RAGGED: packed sequences.
#pragma once

#include "prelude.h"

#include "_lib/ptx/thread_idx.h"
#include "tiles.h"
#if RAGGED
#include "attention/device/varlen.h"
#endif

using T = ELEMENT;
constexpr int THREADS = WARPS * 32;
constexpr int OWN = GROUPS * 16;  // lines of a warp
constexpr int TILE = WARPS * OWN;
constexpr int SCORES = STEP / 2;  // a thread's, of 16 own lines by STEP
constexpr float LOG2_E = 1.44269504088896f;
static_assert(HEAD_D % 16 == 0 && HEAD_E % 16 == 0 && STEP % 16 == 0, "whole matrix instructions");
static_assert(SUM_D || SUM_E, "something to make");

// Weights become 16 bits times 2^LIFT: in float16 small ones would be subnormal.
template <class Type> constexpr int LIFT_OF = 0;
template <> constexpr int LIFT_OF<f16> = 14;
constexpr int LIFT = KEYS ? LIFT_OF<T> : 0;
constexpr float LOWERED = 1.0f / (1 << LIFT);

constexpr int D_PITCH = pitch_of(HEAD_D), E_PITCH = pitch_of(HEAD_E);

// --- which lines see which ---

// Own lines from `first` on, below `end`; those that pass by, from `begin` on, below `stop`. Query i sees key j where
// low <= j - i <= high.
struct Span {
    int first, end, begin, stop, low, high;

    // The lines that pass by that own line `own` sees.
    DEVICE int first_seen(int own) const { return KEYS ? own - high : own + low; }
    DEVICE int last_seen(int own) const { return min(KEYS ? own - low : own + high, stop - 1); }

    // Of the STEP lines from `line` on, what a warp's lines from `own` on see.
    DEVICE bool none(int line, int own) const {
        return line + STEP <= first_seen(own) || line > last_seen(own + OWN - 1);
    }
    DEVICE bool all(int line, int own) const {
        return line >= first_seen(own + OWN - 1) && line + STEP - 1 <= last_seen(own);
    }
};

// --- a score ---

// What products become: `scale` holds log2(e), and with a cap 2 / softcap; `cap` is softcap * log2(e).
struct Scores {
    float scale, cap;
};

// A score's weight, times 2^LIFT, from the product of its query and key; `bend` is the derivative of the cap.
DEVICE float weight_of(const Scores& scores, float product, float bias, float peak, float& bend) {
    float score = product * scores.scale;
#if SOFTCAP
    // tanh through exp2, for the approximate tanh is too coarse.
    const float curve = 1.0f - 2.0f * rcp_fast(1.0f + exp2_fast(score));
    bend = 1.0f - curve * curve;
    score = curve * scores.cap;
#endif
    if (BIAS) score += bias * LOG2_E;
    return exp2_fast(score - (LIFT ? peak - LIFT : peak));
}
