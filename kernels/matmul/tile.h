// Sizes and strides of a batched product, and which tile of which batch a block computes. For CUDA and HIP.
#pragma once

#include "prelude.h"

// Sizes and strides, in elements, of one batched product; problem.py says what they mean.
// `a_leading` and `b_leading` are the strides that are not one.
struct Sizes {
    int m, n, k, outer_batches, inner_batches;
    int64_t a_leading, b_leading, c_row, c_col;
    int64_t a_outer, a_inner, b_outer, b_inner, c_outer, c_inner;
};

#define SIZES_PARAMETERS                                                                                    \
    int m, int n, int k, int outer_batches, int inner_batches, int64_t a_leading, int64_t b_leading,        \
    int64_t c_row, int64_t c_col, int64_t a_outer, int64_t a_inner, int64_t b_outer, int64_t b_inner,       \
    int64_t c_outer, int64_t c_inner
#define SIZES_ARGUMENTS                                                                                     \
    {m, n, k, outer_batches, inner_batches, a_leading, b_leading, c_row, c_col,                             \
     a_outer, a_inner, b_outer, b_inner, c_outer, c_inner}

struct Tile {
    int row, col, outer, inner;  // first row and column of c, and the batch indices
};

// The raster: tiles are numbered down the columns of a group of GROUP tile rows, so that concurrent blocks share
// operands in L2 (Triton's GROUP_M); batches follow one another.
template <int ROWS, int COLS, int GROUP> DEVICE Tile tile_at(uint32_t index, const Sizes& s) {
    const uint32_t tiles_m = (static_cast<uint32_t>(s.m) + ROWS - 1) / ROWS;
    const uint32_t tiles_n = (static_cast<uint32_t>(s.n) + COLS - 1) / COLS;
    const uint32_t per_batch = tiles_m * tiles_n;
    const uint32_t batch = index / per_batch;
    const uint32_t within = index - batch * per_batch;
    const uint32_t group = within / (GROUP * tiles_n);
    const uint32_t first = group * GROUP;
    const uint32_t height = tiles_m - first < GROUP ? tiles_m - first : GROUP;
    const uint32_t place = within - first * tiles_n;
    const uint32_t outer = batch / static_cast<uint32_t>(s.inner_batches);
    return {static_cast<int>((first + place % height) * ROWS), static_cast<int>(place / height * COLS),
            static_cast<int>(outer), static_cast<int>(batch - outer * s.inner_batches)};
}
