// Matrix products as the matrix cores add them up. The layouts in registers are mfma.c's and wmma.c's.
#pragma once

#include "half.h"

enum Element { E_F16, E_BF16, E_F32, E_XF32, E_FP8, E_BF8 };

enum Sum {
    SUM_FMA,    // one fused multiply-add after the other, in order of k
    SUM_PAIRS2, // gfx90a: groups of 2 or 4 products added pairwise in float32, subnormals flushed everywhere
    SUM_PAIRS4,
    SUM_FUSED,  // gfx942: groups added in fixed point (matrix.c)
};

enum { LARGEST = 64 };  // m, n, k of one instruction are at most this; k of 8-bit types 64

typedef struct Product {
    int m, n, k;
    enum Sum sum;
    enum Element left, right;
    bool fnuz;          // how 8-bit floats are coded
    float a[LARGEST * LARGEST], b[LARGEST * LARGEST];  // a[kk * m + i], b[kk * n + j]
    float c[32 * 32];   // c[i * n + j]. In: the addend; out: the result
} Product;

void multiply(Product *p);
int element_bits(enum Element type);
float element_to_float(enum Element type, uint32_t bits, bool fnuz);
// The same of `count` lanes: the element that starts at bit `shift` of each word. `count` is a constant of the caller.
static inline __attribute__((always_inline)) void elements_to_floats(enum Element type, bool fnuz, const uint32_t *words,
                                                                     int shift, int count, float *to) {
    switch (type) {
    case E_F16:
        for (int i = 0; i < count; i++) to[i] = half_to_float(words[i] >> shift & 0xffff);
        break;
    case E_BF16:
        for (int i = 0; i < count; i++) to[i] = as_float(words[i] >> shift << 16);
        break;
    case E_XF32:
        for (int i = 0; i < count; i++) to[i] = as_float(words[i] & ~0x1fffu);
        break;
    case E_F32: memcpy(to, words, (size_t)count * sizeof *to); break;
    default:
        for (int i = 0; i < count; i++) to[i] = element_to_float(type, words[i] >> shift, fnuz);
    }
}
// Lanes whose `count` registers from `reg` are wholly defined.
mask64 defined_lanes(const Wave *w, int reg, int count);
