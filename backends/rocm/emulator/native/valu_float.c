// Vector arithmetic on float32 and float64, division helpers included; the transcendental ones are in valu_math.c.
//
// Sources come in assembler order, so every multiply-add is s0 * s1 + s2: v_fmac's accumulator, v_fmaak's and
// v_fmamk's literal stand where LLVM prints them. Rounding by MODE, denormals, clamp and omod are the shared step's.
#include "float.h"
#include "shuffle.h"

#define A x->s[0]
#define B x->s[1]
#define C x->s[2]
#define F1(op, expression)                                                     \
    static void op(LaneOp *x) {                                                \
        EACH {                                                                 \
            const float a = A->f[i];                                           \
            x->d.f[i] = settle(expression, a, 0, 0);                           \
        }                                                                      \
    }
#define F2(op, expression)                                                     \
    static void op(LaneOp *x) {                                                \
        EACH {                                                                 \
            const float a = A->f[i], b = B->f[i];                              \
            x->d.f[i] = settle(expression, a, b, 0);                           \
        }                                                                      \
    }
#define F3(op, expression)                                                     \
    static void op(LaneOp *x) {                                                \
        EACH {                                                                 \
            const float a = A->f[i], b = B->f[i], c = C->f[i];                 \
            x->d.f[i] = settle(expression, a, b, c);                           \
        }                                                                      \
    }
#define D1(op, expression)                                                     \
    static void op(LaneOp *x) {                                                \
        EACH {                                                                 \
            const double a = A->d[i];                                          \
            x->d.d[i] = settle_double(expression, a, 0, 0);                    \
        }                                                                      \
    }
#define D2(op, expression)                                                     \
    static void op(LaneOp *x) {                                                \
        EACH {                                                                 \
            const double a = A->d[i], b = B->d[i];                             \
            x->d.d[i] = settle_double(expression, a, b, 0);                    \
        }                                                                      \
    }
#define D3(op, expression)                                                     \
    static void op(LaneOp *x) {                                                \
        EACH {                                                                 \
            const double a = A->d[i], b = B->d[i], c = C->d[i];                \
            x->d.d[i] = settle_double(expression, a, b, c);                    \
        }                                                                      \
    }

// Sums and products -------------------------------------------------------------------------------

F2(v_add_f32, a + b)
F2(v_sub_f32, a - b)
F2(v_subrev_f32, b - a)
F2(v_mul_f32, a * b)
F3(v_fma_f32, __builtin_fmaf(a, b, c))
D2(v_add_f64, a + b)
D2(v_mul_f64, a * b)
D3(v_fma_f64, __builtin_fma(a, b, c))

// "DX9 rules": a zero times anything is +0, or the addend (ISA guides, V_MUL_LEGACY_F32, V_FMA_DX9_ZERO_F32).
static void v_mul_legacy_f32(LaneOp *x) {
    EACH {
        const float a = A->f[i], b = B->f[i], r = settle(a * b, a, b, 0);
        x->d.f[i] = a == 0 || b == 0 ? 0.0f : r;
    }
}

static void v_fma_dx9_zero_f32(LaneOp *x) {
    EACH {
        const float a = A->f[i], b = B->f[i], c = C->f[i], r = settle(__builtin_fmaf(a, b, c), a, b, c);
        x->d.f[i] = a == 0 || b == 0 ? c : r;
    }
}

// gfx9's unfused multiply-add: the product is rounded first, and denormals are flushed on every side whatever MODE
// says (LLVM selects it only where float32 denormals are off).
static inline float mad(float a, float b, float c) {
    const float product = as_float(flush_denormal(as_bits(a * b)));
    const float sum = settle(product + as_float(flush_denormal(as_bits(c))), a, b, c);
    return as_float(flush_denormal(as_bits(sum)));
}

static void v_mad_f32(LaneOp *x) { EACH x->d.f[i] = mad(A->f[i], B->f[i], C->f[i]); }

