// y = (up + 1) * gate * sigmoid(alpha * gate) of gates and ups in turn, gate at most `limit` and up within it on either
// side, and its gradient; in float32, rounded once.
//
// PASS names the one kernel to build. Tensors are one row each: `length` pairs in x and dx, `length` elements in y and
// dy. A lane holds VEC pairs.
#include "_lib/rows/rows.h"
#include "_lib/rows/sigmoid.h"

#define FORWARD 1
#define BACKWARD 2

struct Gated {
    float gate;
    float up;
    Sigmoid s;         // of alpha * gate
    float argument;    // alpha * gate
};

// What is NaN stays NaN.
DEVICE Gated limited(float gate, float up, float alpha, float limit) {
    const float g = gate > limit ? limit : gate;
    const float u = up > limit ? limit : (up < -limit ? -limit : up);
    return {g, u, sigmoid(alpha * g), alpha * g};
}

// The VEC pairs from `column` on; zeros beyond the row.
DEVICE Vector<T, 2 * VEC> load_pairs(const T* x, int64_t column, int64_t length) {
    Vector<T, 2 * VEC> held;
    held.clear();
    if (VEC > 1 && column + VEC <= length) {
        held.load_streaming(x + 2 * column);
    } else {
#pragma unroll
        for (int i = 0; i < 2 * VEC; ++i) {
            if (column + i / 2 < length) held.insert(i, x[2 * column + i]);
        }
    }
    return held;
}

DEVICE void store_pairs(T* x, int64_t column, int64_t length, const float (&value)[2 * VEC]) {
    if (VEC > 1 && column + VEC <= length) {
        Vector<T, 2 * VEC> rounded;
        rounded.round(value);
        rounded.store(x + 2 * column);
    } else {
#pragma unroll
        for (int i = 0; i < 2 * VEC; ++i) {
            if (column + i / 2 < length) x[2 * column + i] = from_float<T>(value[i]);
        }
    }
}

#if PASS == FORWARD
KERNEL(THREADS)
void swigluoai_forward(const T* x, T* y, int64_t length, float alpha, float limit) {
    enter_pdl();
    const int64_t base = block_x() * TILE;
    Vector<T, 2 * VEC> held[CHUNKS];
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) held[c] = load_pairs(x, base + chunk_column(c), length);
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
        float value[VEC];
#pragma unroll
        for (int i = 0; i < VEC; ++i) {
            const Gated it = limited(held[c][2 * i], held[c][2 * i + 1], alpha, limit);
            value[i] = it.gate * it.s.value * (it.up + 1.0f);
        }
        const int64_t column = base + chunk_column(c);
        store_vector(y + column, column, length, value);
    }
}
#endif

#if PASS == BACKWARD
// With s = sigmoid(alpha * gate): dgate = dy * (up + 1) * s * (1 + alpha * gate * (1 - s)) and dup = dy * gate * s; 0
// where the limit holds, and where the argument is NaN, as for torch's clamp.
KERNEL(THREADS)
void swigluoai_backward(const T* dy, const T* x, T* dx, int64_t length, float alpha, float limit) {
    enter_pdl();
    const int64_t base = block_x() * TILE;
    Vector<T, VEC> held_dy[CHUNKS];
    Vector<T, 2 * VEC> held[CHUNKS];
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
        const int64_t column = base + chunk_column(c);
        held_dy[c] = load_vector<true>(dy + column, column, length);
        held[c] = load_pairs(x, column, length);
    }
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
        float value[2 * VEC];
#pragma unroll
        for (int i = 0; i < VEC; ++i) {
            const float gate = held[c][2 * i];
            const float up = held[c][2 * i + 1];
            const Gated it = limited(gate, up, alpha, limit);
            const float d = held_dy[c][i] * it.s.value;
            const float dgate = d * math_fma(it.argument, it.s.complement, 1.0f) * (it.up + 1.0f);
            value[2 * i] = gate <= limit ? dgate : 0.0f;
            value[2 * i + 1] = math_abs(up) <= limit ? d * it.gate : 0.0f;
        }
        store_pairs(dx, base + chunk_column(c), length, value);
    }
}
#endif
