// Rows of rms_norm and layer_norm in registers: the passes, of which PASS names the one to build, and what
// they share.
#pragma once

#include "columns.h"

#define FORWARD 1
#define FORWARD_STREAM 2
#define BACKWARD 3
#define BACKWARD_ROWS 4
#define BACKWARD_STREAM 5
#define BACKWARD_COLUMNS 6
#define BACKWARD_RING 7
#define FORWARD_RING 8

// Chunk c of a parameter; `parameter` is a `lane_ptr`. Zeros where there is none.
template <bool THERE, class Index>
DEVICE Vector<W, VEC> parameter_vector(const W* parameter, int c, Index base, Index length) {
    Vector<W, VEC> found;
    found.clear();
    if constexpr (THERE) {
        found = load_vector<false>(parameter + base + c * CHUNK, base + chunk_column(c), length);
    }
    return found;
}

// A lane's vectors of dy and x.
struct Held {
    Vector<T, VEC> dy[CHUNKS];
    Vector<T, VEC> x[CHUNKS];

    template <bool STREAMING, class Index>
    DEVICE void load(const T* dy_row, const T* x_row, Index base, Index length) {
        load_vectors<STREAMING>(dy, dy_row, base, length);
        load_vectors<STREAMING>(x, x_row, base, length);
    }
    // dy times its weight, which is `factor`'s.
    DEVICE float scaled(int c, int i, const Vector<W, VEC>& factor) const {
        return HAS_WEIGHT ? dy[c][i] * factor[i] : dy[c][i];
    }
};