static void v_mad_legacy_f32(LaneOp *x) {
    EACH {
        const float a = A->f[i], b = B->f[i], c = C->f[i], r = mad(a, b, c);
        x->d.f[i] = a == 0 || b == 0 ? c : r;
    }
}

// Minimum and maximum -----------------------------------------------------------------------------

#define ORDER2(op, how)                                                                             \
    static void v_##op##_f32(LaneOp *x) {                                                           \
        const bool ieee = ieee_mode(x->w);                                                          \
        EACH x->d.u[i] = how##32(A->u[i], B->u[i], ieee);                                           \
    }                                                                                               \
    static void v_##op##_f64(LaneOp *x) {                                                           \
        const bool ieee = ieee_mode(x->w);                                                          \
        EACH x->d.q[i] = how##64(A->q[i], B->q[i], ieee);                                           \
    }
#define ORDER3(op, first, second)                                                                   \
    static void op(LaneOp *x) {                                                                     \
        const bool ieee = ieee_mode(x->w);                                                          \
        EACH x->d.u[i] = second##32(first##32(A->u[i], B->u[i], ieee), C->u[i], ieee);              \
    }
ORDER2(min, lesser)
ORDER2(max, greater)
ORDER2(minimum, least)
ORDER2(maximum, most)
ORDER3(v_min3_f32, lesser, lesser)
ORDER3(v_max3_f32, greater, greater)
ORDER3(v_minimum3_f32, least, least)
ORDER3(v_maximum3_f32, most, most)
ORDER3(v_minmax_num_f32, lesser, greater)
ORDER3(v_maxmin_num_f32, greater, lesser)
ORDER3(v_minimummaximum_f32, least, most)
ORDER3(v_maximumminimum_f32, most, least)

static void v_med3_f32(LaneOp *x) {
    const bool ieee = ieee_mode(x->w);
    EACH x->d.u[i] = median32(A->u[i], B->u[i], C->u[i], ieee);
}

// Whole numbers -----------------------------------------------------------------------------------

F1(v_trunc_f32, __builtin_truncf(a))
F1(v_ceil_f32, __builtin_ceilf(a))
F1(v_floor_f32, __builtin_floorf(a))
F1(v_rndne_f32, __builtin_roundevenf(a))
D1(v_trunc_f64, __builtin_trunc(a))
D1(v_ceil_f64, __builtin_ceil(a))
D1(v_floor_f64, __builtin_floor(a))
D1(v_rndne_f64, __builtin_roundeven(a))

// x - floor(x), but below 1: for a tiny negative x the difference would round to 1. LLVM relies on it, matching
// min(x - floor(x), largest below 1) to this instruction (AMDGPUCodeGenPrepare).
F1(v_fract_f32, (a - __builtin_floorf(a) >= 1.0f ? 0x1.fffffep-1f : a - __builtin_floorf(a)))
D1(v_fract_f64, (a - __builtin_floor(a) >= 1.0 ? 0x1.fffffffffffffp-1 : a - __builtin_floor(a)))

// Exponents ---------------------------------------------------------------------------------------

// A finite non-zero number is mantissa * 2^exponent with the mantissa in [1/2, 1); subnormals are scaled up first.
// 0, infinity and NaN have exponent 0 and are their own mantissa.
static void v_frexp_exp_i32_f32(LaneOp *x) {
    EACH {
        const uint32_t u = A->u[i] & 0x7fffffff;
        const int32_t small = (int32_t)(as_bits((float)(int32_t)u) >> 23) - 127 - 149 + 1;
        const int32_t e = u < 0x800000 ? small : (int32_t)(u >> 23) - 126;
        x->d.i[i] = u == 0 || u >= 0x7f800000 ? 0 : e;
    }
}

