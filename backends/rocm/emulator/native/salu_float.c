// Scalar float instructions of gfx11.5 and gfx12 (RDNA4 ISA guide, SOP1, SOP2, SOPC).
//
// float16 operands are the low halves of scalar registers; a float16 result is zero-extended. Denormals follow MODE,
// as for the vector unit.
#include "float.h"

#include <math.h>

static uint32_t in32(const ScalarOp *x, int k) {
    uint32_t u = (uint32_t)x->s[k];
    return x->w->mode >> 4 & 1 ? u : flush_denormal(u);
}

static void out32(ScalarOp *x, float r) { x->d = x->w->mode >> 5 & 1 ? as_bits(r) : flush_denormal(as_bits(r)); }

static uint32_t in16(const ScalarOp *x, int k) {
    uint32_t h = x->s[k] & 0xffff;
    return x->w->mode >> 6 & 1 || h & 0x7c00 ? h : h & 0x8000;
}

static void out16(ScalarOp *x, uint32_t h) { x->d = x->w->mode >> 7 & 1 || h & 0x7c00 ? h : h & 0x8000; }

static void round_float32(ScalarOp *x) { host_round(ROUND_F32(x->w->mode)); }

// float32: `volatile` keeps the operation between the two changes of the host's rounding.
#define ARITHMETIC(op, expression)                                                 \
    static void op(ScalarOp *x) {                                                  \
        volatile float va = as_float(in32(x, 0)), vb = as_float(in32(x, 1)), r;    \
        round_float32(x);                                                          \
        const float a = va, b = vb;                                                \
        r = expression;                                                            \
        host_round(TO_NEAREST);                                                    \
        out32(x, settle(r, va, vb, 0));                                            \
    }
ARITHMETIC(s_add_f32, a + b)
ARITHMETIC(s_sub_f32, a - b)
ARITHMETIC(s_mul_f32, a * b)

static void s_fmac_f32(ScalarOp *x) {  // and s_fmaak, s_fmamk: sources in assembler order, the addend last
    volatile float va = as_float(in32(x, 0)), vb = as_float(in32(x, 1)), vc = as_float(in32(x, 2)), r;
    round_float32(x);
    const float a = va, b = vb, c = vc;
    r = fmaf(a, b, c);
    host_round(TO_NEAREST);
    out32(x, settle(r, va, vb, vc));
}

#define ORDER(op, how)                                                                                           \
    static void s_##op##_f32(ScalarOp *x) { out32(x, as_float(how##32(in32(x, 0), in32(x, 1), false))); }        \
    static void s_##op##_f16(ScalarOp *x) { out16(x, how##16(in16(x, 0), in16(x, 1), false)); }
ORDER(min, lesser)
ORDER(max, greater)
ORDER(minimum, least)
ORDER(maximum, most)

#define WHOLE(op, function)                                                                      \
    static void s_##op##_f32(ScalarOp *x) {                                                      \
        const float a = as_float(in32(x, 0));                                                    \
        out32(x, settle(function(a), a, 0, 0));                                                  \
    }                                                                                            \
    static void s_##op##_f16(ScalarOp *x) {                                                      \
        const float a = half_to_float(in16(x, 0));                                               \
        out16(x, float_to_half(settle(function(a), a, 0, 0), TO_NEAREST));                       \
    }
WHOLE(ceil, ceilf)
WHOLE(floor, floorf)
WHOLE(trunc, truncf)
WHOLE(rndne, __builtin_roundevenf)

// float16: a sum or product of two is exact in double, a fused one after one rounding that cannot matter but for
// directed rounding, which composes with itself (valu_half.c says why).
#define ARITHMETIC16(op, sources, expression)                                                                    \
    static void op(ScalarOp *x) {                                                                                \
        const int round = ROUND_F16_F64(x->w->mode);                                                             \
        volatile double va = half_to_double(in16(x, 0)), vb = half_to_double(in16(x, 1)),                        \
                        vc = sources > 2 ? half_to_double(in16(x, 2)) : 0, r;                                    \
        host_round(round);                                                                                       \
        const double a = va, b = vb, c = vc;                                                                     \
        r = expression;                                                                                          \
        host_round(TO_NEAREST);                                                                                  \
        (void)c;                                                                                                 \
        out16(x, double_to_half(settle_double(r, va, vb, vc), round));                                           \
    }
ARITHMETIC16(s_add_f16, 2, a + b)
ARITHMETIC16(s_sub_f16, 2, a - b)
ARITHMETIC16(s_mul_f16, 2, a * b)
ARITHMETIC16(s_fmac_f16, 3, a * b + c)

#define COMPARE(op, expression)                                                              \
    static void s_cmp_##op##_f32(ScalarOp *x) {                                              \
        const float a = as_float(in32(x, 0)), b = as_float(in32(x, 1));                      \
        x->scc = expression;                                                                 \
    }                                                                                        \
    static void s_cmp_##op##_f16(ScalarOp *x) {                                              \
        const float a = half_to_float(in16(x, 0)), b = half_to_float(in16(x, 1));            \
        x->scc = expression;                                                                 \
    }
