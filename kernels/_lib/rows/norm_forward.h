// rms_norm, or layer_norm with CENTERED, of long rows through a ring in shared memory (ring.h). A block keeps HOLD
// chunks of the weight, and then of the bias, in registers for all its rows.
#pragma once

#define TENSORS 1
#include "moments.h"
#include "ring.h"

#if CENTERED
typedef Moments Statistics;
constexpr int STATISTICS = 2;
#else
struct Statistics : Combined<Sum, 1> {
    DEVICE explicit Statistics(const ElementCounts&) {}
};
constexpr int STATISTICS = 1;
#endif
constexpr int GROUP = CHUNKS < 4 ? CHUNKS : 4;    // chunks whose parameters are loaded together

// The warp's statistics of the row at `row`: lane k gets value k.
DEVICE float statistics_of(const Ring<STATISTICS>& ring, const RingPosition& row, float inverse_warp, int length) {
    RingPosition place = row;
    float sum = 0.0f;
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c, place.advance()) {
        ring.wait(place);
        const Vector<T, VEC> x = ring.read(place, 0, c, length);
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
        const Vector<T, VEC> x = ring.read(place, 0, c, length);
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

// A parameter, of whose chunks the first KEPT stay in registers.
template <int KEPT> struct Parameter {
    Vector<W, VEC> kept[KEPT > 0 ? KEPT : 1];
    Vector<W, VEC> near[GROUP];
    const W* source;

    DEVICE void start(const W* parameter, int length) {
        source = lane_ptr(parameter);
#pragma unroll
        for (int c = 0; c < KEPT; ++c) {
            kept[c] = load_vector<false>(source + c * CHUNK, chunk_column(c), length);
        }
    }
    // Loads those of the GROUP chunks from `first` on that are not kept.
    DEVICE void load(int first, int length) {
#pragma unroll
        for (int c = 0; c < GROUP; ++c) {
            const int chunk = first + c;
            if (chunk < KEPT) continue;
            near[c] = load_vector<false>(source + chunk * CHUNK, chunk_column(chunk), length);
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
    if (!ring.is_compute_warp()) {
        if (ring.is_reduce_warp()) {
            const ElementCounts counts(length);
            ring.reduce_rows(Statistics(counts));
        } else {
            ring.load_rows({x}, {x_stride}, blocks, length);
        }
        return;
    }
    const ElementCounts counts(length);
    const float inverse_warp = counts.inverse_warp();
    Parameter<(HOLD < CHUNKS ? HOLD : CHUNKS)> scale;
    Parameter<(HOLD > CHUNKS ? HOLD - CHUNKS : 0)> shift;
    if constexpr (HAS_WEIGHT) scale.start(weight, length);
    if constexpr (HAS_BIAS) shift.start(bias, length);
    RingPosition here;
    RingPosition ahead;
    if (AHEAD && ring.row_count > 0) ring.publish(0, statistics_of(ring, ahead, inverse_warp, length));
    T* target = lane_ptr(y + row_block() * y_stride);
#pragma unroll 1
    for (int local_row = 0; local_row < ring.row_count; ++local_row, target += blocks * y_stride) {
        if constexpr (AHEAD) {
#pragma unroll
            for (int c = 0; c < CHUNKS; ++c) ahead.advance();
            if (local_row + 1 < ring.row_count) {
                ring.publish(local_row + 1, statistics_of(ring, ahead, inverse_warp, length));
            }
        } else {
            ring.publish(local_row, statistics_of(ring, here, inverse_warp, length));
        }
        if constexpr (HAS_WEIGHT) scale.drop(rows);
        if constexpr (HAS_BIAS) shift.drop(rows);
        Statistics found(counts);
        float mean = 0.0f;
        float r = 0.0f;
#pragma unroll
        for (int first = 0; first < CHUNKS; first += GROUP) {
            if constexpr (HAS_WEIGHT) scale.load(first, length);
            if constexpr (HAS_BIAS) shift.load(first, length);
            if (first == 0) {
                ring.wait_total(found, local_row);
                if constexpr (CENTERED) mean = found.value[0];
                r = math_rsqrt(math_fma(found.value[STATISTICS - 1], counts.row, eps));
            }
#pragma unroll
            for (int c = 0; c < GROUP; ++c, here.advance()) {
                const Vector<T, VEC> held = ring.read(here, 0, first + c, length);
                float value[VEC];
#pragma unroll
                for (int i = 0; i < VEC; ++i) {
                    value[i] = CENTERED ? (held[i] - mean) * r : held[i] * r;
                    if constexpr (HAS_WEIGHT) value[i] = before_weight(value[i]) * offset_weight(scale.at(first + c, i));
                    if constexpr (HAS_BIAS) value[i] += shift.at(first + c, i);
                }
                store_vector(target + (first + c) * CHUNK, chunk_column(first + c), length, value);
                ring.release(here);
            }
        }
    }
}