static void v_frexp_mant_f32(LaneOp *x) {
    EACH {
        const uint32_t u = A->u[i], a = u & 0x7fffffff;
        const uint32_t scaled = a < 0x800000 ? as_bits((float)(int32_t)a) : a;
        const uint32_t mantissa = (u & 0x80000000u) | 0x3f000000 | (scaled & 0x7fffff);
        x->d.u[i] = a == 0 || a == 0x7f800000 ? u : a > 0x7f800000 ? u | QUIET32 : mantissa;
    }
}

static void v_frexp_exp_i32_f64(LaneOp *x) {
    EACH {
        const uint64_t u = A->q[i] & 0x7fffffffffffffffull;
        const double up = as_double(u) * 0x1p54;
        const int64_t e = u < 1ull << 52 ? (int64_t)(as_bits64(up) >> 52) - 54 - 1022 : (int64_t)(u >> 52) - 1022;
        x->d.i[i] = u == 0 || u >= 0x7ff0000000000000ull ? 0 : (int32_t)e;
    }
}

static void v_frexp_mant_f64(LaneOp *x) {
    EACH {
        const uint64_t u = A->q[i], a = u & 0x7fffffffffffffffull;
        const uint64_t scaled = a < 1ull << 52 ? as_bits64(as_double(a) * 0x1p54) : a;
        const uint64_t mantissa = (u & 1ull << 63) | 0x3fe0000000000000ull | (scaled & 0xfffffffffffffull);
        x->d.q[i] = a == 0 || a == 0x7ff0000000000000ull ? u : a > 0x7ff0000000000000ull ? u | 1ull << 51 : mantissa;
    }
}

static void v_ldexp_f32(LaneOp *x) {
    EACH {
        const float a = A->f[i];
        x->d.f[i] = settle(ldexp_float(a, B->i[i]), a, 0, 0);
    }
}

// The mantissa in [1, 2) times two powers of two, of which only the second product can round.
static inline double ldexp_double(double a, int32_t n) {
    const uint64_t u = as_bits64(a), size = u & 0x7fffffffffffffffull;
    const uint64_t scaled = size < 1ull << 52 ? as_bits64(as_double(size) * 0x1p54) : size;
    const int64_t e = (int64_t)(scaled >> 52) - 1023 - (size < 1ull << 52 ? 54 : 0);
    int64_t t = e + n;
    t = t < -1100 ? -1100 : t > 1100 ? 1100 : t;
    const int64_t first = t < -1021 ? -1021 : t > 1023 ? 1023 : t;
    const double mantissa = as_double((u & 1ull << 63) | 1023ull << 52 | (scaled & 0xfffffffffffffull));
    const double r = mantissa * power_of_two(first) * power_of_two(t - first);
    return size == 0 || size >= 0x7ff0000000000000ull ? a : r;
}

static void v_ldexp_f64(LaneOp *x) {
    EACH {
        const double a = A->d[i];
        x->d.d[i] = settle_double(ldexp_double(a, B->i[i]), a, 0, 0);
    }
}

// Division ----------------------------------------------------------------------------------------
//
// LLVM divides n / d by: two v_div_scale (of d, of n), a reciprocal, two Newton steps with v_fma, v_div_fmas and
// v_div_fixup. The pseudocode of the three instructions is in the RDNA3 and CDNA3 ISA guides; where its text cannot
// be right it is read so that the quotient comes out correctly rounded, as OpenCL's conformance requires:
// - v_div_scale, both 1/d and n/d denormal: the guide scales the denominator *up*, to infinity; here down.
// - v_div_fmas with VCC: the guide multiplies by 2^32 (2^64 for f64), but the scale to undo is 2^64 (2^128), up where
//   the quotient is near the largest number and down where it is near the smallest. Which, the size of the quotient
//   so far (s2) tells. Scaling down rounds once, together with the fused multiply-add.
// - v_div_fixup's overflow: the guide tests the denominator's exponent against 255, which is infinity or NaN and was
//   handled before; here the difference of the exponents, or a NaN quotient (infinity times 0 on the way) tells.

