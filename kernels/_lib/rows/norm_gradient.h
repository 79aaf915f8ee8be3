// The gradient of rms_norm, or of layer_norm with CENTERED: dx of each row, and the sums over the rows of a block (or
// cluster) for dweight and dbias, with rows through a ring in shared memory (ring.h).
//
// With r = 1 / deviation, g = dy * weight and n = (x - mean) * r:
// dx = r * (g - mean(g) - n * mean(g * n)), dweight = sum of dy * n, dbias = sum of dy,
// where rms_norm has no mean(g), and 0 for mean. r is never squared or cubed: it may be as large as 2^63.
#pragma once

#define TENSORS 2
#include "columns.h"
#include "moments.h"
#include "ring.h"

static_assert(AHEAD, "two rows fit the ring");

#if CENTERED
// Of a part of a row: the mean of x, the squared deviations from it, the sums of g and of g * (x - mean).
struct Products {
    static constexpr int COUNT = 4;
    const ElementCounts& counts;
    float value[COUNT];

    DEVICE explicit Products(const ElementCounts& counts) : counts(counts) {}

    template <int PARTS> DEVICE void merge_warps() { merge<PARTS>(counts.lane_warp, counts.block); }
    template <int PARTS> DEVICE void merge_blocks() { merge<PARTS>(counts.lane_block, counts.row); }
    template <int PARTS> DEVICE void merge(float elements, float inverse) {
        const float delta = merge_moments<PARTS>(value[0], value[1], elements, inverse);
        value[3] = reduce_warp<Sum, PARTS>(math_fma(delta, value[2], value[3]));
        value[2] = reduce_warp<Sum, PARTS>(value[2]);
    }
};
#else
// Of a part of a row: the sums of x^2 and of g * x.
struct Products : Combined<Sum, 2> {
    static constexpr int COUNT = 2;
    DEVICE explicit Products(const ElementCounts&) {}
};
#endif

// The warp's statistics of the row at `place`: lane k gets value k.
template <class Source>
DEVICE float products_of(const Source& ring, RingPosition place, const Scale& scale, const ElementCounts& counts,
                         float inverse_warp, int length) {
#if CENTERED
    Vector<T, VEC> x[CHUNKS];
    float sum = 0.0f;
    RingPosition next = place;
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c, next.advance()) {
        ring.wait(next);
        x[c] = ring.read(next, 0, c, length);
#pragma unroll
        for (int i = 0; i < VEC; ++i) sum += x[c][i];
    }
    const float mean = reduce_warp<Sum, WARP>(sum) * inverse_warp;
    float value[4] = {};
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c, place.advance()) {
        const Vector<T, VEC> dy = ring.read(place, 1, c, length);
        float squares = 0.0f;
#pragma unroll
        for (int i = 0; i < VEC; ++i) {
            const float delta = x[c][i] - mean;
            const float g = scale.times(dy[i], c, i);    // zero beyond the row
            squares = math_fma(delta, delta, squares);
            value[2] += g;
            value[3] = math_fma(g, delta, value[3]);
        }
        value[1] += chunk_column(c) < length ? squares : 0.0f;
    }
    const float mine = fold_warp(value);
    return warp_lane() == 0 ? mean : mine;
#else
    float value[2] = {};
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c, place.advance()) {
        ring.wait(place);
        const Vector<T, VEC> x = ring.read(place, 0, c, length);
        const Vector<T, VEC> dy = ring.read(place, 1, c, length);
#pragma unroll
        for (int i = 0; i < VEC; ++i) {
            value[0] = math_fma(x[i], x[i], value[0]);
            value[1] = math_fma(scale.times(dy[i], c, i), x[i], value[1]);
        }
    }
    return fold_warp(value);
#endif
}

DEVICE void ring_gradient(const T* dy, const T* x, const W* weight, T* dx, float* columns, int64_t rows,
                          int length, int64_t dy_stride, int64_t x_stride, int64_t dx_stride, float eps,
                          int blocks) {
    SHARED Totals<Products::COUNT> totals;
    const Ring<Products::COUNT> ring(totals, rows, blocks);
    if (!ring.is_compute_warp()) {
        if (ring.is_reduce_warp()) {
            const ElementCounts counts(length);
            ring.reduce_rows(Products(counts));
        } else {
            ring.load_rows({x, dy}, {x_stride, dy_stride}, blocks, length);
        }
        return;
    }
    const ElementCounts counts(length);
    const float inverse_warp = counts.inverse_warp();
    Scale scale;
    scale.load(weight, length);
    float sum_weight[CHUNKS][VEC] = {};
    float sum_bias[CHUNKS][VEC] = {};
    RingPosition ahead;
    RingPosition here;
    if (ring.row_count > 0) ring.publish(0, products_of(ring, ahead, scale, counts, inverse_warp, length));
    T* dx_row = lane_ptr(dx + row_block() * dx_stride);
#pragma unroll 1
    for (int local_row = 0; local_row < ring.row_count; ++local_row, dx_row += blocks * dx_stride) {
        if constexpr (HAS_WEIGHT && CHUNKS > 2) rematerialize(scale.held, rows);
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) ahead.advance();
        if (local_row + 1 < ring.row_count) {
            ring.publish(local_row + 1, products_of(ring, ahead, scale, counts, inverse_warp, length));
        }
        Products products(counts);
        ring.wait_total(products, local_row);
#if CENTERED
        const float mean = products.value[0];
        const float mean_g = products.value[2] * counts.row;
        const float r = math_rsqrt(math_fma(products.value[1], counts.row, eps));
        const float mean_gn = products.value[3] * counts.row * r;
#else
        const float r = math_rsqrt(math_fma(products.value[0], counts.row, eps));
        const float mean_gn = products.value[1] * counts.row * r;
#endif
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c, here.advance()) {
            const Vector<T, VEC> held_x = ring.read(here, 0, c, length);
            const Vector<T, VEC> held_dy = ring.read(here, 1, c, length);
            float value[VEC];
#pragma unroll
            for (int i = 0; i < VEC; ++i) {
                const float d = held_dy[i];
                const float g = scale.times(d, c, i);
#if CENTERED
                const float n = (held_x[i] - mean) * r;
                value[i] = r * math_fma(-n, mean_gn, g - mean_g);
#else
                const float n = held_x[i] * r;
                value[i] = r * math_fma(-n, mean_gn, g);
#endif
                if constexpr (HAS_WEIGHT) sum_weight[c][i] = math_fma(d, before_weight(n), sum_weight[c][i]);
                if constexpr (HAS_BIAS) sum_bias[c][i] += d;
            }
            store_vector(dx_row + c * CHUNK, chunk_column(c), length, value);
            ring.release(here);
        }
    }
    float none[COLUMN_SCRATCH];
    float* target = columns + static_cast<int64_t>(row_block()) * length;
    if constexpr (HAS_WEIGHT) {
        write_columns(sum_weight, none, target, length);
        target += static_cast<int64_t>(blocks) * length;
    }
    if constexpr (HAS_BIAS) write_columns(sum_bias, none, target, length);
}
