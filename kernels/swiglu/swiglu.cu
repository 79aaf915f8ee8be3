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
    const Place place = locate(rows, length, across);
    cell<T, VEC> held_gate[CHUNKS];
    cell<T, VEC> held_up[CHUNKS];
    load_cells<true>(held_gate, at_lane(gate + place.row * gate_stride), place.base, place.length);
    load_cells<true>(held_up, at_lane(up + place.row * up_stride), place.base, place.length);
    store_values(y + place.row * y_stride, place, [&](int c, int i) {
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
    const Place place = locate(rows, length, across);
    cell<T, VEC> held_dy[CHUNKS];
    cell<T, VEC> held_gate[CHUNKS];
    cell<T, VEC> held_up[CHUNKS];
    load_cells<true>(held_dy, at_lane(dy + place.row * dy_stride), place.base, place.length);
    load_cells<true>(held_gate, at_lane(gate + place.row * gate_stride), place.base, place.length);
    load_cells<true>(held_up, at_lane(up + place.row * up_stride), place.base, place.length);
    float slope[CHUNKS][VEC];
    store_values(dup + place.row * dup_stride, place, [&](int c, int i) {
        const float g = held_gate[c][i];
        const Sigmoid s = sigmoid(g);
        const float d = held_dy[c][i] * s.value;
        slope[c][i] = d * math_fma(g, s.complement, 1.0f);
        return d * g;
    });
    store_values(dgate + place.row * dgate_stride, place,
                 [&](int c, int i) { return slope[c][i] * held_up[c][i]; });
}
#endif
