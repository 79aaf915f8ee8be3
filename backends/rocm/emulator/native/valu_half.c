// Vector arithmetic on float16, one value per lane.
//
// Lanes are widened to float32 (exact), computed there and rounded once to float16 under MODE's float16 rounding.
// To nearest that is the correctly rounded result:
// - a sum or product of two float16 needs at most 22 bits, or is rounded first to 24 >= 2 * 11 + 2 bits, which makes
//   the second rounding innocuous (Figueroa 1995); so too for the square root;
// - a fused multiply-add is done in double: product and addend together span more than 53 bits only when the addend
//   is above 2^5 and the product below 2^-26, too small to matter beside it.
// In the directed modes the host rounds the same way, and two roundings in one direction are one.
#include "float.h"

#define A x->s[0]
#define B x->s[1]
#define C x->s[2]

// Keeps arithmetic on local arrays between two calls of host_round.
#define FENCE(p) __asm__ volatile("" : : "r"(p) : "memory")
#define WIDEN(k, name) float name##_[LANES]; halves_to_floats(x->s[k]->u, name##_)

#define BEGIN const int round = ROUND_F16_F64(x->w->mode); float r_[LANES]
#define ENTER(last) if (round) { host_round(round); FENCE(a_); FENCE(last); FENCE(r_); }
#define LEAVE if (round) { FENCE(r_); host_round(TO_NEAREST); } floats_to_halves(r_, x->d.u, round)

#define H1(op, expression)                                                                     \
    static void op(LaneOp *x) {                                                                \
        BEGIN;                                                                                 \
        WIDEN(0, a);                                                                           \
        ENTER(a_)                                                                              \
        EACH {                                                                                 \
            const float a = a_[i];                                                             \
            r_[i] = settle(expression, a, 0, 0);                                               \
        }                                                                                      \
        LEAVE;                                                                                 \
    }
#define H2(op, expression)                                                                     \
    static void op(LaneOp *x) {                                                                \
        BEGIN;                                                                                 \
        WIDEN(0, a);                                                                           \
        WIDEN(1, b);                                                                           \
        ENTER(b_)                                                                              \
        EACH {                                                                                 \
            const float a = a_[i], b = b_[i];                                                  \
            r_[i] = settle(expression, a, b, 0);                                               \
        }                                                                                      \
        LEAVE;                                                                                 \
    }

H2(v_add_f16, a + b)
H2(v_sub_f16, a - b)
H2(v_subrev_f16, b - a)
H2(v_mul_f16, a * b)
H1(v_sqrt_f16, __builtin_sqrtf(a))
H1(v_trunc_f16, __builtin_truncf(a))
H1(v_ceil_f16, __builtin_ceilf(a))
H1(v_floor_f16, __builtin_floorf(a))
H1(v_rndne_f16, __builtin_roundevenf(a))

// Below 1 also where the difference would round to it, as v_fract_f32.
H1(v_fract_f16, (a - __builtin_floorf(a) > 0x1.ffcp-1f ? 0x1.ffcp-1f : a - __builtin_floorf(a)))

// Sources in assembler order, the addend last: fma, fmac, fmaak and fmamk are one.
static void v_fma_f16(LaneOp *x) {
    BEGIN;
    WIDEN(0, a);
    WIDEN(1, b);
    WIDEN(2, c);
    ENTER(b_)
    if (round) FENCE(c_);
    EACH {
        const double a = a_[i], b = b_[i], c = c_[i];
        const uint32_t odd = double_to_odd_float_bits(a * b + c);
        r_[i] = settle(as_float(odd), a_[i], b_[i], c_[i]);
    }
    LEAVE;
}

// Unfused: the product is rounded to float16 before the sum.
static void v_mad_f16(LaneOp *x) {
    BEGIN;
    uint32_t product[LANES];
    WIDEN(0, a);
    WIDEN(1, b);
    WIDEN(2, c);
    EACH r_[i] = a_[i] * b_[i];  // exact
    floats_to_halves(r_, product, round);
    float p_[LANES];
    halves_to_floats(product, p_);
    ENTER(p_)
    if (round) FENCE(c_);
    EACH r_[i] = settle(p_[i] + c_[i], a_[i], b_[i], c_[i]);
    LEAVE;
}

