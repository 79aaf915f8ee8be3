// Packed instructions (VOP3P without dot products and matrices) and the mixed-precision multiply-adds.
//
// Each half is computed as the 16-bit instruction of the same name would (AMD ISA guides, "packed math"). float16
// results are rounded once: float32 holds a product of two halves exactly and rounds their sum innocuously (24 >= 2 *
// 11 + 2 bits); a fused multiply-add goes through float64, where it is exact or too far from a midpoint to matter.
// In the directed modes the host rounds the same way, which composes.
#include "half.h"

// Integers ----------------------------------------------------------------------------------------

static inline int32_t sext(uint32_t v) { return (int16_t)v; }
static inline uint32_t least_u(uint32_t a, uint32_t b) { return a < b ? a : b; }
static inline uint32_t most_u(uint32_t a, uint32_t b) { return a > b ? a : b; }
static inline int32_t least_i(int32_t a, int32_t b) { return a < b ? a : b; }
static inline int32_t most_i(int32_t a, int32_t b) { return a > b ? a : b; }
static inline uint32_t within_i16(int64_t v) { return (uint32_t)(v > 32767 ? 32767 : v < -32768 ? -32768 : (int32_t)v); }

// a, b and c are the zero-extended halves; the value's low 16 bits count.
#define HALVES(count, value)                                                                                           \
    do {                                                                                                               \
        uint32_t out[2][LANES];                                                                                        \
        for (int half = 0; half < 2; half++) EACH {                                                                    \
            const uint32_t a = x->s[0]->u[i] >> 16 * half & 0xffff;                                                    \
            const uint32_t b = (count) > 1 ? x->s[(count) > 1 ? 1 : 0]->u[i] >> 16 * half & 0xffff : 0;                \
            const uint32_t c = (count) > 2 ? x->s[(count) > 2 ? 2 : 0]->u[i] >> 16 * half & 0xffff : 0;                \
            (void)a, (void)b, (void)c;                                                                                 \
            out[half][i] = (uint32_t)(value);                                                                          \
        }                                                                                                              \
        EACH x->d.u[i] = (out[0][i] & 0xffff) | out[1][i] << 16;                                                       \
    } while (0)
#define PACKED(name, count, value) static void name(LaneOp *x) { HALVES(count, value); }
#define PACKED_CLAMP(name, count, value, saturated)                                                                    \
    static void name(LaneOp *x) {                                                                                      \
        if (x->in->flags & CLAMP) HALVES(count, saturated);                                                            \
        else HALVES(count, value);                                                                                     \
    }

PACKED_CLAMP(v_pk_add_u16, 2, a + b, least_u(a + b, 0xffff))
PACKED_CLAMP(v_pk_sub_u16, 2, a - b, a < b ? 0 : a - b)
PACKED_CLAMP(v_pk_add_i16, 2, a + b, within_i16(sext(a) + sext(b)))
PACKED_CLAMP(v_pk_sub_i16, 2, a - b, within_i16(sext(a) - sext(b)))
PACKED_CLAMP(v_pk_mad_u16, 3, a * b + c, (uint64_t)a * b + c > 0xffff ? 0xffff : a * b + c)
PACKED_CLAMP(v_pk_mad_i16, 3, a * b + c, within_i16((int64_t)sext(a) * sext(b) + sext(c)))
PACKED(v_pk_mul_lo_u16, 2, a * b)
PACKED(v_pk_min_u16, 2, least_u(a, b))
PACKED(v_pk_max_u16, 2, most_u(a, b))
PACKED(v_pk_min_i16, 2, least_i(sext(a), sext(b)))
PACKED(v_pk_max_i16, 2, most_i(sext(a), sext(b)))
PACKED(v_pk_lshlrev_b16, 2, b << (a & 15))
PACKED(v_pk_lshrrev_b16, 2, b >> (a & 15))
PACKED(v_pk_ashrrev_i16, 2, sext(b) >> (a & 15))

// float16 arithmetic ------------------------------------------------------------------------------

typedef struct Halves {  // both halves of a packed register of every lane
    float part[2][LANES];
} Halves;

static void widen(const Vec *from, Halves *to) {
    uint32_t upper[LANES];
    halves_to_floats(from->u, to->part[0]);
    EACH upper[i] = from->u[i] >> 16;
    halves_to_floats(upper, to->part[1]);
}