#define SCALE(name, T, bits, REAL, WORD, EXPONENT, TOP, NEAR_MAX, TINY, UP, DOWN, DENORMAL, DEFAULT)                   \
    static void name(LaneOp *x) {                                                                                     \
        uint8_t flag[LANES];                                                                                          \
        EACH {                                                                                                        \
            const REAL s = A->T[i], d = B->T[i], n = C->T[i];                                                         \
            const int exponent_d = (int)(bits(d) >> EXPONENT & TOP), exponent_n = (int)(bits(n) >> EXPONENT & TOP);   \
            const REAL size_d = d < 0 ? -d : d, size_n = n < 0 ? -n : n, quotient = size_n / size_d;                  \
            const REAL inverse = 1 / size_d;                                                                          \
            const bool numbers = exponent_d != TOP && exponent_n != TOP;                                              \
            const bool none = d == 0 || n == 0;                                                                       \
            const bool large = exponent_n - exponent_d >= NEAR_MAX;                                                   \
            const bool d_denormal = exponent_d == 0;                                                                  \
            const bool inverse_denormal = numbers && inverse < DENORMAL;                                              \
            const bool quotient_denormal = numbers && quotient < DENORMAL;                                            \
            const bool is_d = s == d, is_n = s == n;                                                                  \
            const REAL r = none ? DEFAULT                                                                             \
                         : large ? (is_d ? s * UP : s)                                                                \
                         : d_denormal ? s * UP                                                                        \
                         : inverse_denormal && quotient_denormal ? (is_d ? s * DOWN : s)                              \
                         : inverse_denormal ? s * DOWN                                                                \
                         : quotient_denormal ? (is_n ? s * UP : s)                                                    \
                         : exponent_n <= TINY ? s * UP : s;                                                           \
            flag[i] = !none && (large || (!d_denormal && quotient_denormal));                                         \
            x->d.T[i] = r;                                                                                            \
        }                                                                                                             \
        x->dm = mask_of(flag);                                                                                         \
    }
SCALE(v_div_scale_f32, f, as_bits, float, uint32_t, 23, 255, 96, 23, 0x1p64f, 0x1p-64f, 0x1p-126f, as_float(NAN32))
SCALE(v_div_scale_f64, d, as_bits64, double, uint64_t, 52, 2047, 768, 53, 0x1p128, 0x1p-128, 0x1p-1022, as_double(NAN64))

// The sum p + c with its rounding error gathered in the last bit ("round to odd"; Boldo and Melquiond 2008), so that
// rounding it again to float is as good as rounding the exact sum. In any rounding mode the error's sign is right
// when the larger term comes first (Boldo, Graillat, Muller 2017).
static double odd_sum(double p, double c) {
    const double sum = p + c;
    const bool first = __builtin_fabs(p) >= __builtin_fabs(c);
    const double big = first ? p : c, small = first ? c : p;
    const double error = small - (sum - big);
    uint64_t u = as_bits64(sum);
    if (error == 0 || u & 1 || sum != sum || sum == 0) return sum;
    return as_double((error > 0) == (sum > 0) ? u + 1 : u - 1);
}

static mask64 read_vcc(LaneOp *x) {
    const mask64 known = (x->w->sdef[VCC] | (mask64)x->w->sdef[VCC + 1] << 32) | ~x->w->full;
    x->dlo &= known;
    x->dhi &= known;
    return scalar64(x->w, VCC) & x->w->full;
}

static void v_div_fmas_f32(LaneOp *x) {
    const mask64 vcc = read_vcc(x);
    v_fma_f32(x);
    EACH_ACTIVE(vcc, i) {
        const float a = A->f[i], b = B->f[i], c = C->f[i];
        const float r = (C->u[i] >> 23 & 255) > 127 ? x->d.f[i] * 0x1p64f
                                                    : (float)(odd_sum((double)a * b, c) * 0x1p-64);
        x->d.f[i] = settle(r, a, b, c);
    }
}