// Transcendental ones: in double, to float32 with the lost bits gathered in the last, then to float16. Unlike the
// float32 ones they support denormals (RDNA3 ISA guide, V_RCP_F16 and its like).
#define T1(op, expression)                                                                     \
    static void op(LaneOp *x) {                                                                \
        const int round = ROUND_F16_F64(x->w->mode);                                           \
        float r_[LANES];                                                                       \
        WIDEN(0, a);                                                                           \
        EACH {                                                                                 \
            const float a = a_[i];                                                             \
            r_[i] = settle(as_float(double_to_odd_float_bits(expression)), a, 0, 0);           \
        }                                                                                      \
        floats_to_halves(r_, x->d.u, round);                                                   \
    }
T1(v_rcp_f16, 1.0 / a)
T1(v_rsq_f16, 1.0 / __builtin_sqrt((double)a))
T1(v_exp_f16, exp2_double(a))
T1(v_log_f16, log2_double(a))
T1(sine, sin_turns(a))
T1(cosine, cos_turns(a))

// The Vega ISA guide's domain is [-256, 256] revolutions (0 and 1 beyond it), RDNA's every finite number.
static void limit(LaneOp *x, uint32_t beyond) {
    if (IS_GFX9(x->w->launch->arch))
        EACH {
            const uint32_t a = A->u[i] & 0x7fff;
            x->d.u[i] = a > 0x5c00 && a < 0x7c00 ? beyond : x->d.u[i];
        }
}
static void v_sin_f16(LaneOp *x) {
    sine(x);
    limit(x, 0);
    EACH x->d.u[i] = A->u[i] & 0x7fff ? x->d.u[i] : A->u[i];
}
static void v_cos_f16(LaneOp *x) {
    cosine(x);
    limit(x, 0x3c00);
}

#define ORDER2(op, how)                                                                             \
    static void op(LaneOp *x) {                                                                     \
        const bool ieee = ieee_mode(x->w);                                                          \
        EACH x->d.u[i] = how##16(A->u[i], B->u[i], ieee);                                           \
    }
#define ORDER3(op, first, second)                                                                   \
    static void op(LaneOp *x) {                                                                     \
        const bool ieee = ieee_mode(x->w);                                                          \
        EACH x->d.u[i] = second##16(first##16(A->u[i], B->u[i], ieee), C->u[i], ieee);              \
    }
ORDER2(v_min_f16, lesser)
ORDER2(v_max_f16, greater)
ORDER2(v_minimum_f16, least)
ORDER2(v_maximum_f16, most)
ORDER3(v_min3_f16, lesser, lesser)
ORDER3(v_max3_f16, greater, greater)
ORDER3(v_minimum3_f16, least, least)
ORDER3(v_maximum3_f16, most, most)
ORDER3(v_minmax_num_f16, lesser, greater)
ORDER3(v_maxmin_num_f16, greater, lesser)
ORDER3(v_minimummaximum_f16, least, most)
ORDER3(v_maximumminimum_f16, most, least)

static void v_med3_f16(LaneOp *x) {
    const bool ieee = ieee_mode(x->w);
    EACH x->d.u[i] = median16(A->u[i], B->u[i], C->u[i], ieee);
}

// Exponent and mantissa as in v_frexp_*_f32; a float16 subnormal is a normal float32.
static void v_frexp_exp_i16_f16(LaneOp *x) {
    EACH {
        const uint32_t a = A->u[i] & 0x7fff, wide = half_to_float_bits(a);
        x->d.u[i] = a == 0 || a >= 0x7c00 ? 0 : ((wide >> 23) - 126) & 0xffff;
    }
}

static void v_frexp_mant_f16(LaneOp *x) {
    EACH {
        const uint32_t h = A->u[i] & 0xffff, a = h & 0x7fff, wide = half_to_float_bits(a);
        const uint32_t mantissa = (h & 0x8000) | 0x3800 | (wide >> 13 & 0x3ff);
        x->d.u[i] = a == 0 || a == 0x7c00 ? h : a > 0x7c00 ? h | 0x200 : mantissa;
    }
}

