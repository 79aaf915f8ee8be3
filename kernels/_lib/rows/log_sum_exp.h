// The logarithm of the sum of a row's exponentials, in one pass over a row of any length: each lane keeps a running
// maximum and the sum of the exponentials about it.
#pragma once

#include "rows.h"

// Whether the lanes hold a whole row, so that nothing is read in turns.
#ifndef ONE_TILE
#define ONE_TILE 0
#endif

// exp(x) within |x| + 2 units in the last place: a third fewer instructions than math_exp.
DEVICE float exponential(float x) {
#if defined(__AMDGCN__)
    // A square, as the bare instruction has no subnormal results.
    const float half = exp2_fast(x * 0.72134752f);
    return half * half;
#else
    return math_exp2(x * 1.44269504f);
#endif
}

// exp(x) within |x| + 2 units, 0 below 2^-126: beside the 1 of the maximum, which the sum has, that is nothing. One
// instruction where exp2 with subnormal results takes five (gfx942).
DEVICE float addend(float x) { return exp2_fast(x * 1.44269504f); }

// The shift of an exponential: a row of -inf so far must not make what follows NaN.
DEVICE float finite_shift(float maximum) { return maximum == -INF_F ? 0.0f : maximum; }

// An element farther than that below the maximum has an exponential of 0, whatever it is multiplied by.
constexpr float FARTHEST = 200.0f;

// The result of a row whose index is outside it.
DEVICE float not_a_number() { return INF_F - INF_F; }

// What is summed besides: nothing; the elements; the elements times their columns' weights, and the weights; or each
// exponential times its element's distance from the maximum, of which an entropy is made (an exponential of 0 adds
// nothing, whatever the distance).
enum Third { NOTHING, ELEMENTS, WEIGHTED, MOMENT };

// The maximum of a part of a row, the sum of the exponentials about it, and the third sum.
template <Third THIRD> struct LogSumExp {
    static constexpr int COUNT = THIRD == NOTHING ? 2 : 4;
    float value[COUNT];

    DEVICE LogSumExp() {
        value[0] = -INF_F;
#pragma unroll
        for (int k = 1; k < COUNT; ++k) value[k] = 0.0f;
    }
    DEVICE float maximum() const { return value[0]; }
    DEVICE float sum() const { return value[1]; }
    DEVICE float third() const { return value[COUNT / 2]; }
    DEVICE float weights() const { return value[COUNT - 1]; }

    // The maximum grows to `larger`. Returns what exponentials are about then.
    DEVICE float move(float larger) {
        const float shift = finite_shift(larger);
        const float distance = value[0] - shift;
        const float scale = addend(distance);
        if constexpr (THIRD == MOMENT) {
            value[2] = scale > 0.0f ? scale * math_fma(distance, value[1], value[2]) : 0.0f;
        }
        value[1] *= scale;
        value[0] = larger;
        return shift;
    }
    DEVICE void add(float x, float shift, float weight) {
        const float power = addend(x - shift);
        value[1] += power;
        if constexpr (THIRD == ELEMENTS) value[2] += x;
        if constexpr (THIRD == WEIGHTED) {
            value[2] = math_fma(weight, x, value[2]);
            value[3] += weight;
        }
        if constexpr (THIRD == MOMENT) {
            value[2] = math_fma(power, math_max_number(x - shift, -FARTHEST), value[2]);
        }
    }

#if defined(__AMDGCN__)
    // The lane's elements before column `count`, two at a time; those beyond the row are -inf.
    template <class Score>
    DEVICE void add_filled(const Vector<T, VEC> (&held)[CHUNKS], Score score, float shift, int count) {
        static_assert(VEC % 2 == 0, "rows on AMD GPUs are read in vectors");
        float_pair total = {0.0f, 0.0f};
        float_pair moment = {0.0f, 0.0f};
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) {
            if (TAIL && chunk_column(c) >= count) continue;
#pragma unroll
            for (int i = 0; i < VEC; i += 2) {
                const float_pair distance = score(float_pair{held[c][i], held[c][i + 1]}) - shift;
                const float_pair power = {addend(distance[0]), addend(distance[1])};
                total += power;
                if constexpr (THIRD == MOMENT) {
                    const float_pair near = {math_max_number(distance[0], -FARTHEST),
                                             math_max_number(distance[1], -FARTHEST)};
                    moment = pair_fma(power, near, moment);
                }
            }
        }
        value[1] += total[0] + total[1];
        if constexpr (THIRD == MOMENT) value[2] += moment[0] + moment[1];
    }
