// The arithmetic of the matrix cores.
//
// No vendor document gives it. gfx90a and gfx942 follow what was measured on MI250X and MI300X by Xie et al.,
// "MMA-Sim" (arXiv:2511.10909). For gfx950 nothing is published: it is taken to add like gfx942. RDNA's WMMA is
// taken as a chain of fused multiply-adds in float32. Both are said in the emulator's README.
#include "matrix.h"

#include "half.h"

#include <math.h>

int element_bits(enum Element type) { return type == E_FP8 || type == E_BF8 ? 8 : type == E_F32 || type == E_XF32 ? 32 : 16; }

static float small_float(uint32_t bits, int mantissa_bits, int bias, bool fnuz) {
    const uint32_t sign = bits >> 7 & 1, rest = bits & 127, fraction = rest & ((1u << mantissa_bits) - 1);
    const int exponent = (int)(rest >> mantissa_bits);
    if (fnuz) {
        if (bits == 0x80) return NAN;
    } else if (mantissa_bits == 3) {
        if (rest == 127) return NAN;
    } else if (exponent == 31) {
        return fraction ? NAN : sign ? -INFINITY : INFINITY;
    }
    const float size = exponent ? ldexpf((float)(fraction | 1u << mantissa_bits), exponent - bias - mantissa_bits)
                                : ldexpf((float)fraction, 1 - bias - mantissa_bits);
    return sign ? -size : size;
}

float element_to_float(enum Element type, uint32_t bits, bool fnuz) {
    switch (type) {
    case E_F16: return half_to_float(bits);
    case E_BF16: return as_float(bits << 16);
    case E_FP8: return small_float(bits & 0xff, 3, fnuz ? 8 : 7, fnuz);
    case E_BF8: return small_float(bits & 0xff, 2, fnuz ? 16 : 15, fnuz);
    case E_XF32: return as_float(bits & ~0x1fffu);  // the ten leading fraction bits
    default: return as_float(bits);
    }
}

static int fraction_bits(enum Element type) {
    return type == E_F16 || type == E_XF32 ? 10 : type == E_BF16 ? 7 : type == E_FP8 ? 3 : type == E_BF8 ? 2 : 23;
}
static int least_exponent(enum Element type, bool fnuz) {
    return type == E_F16 ? -14 : type == E_FP8 ? (fnuz ? -7 : -6) : type == E_BF8 ? (fnuz ? -15 : -14) : -126;
}

// Chains of fused multiply-adds ---------------------------------------------------------------------

static void chain(Product *p) {
    for (int i = 0; i < p->m; i++)
        for (int kk = 0; kk < p->k; kk++) {
            const float a = p->a[i * p->k + kk], *b = &p->b[kk * p->n];
            float *c = &p->c[i * p->n];
            for (int j = 0; j < p->n; j++) c[j] = fmaf(a, b[j], c[j]);
        }
}

// Pairs, subnormals flushed (gfx90a) ----------------------------------------------------------------

static float flushed(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0.0f, x) : x; }

static void pairs(Product *p) {
    const int group = p->sum == SUM_PAIRS4 ? 4 : 2;
    const float least = p->left == E_F16 ? 0x1p-14f : 0x1p-126f;
    for (int i = 0; i < p->m * p->k; i++) p->a[i] = fabsf(p->a[i]) < least ? 0.0f : p->a[i];
    for (int i = 0; i < p->n * p->k; i++) p->b[i] = fabsf(p->b[i]) < least ? 0.0f : p->b[i];
    for (int i = 0; i < p->m; i++) {
        float *c = &p->c[i * p->n];
        for (int j = 0; j < p->n; j++) c[j] = fabsf(c[j]) < 0x1p-126f ? 0.0f : c[j];
        for (int kk = 0; kk < p->k; kk += group) {
            const float *a = &p->a[i * p->k + kk], *b = &p->b[kk * p->n];
            const int n = p->n;
            for (int j = 0; j < n; j++) {
                float sum = flushed(flushed(a[0] * b[j]) + flushed(a[1] * b[n + j]));
                if (group == 4) {
                    const float other = flushed(flushed(a[2] * b[2 * n + j]) + flushed(a[3] * b[3 * n + j]));
                    sum = flushed(sum + other);
                }
                c[j] = flushed(c[j] + sum);
            }
        }
    }
}

