// Matrix products as the matrix cores add them up. The layouts in registers are mfma.c's and wmma.c's.
#pragma once

#include "wave.h"

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
    float a[LARGEST * LARGEST], b[LARGEST * LARGEST];  // a[i * k + kk], b[kk * n + j]
    float c[32 * 32];   // in: the addend; out: the result
} Product;

void multiply(Product *p);
float element_to_float(enum Element type, uint32_t bits, bool fnuz);
int element_bits(enum Element type);