static void narrow(LaneOp *x, const Halves *from) {
    const int round = ROUND_F16_F64(x->w->mode);
    uint32_t upper[LANES];
    floats_to_halves(from->part[0], x->d.u, round);
    floats_to_halves(from->part[1], upper, round);
    EACH x->d.u[i] |= upper[i] << 16;
}

#define PACKED_F16(name, value)                                                                                        \
    static void name(LaneOp *x) {                                                                                      \
        const int round = ROUND_F16_F64(x->w->mode);                                                                   \
        Halves p, q;                                                                                                   \
        widen(x->s[0], &p);                                                                                            \
        widen(x->s[1], &q);                                                                                            \
        if (round) host_round(round);                                                                                  \
        pin(&p), pin(&q);                                                                                              \
        for (int half = 0; half < 2; half++) EACH {                                                                    \
            const float a = p.part[half][i], b = q.part[half][i];                                                      \
            p.part[half][i] = (value);                                                                                 \
        }                                                                                                              \
        pin(&p);                                                                                                       \
        if (round) host_round(TO_NEAREST);                                                                             \
        narrow(x, &p);                                                                                                 \
    }
PACKED_F16(v_pk_add_f16, a + b)
PACKED_F16(v_pk_mul_f16, a * b)

static void v_pk_fma_f16(LaneOp *x) {
    const int round = ROUND_F16_F64(x->w->mode);
    Halves p, q, r;
    double sum[2][LANES];
    widen(x->s[0], &p);
    widen(x->s[1], &q);
    widen(x->s[2], &r);
    if (round) host_round(round);
    pin(&p), pin(&q), pin(&r);
    for (int half = 0; half < 2; half++)
        EACH sum[half][i] = (double)p.part[half][i] * (double)q.part[half][i] + (double)r.part[half][i];
    pin(&sum);
    if (round) host_round(TO_NEAREST);
    for (int half = 0; half < 2; half++) EACH p.part[half][i] = as_float(double_to_odd_float_bits(sum[half][i]));
    narrow(x, &p);
}

// The order of minima and maxima: -0 before +0, no NaN.
static inline uint32_t rank16(uint32_t h) { return h & 0x8000 ? 0xffff - h : h | 0x8000; }
static inline bool nan16(uint32_t h) { return (h & 0x7fff) > 0x7c00; }
static inline bool signalling16(uint32_t h) { return nan16(h) && !(h & 0x200); }

// min and max give the operand that is a number. In IEEE mode a signalling NaN wins, made quiet; gfx12 has no such
// mode, and of two NaNs gives the first, quiet.
static inline uint32_t choose_number(uint32_t a, uint32_t b, bool first, bool ieee, bool gfx12) {
    const uint32_t plain = nan16(a) ? (gfx12 && nan16(b) ? a | 0x200 : b) : nan16(b) ? a : first ? a : b;
    return ieee && signalling16(a) ? a | 0x200 : ieee && signalling16(b) ? b | 0x200 : plain;
}
// minimum and maximum give a NaN where there is one, a signalling one first.
static inline uint32_t choose_any(uint32_t a, uint32_t b, bool first) {
    return signalling16(a) ? a | 0x200 : signalling16(b) ? b | 0x200 : nan16(a) ? a : nan16(b) ? b : first ? a : b;
}
static inline uint32_t minimum16(uint32_t a, uint32_t b) { return choose_any(a, b, rank16(a) < rank16(b)); }
static inline uint32_t maximum16(uint32_t a, uint32_t b) { return choose_any(a, b, rank16(a) > rank16(b)); }

#define PACKED_NUMBER(name, sign)                                                                                      \
    static void name(LaneOp *x) {                                                                                      \
        const bool gfx12 = x->w->launch->arch == GFX1201, ieee = x->w->launch->ieee && !gfx12;                         \
        HALVES(2, choose_number(a, b, rank16(a) sign rank16(b), ieee, gfx12));                                         \
    }
PACKED_NUMBER(v_pk_min_f16, <)
PACKED_NUMBER(v_pk_max_f16, >)
PACKED(v_pk_minimum_f16, 2, minimum16(a, b))
PACKED(v_pk_maximum_f16, 2, maximum16(a, b))
PACKED(v_pk_minimum3_f16, 3, minimum16(minimum16(a, b), c))
PACKED(v_pk_maximum3_f16, 3, maximum16(maximum16(a, b), c))

// float32 in pairs --------------------------------------------------------------------------------

#define PACKED_F32(name, value)                                                                                        \
    static void name(LaneOp *x) {                                                                                      \
        const float *a = (const float *)x->s[0], *b = (const float *)x->s[1];                                          \
        float *d = (float *)&x->d;                                                                                     \
        for (int i = 0; i < 2 * LANES; i++) d[i] = (value);                                                            \
    }