// Fixed point (gfx942) ------------------------------------------------------------------------------
//
// Products of a group are cut off 24 bits below the largest one's exponent (towards zero) and added exactly. Sum and
// accumulator are aligned to the larger exponent, the sum floored 31 bits below it, the accumulator 24, added, and
// rounded to nearest even. 8-bit types add their even and odd products apart first, both floored at 24.

enum { FAR_BELOW = -1000000 };  // under every exponent

typedef struct Split { int32_t sig, exp; } Split;  // x = sig * 2^(exp - fraction bits); zero has exponent -126

static Split split(float x, int fraction, int least) {
    Split s = {0, -126};
    if (x == 0.0f) return s;
    int e = (int)(as_bits(x) >> 23 & 255) - 127;
    s.exp = e < least ? least : e;
    s.sig = (int32_t)((double)x * as_double((uint64_t)(1023 + fraction - s.exp) << 52));
    return s;
}

static inline int64_t floor_shift(int64_t value, int by) { return value >> (by > 62 ? 62 : by); }

// The last step: `sum` has 24 fraction bits at `exp`.
static inline float with_accumulator(int64_t sum, int exp, float acc, bool drops_small) {
    const uint32_t bits = as_bits(acc), field = bits >> 23 & 255;
    const int c_exp = field ? (int)field - 127 : -126, top = exp > c_exp ? exp : c_exp;
    const int64_t size = (bits & 0x7fffff) | (field ? 0x800000 : 0), sig = bits >> 31 ? -size : size;
    const int64_t s = floor_shift(sum * 128, top - exp);
    const int64_t a = drops_small && c_exp < top - 25 ? 0 : floor_shift(sig * 2, top - c_exp);
    return (float)((double)(s + a * 128) * as_double((uint64_t)(1023 - 31 + top) << 52));
}

// One element, with any input. `step` 2 and `first` 0 or 1 take every other product.
static void fused_sum(const Split *a, const Split *b, int stride, int count, int first, int step, int shift, int64_t *sum, int *exp) {
    int top = FAR_BELOW;
    for (int k = first; k < count; k += step) {
        const int e = a[k].exp + b[k * stride].exp;
        top = e > top ? e : top;
    }
    int64_t total = 0;
    for (int k = first; k < count; k += step) {
        const int64_t product = (int64_t)a[k].sig * b[k * stride].sig;
        const int by = top - (a[k].exp + b[k * stride].exp);
        const int64_t size = by > 62 ? 0 : (llabs(product) << shift) >> by;
        total += product < 0 ? -size : size;
    }
    *sum = total;
    *exp = top;
}

static float fused_one(const Product *p, int i, int j, int first, int group, const Split *a, const Split *b, int shift, float acc) {
    double exact = 0;
    bool plus = false, minus = false;
    for (int k = first; k < first + group; k++) {
        const double product = (double)p->a[i * p->k + k] * p->b[k * p->n + j];
        exact += product;
        plus |= product >= 0x1p128;
        minus |= product <= -0x1p128;
    }
    exact += acc;
    if (isnan(exact) || isinf(exact)) return (float)exact;
    if (plus || minus) return plus && minus ? NAN : plus ? INFINITY : -INFINITY;
    const Split *left = &a[i * p->k + first], *right = &b[first * p->n + j];
    int64_t sum;
    int exp;
    if (element_bits(p->left) == 8) {
        int64_t even, odd;
        int even_exp, odd_exp;
        fused_sum(left, right, p->n, group, 0, 2, shift, &even, &even_exp);
        fused_sum(left, right, p->n, group, 1, 2, shift, &odd, &odd_exp);
        exp = even_exp > odd_exp ? even_exp : odd_exp;
        sum = floor_shift(even, exp - even_exp) + floor_shift(odd, exp - odd_exp);
        return with_accumulator(sum, exp, acc, true);
    }
    fused_sum(left, right, p->n, group, 0, 1, shift, &sum, &exp);
    return with_accumulator(sum, exp, acc, false);
}

