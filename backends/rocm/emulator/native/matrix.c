// The arithmetic of the matrix cores.
//
// No vendor document gives it. gfx90a and gfx942 follow what was measured on MI250X and MI300X by Xie et al.,
// "MMA-Sim" (arXiv:2511.10909). For gfx950 nothing is published: it is taken to add like gfx942. RDNA's WMMA is
// taken as a chain of fused multiply-adds in float32. Both are said in the emulator's README.
#include "matrix.h"

#include "half.h"

#include <math.h>
#include <stdlib.h>

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

mask64 defined_lanes(const Wave *w, int reg, int count) {
    mask64 all = ~0ull;
    for (int r = 0; r < count; r++) all &= w->lo[reg + r] & w->hi[reg + r];
    return all;
}

static int fraction_bits(enum Element type) {
    return type == E_F16 || type == E_XF32 ? 10 : type == E_BF16 ? 7 : type == E_FP8 ? 3 : type == E_BF8 ? 2 : 23;
}
static int least_exponent(enum Element type, bool fnuz) {
    return type == E_F16 ? -14 : type == E_FP8 ? (fnuz ? -7 : -6) : type == E_BF8 ? (fnuz ? -15 : -14) : -126;
}

// `n` is a constant in each copy, so that the loops over a row are whole vectors.
#define INLINE static inline __attribute__((always_inline))

// Sixteen columns of a row at once.
enum { COLUMNS = 16 };
typedef int32_t Ints __attribute__((vector_size(4 * COLUMNS), aligned(4)));
typedef uint32_t Unsigned __attribute__((vector_size(4 * COLUMNS), aligned(4)));
typedef float Floats __attribute__((vector_size(4 * COLUMNS), aligned(4)));

// Chains of fused multiply-adds ---------------------------------------------------------------------

// Four rows side by side, as each add of a chain waits for the one before.
INLINE void chain_columns(Product *p, int n) {
    for (int i = 0; i < p->m; i += 4)
        for (int j = 0; j < n; j += COLUMNS) {
            Floats sum[4];
            for (int r = 0; r < 4; r++) sum[r] = *(Floats *)&p->c[(i + r) * n + j];
            for (int kk = 0; kk < p->k; kk++) {
                const float *a = &p->a[kk * p->m + i];
                const Floats b = *(const Floats *)&p->b[kk * n + j];
                for (int r = 0; r < 4; r++) sum[r] = __builtin_elementwise_fma(a[r] - (Floats){0}, b, sum[r]);
            }
            for (int r = 0; r < 4; r++) *(Floats *)&p->c[(i + r) * n + j] = sum[r];
        }
}

INLINE void chain(Product *p, int n) {
    if (n % COLUMNS == 0 && p->m % 4 == 0) {
        chain_columns(p, n);
        return;
    }
    for (int i = 0; i < p->m; i++) {
        float *c = &p->c[i * n], sum[32];
        memcpy(sum, c, (size_t)n * sizeof *c);
        for (int kk = 0; kk < p->k; kk++) {
            const float a = p->a[kk * p->m + i], *b = &p->b[kk * n];
            for (int j = 0; j < n; j++) sum[j] = fmaf(a, b[j], sum[j]);
        }
        memcpy(c, sum, (size_t)n * sizeof *c);
    }
}

// Pairs, subnormals flushed (gfx90a) ----------------------------------------------------------------

INLINE float flushed(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0.0f, x) : x; }