PACKED_F32(v_pk_add_f32, a[i] + b[i])
PACKED_F32(v_pk_mul_f32, a[i] * b[i])

static void v_pk_fma_f32(LaneOp *x) {
    const float *a = (const float *)x->s[0], *b = (const float *)x->s[1], *c = (const float *)x->s[2];
    float *d = (float *)&x->d;
    for (int i = 0; i < 2 * LANES; i++) d[i] = __builtin_fmaf(a[i], b[i], c[i]);
}

// Two words, each chosen by op_sel of its own source. Raw: it moves bits of any meaning, defined or not.
static void v_pk_mov_b32(LaneOp *x) {
    Wave *w = x->w;
    const Inst *in = x->in;
    uint32_t space[LANES], word[2][LANES];
    mask64 lo[2], hi[2];
    for (int k = 0; k < 2; k++) {
        const int which = in->src[k].mods & UPPER ? 1 : 0;
        memcpy(word[k], read_words(w, &in->src[k], which, space, &lo[k], &hi[k]), sizeof word[k]);
    }
    for (int k = 0; k < 2; k++) write_words(w, in->dst[0].index + k, word[k], x->exec, lo[k], hi[k]);
}

// Two halves side by side, each as it is: no rounding, no flushing.
static void v_pack_b32_f16(LaneOp *x) {
    EACH x->d.u[i] = x->s[0]->u[i] | x->s[1]->u[i] << 16;
    x->dlo = x->lo[0];
    x->dhi = x->lo[1];
}

// Mixed precision ---------------------------------------------------------------------------------

// An inline constant comes as a float32, or as a small integer; this is the float16 that it stands for.
static uint32_t constant_half(uint32_t value) {
    return value <= 64 || value >= (uint32_t)-16 ? value & 0xffff : float_to_half(as_float(value), TO_NEAREST);
}

// Source k as float32. op_sel_hi says that it is a float16, op_sel in which half; neg_hi is the absolute value. The
// fetch has negated the whole word already where neg says so, which is right unless the lower half or an absolute
// value is wanted.
static void mixed_source(LaneOp *x, int k, float to[LANES]) {
    const Operand *o = &x->in->src[k];
    const uint32_t *from = x->s[k]->u, mode = x->w->mode;
    const bool absolute = o->mods & (ABS | NEG_HI), negative = o->mods & NEG, flush_half = !(mode >> 6 & 1);
    uint32_t bits[LANES];
    if (!(o->mods & UPPER_HI)) {
        const uint32_t keep = absolute ? 0x7fffffff : ~0u, set = absolute && negative ? 0x80000000u : 0;
        const bool flush = !(mode >> 4 & 1);
        EACH {
            const uint32_t u = (from[i] & keep) | set;
            to[i] = as_float(flush && !(u & 0x7f800000) ? u & 0x80000000u : u);
        }
        const mask64 known = x->lo[k] & x->hi[k];
        x->dlo &= known, x->dhi &= known;
        return;
    }
    const bool upper = o->mods & UPPER && o->kind != CONSTANT;
    const mask64 known = upper ? x->hi[k] : x->lo[k];
    if (o->kind == CONSTANT) {
        // The fetch works on a copy with the sign turned; the constant itself is in the operand.
        const uint32_t h = constant_half((uint32_t)o->value);
        EACH bits[i] = h;
    } else if (upper) {
        const uint32_t turned = negative ? 0x8000 : 0;
        EACH bits[i] = (from[i] >> 16) ^ turned;
    } else {
        EACH bits[i] = from[i] & 0xffff;
    }
    const uint32_t keep = absolute ? 0x7fff : 0xffff, flip = negative ? 0x8000 : 0;
    EACH {
        const uint32_t h = (bits[i] & keep) ^ flip;
        bits[i] = flush_half && !(h & 0x7c00) ? h & 0x8000 : h;
    }
    halves_to_floats(bits, to);
    x->dlo &= known, x->dhi &= known;
}

static void mix(LaneOp *x, float out[LANES]) {
    float a[LANES], b[LANES], c[LANES];
    x->dlo = x->dhi = ~0ull;
    mixed_source(x, 0, a);
    mixed_source(x, 1, b);
    mixed_source(x, 2, c);
    pin(a), pin(b), pin(c);
    EACH out[i] = __builtin_fmaf(a[i], b[i], c[i]);
    pin(out);
}

