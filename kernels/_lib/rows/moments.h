// Mean and squared deviations of rows (Welford's merge), with one barrier: each warp computes them about its own mean,
// and the parts are merged as by Chan, Golub and LeVeque (1979), without cancellation.
#pragma once

#include "rows.h"

// How many elements of a row the parts that are merged have: the warp's, the block's and the row's own.
struct ElementCounts {
    float warp;          // of this warp
    float lane_warp;     // of the warp whose part this lane takes
    float lane_block;    // of the block whose part this lane takes
    float block;         // 1 / elements of this block
    float row;           // 1 / elements of the row

    DEVICE explicit ElementCounts(int length) {
        const int lane = warp_lane();
        row = div_rn(1.0f, static_cast<float>(length));
        block = row;
        lane_block = 0.0f;
        if constexpr (LANES <= WARP) {
            warp = lane_warp = static_cast<float>(length);
        } else {
            const int first = warp_index() / BLOCK_ROW_WARPS * BLOCK_ROW_WARPS;
            const int base = block_base();
            warp = count(base + (warp_index() - first) * WARP, WARP, length);
            lane_warp = count(base + lane % BLOCK_ROW_WARPS * WARP, WARP, length);
#if CLUSTER > 1
            lane_block = count(lane % CLUSTER * THREADS, THREADS, length);
            const float own = count(base, THREADS, length);
            block = own > 0.0f ? div_rn(1.0f, own) : 0.0f;
#endif
        }
    }
    static DEVICE int block_base() {
#if CLUSTER > 1
        return cluster_rank() * THREADS;
#else
        return 0;
#endif
    }
    // Elements of a row that lanes `first` to `first + lanes` hold.
    static DEVICE float count(int first, int lanes, int length) {
        int total = 0;
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) {
            const int left = length - (c * LANES + first) * VEC;
            total += left < 0 ? 0 : left < lanes * VEC ? left : lanes * VEC;
        }
        return static_cast<float>(total);
    }
    DEVICE float inverse_warp() const { return warp > 0.0f ? div_rn(1.0f, warp) : 0.0f; }
};

// Merges the means and squared deviations of PARTS lanes, of `elements` elements each, of 1 / `inverse` in
// all. Returns the lane's mean minus theirs.
template <int PARTS> DEVICE float merge_moments(float& mean, float& squares, float elements, float inverse) {
    const float whole = reduce_warp<Sum, PARTS>(elements * mean) * inverse;
    const float delta = mean - whole;
    mean = whole;
    squares = reduce_warp<Sum, PARTS>(math_fma(elements * delta, delta, squares));
    return delta;
}

// The mean of a part of a row, and the sum of the squared deviations from it.
struct Moments {
    const ElementCounts& counts;
    float value[2];

    DEVICE explicit Moments(const ElementCounts& counts) : counts(counts) {}

    template <int PARTS> DEVICE void merge_warps() { merge<PARTS>(counts.lane_warp, counts.block); }
    template <int PARTS> DEVICE void merge_blocks() { merge<PARTS>(counts.lane_block, counts.row); }
    template <int PARTS> DEVICE void merge(float elements, float inverse) {
        merge_moments<PARTS>(value[0], value[1], elements, inverse);
    }
};