// The sign of a * b + c - fma(a, b, c), to nearest (Boldo and Muller 2011).
static double fma_error(double a, double b, double c, double r) {
    const double u1 = a * b, u2 = __builtin_fma(a, b, -u1);
    const double a1 = c + u2, z1 = a1 - c, a2 = (c - (a1 - z1)) + (u2 - z1);
    const double b1 = u1 + a1, z2 = b1 - u1, b2 = (u1 - (b1 - z2)) + (a1 - z2);
    return ((b1 - r) + b2) + a2;
}

static void v_div_fmas_f64(LaneOp *x) {
    const mask64 vcc = read_vcc(x);
    v_fma_f64(x);
    EACH_ACTIVE(vcc, i) {
        const double a = A->d[i], b = B->d[i], c = C->d[i], sum = x->d.d[i];
        if ((C->q[i] >> 52 & 2047) > 1023) {
            x->d.d[i] = settle_double(sum * 0x1p128, a, b, c);
            continue;
        }
        double r = sum * 0x1p-128;
        // Only where the rounded sum lies half-way between two denormals does what it lost matter. (To nearest;
        // under another rounding of float64, which no compiler sets, the last bit may be off.)
        const double lost = sum - r * 0x1p128;
        if (lost == 0x1p-947 || lost == -0x1p-947) {
            const double error = fma_error(a, b, c, sum);
            if (error != 0) r = as_double(as_bits64(sum) + ((error > 0) == (sum > 0) ? 1 : ~0ull)) * 0x1p-128;
        }
        x->d.d[i] = settle_double(r, a, b, c);
    }
}

#define FIXUP(name, T, U, REAL, WORD, SIGN, EXPONENT, TOP, LEAST, MOST, QUIET, INDEFINITE, LARGEST, SMALLEST)          \
    static void name(LaneOp *x) {                                                                                     \
        const volatile REAL large = LARGEST, tiny = SMALLEST; /* overflow and underflow as MODE rounds */             \
        const REAL over[2] = {large * large, -large * large}, under[2] = {tiny * tiny, -tiny * tiny};                 \
        WORD beyond[2], below[2];                                                                                     \
        memcpy(beyond, over, sizeof over);                                                                            \
        memcpy(below, under, sizeof under);                                                                           \
        EACH {                                                                                                        \
            const WORD ud = B->U[i], un = C->U[i], sign = (ud ^ un) & SIGN, sd = ud & ~SIGN, sn = un & ~SIGN;         \
            const WORD infinity = (WORD)TOP << EXPONENT;                                                              \
            const int difference = (int)(sn >> EXPONENT) - (int)(sd >> EXPONENT);                                     \
            const REAL q = A->T[i];                                                                                   \
            WORD r = (A->U[i] & ~SIGN) | sign;                                                                        \
            r = q != q || difference > MOST ? (sign ? beyond[1] : beyond[0])                                          \
              : difference < LEAST ? (sign ? below[1] : below[0]) : r;                                                \
            r = sd == infinity || sn == 0 ? sign : r;                                                                 \
            r = sd == 0 || sn == infinity ? sign | infinity : r;                                                      \
            r = (sd == 0 && sn == 0) || (sd == infinity && sn == infinity) ? INDEFINITE : r;                          \
            r = sd > infinity ? ud | QUIET : r;                                                                       \
            r = sn > infinity ? un | QUIET : r;                                                                       \
            x->d.U[i] = r;                                                                                            \
        }                                                                                                             \
    }
FIXUP(v_div_fixup_f32, f, u, float, uint32_t, 0x80000000u, 23, 255, -150, 128, QUIET32, 0xffc00000u, 0x1.fffffep127f, 0x1p-149f)
FIXUP(v_div_fixup_f64, d, q, double, uint64_t, (1ull << 63), 52, 2047, -1075, 1024, (1ull << 51), 0xfff8000000000000ull, 0x1.fffffffffffffp1023, 0x1p-1074)