#endif

    template <int PARTS> DEVICE void merge_warps() {
        move(reduce_warp<Max, PARTS>(value[0]));
        value[1] = reduce_warp<Sum, PARTS>(value[1]);
        if constexpr (THIRD != NOTHING) value[2] = reduce_warp<Sum, PARTS>(value[2]);
        if constexpr (THIRD == WEIGHTED) value[3] = reduce_warp<Sum, PARTS>(value[3]);
    }
    template <int PARTS> DEVICE void merge_blocks() { merge_warps<PARTS>(); }
};

#if defined(__AMDGCN__)
// The greatest of a lane's elements, of which those beyond the row are -inf; NaN passes over it. A signalling NaN may
// make it NaN, and so the row, as its exponential does.
DEVICE float filled_maximum(const Vector<T, VEC> (&held)[CHUNKS], int count) {
    constexpr int NEXT = VEC > 1;
    float maximum = -INF_F;
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
        if (TAIL && chunk_column(c) >= count) continue;
#pragma unroll
        for (int i = 0; i < VEC; i += 2) {
#ifdef HAS_MAX3
            maximum = max3_fast(held[c][i], held[c][i + NEXT], maximum);
#else
            maximum = math_max_number(maximum, math_max_number(held[c][i], held[c][i + NEXT]));
#endif
        }
    }
    return maximum;
}
#endif

// Reads a row of `count` elements once, TILE of them at a time; `score` of an element is what counts, and does not
// fall where the element grows; with ENDLESS that of -inf is -inf. NaN passes over the maximum and comes back through
// the sums. WEIGHTED reads a weight per column.
//
// On AMD GPUs what lies beyond the row is held as -inf where that adds nothing to a sum: a select per element less, and
// maxima of three (gfx950, 65,536 columns of bfloat16: 6.2 vector instructions an element, 9.6 without).
template <Third THIRD, bool ENDLESS, class Score>
DEVICE LogSumExp<THIRD> scan_row(const T* row, int count, Score score, const float* weight = nullptr) {
    LogSumExp<THIRD> part;
    const T* source = lane_ptr(row);
    for (int base = 0; base < count; base += static_cast<int>(TILE)) {
        Vector<T, VEC> held[CHUNKS];
        const bool some = base + chunk_column(0) < count;
#if defined(__AMDGCN__)
        if constexpr (ENDLESS && (THIRD == NOTHING || THIRD == MOMENT)) {
            load_filled<true>(held, source + base, count - base, from_float<T>(-INF_F));
            const float larger = score(filled_maximum(held, count - base));
            const float shift = part.move(some ? math_max_number(part.maximum(), larger) : part.maximum());
            part.add_filled(held, score, shift, count - base);
            if constexpr (ONE_TILE) break;
            continue;
        }
#endif
        load_vectors<true>(held, source, base, count);
        float larger = -INF_F;
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) {
#pragma unroll
            for (int i = 0; i < VEC; ++i) {
                if (inside(base + chunk_column(c), i, count)) larger = math_max_number(larger, held[c][i]);
            }
        }
        const float shift = part.move(some ? math_max_number(part.maximum(), score(larger)) : part.maximum());
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) {
#pragma unroll
            for (int i = 0; i < VEC; ++i) {
                if (!inside(base + chunk_column(c), i, count)) continue;
                part.add(score(held[c][i]), shift, THIRD == WEIGHTED ? weight[base + chunk_column(c) + i] : 1.0f);
            }
        }
        if constexpr (ONE_TILE) break;
    }
    return part;
}

// Merges the lanes' parts of each row in all of them. All threads of the block call it.
template <Third THIRD>
DEVICE void merge_lanes(LogSumExp<THIRD>& part, RowPartial<LogSumExp<THIRD>::COUNT>& partial) {
    part.template merge_warps<WARP_LANES>();
    if constexpr (LANES > WARP) {
        if (warp_lane() == 0) {
#pragma unroll
            for (int k = 0; k < LogSumExp<THIRD>::COUNT; ++k) partial.of_warp[warp_index()][k] = part.value[k];
        }
        merge_row(part, partial);
    }
}