// A row of results at once, for finite inputs whose products do not overflow: the loops over j are vectors.
static void fused_row(const Product *p, int i, int first, int group, const Split *a, const int32_t *sig, const int32_t *exps, int shift,
                      float *c) {
    int32_t top[32], sum[32];
    const int n = p->n;
    for (int j = 0; j < n; j++) top[j] = FAR_BELOW, sum[j] = 0;
    for (int k = first; k < first + group; k++) {
        const int32_t ea = a[i * p->k + k].exp, *eb = &exps[k * n];
        for (int j = 0; j < n; j++) top[j] = ea + eb[j] > top[j] ? ea + eb[j] : top[j];
    }
    for (int k = first; k < first + group; k++) {
        const int32_t sa = a[i * p->k + k].sig, ea = a[i * p->k + k].exp, *sb = &sig[k * n], *eb = &exps[k * n];
        for (int j = 0; j < n; j++) {
            const int32_t product = sa * sb[j], by = top[j] - (ea + eb[j]);
            const int32_t size = (product < 0 ? -product : product) << shift >> (by > 31 ? 31 : by);
            sum[j] += product < 0 ? -size : size;
        }
    }
    for (int j = 0; j < n; j++) c[j] = with_accumulator(sum[j], top[j], c[j], false);
}

static void fused(Product *p) {
    static const int groups[] = {[E_F16] = 8, [E_BF16] = 8, [E_F32] = 1, [E_XF32] = 4, [E_FP8] = 16, [E_BF8] = 16};
    const int group = groups[p->left] < p->k ? groups[p->left] : p->k;
    const int fa = fraction_bits(p->left), fb = fraction_bits(p->right), shift = 24 - fa - fb;
    Split a[LARGEST * LARGEST], b[LARGEST * LARGEST];
    int32_t sig[LARGEST * 32], exps[LARGEST * 32];
    int most_a = FAR_BELOW, most_b = FAR_BELOW;
    bool finite = true;
    for (int i = 0; i < p->m * p->k; i++) {
        finite &= isfinite(p->a[i]);
        a[i] = split(isfinite(p->a[i]) ? p->a[i] : 0.0f, fa, least_exponent(p->left, p->fnuz));
        most_a = a[i].exp > most_a ? a[i].exp : most_a;
    }
    for (int i = 0; i < p->n * p->k; i++) {
        finite &= isfinite(p->b[i]);
        b[i] = split(isfinite(p->b[i]) ? p->b[i] : 0.0f, fb, least_exponent(p->right, p->fnuz));
        most_b = b[i].exp > most_b ? b[i].exp : most_b;
        sig[i] = b[i].sig;
        exps[i] = b[i].exp;
    }
    for (int i = 0; i < p->m * p->n; i++) finite &= fabsf(p->c[i]) < 0x1p120f;
    const bool fast = finite && most_a + most_b < 100 && element_bits(p->left) != 8;  // nothing can overflow
    for (int i = 0; i < p->m; i++)
        for (int first = 0; first < p->k; first += group) {
            float *c = &p->c[i * p->n];
            if (fast) fused_row(p, i, first, group, a, sig, exps, shift, c);
            else for (int j = 0; j < p->n; j++) c[j] = fused_one(p, i, j, first, group, a, b, shift, c[j]);
        }
}

void multiply(Product *p) {
    switch (p->sum) {
    case SUM_FMA: chain(p); break;
    case SUM_FUSED: fused(p); break;
    default: pairs(p);
    }
}
