// Arithmetic that the vector and scalar float instructions share: NaN rules, minimum and maximum, and the
// transcendental functions.
//
// The transcendentals are computed in double and rounded once, so a result is the correctly rounded one but for
// about one argument in 2^27; hardware promises 1 ulp (RDNA3 and CDNA3 ISA guides), so it may differ in the last bit.
// Everything here is free of branches, so that a loop over lanes becomes vector code.
#pragma once

#include "half.h"

// The host's rounding mode is set by the caller (wave.c) around whole lane functions, never within one that does
// arithmetic on constants, so the compiler may treat arithmetic as plain; that keeps the loops vectorised even when
// the library is built with -frounding-math.
#pragma STDC FENV_ACCESS OFF

#define QUIET32 0x00400000u
#define NAN32 0x7fc00000u
#define NAN64 0x7ff8000000000000ull

static inline uint32_t is_nan32(uint32_t u) { return (u & 0x7fffffff) > 0x7f800000; }
static inline uint32_t is_signalling32(uint32_t u) { return is_nan32(u) && !(u & QUIET32); }

// The result of an operation: a NaN is that of the first source that is one, made quiet, else the positive default
// (the host's own would be negative).
static inline float settle(float r, float a, float b, float c) {
    uint32_t ua = as_bits(a) | QUIET32, ub = as_bits(b) | QUIET32, uc = as_bits(c) | QUIET32;
    uint32_t nan = a != a ? ua : b != b ? ub : c != c ? uc : NAN32;
    return as_float(r == r ? as_bits(r) : nan);
}

static inline double settle_double(double r, double a, double b, double c) {
    const uint64_t quiet = 1ull << 51;
    uint64_t ua = as_bits64(a) | quiet, ub = as_bits64(b) | quiet, uc = as_bits64(c) | quiet;
    uint64_t nan = a != a ? ua : b != b ? ub : c != c ? uc : NAN64;
    return as_double(r == r ? as_bits64(r) : nan);
}

static inline uint32_t flush_denormal(uint32_t u) { return u & 0x7f800000u ? u : u & 0x80000000u; }

// Minimum and maximum on bit patterns, in which -0 < +0 falls out of the order of the keys.
//   lesser/greater  minNum/maxNum: a NaN loses against a number; with `ieee` (MODE's bit, which gfx12 does not have)
//                   a signalling NaN wins over everything and becomes quiet
//   least/most      IEEE 754-2019 minimum/maximum: any NaN wins
// (RDNA3 ISA guide, V_MIN_F32, V_MAX_F32; RDNA4 ISA guide, V_MIN_NUM_F32, V_MINIMUM_F32.)
#define ORDERED(bits, T, SIGN, INF, QUIET)                                                                      \
    static inline T key##bits(T u) { return u & SIGN ? (T)(~u & (SIGN | (SIGN - 1))) : (T)(u | SIGN); }          \
    static inline bool nan##bits(T u) { return (u & (SIGN - 1)) > INF; }                                         \
    static inline T number##bits(T r, T a, T b, bool ieee) {                                                     \
        bool na = nan##bits(a), nb = nan##bits(b);                                                               \
        r = nb ? a : r;                                                                                          \
        r = na ? b : r;                                                                                          \
        r = na && nb ? (T)(a | QUIET) : r;                                                                       \
        r = ieee && nb && !(b & QUIET) ? (T)(b | QUIET) : r;                                                     \
        r = ieee && na && !(a & QUIET) ? (T)(a | QUIET) : r;                                                     \
        return nan##bits(r) ? (T)(r | QUIET) : r;                                                                \
    }                                                                                                            \
    static inline T lesser##bits(T a, T b, bool ieee) {                                                          \
        return number##bits(key##bits(a) < key##bits(b) ? a : b, a, b, ieee);                                    \
    }                                                                                                            \
    static inline T greater##bits(T a, T b, bool ieee) {                                                         \
        return number##bits(key##bits(a) > key##bits(b) ? a : b, a, b, ieee);                                    \
    }                                                                                                            \
    static inline T least##bits(T a, T b, bool ieee) {                                                           \
        T r = key##bits(a) < key##bits(b) ? a : b;                                                               \
        (void)ieee;                                                                                              \
        return nan##bits(a) ? (T)(a | QUIET) : nan##bits(b) ? (T)(b | QUIET) : r;                                \
    }                                                                                                            \
    static inline T most##bits(T a, T b, bool ieee) {                                                            \
        T r = key##bits(a) > key##bits(b) ? a : b;                                                               \
        (void)ieee;                                                                                              \
        return nan##bits(a) ? (T)(a | QUIET) : nan##bits(b) ? (T)(b | QUIET) : r;                                \
    }                                                                                                            \
    static inline bool same##bits(T a, T b) { return a == b || !((a | b) & (SIGN - 1)); }                        \
    static inline T median##bits(T a, T b, T c, bool ieee) {                                                     \
        T top = greater##bits(greater##bits(a, b, ieee), c, ieee);                                               \
        T low = lesser##bits(lesser##bits(a, b, ieee), c, ieee);                                                 \
        T ab = greater##bits(a, b, ieee), bc = greater##bits(b, c, ieee), ac = greater##bits(a, c, ieee);        \
        T r = same##bits(top, a) ? bc : same##bits(top, b) ? ac : ab;                                            \
        return nan##bits(a) || nan##bits(b) || nan##bits(c) ? low : r;                                           \
    }
