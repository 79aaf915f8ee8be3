// rms_norm, or layer_norm where CENTERED, of long rows that go through a ring in shared memory. A block
// keeps its part of the weight, and then of the bias, for all its rows: as many chunks of them as HOLD says.
#pragma once

#define TENSORS 1
#include "moments.h"
#include "ring.h"

#if CENTERED
typedef Moments Statistics;
constexpr int STATISTICS = 2;
#else
struct Statistics : Combined<Sum, 1> {
    DEVICE explicit Statistics(const Shares&) {}
};
constexpr int STATISTICS = 1;
#endif
constexpr int GROUP = CHUNKS < 4 ? CHUNKS : 4;    // chunks whose parameters are loaded together

// What the lane's warp finds in the row at `place`: lane k gets value k.
DEVICE float statistics_of(const Ring<STATISTICS>& ring, const RingPosition& row, float inverse_warp, int length) {
    RingPosition place = row;
    float sum = 0.0f;
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c, place.advance()) {
        ring.wait(place);
        const cell<T, VEC> x = ring.read(place, 0, c, length);
#pragma unroll
        for (int i = 0; i < VEC; ++i) sum = CENTERED ? sum + x[i] : math_fma(x[i], x[i], sum);
    }
    sum = reduce_warp<Sum, WARP>(sum);
#if CENTERED
    const float mean = sum * inverse_warp;
    float squares = 0.0f;
    place = row;
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c, place.advance()) {
        const cell<T, VEC> x = ring.read(place, 0, c, length);
        if (chunk_column(c) < length) {
#pragma unroll
            for (int i = 0; i < VEC; ++i) squares = math_fma(x[i] - mean, x[i] - mean, squares);
        }
    }
    squares = reduce_warp<Sum, WARP>(squares);
    return warp_lane() == 0 ? mean : squares;
#else
    return sum;
#endif
}

// Of a parameter's chunks, the first KEPT stay with the lane.
template <int KEPT> struct Parameter {
    cell<W, VEC> kept[KEPT > 0 ? KEPT : 1];
    cell<W, VEC> near[GROUP];
    const W* source;

    DEVICE void start(const W* parameter, int length) {
        source = at_lane(parameter);
#pragma unroll
        for (int c = 0; c < KEPT; ++c) {
            kept[c] = load_cell<false>(source + c * CHUNK, chunk_column(c), length);
        }
    }
    // Loads what does not stay of the group of chunks from `first` on.
    DEVICE void load(int first, int length) {
#pragma unroll
        for (int c = 0; c < GROUP; ++c) {
            const int chunk = first + c;
            if (chunk < KEPT) continue;
            near[c] = load_cell<false>(source + chunk * CHUNK, chunk_column(chunk), length);
        }
    }
    DEVICE float at(int chunk, int i) const {
        return chunk < KEPT ? kept[chunk < KEPT ? chunk : 0][i] : near[chunk % GROUP][i];
    }
    DEVICE void drop(int64_t count) {
        const uint32_t zero = static_cast<uint32_t>(count >> 63);
#pragma unroll
        for (int c = 0; c < KEPT; ++c) kept[c].flip(zero);
    }
};

DEVICE void ring_norm(const T* x, const W* weight, const W* bias, T* y, int64_t rows, int length,
                      int64_t x_stride, int64_t y_stride, float eps, int blocks) {
    SHARED Totals<STATISTICS> totals;
    const Ring<STATISTICS> ring(totals, rows, blocks);
    if (!ring.works()) {
        if (ring.merges()) {
            const Shares shares(length);
            ring.merge(Statistics(shares));
        } else {
            ring.fill({x}, {x_stride}, blocks, length);
        }
        return;
    }
    const Shares shares(length);
    const float inverse_warp = shares.inverse_warp();
    Parameter<(HOLD < CHUNKS ? HOLD : CHUNKS)> scale;
    Parameter<(HOLD > CHUNKS ? HOLD - CHUNKS : 0)> shift;
    if constexpr (HAS_WEIGHT) scale.start(weight, length);
    if constexpr (HAS_BIAS) shift.start(bias, length);
    RingPosition here;
    RingPosition ahead;
    if (AHEAD && ring.turns > 0) ring.show(0, statistics_of(ring, ahead, inverse_warp, length));
    T* target = at_lane(y + row_block() * y_stride);
#pragma unroll 1
    for (int turn = 0; turn < ring.turns; ++turn, target += blocks * y_stride) {
        if constexpr (AHEAD) {
#pragma unroll
            for (int c = 0; c < CHUNKS; ++c) ahead.advance();
            if (turn + 1 < ring.turns) {
                ring.show(turn + 1, statistics_of(ring, ahead, inverse_warp, length));
            }
        } else {
            ring.show(turn, statistics_of(ring, here, inverse_warp, length));
        }
        if constexpr (HAS_WEIGHT) scale.drop(rows);
        if constexpr (HAS_BIAS) shift.drop(rows);
        Statistics found(shares);
        float mean = 0.0f;
        float r = 0.0f;
#pragma unroll
        for (int first = 0; first < CHUNKS; first += GROUP) {
            if constexpr (HAS_WEIGHT) scale.load(first, length);
            if constexpr (HAS_BIAS) shift.load(first, length);
            if (first == 0) {
                ring.total(found, turn);
                if constexpr (CENTERED) mean = found.value[0];
                r = math_rsqrt(math_fma(found.value[STATISTICS - 1], shares.row, eps));
            }
#pragma unroll
            for (int c = 0; c < GROUP; ++c, here.advance()) {
                const cell<T, VEC> held = ring.read(here, 0, first + c, length);
                float value[VEC];
#pragma unroll
                for (int i = 0; i < VEC; ++i) {
                    value[i] = CENTERED ? (held[i] - mean) * r : held[i] * r;
                    if constexpr (HAS_WEIGHT) value[i] *= scale.at(first + c, i);
                    if constexpr (HAS_BIAS) value[i] += shift.at(first + c, i);
                }
                store_cell(target + (first + c) * CHUNK, chunk_column(first + c), length, value);
                ring.release(here);
            }
        }
    }
}
