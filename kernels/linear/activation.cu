// dz = dy * activation'(z), elementwise, in float32, rounded once.
#include "_lib/rows/elementwise.h"

#include "activation_derivative.h"

KERNEL(THREADS)
void activation_backward(const T* dy, const T* z, T* dz, int64_t rows, int64_t length, int64_t dy_stride,
                         int64_t z_stride, int64_t dz_stride, int across) {
    enter_pdl();
    const RowSlice slice = row_slice(rows, length, across);
    Vector<T, VEC> held_dy[CHUNKS];
    Vector<T, VEC> held_z[CHUNKS];
    load_vectors<true>(held_dy, lane_ptr(dy + slice.row * dy_stride), slice.base, slice.length);
    load_vectors<true>(held_z, lane_ptr(z + slice.row * z_stride), slice.base, slice.length);
    store_values(dz + slice.row * dz_stride, slice,
                 [&](int c, int i) { return backward(held_dy[c][i], held_z[c][i]); });
}