static void v_fma_mix_f32(LaneOp *x) { mix(x, x->d.f); }

// The float32 result is rounded once more, as LLVM's selection of these instructions for fptrunc(fma) expects.
static void mix_to_half(LaneOp *x) {
    float out[LANES];
    const int round = ROUND_F32(x->w->mode);
    if (round) host_round(round);
    mix(x, out);
    if (round) host_round(TO_NEAREST);
    floats_to_halves(out, x->d.u, ROUND_F16_F64(x->w->mode));
}

static void v_fma_mixlo_f16(LaneOp *x) { mix_to_half(x); }

// Into the upper half; what the shared step does to a float16 result is done here.
static void v_fma_mixhi_f16(LaneOp *x) {
    Wave *w = x->w;
    const int reg = x->in->dst[0].index;
    const uint32_t *old = VREG(w, reg);
    const bool flush = !(w->mode >> 7 & 1), clamp = x->in->flags & CLAMP, nan_to_zero = w->launch->dx10_clamp;
    mix_to_half(x);
    EACH {
        uint32_t h = x->d.u[i];
        h = flush && !(h & 0x7c00) ? h & 0x8000 : h;
        const uint32_t clamped = nan16(h) ? (nan_to_zero ? 0 : h) : h & 0x8000 ? 0 : least_u(h, 0x3c00);
        x->d.u[i] = (old[i] & 0xffff) | (clamp ? clamped : h) << 16;
    }
    write_words(w, reg, x->d.u, x->exec, w->lo[reg], x->dhi);
}

// VOP2 without op_sel: whole registers, the third source being the destination.
static void v_pk_fmac_f16(LaneOp *x) {
    x->dlo = x->lo[0] & x->lo[1] & x->lo[2];
    x->dhi = x->hi[0] & x->hi[1] & x->hi[2];
    v_pk_fma_f16(x);
}

#define NAMED(name, fn, signature) {#name, signature, step_lane, (void *)fn, C_VALU, 0}

const OpInfo ops_valu_packed[] = {
    LANE_OP(v_pk_add_u16, "I=II"), LANE_OP(v_pk_sub_u16, "I=II"), LANE_OP(v_pk_add_i16, "I=II"),
    LANE_OP(v_pk_sub_i16, "I=II"), LANE_OP(v_pk_mad_u16, "I=III"), LANE_OP(v_pk_mad_i16, "I=III"),
    LANE_OP(v_pk_mul_lo_u16, "I=II"), LANE_OP(v_pk_min_u16, "I=II"), LANE_OP(v_pk_max_u16, "I=II"),
    LANE_OP(v_pk_min_i16, "I=II"), LANE_OP(v_pk_max_i16, "I=II"), LANE_OP(v_pk_lshlrev_b16, "I=II"),
    LANE_OP(v_pk_lshrrev_b16, "I=II"), LANE_OP(v_pk_ashrrev_i16, "I=II"),
    LANE_OP(v_pk_add_f16, "P=PP"), LANE_OP(v_pk_mul_f16, "P=PP"), LANE_OP(v_pk_fma_f16, "P=PPP"),
    LANE_OP(v_pk_fmac_f16, "b=bbb"), LANE_OP(v_pk_min_f16, "P=PP"), LANE_OP(v_pk_max_f16, "P=PP"),
    LANE_OP(v_pk_minimum_f16, "P=PP"), LANE_OP(v_pk_maximum_f16, "P=PP"),
    LANE_OP(v_pk_minimum3_f16, "P=PPP"), LANE_OP(v_pk_maximum3_f16, "P=PPP"),
    LANE_OP(v_pk_add_f32, "F=FF"), LANE_OP(v_pk_mul_f32, "F=FF"), LANE_OP(v_pk_fma_f32, "F=FFF"),
    LANE_OP(v_pk_mov_b32, "r=rr"), LANE_OP(v_pack_b32_f16, "b=ww"),
    LANE_OP(v_fma_mix_f32, "f=bbb"), LANE_OP(v_fma_mixlo_f16, "h=bbb"), LANE_OP(v_fma_mixhi_f16, "r=bbb"),
    NAMED(v_mad_mix_f32, v_fma_mix_f32, "f=bbb"), NAMED(v_mad_mixlo_f16, v_fma_mixlo_f16, "h=bbb"),
    NAMED(v_mad_mixhi_f16, v_fma_mixhi_f16, "r=bbb"),
    OPS_END,
};
