// y = activation(gate) * up, gate and up two neighbouring rows of x, and its gradient; in float32, rounded once.
//
// PASS names the one kernel to build. Strides of x and dx are from gate to up, half of those from gate to gate.
#include "_lib/rows/activation.h"
#include "_lib/rows/elementwise.h"
#include "linear/activation_derivative.h"

#define FORWARD 1
#define BACKWARD 2

constexpr bool WIDE = sizeof(T) != 2;

#if PASS == FORWARD
KERNEL(THREADS)
void gated_activation_forward(const T* x, T* y, int64_t rows, int64_t length, int64_t x_stride, int64_t y_stride,
                              int across) {
    enter_pdl();
    const RowSlice slice = row_slice(rows, length, across);
    const T* gate = x + 2 * slice.row * x_stride;
    Vector<T, VEC> held_gate[CHUNKS];
    Vector<T, VEC> held_up[CHUNKS];
    load_vectors<true>(held_gate, lane_ptr(gate), slice.base, slice.length);
    load_vectors<true>(held_up, lane_ptr(gate + x_stride), slice.base, slice.length);
    store_values(y + slice.row * y_stride, slice,
                 [&](int c, int i) { return activation_of<ACTIVATION, WIDE>(held_gate[c][i]) * held_up[c][i]; });
}
#endif

#if PASS == BACKWARD
// dgate = dy * activation'(gate) * up and dup = dy * activation(gate).
KERNEL(THREADS)
void gated_activation_backward(const T* dy, const T* x, T* dx, int64_t rows, int64_t length, int64_t dy_stride,
                               int64_t x_stride, int64_t dx_stride, int across) {
    enter_pdl();
    const RowSlice slice = row_slice(rows, length, across);
    const T* gate = x + 2 * slice.row * x_stride;
    T* dgate = dx + 2 * slice.row * dx_stride;
    Vector<T, VEC> held_dy[CHUNKS];
    Vector<T, VEC> held_gate[CHUNKS];
    Vector<T, VEC> held_up[CHUNKS];
    load_vectors<true>(held_dy, lane_ptr(dy + slice.row * dy_stride), slice.base, slice.length);
    load_vectors<true>(held_gate, lane_ptr(gate), slice.base, slice.length);
    load_vectors<true>(held_up, lane_ptr(gate + x_stride), slice.base, slice.length);
    store_values(dgate, slice,
                 [&](int c, int i) { return backward(held_dy[c][i], held_gate[c][i]) * held_up[c][i]; });
    store_values(dgate + dx_stride, slice,
                 [&](int c, int i) { return held_dy[c][i] * activation_of<ACTIVATION, WIDE>(held_gate[c][i]); });
}
#endif
