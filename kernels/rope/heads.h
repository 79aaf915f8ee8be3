// The heads of q and k by token, and their pairs: what rope and qk_norm_rope share.
//
// LANES threads share the pairs of a head, VEC each, and SLOTS such groups the heads of a token. INDEX is the bits of a
// position (0: there are none); BACKWARD rotates by the opposite angle.
#pragma once

#include "_lib/rows/rows.h"

constexpr int TOKENS = ROWS / SLOTS;
static_assert(ROWS % SLOTS == 0, "a block is whole tokens");

#if INDEX == 32
typedef int32_t Index;
#else
typedef int64_t Index;
#endif

// The heads of one token: q's, then k's. The steps between heads are of q and k, and of where those of k go.
struct Heads {
    const T* q;
    const T* k;
    T* q_rotated;
    T* k_rotated;
    int64_t q_stride, k_stride;
    int q_heads, size;
    int64_t k_step;

    // Values are chosen, not branches: those left nvcc with members in local memory (sm_90a, compiled 2026-11-24).
    DEVICE const T* from(int head) const {
        const bool of_q = head < q_heads;
        const T* base = of_q ? q : k;
        const int64_t stride = of_q ? q_stride : k_stride;
        return base + (of_q ? head : head - q_heads) * stride;
    }
    DEVICE T* to(int head) const {
        const bool of_q = head < q_heads;
        T* base = of_q ? q_rotated : k_rotated;
        return base + (of_q ? head : head - q_heads) * (of_q ? size : k_step);
    }
};

typedef Vector<T, VEC> Columns;

// The columns of a thread's pairs, of `low` and then of `high`, in float32.
DEVICE void unpack(const Columns& low, const Columns& high, float (&value)[2 * VEC]) {
#pragma unroll
    for (int i = 0; i < VEC; ++i) {
        value[i] = low[i];
        value[VEC + i] = high[i];
    }
}

DEVICE void pack(const float (&value)[2 * VEC], Columns& low, Columns& high) {
    float part[VEC];
#pragma unroll
    for (int i = 0; i < VEC; ++i) part[i] = value[i];
    low.round(part);
#pragma unroll
    for (int i = 0; i < VEC; ++i) part[i] = value[VEC + i];
    high.round(part);
}

// Pairs are neighbours, or i and VEC + i.
DEVICE void rotate(float (&value)[2 * VEC], const Vector<W, VEC>& cosine, const Vector<W, VEC>& sine) {
#pragma unroll
    for (int i = 0; i < VEC; ++i) {
        const int first = INTERLEAVED ? 2 * i : i;
        const int second = INTERLEAVED ? 2 * i + 1 : VEC + i;
        const float a = value[first];
        const float b = value[second];
        const float c = cosine[i];
        const float s = BACKWARD ? -sine[i] : sine[i];
        value[first] = math_fma(-b, s, a * c);
        value[second] = math_fma(a, s, b * c);
    }
}
