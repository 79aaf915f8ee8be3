// Floating-point formats of 4 to 8 bits (and the 16-bit ones), for conversions and dot products.
//
// fp8 is e4m3 and bf8 is e5m2. gfx942 has the FNUZ forms (no infinity, no negative zero, NaN is 0x80, biases 8 and
// 16; CDNA3 ISA guide); gfx950 and gfx12 have OCP's (OCP 8-bit Floating Point Specification 1.0). fp4, fp6 and bf6 are
// those of OCP Microscaling Formats 1.0, finite only.
#pragma once

#include "float.h"

enum Kind { FNUZ, FINITE_NAN /* e4m3: one NaN code, no infinity */, IEEE_LIKE, FINITE /* saturates */ };

typedef struct Format {
    int mantissa, bias;
    uint32_t largest;  // code of the largest finite magnitude
    uint32_t sign;     // weight of the sign bit
    uint32_t infinity; // IEEE_LIKE only
    uint32_t nan;
    enum Kind kind;
} Format;

static const Format FP8_FNUZ = {3, 8, 0x7f, 0x80, 0, 0x80, FNUZ};
static const Format BF8_FNUZ = {2, 16, 0x7f, 0x80, 0, 0x80, FNUZ};
static const Format FP8_OCP = {3, 7, 0x7e, 0x80, 0, 0x7f, FINITE_NAN};
static const Format BF8_OCP = {2, 15, 0x7b, 0x80, 0x7c, 0x7f, IEEE_LIKE};
static const Format FP4 = {1, 1, 0x7, 0x8, 0, 0x7, FINITE};
static const Format FP6 = {3, 1, 0x1f, 0x20, 0, 0x1f, FINITE};
static const Format BF6 = {2, 3, 0x1f, 0x20, 0, 0x1f, FINITE};
static const Format F16 = {10, 15, 0x7bff, 0x8000, 0x7c00, 0x7e00, IEEE_LIKE};
static const Format BF16 = {7, 127, 0x7f7f, 0x8000, 0x7f80, 0x7fc0, IEEE_LIKE};

static inline const Format *fp8_of(const Wave *w) { return w->launch->arch == GFX942 ? &FP8_FNUZ : &FP8_OCP; }
static inline const Format *bf8_of(const Wave *w) { return w->launch->arch == GFX942 ? &BF8_FNUZ : &BF8_OCP; }

// The value of a code; exact, as every format here is part of float32. The magnitude is put where float32 has its
// exponent, so that one exact product sets the bias right, subnormals included.
static inline float decode_small(uint32_t code, const Format *f) {
    const uint32_t magnitude = code & (f->sign - 1);
    const float scale = as_float((uint32_t)(127 + 127 - f->bias) << 23);
    const float size = as_float(magnitude << (23 - f->mantissa)) * scale;
    const uint32_t sign = code & f->sign ? 0x80000000u : 0;
    uint32_t u = as_bits(size) | sign;
    const bool nan = f->kind == FNUZ ? code == f->nan
                   : f->kind == FINITE_NAN ? magnitude == f->nan
                   : f->kind == IEEE_LIKE ? magnitude > f->infinity : false;
    u = f->kind == IEEE_LIKE && magnitude == f->infinity ? sign | 0x7f800000u : u;
    return as_float(nan ? NAN32 : u);
}

// The code of a value: rounded to nearest even, or, `stochastic`, up with the probability of the part cut off: the
// bits of `random`, from the top, are added below the last kept bit and the sum is truncated. (The guides write the
// sum for normal results only, within the float32 mantissa, and as if the carry were lost; a lost carry would turn
// 1.99 into 1, so it is carried here.)
// Too large a value becomes infinity or, without one, NaN; with `saturate` (MODE.FP16_OVFL) the largest number, if it
// was finite (CDNA3 ISA guide on FP16_OVFL).
static inline uint32_t encode_small(double v, const Format *f, bool stochastic, uint32_t random, bool saturate) {
    const uint64_t u = as_bits64(v), size = u & 0x7fffffffffffffffull;
    const uint32_t sign = u >> 63 ? f->sign : 0;
    const uint32_t nan = f->kind == FNUZ ? f->nan : f->nan | sign;
    const uint32_t infinity = f->kind == IEEE_LIKE ? f->infinity | sign : f->kind == FINITE ? f->largest | sign : nan;
    if (size > 0x7ff0000000000000ull) return nan;
    if (size == 0x7ff0000000000000ull) return infinity;
    const int least = 1 - f->bias, e = size >> 52 ? (int)(size >> 52) - 1023 : -1022;
    const int top = e > least ? e : least;
    const uint64_t m = (size & 0xfffffffffffffull) | (size >> 52 ? 1ull << 52 : 0);
    int shift = top - e + 52 - f->mantissa;
    if (shift > 62) shift = 62;  // far below the smallest subnormal: nothing but the fraction of the random bits counts
    const uint64_t half = 1ull << (shift - 1);
    const uint64_t add = stochastic ? (shift >= 32 ? (uint64_t)random << (shift - 32) : (uint64_t)random >> (32 - shift))
                                    : half - 1 + (m >> shift & 1);
    const uint64_t n = (m + add) >> shift;
    const uint64_t code = ((uint64_t)(top - least) << f->mantissa) + n;
    if (code > f->largest) return saturate ? f->largest | sign : infinity;
    return f->kind == FNUZ && code == 0 ? 0 : (uint32_t)code | sign;
}

// encode_small to nearest for a float32 and the 8-bit formats, free of branches: loops over lanes become vector code.
static inline uint32_t encode_nearest(uint32_t u, const Format *f, bool saturate) {
    const uint32_t a = u & 0x7fffffff, sign = u >> 31 ? f->sign : 0, e = a >> 23;
    const uint32_t first = (uint32_t)(128 - f->bias), whole = (uint32_t)(23 - f->mantissa);  // first: smallest normal's
    const uint32_t below = e < first ? first - e : 0, wanted = whole + below, drop = wanted > 25 ? 25 : wanted;
    const uint32_t m = (a & 0x7fffff) | 0x800000, base = e < first ? 0 : (e - first) << f->mantissa;
    const uint32_t n = base + ((m + round_addend(1u << drop, m >> drop & 1, 0, TO_NEAREST)) >> drop);
    const uint32_t nan = f->kind == FNUZ ? f->nan : f->nan | sign;
    const uint32_t infinity = f->kind == IEEE_LIKE ? f->infinity | sign : f->kind == FINITE ? f->largest | sign : nan;
    const uint32_t zero = f->kind == FNUZ ? 0 : sign;
    uint32_t r = n == 0 ? zero : n > f->largest ? (saturate ? f->largest | sign : infinity) : n | sign;
    r = a == 0x7f800000 ? infinity : r;
    return a > 0x7f800000 ? nan : r;
}