// The exponent is a signed 16-bit integer; float32 holds every product that float16 can, and the rest saturates.
static void v_ldexp_f16(LaneOp *x) {
    float r[LANES];
    EACH {
        const int32_t n = (int16_t)B->u[i], bounded = n > 60 ? 60 : n < -60 ? -60 : n;
        const float a = half_to_float(A->u[i]);
        r[i] = settle(a * as_float((uint32_t)(bounded + 127) << 23), a, 0, 0);
    }
    floats_to_halves(r, x->d.u, ROUND_F16_F64(x->w->mode));
}

// The specials of n / d (s2 / s1), and the sign (RDNA3 ISA guide, V_DIV_FIXUP_F16).
static void v_div_fixup_f16(LaneOp *x) {
    EACH {
        const uint32_t ud = B->u[i] & 0xffff, un = C->u[i] & 0xffff, sign = (ud ^ un) & 0x8000;
        const uint32_t d = ud & 0x7fff, n = un & 0x7fff, infinity = 0x7c00;
        uint32_t r = (A->u[i] & 0x7fff) | sign;
        r = d == infinity || n == 0 ? sign : r;
        r = d == 0 || n == infinity ? sign | infinity : r;
        r = (d == 0 && n == 0) || (d == infinity && n == infinity) ? 0xfe00 : r;
        r = d > infinity ? ud | 0x200 : r;
        x->d.u[i] = n > infinity ? un | 0x200 : r;
    }
}

#define R(op, signature) LANE_OP(op, signature)
#define T(op) TRANS_OP(op, "h=h")
#define NAMED(name, op, signature) {#name, signature, step_lane, (void *)op, C_VALU, 0}
const OpInfo ops_valu_half[] = {
    R(v_add_f16, "h=hh"), R(v_sub_f16, "h=hh"), R(v_subrev_f16, "h=hh"), R(v_mul_f16, "h=hh"),
    R(v_fma_f16, "h=hhh"), NAMED(v_fmac_f16, v_fma_f16, "h=hhh"), NAMED(v_fmaak_f16, v_fma_f16, "h=hhh"),
    NAMED(v_fmamk_f16, v_fma_f16, "h=hhh"), NAMED(v_fma_legacy_f16, v_fma_f16, "h=hhh"),
    R(v_mad_f16, "h=hhh"), NAMED(v_mac_f16, v_mad_f16, "h=hhh"), NAMED(v_madak_f16, v_mad_f16, "h=hhh"),
    NAMED(v_madmk_f16, v_mad_f16, "h=hhh"), NAMED(v_mad_legacy_f16, v_mad_f16, "h=hhh"),
    R(v_min_f16, "h=hh"), R(v_max_f16, "h=hh"), R(v_minimum_f16, "h=hh"), R(v_maximum_f16, "h=hh"),
    R(v_min3_f16, "h=hhh"), R(v_max3_f16, "h=hhh"), R(v_med3_f16, "h=hhh"),
    R(v_minimum3_f16, "h=hhh"), R(v_maximum3_f16, "h=hhh"),
    R(v_minmax_num_f16, "h=hhh"), R(v_maxmin_num_f16, "h=hhh"),
    NAMED(v_minmax_f16, v_minmax_num_f16, "h=hhh"), NAMED(v_maxmin_f16, v_maxmin_num_f16, "h=hhh"),
    R(v_minimummaximum_f16, "h=hhh"), R(v_maximumminimum_f16, "h=hhh"),
    R(v_trunc_f16, "h=h"), R(v_ceil_f16, "h=h"), R(v_floor_f16, "h=h"), R(v_rndne_f16, "h=h"), R(v_fract_f16, "h=h"),
    R(v_frexp_exp_i16_f16, "w=h"), R(v_frexp_mant_f16, "h=h"), R(v_ldexp_f16, "h=hw"),
    R(v_div_fixup_f16, "h=hhh"), NAMED(v_div_fixup_legacy_f16, v_div_fixup_f16, "h=hhh"),
    T(v_rcp_f16), T(v_rsq_f16), T(v_sqrt_f16), T(v_exp_f16), T(v_log_f16), T(v_sin_f16), T(v_cos_f16),
    OPS_END,
};
