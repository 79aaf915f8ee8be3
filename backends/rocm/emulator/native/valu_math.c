// Transcendental vector instructions of float32 and float64, the scalar-result ones of gfx12 included.
//
// v_exp_f32, v_log_f32, v_rcp_f32, v_rsq_f32 and v_sqrt_f32 take a denormal source for zero and give zero for a
// denormal result, whatever MODE says, the sign kept: LLVM never relies on more (it scales around them in
// AMDGPULegalizerInfo and AMDGPUCodeGenPrepare where the language wants denormals). The guides do not say it.
// v_sin_f32 and v_cos_f32 do support denormals. v_rcp_f64 and v_rsq_f64 are estimates on hardware, good to about
// 2^-29 relative (what LLVM's refinement steps assume); here they are the rounded double.
#include "float.h"

#define A x->s[0]

static inline float flushed(float a) { return as_float(flush_denormal(as_bits(a))); }

static inline float exp_float(float a) { return settle(flushed((float)exp2_double(flushed(a))), a, 0, 0); }
static inline float log_float(float a) { return settle((float)log2_double(flushed(a)), a, 0, 0); }
static inline float rcp_float(float a) { return settle(flushed(1.0f / flushed(a)), a, 0, 0); }
static inline float sqrt_float(float a) { return settle(__builtin_sqrtf(flushed(a)), a, 0, 0); }
static inline float rsq_float(float a) {
    return settle((float)(1.0 / __builtin_sqrt((double)flushed(a))), a, 0, 0);
}

// The Vega ISA guide gives sine and cosine the domain [-256, 256] revolutions, beyond which they are 0 and 1; RDNA
// takes every number. An infinity gives NaN.
static void v_sin_f32(LaneOp *x) {
    const double bound = IS_GFX9(x->w->launch->arch) ? 256.0 : 0x1p200;
    EACH {
        const float a = A->f[i];
        const float r = settle((float)sin_turns(a), a, 0, 0);
        x->d.f[i] = (a > bound || a < -bound) && r == r ? 0.0f : a == 0 ? a : r;
    }
}

static void v_cos_f32(LaneOp *x) {
    const double bound = IS_GFX9(x->w->launch->arch) ? 256.0 : 0x1p200;
    EACH {
        const float a = A->f[i];
        const float r = settle((float)cos_turns(a), a, 0, 0);
        x->d.f[i] = (a > bound || a < -bound) && r == r ? 1.0f : r;
    }
}

#define VECTOR(op, function)                                                     \
    static void op(LaneOp *x) { EACH x->d.f[i] = function(A->f[i]); }
VECTOR(v_exp_f32, exp_float)
VECTOR(v_log_f32, log_float)
VECTOR(v_rcp_f32, rcp_float)
VECTOR(v_rsq_f32, rsq_float)
VECTOR(v_sqrt_f32, sqrt_float)

static void v_rcp_f64(LaneOp *x) { EACH x->d.d[i] = settle_double(1.0 / A->d[i], A->d[i], 0, 0); }
static void v_rsq_f64(LaneOp *x) { EACH x->d.d[i] = settle_double(1.0 / __builtin_sqrt(A->d[i]), A->d[i], 0, 0); }
static void v_sqrt_f64(LaneOp *x) { EACH x->d.d[i] = settle_double(__builtin_sqrt(A->d[i]), A->d[i], 0, 0); }

// Scalar results: one value, so the modifiers of the result that the shared step leaves out are applied here.
static void one_float(LaneOp *x, float r) {
    const uint32_t omod = x->in->aux[3];
    if (omod) r *= omod == 1 ? 2.0f : omod == 2 ? 4.0f : 0.5f;
    if (x->in->flags & CLAMP) r = r > 1.0f ? 1.0f : r > 0.0f ? r : r == r || x->w->launch->dx10_clamp ? 0.0f : r;
    x->d.u[0] = x->w->mode >> 5 & 1 ? as_bits(r) : flush_denormal(as_bits(r));
}