ORDERED(16, uint32_t, 0x8000u, 0x7c00u, 0x200u)
ORDERED(32, uint32_t, 0x80000000u, 0x7f800000u, 0x400000u)
ORDERED(64, uint64_t, 0x8000000000000000ull, 0x7ff0000000000000ull, 0x8000000000000ull)

static inline bool ieee_mode(const Wave *w) { return w->launch->ieee && w->launch->arch != GFX1201; }

// 2^x for |x| <= 1000: the nearest integer goes to the exponent; the rest, at most 1/2, through exp's series to the
// 13th power (the next term is 4e-18).
static inline double exp2_double(double x) {
    const double shifter = 0x1.8p52;
    double bounded = x > 1000.0 ? 1000.0 : x < -1000.0 ? -1000.0 : x;
    double moved = bounded + shifter;
    double t = (bounded - (moved - shifter)) * 0x1.62e42fefa39efp-1;
    double p = 1.0 / 6227020800.0;
    p = p * t + 1.0 / 479001600.0;
    p = p * t + 1.0 / 39916800.0;
    p = p * t + 1.0 / 3628800.0;
    p = p * t + 1.0 / 362880.0;
    p = p * t + 1.0 / 40320.0;
    p = p * t + 1.0 / 5040.0;
    p = p * t + 1.0 / 720.0;
    p = p * t + 1.0 / 120.0;
    p = p * t + 1.0 / 24.0;
    p = p * t + 1.0 / 6.0;
    p = p * t + 0.5;
    p = p * t + 1.0;
    p = p * t + 1.0;
    double scale = as_double((as_bits64(moved) + 1023) << 52);  // the integer lies in the low bits of `moved`
    return x == x ? p * scale : x;
}

// log2 of a float: mantissa in [sqrt(1/2), sqrt(2)), so that nothing cancels, through the series of artanh
// (|s| <= 0.172; the first term left out is below 1e-17 of the result).
static inline double log2_double(float x) {
    uint32_t u = as_bits(x);
    int32_t raw = (int32_t)(u - 0x3f3504f3u);
    int32_t e = raw >> 23;
    double m = as_float((uint32_t)(raw & 0x7fffff) + 0x3f3504f3u);
    double s = (m - 1.0) / (m + 1.0), z = s * s;
    double p = 1.0 / 21.0;
    p = p * z + 1.0 / 19.0;
    p = p * z + 1.0 / 17.0;
    p = p * z + 1.0 / 15.0;
    p = p * z + 1.0 / 13.0;
    p = p * z + 1.0 / 11.0;
    p = p * z + 1.0 / 9.0;
    p = p * z + 1.0 / 7.0;
    p = p * z + 1.0 / 5.0;
    p = p * z + 1.0 / 3.0;
    p = p * z + 1.0;
    double r = (double)e + p * s * (2.0 * 0x1.71547652b82fep0);
    r = u == 0x7f800000 ? (double)x : r;
    r = !(u & 0x7fffffff) ? -(double)as_float(0x7f800000) : r;
    return is_nan32(u) || (u >> 31 && (u & 0x7fffffff)) ? (double)as_float(NAN32) : r;
}

// sin(2 pi x): x less its nearest integer is exact, folded to a quarter turn, then the series to the 23rd power.
static inline double sin_turns(double x) {
    const double shifter = 0x1.8p52;
    double whole = x >= -0x1p50 && x <= 0x1p50 ? (x + shifter) - shifter : x;
    double r = x - whole;  // inf - inf: NaN
    r = r > 0.25 ? 0.5 - r : r < -0.25 ? -0.5 - r : r;
    double y = r * 0x1.921fb54442d18p2, z = y * y;
    double p = -1.0 / 25852016738884976640000.0;
    p = p * z + 1.0 / 51090942171709440000.0;
    p = p * z - 1.0 / 121645100408832000.0;
    p = p * z + 1.0 / 355687428096000.0;
    p = p * z - 1.0 / 1307674368000.0;
    p = p * z + 1.0 / 6227020800.0;
    p = p * z - 1.0 / 39916800.0;
    p = p * z + 1.0 / 362880.0;
    p = p * z - 1.0 / 5040.0;
    p = p * z + 1.0 / 120.0;
    p = p * z - 1.0 / 6.0;
    return y + y * z * p;
}

static inline double cos_turns(double x) {
    const double shifter = 0x1.8p52;
    double whole = x >= -0x1p50 && x <= 0x1p50 ? (x + shifter) - shifter : x;
    return sin_turns((x - whole) + 0.25);
}

// 2^n as a double, for -1022 <= n <= 1023.
static inline double power_of_two(int64_t n) { return as_double((uint64_t)(n + 1023) << 52); }

static inline float ldexp_float(float a, int32_t n) {
    int32_t bounded = n > 300 ? 300 : n < -300 ? -300 : n;
    return (float)((double)a * power_of_two(bounded));  // exact in double, so rounded once
}
