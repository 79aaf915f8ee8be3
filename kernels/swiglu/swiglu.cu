// y = silu(gate) * up, silu(g) = g / (1 + exp(-g)), and its gradient, in float32, rounded once.
//
// PASS names the one kernel to build.
#include "_lib/rows/elementwise.h"
#include "_lib/rows/sigmoid.h"

#define FORWARD 1
#define BACKWARD 2

#if PASS == FORWARD
KERNEL(THREADS)
void swiglu_forward(const T* gate, const T* up, T* y, int64_t rows, int64_t length, int64_t gate_stride,
                    int64_t up_stride, int64_t y_stride, int across) {
    enter_pdl();
    const RowSlice slice = row_slice(rows, length, across);
    Vector<T, VEC> held_gate[CHUNKS];
    Vector<T, VEC> held_up[CHUNKS];
    load_vectors<true>(held_gate, lane_ptr(gate + slice.row * gate_stride), slice.base, slice.length);
    load_vectors<true>(held_up, lane_ptr(up + slice.row * up_stride), slice.base, slice.length);
    store_values(y + slice.row * y_stride, slice, [&](int c, int i) {
        const float g = held_gate[c][i];
        return g * sigmoid(g).value * held_up[c][i];
    });
}
#endif

#if PASS == BACKWARD
// With s = sigmoid(gate): dgate = dy * up * s * (1 + gate * (1 - s)), dup = dy * gate * s.
KERNEL(THREADS)
void swiglu_backward(const T* dy, const T* gate, const T* up, T* dgate, T* dup, int64_t rows, int64_t length,
                     int64_t dy_stride, int64_t gate_stride, int64_t up_stride, int64_t dgate_stride,
                     int64_t dup_stride, int across) {
    enter_pdl();
    const RowSlice slice = row_slice(rows, length, across);
    Vector<T, VEC> held_dy[CHUNKS];
    Vector<T, VEC> held_gate[CHUNKS];
    Vector<T, VEC> held_up[CHUNKS];
    load_vectors<true>(held_dy, lane_ptr(dy + slice.row * dy_stride), slice.base, slice.length);
    load_vectors<true>(held_gate, lane_ptr(gate + slice.row * gate_stride), slice.base, slice.length);
    load_vectors<true>(held_up, lane_ptr(up + slice.row * up_stride), slice.base, slice.length);
    float derivative[CHUNKS][VEC];
    store_values(dup + slice.row * dup_stride, slice, [&](int c, int i) {
        const float g = held_gate[c][i];
        const Sigmoid s = sigmoid(g);
        const float d = held_dy[c][i] * s.value;
        derivative[c][i] = d * math_fma(g, s.complement, 1.0f);
        return d * g;
    });
    store_values(dgate + slice.row * dgate_stride, slice,
                 [&](int c, int i) { return derivative[c][i] * held_up[c][i]; });
}
#endif