// float16: the result is zero-extended (RDNA4 ISA guide, V_S_EXP_F16). float16 denormals are supported.
static void one_half(LaneOp *x, double r) {
    const double a = half_to_double(A->u[0]);
    const uint32_t omod = x->in->aux[3];
    if (omod) r *= omod == 1 ? 2.0 : omod == 2 ? 4.0 : 0.5;
    if (x->in->flags & CLAMP) r = r > 1.0 ? 1.0 : r > 0.0 ? r : r == r || x->w->launch->dx10_clamp ? 0.0 : r;
    const uint32_t h = double_to_half(r == r ? r : settle_double(r, a, 0, 0), ROUND_F16_F64(x->w->mode));
    x->d.u[0] = x->w->mode >> 7 & 1 || h & 0x7c00 ? h : h & 0x8000;
}

#define SCALAR(name, function, half)                                                        \
    static void v_s_##name##_f32(LaneOp *x) { one_float(x, function(A->f[0])); }            \
    static void v_s_##name##_f16(LaneOp *x) {                                               \
        const float a = half_to_float(A->u[0]);                                             \
        one_half(x, half);                                                                  \
    }
SCALAR(exp, exp_float, exp2_double(a))
SCALAR(log, log_float, log2_double(a))
SCALAR(rcp, rcp_float, 1.0 / a)
SCALAR(rsq, rsq_float, 1.0 / __builtin_sqrt((double)a))
SCALAR(sqrt, sqrt_float, __builtin_sqrt((double)a))

// The first 1201 bits after the point of 2/pi, the first word the most significant (computed with Machin's formula).
static const uint64_t two_over_pi[20] = {
    0xa2f9836e4e441529ull, 0xfc2757d1f534ddc0ull, 0xdb6295993c439041ull, 0xfe5163abdebbc561ull,
    0xb7246e3a424dd2e0ull, 0x06492eea09d1921cull, 0xfe1deb1cb129a73eull, 0xe88235f52ebb4484ull,
    0xe99c7026b45f7e41ull, 0x3991d639835339f4ull, 0x9c845f8bbdf9283bull, 0x1ff897ffde05980full,
    0xef2f118b5a0a6d1full, 0x6d367ecf27cb09b7ull, 0x4f463f669e5fea2dull, 0x7527bac7ebe5f17bull,
    0x3d0739f78a5292eaull, 0x6bfb5fb11f8d5d08ull, 0x56033046fc7b0000ull, 0x0000000000000000ull,
};

// 53 bits of 2/pi from bit 53 * s1 on, further on for large s0, as a double: what Payne and Hanek's reduction
// multiplies with. The guide's mask keeps the low 53 of 1201 bits; the high ones are meant, as its scale shows.
static void v_trig_preop_f64(LaneOp *x) {
    EACH_ACTIVE(x->exec, i) {
        const int exponent = (int)(A->q[i] >> 52 & 2047);
        int shift = (int)(x->s[1]->u[i] & 31) * 53;
        if (exponent > 1077) shift += exponent - 1077;
        uint64_t bits = 0;
        for (int k = 0; k < 53; k++) {
            const int at = shift + k;
            const uint64_t bit = at <= 1200 ? two_over_pi[at / 64] >> (63 - at % 64) & 1 : 0;
            bits = bits << 1 | bit;
        }
        const int scale = -53 - shift + (exponent >= 1968 ? 128 : 0);
        x->d.d[i] = __builtin_ldexp((double)bits, scale);
    }
}

#define R(op, signature) TRANS_OP(op, signature)
#define NAMED(name, op, signature) {#name, signature, step_lane, (void *)op, C_TRANSCENDENTAL, 0}
#define BOTH(name) R(v_s_##name##_f32, "s=f"), R(v_s_##name##_f16, "s=h")
const OpInfo ops_valu_math[] = {
    R(v_exp_f32, "f=f"), R(v_log_f32, "f=f"), R(v_rcp_f32, "f=f"), R(v_rsq_f32, "f=f"), R(v_sqrt_f32, "f=f"),
    R(v_sin_f32, "f=f"), R(v_cos_f32, "f=f"), NAMED(v_rcp_iflag_f32, v_rcp_f32, "f=f"),
    NAMED(v_exp_legacy_f32, v_exp_f32, "f=f"), NAMED(v_log_legacy_f32, v_log_f32, "f=f"),
    R(v_rcp_f64, "d=d"), R(v_rsq_f64, "d=d"), R(v_sqrt_f64, "d=d"), R(v_trig_preop_f64, "d=db"),
    BOTH(exp), BOTH(log), BOTH(rcp), BOTH(rsq), BOTH(sqrt),
    OPS_END,
};
