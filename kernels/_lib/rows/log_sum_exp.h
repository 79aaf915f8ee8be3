// The logarithm of the sum of a row's exponentials, in one pass over a row of any length: each lane keeps a running
// maximum and the sum of the exponentials about it.
#pragma once

#include "rows.h"

// exp(x) within |x| + 2 units in the last place: a third fewer instructions than math_exp.
DEVICE float exponential(float x) { return math_exp2(x * 1.44269504f); }

// exp(x) within |x| + 2 units, 0 below 2^-126: beside the 1 of the maximum, which the sum has, that is nothing. One
// instruction where exp2 with subnormal results takes five (gfx942).
DEVICE float addend(float x) { return exp2_fast(x * 1.44269504f); }

// The shift of an exponential: a row of -inf so far must not make what follows NaN.
DEVICE float finite_shift(float maximum) { return maximum == -INF_F ? 0.0f : maximum; }

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
        if constexpr (THIRD == MOMENT) value[2] += power > 0.0f ? power * (x - shift) : 0.0f;
    }

    template <int PARTS> DEVICE void merge_warps() {
        move(reduce_warp<Max, PARTS>(value[0]));
        value[1] = reduce_warp<Sum, PARTS>(value[1]);
        if constexpr (THIRD != NOTHING) value[2] = reduce_warp<Sum, PARTS>(value[2]);
        if constexpr (THIRD == WEIGHTED) value[3] = reduce_warp<Sum, PARTS>(value[3]);
    }
    template <int PARTS> DEVICE void merge_blocks() { merge_warps<PARTS>(); }
};

// Reads a row of `count` elements once, TILE of them at a time; `score` of an element is what counts, and does not
// fall where the element grows. NaN passes over the maximum and comes back through the sums. WEIGHTED reads a weight per
// column.
template <Third THIRD, class Score>
DEVICE LogSumExp<THIRD> scan_row(const T* row, int count, Score score, const float* weight = nullptr) {
    LogSumExp<THIRD> part;
    const T* source = lane_ptr(row);
    for (int base = 0; base < count; base += static_cast<int>(TILE)) {
        Vector<T, VEC> held[CHUNKS];
        load_vectors<true>(held, source, base, count);
        float larger = -INF_F;
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) {
#pragma unroll
            for (int i = 0; i < VEC; ++i) {
                if (inside(base + chunk_column(c), i, count)) larger = math_max_number(larger, held[c][i]);
            }
        }
        const bool some = base + chunk_column(0) < count;
        const float shift = part.move(some ? math_max_number(part.maximum(), score(larger)) : part.maximum());
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) {
#pragma unroll
            for (int i = 0; i < VEC; ++i) {
                if (!inside(base + chunk_column(c), i, count)) continue;
                part.add(score(held[c][i]), shift, THIRD == WEIGHTED ? weight[base + chunk_column(c) + i] : 1.0f);
            }
        }
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
