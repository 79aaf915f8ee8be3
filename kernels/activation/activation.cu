// y = activation(x), elementwise, in float32, rounded once.
#include "_lib/rows/activation.h"
#include "_lib/rows/elementwise.h"

KERNEL(THREADS)
void activation_forward(const T* x, T* y, int64_t rows, int64_t length, int64_t x_stride, int64_t y_stride,
                        int across) {
    enter_pdl();
    const RowSlice slice = row_slice(rows, length, across);
    Vector<T, VEC> held[CHUNKS];
    load_vectors<true>(held, lane_ptr(x + slice.row * x_stride), slice.base, slice.length);
    store_values(y + slice.row * y_stride, slice,
                 [&](int c, int i) { return activation_of<ACTIVATION, sizeof(T) != 2>(held[c][i]); });
}