INLINE void pairs(Product *p, int n) {
    const int group = p->sum == SUM_PAIRS4 ? 4 : 2, m = p->m;
    const float least = p->left == E_F16 ? 0x1p-14f : 0x1p-126f;
    for (int i = 0; i < m * p->k; i++) p->a[i] = fabsf(p->a[i]) < least ? 0.0f : p->a[i];
    for (int i = 0; i < n * p->k; i++) p->b[i] = fabsf(p->b[i]) < least ? 0.0f : p->b[i];
    for (int i = 0; i < m; i++) {
        float *c = &p->c[i * n];
        for (int j = 0; j < n; j++) c[j] = fabsf(c[j]) < 0x1p-126f ? 0.0f : c[j];
        for (int kk = 0; kk < p->k; kk += group) {
            const float *a = &p->a[kk * m + i], *b = &p->b[kk * n];
            if (group == 4)
                for (int j = 0; j < n; j++) {
                    const float first = flushed(flushed(a[0] * b[j]) + flushed(a[m] * b[n + j]));
                    const float second = flushed(flushed(a[2 * m] * b[2 * n + j]) + flushed(a[3 * m] * b[3 * n + j]));
                    c[j] = flushed(c[j] + flushed(first + second));
                }
            else
                for (int j = 0; j < n; j++) {
                    const float sum = flushed(flushed(a[0] * b[j]) + flushed(a[m] * b[n + j]));
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

enum { FAR_BELOW = -1000000, MATRIX = LARGEST * LARGEST };

// A whole matrix taken apart: x = sig * 2^(exp - fraction bits); a zero has exponent -126, what is not finite counts as 0.
typedef struct Split {
    int32_t sig[MATRIX], exp[MATRIX];
    int most;       // the largest exponent
    int least;      // the smallest one of what is not zero
    bool finite;
} Split;

// `least` is the type's own smallest exponent.
static void find_exponents(Split *s, const float *x, int count, int least) {
    uint32_t largest = 0, smallest = ~0u;  // of what is not zero, its size less 1
    for (int i = 0; i < count; i++) {
        const uint32_t size = as_bits(x[i]) & 0x7fffffff;
        const int32_t e = (int32_t)(size >> 23) - 127, exp = e > least ? e : least;
        s->exp[i] = size ? exp : -126;
        largest = size > largest ? size : largest;
        smallest = size - 1 < smallest ? size - 1 : smallest;
    }
    const int most = (int)(largest >> 23) - 127, least_used = (int)((smallest + 1) >> 23) - 127;
    s->most = largest == 0 ? -126 : most > least ? most : least;
    s->least = largest == 0 ? -FAR_BELOW : least_used > least ? least_used : least;
    s->finite = largest < 0x7f800000;
}

static void find_significands(Split *s, const float *x, int count, int fraction, int least) {
    for (int i = 0; i < count; i++) {
        const int32_t bits = (int32_t)as_bits(x[i]), size = bits & 0x7fffffff, field = size >> 23;
        const int32_t whole = (size & 0x7fffff) | (field ? 0x800000 : 0), e = (field ? field : 1) - 127;
        const int32_t exp = e > least ? e : least, drop = 23 - fraction + exp - e;
        const int32_t sig = field == 255 ? 0 : whole >> (drop > 31 ? 31 : drop);
        s->sig[i] = bits < 0 ? -sig : sig;
    }
}

INLINE int64_t floor_shift(int64_t value, int by) { return value >> (by > 62 ? 62 : by); }

// The last step: `sum` has 24 fraction bits at `exp`.
INLINE float with_accumulator(int64_t sum, int exp, float acc, bool drops_small) {
    const uint32_t bits = as_bits(acc), field = bits >> 23 & 255;
    const int c_exp = field ? (int)field - 127 : -126, top = exp > c_exp ? exp : c_exp;
    const int64_t size = (bits & 0x7fffff) | (field ? 0x800000 : 0), sig = bits >> 31 ? -size : size;
    const int64_t s = floor_shift(sum * 128, top - exp);
    const int64_t a = drops_small && c_exp < top - 25 ? 0 : floor_shift(sig * 2, top - c_exp);
    return (float)((double)(s + a * 128) * as_double((uint64_t)(1023 - 31 + top) << 52));
}

// What the two paths below share: the operands, and how far a product's significand is moved to have 24 fraction bits.
typedef struct Fused {
    Product *p;
    int m, n, group, shift;
    Split a, b;
} Fused;

// One element, with any input: products `first`, first + step, ... of `count` from k on.
static void fused_sum(const Fused *f, int i, int j, int k, int count, int first, int step, int64_t *sum, int *exp) {
    const int32_t *sa = &f->a.sig[k * f->m + i], *sb = &f->b.sig[k * f->n + j];
    const int32_t *ea = &f->a.exp[k * f->m + i], *eb = &f->b.exp[k * f->n + j];
    int top = FAR_BELOW;
    for (int at = first; at < count; at += step) {
        const int e = ea[at * f->m] + eb[at * f->n];
        top = e > top ? e : top;
    }
    int64_t total = 0;
    for (int at = first; at < count; at += step) {
        const int64_t product = (int64_t)sa[at * f->m] * sb[at * f->n];
        const int by = top - (ea[at * f->m] + eb[at * f->n]);
        const int64_t size = by > 62 ? 0 : (llabs(product) << f->shift) >> by;
        total += product < 0 ? -size : size;
    }
    *sum = total;
    *exp = top;
}

static float fused_one(const Fused *f, int i, int j, int first, float acc) {
    const Product *p = f->p;
    double exact = 0;
    bool plus = false, minus = false;
    for (int k = first; k < first + f->group; k++) {
        const double product = (double)p->a[k * f->m + i] * p->b[k * f->n + j];
        exact += product;
        plus |= product >= 0x1p128;
        minus |= product <= -0x1p128;
    }
    exact += acc;
    if (isnan(exact) || isinf(exact)) return (float)exact;
    if (plus || minus) return plus && minus ? NAN : plus ? INFINITY : -INFINITY;
    int64_t sum;
    int exp;
    if (element_bits(p->left) == 8) {
        int64_t even, odd;
        int even_exp, odd_exp;
        fused_sum(f, i, j, first, f->group, 0, 2, &even, &even_exp);
        fused_sum(f, i, j, first, f->group, 1, 2, &odd, &odd_exp);
        exp = even_exp > odd_exp ? even_exp : odd_exp;
        sum = floor_shift(even, exp - even_exp) + floor_shift(odd, exp - odd_exp);
        return with_accumulator(sum, exp, acc, true);
    }
    fused_sum(f, i, j, first, f->group, 0, 1, &sum, &exp);
    return with_accumulator(sum, exp, acc, false);
}

// A row of results at once, for finite inputs whose products do not overflow.
INLINE void fused_row(const Fused *f, int i, int first, int n, float *c) {
    int32_t top[32], sum[32];
    for (int j = 0; j < n; j++) top[j] = FAR_BELOW, sum[j] = 0;
    for (int k = first; k < first + f->group; k++) {
        const int32_t ea = f->a.exp[k * f->m + i], *eb = &f->b.exp[k * n];
        for (int j = 0; j < n; j++) top[j] = ea + eb[j] > top[j] ? ea + eb[j] : top[j];
    }
    for (int k = first; k < first + f->group; k++) {
        const int32_t sa = f->a.sig[k * f->m + i], ea = f->a.exp[k * f->m + i];
        const int32_t *sb = &f->b.sig[k * n], *eb = &f->b.exp[k * n];
        if (sa == 0) continue;
        for (int j = 0; j < n; j++) {
            const int32_t product = sa * sb[j], by = top[j] - (ea + eb[j]);
            const int32_t size = (product < 0 ? -product : product) << f->shift >> (by > 31 ? 31 : by);
            sum[j] += product < 0 ? -size : size;
        }
    }
    for (int j = 0; j < n; j++) c[j] = with_accumulator(sum[j], top[j], c[j], false);
}

// Sixteen results of a row at once, in floats, where in addition the exponents of all that is not zero lie between LEAST and
// MOST: then a product is exact in float32, as is its multiple by a power of two, and the conversion to an integer
// cuts off. A group with a lower top holds zeros alone.
enum { LEAST = -95, MOST = 30 };

INLINE Ints larger(Ints a, Ints b) { return __builtin_elementwise_max(a, b); }
INLINE Ints smaller(Ints a, Ints b) { return __builtin_elementwise_min(a, b); }
INLINE Floats power(Ints e) { return (Floats)((127 + e) << 23); }

// with_accumulator in 32 bits. `whole` counts 2^(top - 24), `rest` 128ths of it. Rounded to 24 bits a large one needs of
// `rest` only whether it is zero.
INLINE Floats columns_with_accumulator(Ints sum, Ints exp, Floats c) {
    const Ints top = larger(exp, ((Ints)c >> 23 & 255) - 127), by = top - exp;
    const Ints beyond = smaller(larger(by - 7, (Ints){0}), (Ints){0} + 31);
    const Ints rest = (sum << larger(7 - by, (Ints){0}) >> beyond) & 127;
    const Ints a = __builtin_convertvector(__builtin_elementwise_floor(c * power(24 - top)), Ints);
    const Ints whole = (sum >> smaller(by, (Ints){0} + 31)) + a;
    const Ints fits = (Ints)((Unsigned)(whole + (1 << 24)) < (Unsigned){0} + (1 << 25));
    const Ints value = ((whole << 7 | rest) & fits) | ((whole << 1 | (rest + 127) >> 7) & ~fits);
    return __builtin_convertvector(value, Floats) * power(top - 25 - (fits & 6));
}

// `rows` of results, `group` and `n` are constants in each copy.
INLINE void fused_columns(const Fused *f, int n, int group, const int rows) {
    const int m = f->m, parts = n / COLUMNS;
    Product *p = f->p;
    for (int first = 0; first < p->k; first += group)
        for (int i = 0; i < m; i += rows) {
            const float *a = &p->a[first * m + i], *b = &p->b[first * n];
            const int32_t *ea = &f->a.exp[first * m + i], *eb = &f->b.exp[first * n];
            Ints top[4], sum[4];
            Floats scale[4];
            for (int r = 0; r < rows * parts; r++) top[r] = (Ints){0} + LEAST, sum[r] = (Ints){0};
            for (int k = 0; k < group; k++)
                for (int r = 0; r < rows * parts; r++)
                    top[r] = larger(top[r], ea[k * m + r / parts] + *(const Ints *)&eb[k * n + r % parts * COLUMNS]);
            for (int r = 0; r < rows * parts; r++) scale[r] = power(24 - top[r]);
            for (int k = 0; k < group; k++)
                for (int r = 0; r < rows * parts; r++) {
                    const Floats product = a[k * m + r / parts] * *(const Floats *)&b[k * n + r % parts * COLUMNS];
                    sum[r] += __builtin_convertvector(product * scale[r], Ints);
                }
            for (int r = 0; r < rows * parts; r++) {
                Floats *c = (Floats *)&p->c[i * n + r * COLUMNS];
                *c = columns_with_accumulator(sum[r], top[r], *c);
            }
        }
}

// Whether every addend is zero or has an exponent from LEAST to MOST.
INLINE bool usual_addends(const float *c, int count) {
    uint32_t largest = 0, smallest = ~0u;
    for (int i = 0; i < count; i++) {
        const uint32_t size = as_bits(c[i]) & 0x7fffffff;
        largest = size > largest ? size : largest;
        smallest = size - 1 < smallest ? size - 1 : smallest;
    }
    return largest < (uint32_t)(127 + MOST + 1) << 23 && smallest >= ((127 + LEAST) << 23) - 1;
}

INLINE void fused(Product *p, int n) {
    static const int groups[] = {[E_F16] = 8, [E_BF16] = 8, [E_F32] = 1, [E_XF32] = 4, [E_FP8] = 16, [E_BF8] = 16};
    static _Thread_local Fused f;
    const int fa = fraction_bits(p->left), fb = fraction_bits(p->right);
    f.p = p, f.m = p->m, f.n = n;
    f.group = groups[p->left] < p->k ? groups[p->left] : p->k;
    f.shift = 24 - fa - fb;
    const int least_a = least_exponent(p->left, p->fnuz), least_b = least_exponent(p->right, p->fnuz);
    find_exponents(&f.a, p->a, p->m * p->k, least_a);
    find_exponents(&f.b, p->b, n * p->k, least_b);
    const bool finite = f.a.finite && f.b.finite, wide = element_bits(p->left) != 8;
    const bool usual = finite && wide && f.a.least + f.b.least >= LEAST && f.a.most + f.b.most <= MOST;
    if (usual && n % COLUMNS == 0 && usual_addends(p->c, p->m * n)) {
        if (f.group == 8) fused_columns(&f, n, 8, n == COLUMNS ? 4 : 2);
        else fused_columns(&f, n, f.group, 1);
        return;
    }
    bool fast = finite && wide && f.a.most + f.b.most < 100;  // nothing can overflow
    for (int i = 0; i < p->m * n; i++) fast &= fabsf(p->c[i]) < 0x1p120f;
    find_significands(&f.a, p->a, p->m * p->k, fa, least_a);
    find_significands(&f.b, p->b, n * p->k, fb, least_b);
    for (int i = 0; i < p->m; i++)
        for (int first = 0; first < p->k; first += f.group) {
            float *c = &p->c[i * n];
            if (fast) fused_row(&f, i, first, n, c);
            else for (int j = 0; j < n; j++) c[j] = fused_one(&f, i, j, first, c[j]);
        }
}

INLINE void multiply_rows(Product *p, int n) {
    switch (p->sum) {
    case SUM_FMA: chain(p, n); break;
    case SUM_FUSED: fused(p, n); break;
    default: pairs(p, n);
    }
}

void multiply(Product *p) {
    switch (p->n) {
    case 32: multiply_rows(p, 32); break;
    case 16: multiply_rows(p, 16); break;
    default: multiply_rows(p, p->n);
    }
}
