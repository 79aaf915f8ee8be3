// Rows of rms_norm and layer_norm in registers: the passes, of which PASS names the one to build, and what
// they share.
#pragma once

#include "columns.h"

#define FORWARD 1
#define FORWARD_STREAM 2
#define BACKWARD 3
#define BACKWARD_ROWS 4
#define BACKWARD_STREAM 5
#define COLUMNS 6
#define BACKWARD_RING 7
#define FORWARD_RING 8

// Chunk c of a parameter; `parameter` is what `at_lane` gave. Zeros where there is none.
template <bool THERE, class Index>
DEVICE cell<W, VEC> parameter_cell(const W* parameter, int c, Index base, Index length) {
    cell<W, VEC> found;
    found.clear();
    if constexpr (THERE) {
        found = load_cell<false>(parameter + base + c * CHUNK, base + chunk_column(c), length);
    }
    return found;
}

// What a lane holds of dy and of x.
struct Held {
    cell<T, VEC> dy[CHUNKS];
    cell<T, VEC> x[CHUNKS];

    template <bool ONCE, class Index>
    DEVICE void load(const T* dy_row, const T* x_row, Index base, Index length) {
        load_cells<ONCE>(dy, dy_row, base, length);
        load_cells<ONCE>(x, x_row, base, length);
    }
    // dy times its weight, which is `factor`'s.
    DEVICE float scaled(int c, int i, const cell<W, VEC>& factor) const {
        return HAS_WEIGHT ? dy[c][i] * factor[i] : dy[c][i];
    }
};
