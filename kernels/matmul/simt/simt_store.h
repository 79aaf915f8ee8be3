// How float32 sums of simt.cu and simt_tma.cu are stored. -DC_VECTOR: c is row-major and 16-byte aligned. For CUDA and
// HIP.
#pragma once

#include "prelude.h"

using Quad = vec<float, 4>;

// `value`, in a register of its own: ptxas would else hold the sums in quads for the vector stores, and
// their banks collide (2026-11-21, H200: 13 % slower). `size` is not negative, which it does not know.
DEVICE float unbound(float value, int size) {
    return float_of(bits_of(value) ^ static_cast<uint32_t>(size >> 31));
}

// The first `left` of four columns of c.
DEVICE void store(float* to, const Quad& value, int left, int64_t c_col) {
    if (C_VECTOR && left >= 4) {
        *reinterpret_cast<Quad*>(to) = value;
    } else {
#pragma unroll
        for (int e = 0; e < 4; ++e)
            if (e < left) to[e * c_col] = value.v[e];
    }
}
