// Dot products of packed small numbers with a 32-bit accumulator.
//
// Integer ones: exact sum; with clamp it saturates, else it wraps.
// Float ones, as the pseudocode of the RDNA3, RDNA4 and CDNA3 ISA guides orders them: the accumulator first, then
// product after product from the low end, each sum rounded. Products of two float16 or of two fp8 are exact in
// float32, so whether the hardware fuses makes no difference there; for bfloat16 it is a guess that it does. Rounding is
// to nearest or MODE's. float32 denormals of accumulator and result are flushed whatever MODE says, as LLVM's
// SIISelLowering notes of fdot2_f32_f16; that the bfloat16 and fp8 ones do the same is a guess. v_dot2_f16_f16 and
// v_dot2_bf16_bf16 round each fused step to the small format (the guide's `tmp` is of that type; a guess otherwise).
#include "small_float.h"

#define A x->s[0]
#define B x->s[1]
#define C x->s[2]

static inline float flushed(float a) { return as_float(flush_denormal(as_bits(a))); }

static inline float dot_step(float a, float b, float c) { return settle(__builtin_fmaf(a, b, c), a, b, c); }

static void v_dot2_f32_f16(LaneOp *x) {
    float a[LANES], b[LANES], t[LANES];
    uint32_t upper_a[LANES], upper_b[LANES];
    halves_to_floats(A->u, a);
    halves_to_floats(B->u, b);
    EACH t[i] = dot_step(a[i], b[i], flushed(C->f[i]));
    EACH upper_a[i] = A->u[i] >> 16, upper_b[i] = B->u[i] >> 16;
    halves_to_floats(upper_a, a);
    halves_to_floats(upper_b, b);
    EACH x->d.f[i] = flushed(dot_step(a[i], b[i], t[i]));
}

static void v_dot2_f32_bf16(LaneOp *x) {
    EACH {
        const uint32_t a = A->u[i], b = B->u[i];
        const float t = dot_step(bfloat_to_float(a), bfloat_to_float(b), flushed(C->f[i]));
        x->d.f[i] = flushed(dot_step(bfloat_to_float(a >> 16), bfloat_to_float(b >> 16), t));
    }
}

// In double a product is exact and the sum rounded to 53 bits before the one rounding that counts (valu_half.c).
static void v_dot2_f16_f16(LaneOp *x) {
    const int round = ROUND_F16_F64(x->w->mode);
    EACH {
        const uint32_t a = A->u[i], b = B->u[i];
        const double a0 = half_to_double(a & 0xffff), b0 = half_to_double(b & 0xffff), c = half_to_double(C->u[i] & 0xffff);
        const double a1 = half_to_double(a >> 16), b1 = half_to_double(b >> 16);
        const double t = half_to_double(double_to_half(settle_double(a0 * b0 + c, a0, b0, c), round));
        x->d.u[i] = double_to_half(settle_double(a1 * b1 + t, a1, b1, t), round);
    }
}

static void v_dot2_bf16_bf16(LaneOp *x) {
    EACH_ACTIVE(x->exec, i) {
        const uint32_t a = A->u[i], b = B->u[i];
        const double a0 = bfloat_to_float(a), b0 = bfloat_to_float(b), c = bfloat_to_float(C->u[i]);
        const double a1 = bfloat_to_float(a >> 16), b1 = bfloat_to_float(b >> 16);
        const double t = bfloat_to_float(double_to_bfloat(settle_double(a0 * b0 + c, a0, b0, c), TO_NEAREST));
        x->d.u[i] = double_to_bfloat(settle_double(a1 * b1 + t, a1, b1, t), TO_NEAREST);
    }
}

static void dot4_small(LaneOp *x, const Format *fa, const Format *fb) {
    float ta[256], tb[256];
    for (uint32_t k = 0; k < 256; k++) ta[k] = decode_small(k, fa), tb[k] = decode_small(k, fb);
    EACH_ACTIVE(x->exec, i) {
        float t = flushed(C->f[i]);
        for (int k = 0; k < 32; k += 8) t = dot_step(ta[A->u[i] >> k & 255], tb[B->u[i] >> k & 255], t);
        x->d.f[i] = flushed(t);
    }
}
static void v_dot4_f32_fp8_fp8(LaneOp *x) { dot4_small(x, fp8_of(x->w), fp8_of(x->w)); }
static void v_dot4_f32_fp8_bf8(LaneOp *x) { dot4_small(x, fp8_of(x->w), bf8_of(x->w)); }
static void v_dot4_f32_bf8_fp8(LaneOp *x) { dot4_small(x, bf8_of(x->w), fp8_of(x->w)); }
static void v_dot4_f32_bf8_bf8(LaneOp *x) { dot4_small(x, bf8_of(x->w), bf8_of(x->w)); }

