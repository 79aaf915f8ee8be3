// y = silu(gate) * up of a lane's vectors, in float32, rounded to T, in gate's place. Beyond the row 0 stays 0.
#pragma once

#include "quantize_fp8/quantize.h"    // first: it says where vectors may lie
#include "_lib/rows/activation.h"

DEVICE void multiply_by_silu(Vector<T, VEC>& gate, const Vector<T, VEC>& up) {
    float y[VEC];
#pragma unroll
    for (int i = 0; i < VEC; ++i) y[i] = activation_of<ACTIVATION_SILU, !NARROW>(gate[i]) * up[i];
    gate.round(y);
}

// The lane's vectors of y from column `base` on; `gate` and `up` are `lane_ptr`s.
template <bool STREAMING, class Index>
DEVICE void load_gated(Vector<T, VEC> (&held)[CHUNKS], const T* gate, const T* up, Index base, Index length) {
    Vector<T, VEC> other[CHUNKS];
    load_vectors<STREAMING>(held, gate, base, length);
    load_vectors<STREAMING>(other, up, base, length);
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) multiply_by_silu(held[c], other[c]);
}