COMPARE(lt, a < b)
COMPARE(eq, a == b)
COMPARE(le, a <= b)
COMPARE(gt, a > b)
COMPARE(lg, a < b || a > b)
COMPARE(ge, a >= b)
COMPARE(o, a == a && b == b)
COMPARE(u, a != a || b != b)
COMPARE(nge, !(a >= b))
COMPARE(nlg, !(a < b || a > b))
COMPARE(ngt, !(a > b))
COMPARE(nle, !(a <= b))
COMPARE(neq, !(a == b))
COMPARE(nlt, !(a < b))

// A double holds every 32-bit integer, so the one rounding is that to float32; float32 to integer saturates, a NaN
// gives 0.
static void s_cvt_f32_i32(ScalarOp *x) {
    volatile double a = (int32_t)x->s[0];
    round_float32(x);
    volatile float r = (float)a;
    host_round(TO_NEAREST);
    x->d = as_bits(r);
}
static void s_cvt_f32_u32(ScalarOp *x) {
    volatile double a = (uint32_t)x->s[0];
    round_float32(x);
    volatile float r = (float)a;
    host_round(TO_NEAREST);
    x->d = as_bits(r);
}
static void s_cvt_i32_f32(ScalarOp *x) {
    const double a = as_float(in32(x, 0));
    const double b = a < -2147483648.0 ? -2147483648.0 : a > 2147483647.0 ? 2147483647.0 : a == a ? a : 0;
    x->d = (uint32_t)(int32_t)b;
}
static void s_cvt_u32_f32(ScalarOp *x) {
    const double a = as_float(in32(x, 0));
    x->d = (uint32_t)(a > 4294967295.0 ? 4294967295.0 : a > 0 ? a : 0);
}
static void s_cvt_f16_f32(ScalarOp *x) { out16(x, float_bits_to_half(in32(x, 0), ROUND_F16_F64(x->w->mode))); }
static void s_cvt_f32_f16(ScalarOp *x) { out32(x, half_to_float(in16(x, 0))); }
static void s_cvt_hi_f32_f16(ScalarOp *x) {
    x->s[0] >>= 16;
    out32(x, half_to_float(in16(x, 0)));
}
static void s_cvt_pk_rtz_f16_f32(ScalarOp *x) {
    x->d = float_bits_to_half(in32(x, 0), TO_ZERO) | float_bits_to_half(in32(x, 1), TO_ZERO) << 16;
}

#define R(op, signature) SCALAR_OP(op, signature)
#define NAMED(name, op, signature) {#name, signature, step_scalar, (void *)op, C_SALU, 0}
#define BOTH(op, signature) R(s_##op##_f32, signature), R(s_##op##_f16, signature)
#define PAIR(op) R(s_cmp_##op##_f32, "c=bb"), R(s_cmp_##op##_f16, "c=bb")
const OpInfo ops_salu_float[] = {
    R(s_add_f32, "b=bb"), R(s_sub_f32, "b=bb"), R(s_mul_f32, "b=bb"), R(s_fmac_f32, "b=bbb"),
    NAMED(s_fmaak_f32, s_fmac_f32, "b=bbb"), NAMED(s_fmamk_f32, s_fmac_f32, "b=bbb"),
    R(s_add_f16, "b=bb"), R(s_sub_f16, "b=bb"), R(s_mul_f16, "b=bb"), R(s_fmac_f16, "b=bbb"),
    BOTH(min, "b=bb"), BOTH(max, "b=bb"), BOTH(minimum, "b=bb"), BOTH(maximum, "b=bb"),
    // gfx12's names of the same two
    NAMED(s_min_num_f32, s_min_f32, "b=bb"), NAMED(s_max_num_f32, s_max_f32, "b=bb"),
    NAMED(s_min_num_f16, s_min_f16, "b=bb"), NAMED(s_max_num_f16, s_max_f16, "b=bb"),
    BOTH(ceil, "b=b"), BOTH(floor, "b=b"), BOTH(trunc, "b=b"), BOTH(rndne, "b=b"),
    PAIR(lt), PAIR(eq), PAIR(le), PAIR(gt), PAIR(lg), PAIR(ge), PAIR(o), PAIR(u),
    PAIR(nge), PAIR(nlg), PAIR(ngt), PAIR(nle), PAIR(neq), PAIR(nlt),
    R(s_cvt_f32_i32, "b=b"), R(s_cvt_f32_u32, "b=b"), R(s_cvt_i32_f32, "b=b"), R(s_cvt_u32_f32, "b=b"),
    R(s_cvt_f16_f32, "b=b"), R(s_cvt_f32_f16, "b=b"), R(s_cvt_hi_f32_f16, "b=b"), R(s_cvt_pk_rtz_f16_f32, "b=bb"),
    OPS_END,
};