static inline uint32_t saturate_signed(int64_t v) {
    return (uint32_t)(int32_t)(v > INT32_MAX ? INT32_MAX : v < INT32_MIN ? INT32_MIN : v);
}

// Field k of `bits` bits, sign-extended or not.
static inline int64_t field(uint32_t word, int k, int bits, bool sign) {
    const uint32_t raw = word >> (k * bits) & ((1u << bits) - 1), top = sign ? 1u << (bits - 1) : 0;
    return (int64_t)(raw ^ top) - (int64_t)top;
}

static inline void dot_integer(LaneOp *x, int bits, bool sign_a, bool sign_b, bool sign_c, uint32_t flip_a, uint32_t flip_b) {
    const bool clamp = x->in->flags & CLAMP;
    EACH {
        const uint32_t a = A->u[i] ^ flip_a, b = B->u[i] ^ flip_b, c = C->u[i];
        int64_t sum = sign_c ? (int64_t)(int32_t)c : (int64_t)c;
        for (int k = 0; k < 32 / bits; k++) sum += field(a, k, bits, sign_a) * field(b, k, bits, sign_b);
        const uint32_t most = sign_c ? saturate_signed(sum) : sum > UINT32_MAX ? UINT32_MAX : (uint32_t)sum;
        x->d.u[i] = clamp ? most : (uint32_t)sum;
    }
}

static void v_dot2_i32_i16(LaneOp *x) { dot_integer(x, 16, true, true, true, 0, 0); }
static void v_dot2_u32_u16(LaneOp *x) { dot_integer(x, 16, false, false, false, 0, 0); }
static void v_dot4_i32_i8(LaneOp *x) { dot_integer(x, 8, true, true, true, 0, 0); }
static void v_dot4_u32_u8(LaneOp *x) { dot_integer(x, 8, false, false, false, 0, 0); }
static void v_dot8_i32_i4(LaneOp *x) { dot_integer(x, 4, true, true, true, 0, 0); }
static void v_dot8_u32_u4(LaneOp *x) { dot_integer(x, 4, false, false, false, 0, 0); }

// gfx11 and later: a source's neg bit says that it is signed. The shared step took it for a negation and flipped the
// top bit of the word, which is undone here.
static void dot_mixed(LaneOp *x, int bits) {
    const bool sign_a = x->in->src[0].mods & NEG, sign_b = x->in->src[1].mods & NEG;
    dot_integer(x, bits, sign_a, sign_b, true, sign_a ? 0x80000000u : 0, sign_b ? 0x80000000u : 0);
}
static void v_dot4_i32_iu8(LaneOp *x) { dot_mixed(x, 8); }
static void v_dot8_i32_iu4(LaneOp *x) { dot_mixed(x, 4); }

#define R(op, signature) LANE_OP(op, signature)
#define NAMED(name, op, signature) {#name, signature, step_lane, (void *)op, C_VALU, 0}
const OpInfo ops_dot[] = {
    R(v_dot2_f32_f16, "f=PPf"), R(v_dot2_f32_bf16, "f=PPf"), R(v_dot2_f16_f16, "h=bbh"), R(v_dot2_bf16_bf16, "w=bbw"),
    // VOP2: no op_sel, so the sources are whole words
    NAMED(v_dot2c_f32_f16, v_dot2_f32_f16, "f=bbf"), NAMED(v_dot2acc_f32_f16, v_dot2_f32_f16, "f=bbf"),
    NAMED(v_dot2c_f32_bf16, v_dot2_f32_bf16, "f=bbf"), NAMED(v_dot2c_i32_i16, v_dot2_i32_i16, "b=bbb"),
    NAMED(v_dot4c_i32_i8, v_dot4_i32_i8, "b=bbb"), NAMED(v_dot8c_i32_i4, v_dot8_i32_i4, "b=bbb"),
    R(v_dot2_i32_i16, "b=IIb"), R(v_dot2_u32_u16, "b=IIb"), R(v_dot4_i32_i8, "b=bbb"), R(v_dot4_u32_u8, "b=bbb"),
    R(v_dot8_i32_i4, "b=bbb"), R(v_dot8_u32_u4, "b=bbb"), R(v_dot4_i32_iu8, "b=bbb"), R(v_dot8_i32_iu4, "b=bbb"),
    R(v_dot4_f32_fp8_fp8, "f=bbf"), R(v_dot4_f32_fp8_bf8, "f=bbf"), R(v_dot4_f32_bf8_fp8, "f=bbf"),
    R(v_dot4_f32_bf8_bf8, "f=bbf"),
    OPS_END,
};