#define R(op, signature) LANE_OP(op, signature)
#define NAMED(name, op, signature) {#name, signature, step_lane, (void *)op, C_VALU, 0}
const OpInfo ops_valu_float[] = {
    R(v_add_f32, "f=ff"), R(v_sub_f32, "f=ff"), R(v_subrev_f32, "f=ff"), R(v_mul_f32, "f=ff"),
    R(v_mul_legacy_f32, "f=ff"), R(v_fma_f32, "f=fff"), NAMED(v_fmac_f32, v_fma_f32, "f=fff"),
    NAMED(v_fmaak_f32, v_fma_f32, "f=fff"), NAMED(v_fmamk_f32, v_fma_f32, "f=fff"),
    R(v_fma_dx9_zero_f32, "f=fff"), NAMED(v_fmac_dx9_zero_f32, v_fma_dx9_zero_f32, "f=fff"),
    NAMED(v_fma_legacy_f32, v_fma_dx9_zero_f32, "f=fff"), NAMED(v_fmac_legacy_f32, v_fma_dx9_zero_f32, "f=fff"),
    R(v_mad_f32, "f=fff"), NAMED(v_mac_f32, v_mad_f32, "f=fff"), NAMED(v_madak_f32, v_mad_f32, "f=fff"),
    NAMED(v_madmk_f32, v_mad_f32, "f=fff"), R(v_mad_legacy_f32, "f=fff"),
    NAMED(v_mac_legacy_f32, v_mad_legacy_f32, "f=fff"),
    R(v_add_f64, "d=dd"), R(v_mul_f64, "d=dd"), R(v_fma_f64, "d=ddd"), NAMED(v_fmac_f64, v_fma_f64, "d=ddd"),
    R(v_min_f32, "f=ff"), R(v_max_f32, "f=ff"), R(v_minimum_f32, "f=ff"), R(v_maximum_f32, "f=ff"),
    R(v_min_f64, "d=dd"), R(v_max_f64, "d=dd"), R(v_minimum_f64, "d=dd"), R(v_maximum_f64, "d=dd"),
    R(v_min3_f32, "f=fff"), R(v_max3_f32, "f=fff"), R(v_med3_f32, "f=fff"),
    R(v_minimum3_f32, "f=fff"), R(v_maximum3_f32, "f=fff"),
    R(v_minmax_num_f32, "f=fff"), R(v_maxmin_num_f32, "f=fff"),
    NAMED(v_minmax_f32, v_minmax_num_f32, "f=fff"), NAMED(v_maxmin_f32, v_maxmin_num_f32, "f=fff"),
    R(v_minimummaximum_f32, "f=fff"), R(v_maximumminimum_f32, "f=fff"),
    R(v_trunc_f32, "f=f"), R(v_ceil_f32, "f=f"), R(v_floor_f32, "f=f"), R(v_rndne_f32, "f=f"), R(v_fract_f32, "f=f"),
    R(v_trunc_f64, "d=d"), R(v_ceil_f64, "d=d"), R(v_floor_f64, "d=d"), R(v_rndne_f64, "d=d"), R(v_fract_f64, "d=d"),
    R(v_frexp_exp_i32_f32, "b=f"), R(v_frexp_mant_f32, "f=f"), R(v_frexp_exp_i32_f64, "b=d"),
    R(v_frexp_mant_f64, "d=d"), R(v_ldexp_f32, "f=fb"), R(v_ldexp_f64, "d=db"),
    R(v_div_scale_f32, "fm=fff"), R(v_div_scale_f64, "dm=ddd"), R(v_div_fmas_f32, "f=fff"),
    R(v_div_fmas_f64, "d=ddd"), R(v_div_fixup_f32, "f=fff"), R(v_div_fixup_f64, "d=ddd"),
    OPS_END,
};
