// rms_norm, or layer_norm where CENTERED, of long rows that go through a ring in shared memory. Of the weight
// and the bias a block keeps its part for all its rows (HOLD 2), of the weight alone (1), or of neither (0).
#pragma once

#define TENSORS 1
#include "_common/moments.h"
#include "_common/ring.h"

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
DEVICE float statistics_of(const Ring<STATISTICS>& ring, const Place& row, float inverse_warp, int length) {
    Place place = row;
    float sum = 0.0f;
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c, place.next()) {
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
    for (int c = 0; c < CHUNKS; ++c, place.next()) {
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

// The lane's weights and shifts of chunks from `first` on.
template <int COUNT> struct Parameters {
    cell<W, VEC> scale[COUNT];
    cell<W, VEC> shift[COUNT];

    DEVICE void load_scale(const W* weight, int first, int length) {
#pragma unroll
        for (int c = 0; c < COUNT; ++c) {
            const W* source = at_lane(weight) + (first + c) * CHUNK;
            scale[c] = load_cell<false>(source, chunk_column(first + c), length);
        }
    }
    DEVICE void load_shift(const W* bias, int first, int length) {
#pragma unroll
        for (int c = 0; c < COUNT; ++c) {
            const W* source = at_lane(bias) + (first + c) * CHUNK;
            shift[c] = load_cell<false>(source, chunk_column(first + c), length);
        }
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
    Parameters<CHUNKS> kept;
    if constexpr (HAS_WEIGHT && HOLD > 0) kept.load_scale(weight, 0, length);
    if constexpr (HAS_BIAS && HOLD > 1) kept.load_shift(bias, 0, length);
    Place here;
    Place ahead;
    if (AHEAD && ring.turns > 0) ring.show(0, statistics_of(ring, ahead, inverse_warp, length));
    T* target = at_lane(y + row_block() * y_stride);
#pragma unroll 1
    for (int turn = 0; turn < ring.turns; ++turn, target += blocks * y_stride) {
        if constexpr (AHEAD) {
#pragma unroll
            for (int c = 0; c < CHUNKS; ++c) ahead.next();
            if (turn + 1 < ring.turns) {
                ring.show(turn + 1, statistics_of(ring, ahead, inverse_warp, length));
            }
        } else {
            ring.show(turn, statistics_of(ring, here, inverse_warp, length));
        }
        if constexpr (HAS_WEIGHT && HOLD > 0) drop_unpacked(kept.scale, rows);
        if constexpr (HAS_BIAS && HOLD > 1) drop_unpacked(kept.shift, rows);
        Statistics found(shares);
        float mean = 0.0f;
        float r = 0.0f;
#pragma unroll
        for (int first = 0; first < CHUNKS; first += GROUP) {
            Parameters<GROUP> near;
            if constexpr (HAS_WEIGHT && HOLD < 1) near.load_scale(weight, first, length);
            if constexpr (HAS_BIAS && HOLD < 2) near.load_shift(bias, first, length);
            if (first == 0) {
                ring.total(found, turn);
                if constexpr (CENTERED) mean = found.value[0];
                r = math_rsqrt(math_fma(found.value[STATISTICS - 1], shares.row, eps));
            }
#pragma unroll
            for (int c = 0; c < GROUP; ++c, here.next()) {
                const cell<T, VEC> held = ring.read(here, 0, first + c, length);
                const cell<W, VEC>& scale = HOLD > 0 ? kept.scale[first + c] : near.scale[c];
                const cell<W, VEC>& shift = HOLD > 1 ? kept.shift[first + c] : near.shift[c];
                float value[VEC];
#pragma unroll
                for (int i = 0; i < VEC; ++i) {
                    value[i] = CENTERED ? (held[i] - mean) * r : held[i] * r;
                    if constexpr (HAS_WEIGHT) value[i] *= scale[i];
                    if constexpr (HAS_BIAS) value[i] += shift[i];
                }
                store_cell(target + (first + c) * CHUNK, chunk_column(first + c), length, value);
                ring.release(here);
            }
        }
    }
}
