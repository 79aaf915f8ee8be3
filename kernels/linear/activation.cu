// dz = dy * activation'(z), elementwise, in float32, rounded once.
#include "_lib/rows/elementwise.h"

#include "activation_slope.h"

KERNEL(THREADS)
void activation_backward(const T* dy, const T* z, T* dz, int64_t rows, int64_t length, int64_t dy_stride,
                         int64_t z_stride, int64_t dz_stride, int across) {
    const Place place = locate(rows, length, across);
    cell<T, VEC> held_dy[CHUNKS];
    cell<T, VEC> held_z[CHUNKS];
    load_cells<true>(held_dy, at_lane(dy + place.row * dy_stride), place.base, place.length);
    load_cells<true>(held_z, at_lane(z + place.row * z_stride), place.base, place.length);
    store_values(dz + place.row * dz_stride, place,
                 [&](int c, int i) { return backward(held_dy[c][i], held_z[c][i]); });
}
