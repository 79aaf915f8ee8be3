// gfx950's conversions between a small float format and float32, float16 or bfloat16 with a shared scale.
//
// The scale is the exponent field of a float32 source, worth 2^(field - 127) (CDNA4 ISA guide, V_CVT_SCALEF32_*):
// widening multiplies by it, narrowing divides. Both are exact in double; one rounding follows, to nearest. A field of
// 255, E8M0's NaN, makes everything NaN (OCP Microscaling Formats 1.0). Bytes and words are chosen by the raw op_sel
// field in aux[2]. Random bits of the second and later elements are v_prng_b32's next (a linear feedback register).
#include "small_float.h"

#define A x->s[0]
#define B x->s[1]
#define C x->s[2]
#define OP_SEL ((int)x->in->aux[2])
#define SATURATE ((bool)(x->w->mode >> 23 & 1))

static inline double scale_of(uint32_t bits) {
    const uint32_t field = bits >> 23 & 255;
    return field == 255 ? as_double(NAN64) : power_of_two((int64_t)field - 127);
}
static inline double inverse_of(uint32_t bits) {
    const uint32_t field = bits >> 23 & 255;
    return field == 255 ? as_double(NAN64) : power_of_two(127 - (int64_t)field);
}
static inline uint32_t next_random(uint32_t r) { return r << 1 ^ (r >> 31 ? 197u : 0u); }

enum Wide { W32, W16, WB16 };
static inline double read_wide(uint32_t bits, enum Wide kind) {
    return kind == W32 ? as_float(bits) : kind == W16 ? half_to_float(bits & 0xffff) : bfloat_to_float(bits);
}
static inline uint32_t write_wide(double v, enum Wide kind) {
    return kind == W32 ? as_bits((float)v) : kind == W16 ? double_to_half(v, TO_NEAREST) : double_to_bfloat(v, TO_NEAREST);
}

enum Small { S_FP8, S_BF8, S_FP4, S_FP6, S_BF6 };
static inline const Format *small(const LaneOp *x, enum Small kind) {
    return kind == S_FP8 ? fp8_of(x->w) : kind == S_BF8 ? bf8_of(x->w) : kind == S_FP4 ? &FP4 : kind == S_FP6 ? &FP6 : &BF6;
}

static void put_byte(LaneOp *x, int byte, const uint32_t *value) {  // as in valu_convert.c
    const int reg = x->in->dst[0].index, shift = byte * 8;
    const uint32_t *old = VREG(x->w, reg);
    EACH x->d.u[i] = (old[i] & ~(255u << shift)) | (value[i] & 255) << shift;
    if (byte < 2) x->dhi = x->w->hi[reg];
    else x->dlo = x->w->lo[reg];
}

// Only the chosen half of s0 has to be defined.
static void half_defined(LaneOp *x, bool upper) {
    x->dlo = x->dhi = (upper ? x->hi[0] : x->lo[0]) & x->lo[1] & x->hi[1];
}

// One element: byte op_sel[1:0] of s0, scaled by s1.
static void widen_one(LaneOp *x, enum Small from, enum Wide to) {
    const Format *f = small(x, from);
    const int byte = OP_SEL & 3;
    half_defined(x, byte >= 2);
    EACH_ACTIVE(x->exec, i)
        x->d.u[i] = write_wide(decode_small(A->u[i] >> byte * 8 & 255, f) * scale_of(B->u[i]), to);
}

// Two elements of s0: fp8 from word op_sel[0], fp4 from byte op_sel[1:0].
static void widen_pair(LaneOp *x, enum Small from, enum Wide to) {
    const Format *f = small(x, from);
    const int bits = from == S_FP4 ? 4 : 8, shift = from == S_FP4 ? (OP_SEL & 3) * 8 : (OP_SEL & 1) * 16;
    const uint32_t mask = (1u << bits) - 1;
    half_defined(x, shift >= 16);
    EACH_ACTIVE(x->exec, i) {
        const uint32_t word = A->u[i] >> shift;
        const double scale = scale_of(B->u[i]);
        const uint32_t low = write_wide(decode_small(word & mask, f) * scale, to);
        const uint32_t high = write_wide(decode_small(word >> bits & mask, f) * scale, to);
        if (to == W32) x->d.q[i] = low | (uint64_t)high << 32;
        else x->d.u[i] = low | high << 16;
    }
}

// Two elements to fp8 (a half, the shared step's matter) or fp4 (byte op_sel[3:2]).
// float32: s0, s1 and the scale s2; 16-bit: the halves of s0 and the scale s1.
static void narrow_pair(LaneOp *x, enum Small to, enum Wide from) {
    const Format *f = small(x, to);
    uint32_t out[LANES] = {0};
    EACH_ACTIVE(x->exec, i) {
        const double inverse = inverse_of(from == W32 ? C->u[i] : B->u[i]);
        const double low = read_wide(A->u[i], from) * inverse;
        const double high = (from == W32 ? read_wide(B->u[i], from) : read_wide(A->u[i] >> 16, from)) * inverse;
        out[i] = encode_small(low, f, false, 0, SATURATE) | encode_small(high, f, false, 0, SATURATE) << (to == S_FP4 ? 4 : 8);
    }
    if (to == S_FP4) put_byte(x, OP_SEL >> 2 & 3, out);
    else memcpy(x->d.u, out, sizeof out);
}

// Stochastic: one element of s0 to a byte, random bits s1, scale s2.
static void narrow_random(LaneOp *x, enum Small to, enum Wide from) {
    const Format *f = small(x, to);
    uint32_t out[LANES] = {0};
    EACH_ACTIVE(x->exec, i)
        out[i] = encode_small(read_wide(A->u[i], from) * inverse_of(C->u[i]), f, true, B->u[i], SATURATE);
    put_byte(x, OP_SEL >> 2 & 3, out);
}

// Stochastic, two elements to fp4: two float32 in s0's 64 bits, or two halves.
static void narrow_random_pair(LaneOp *x, enum Wide from) {
    uint32_t out[LANES] = {0};
    EACH_ACTIVE(x->exec, i) {
        const double inverse = inverse_of(C->u[i]);
        const uint32_t first = from == W32 ? (uint32_t)A->q[i] : A->u[i];
        const uint32_t second = from == W32 ? (uint32_t)(A->q[i] >> 32) : A->u[i] >> 16;
        out[i] = encode_small(read_wide(first, from) * inverse, &FP4, true, B->u[i], false)
               | encode_small(read_wide(second, from) * inverse, &FP4, true, next_random(B->u[i]), false) << 4;
    }
    put_byte(x, OP_SEL >> 2 & 3, out);
}

#define WIDEN(name, from, to, how) static void v_cvt_scalef32_##name(LaneOp *x) { how(x, from, to); }
WIDEN(f32_fp8, S_FP8, W32, widen_one)
WIDEN(f32_bf8, S_BF8, W32, widen_one)
WIDEN(f16_fp8, S_FP8, W16, widen_one)
WIDEN(f16_bf8, S_BF8, W16, widen_one)
WIDEN(pk_f32_fp8, S_FP8, W32, widen_pair)
WIDEN(pk_f32_bf8, S_BF8, W32, widen_pair)
WIDEN(pk_f32_fp4, S_FP4, W32, widen_pair)
WIDEN(pk_f16_fp8, S_FP8, W16, widen_pair)
WIDEN(pk_f16_bf8, S_BF8, W16, widen_pair)
WIDEN(pk_f16_fp4, S_FP4, W16, widen_pair)
WIDEN(pk_bf16_fp8, S_FP8, WB16, widen_pair)
WIDEN(pk_bf16_bf8, S_BF8, WB16, widen_pair)
WIDEN(pk_bf16_fp4, S_FP4, WB16, widen_pair)
#define NARROW(to, small)                                                                                    \
    static void v_cvt_scalef32_pk_##to##_f32(LaneOp *x) { narrow_pair(x, small, W32); }                      \
    static void v_cvt_scalef32_pk_##to##_f16(LaneOp *x) { narrow_pair(x, small, W16); }                      \
    static void v_cvt_scalef32_pk_##to##_bf16(LaneOp *x) { narrow_pair(x, small, WB16); }
NARROW(fp8, S_FP8)
NARROW(bf8, S_BF8)
NARROW(fp4, S_FP4)
#define RANDOM(to, small)                                                                                    \
    static void v_cvt_scalef32_sr_##to##_f32(LaneOp *x) { narrow_random(x, small, W32); }                    \
    static void v_cvt_scalef32_sr_##to##_f16(LaneOp *x) { narrow_random(x, small, W16); }                    \
    static void v_cvt_scalef32_sr_##to##_bf16(LaneOp *x) { narrow_random(x, small, WB16); }
RANDOM(fp8, S_FP8)
RANDOM(bf8, S_BF8)
static void v_cvt_scalef32_sr_pk_fp4_f32(LaneOp *x) { narrow_random_pair(x, W32); }
static void v_cvt_scalef32_sr_pk_fp4_f16(LaneOp *x) { narrow_random_pair(x, W16); }
static void v_cvt_scalef32_sr_pk_fp4_bf16(LaneOp *x) { narrow_random_pair(x, WB16); }

// 32 elements of 6 bits in six registers ----------------------------------------------------------

// `words` registers of source k; all of them must be defined in a lane for its results to be.
static mask64 read_block(LaneOp *x, int k, int words, uint32_t block[][LANES]) {
    mask64 known = ~0ull, lo, hi;
    for (int r = 0; r < words; r++) {
        uint32_t space[LANES];
        memcpy(block[r], read_words(x->w, &x->in->src[k], r, space, &lo, &hi), sizeof space);
        known &= lo & hi;
    }
    return known;
}

static void write_block(LaneOp *x, int words, uint32_t block[][LANES], mask64 known) {
    for (int r = 0; r < words; r++) write_words(x->w, x->in->dst[0].index + r, block[r], x->exec, known, known);
}

static void widen_block(LaneOp *x, enum Small from, enum Wide to) {
    uint32_t in[6][LANES], out[32][LANES] = {{0}};
    const Format *f = small(x, from);
    const mask64 known = read_block(x, 0, 6, in) & x->lo[1] & x->hi[1];
    EACH_ACTIVE(x->exec, i) {
        const double scale = scale_of(B->u[i]);
        for (int k = 0; k < 32; k++) {
            const int at = k * 6, word = at / 32;
            const uint64_t two = in[word][i] | (uint64_t)(word < 5 ? in[word + 1][i] : 0) << 32;
            const uint32_t r = write_wide(decode_small(two >> at % 32 & 63, f) * scale, to);
            if (to == W32) out[k][i] = r;
            else out[k / 2][i] |= r << (k % 2) * 16;
        }
    }
    write_block(x, to == W32 ? 32 : 16, out, known);
}

// Sources: 32 float32 in s0, or 16 each in s0 and s1, interleaved (`two`), or 32 halves in s0; then, stochastic, the
// random bits; then the scale.
static void narrow_block(LaneOp *x, enum Small to, enum Wide from, bool two, bool stochastic) {
    uint32_t in[32][LANES], out[6][LANES] = {{0}};
    const Format *f = small(x, to);
    mask64 known = two ? read_block(x, 0, 16, in) & read_block(x, 1, 16, in + 16) : read_block(x, 0, from == W32 ? 32 : 16, in);
    const int last = two || stochastic ? 2 : 1;
    known &= x->lo[last] & x->hi[last] & (stochastic ? x->lo[1] & x->hi[1] : ~0ull);
    EACH_ACTIVE(x->exec, i) {
        const double inverse = inverse_of(x->s[last]->u[i]);
        uint32_t random = stochastic ? B->u[i] : 0;
        for (int k = 0; k < 32; k++) {
            const uint32_t bits = from != W32 ? in[k / 2][i] >> (k % 2) * 16 : two ? in[k % 2 * 16 + k / 2][i] : in[k][i];
            const uint64_t code = encode_small(read_wide(bits, from) * inverse, f, stochastic, random, false);
            const int at = k * 6, word = at / 32;
            out[word][i] |= (uint32_t)(code << at % 32);
            if (at % 32 > 26) out[word + 1][i] |= (uint32_t)(code << at % 32 >> 32);
            random = next_random(random);
        }
    }
    write_block(x, 6, out, known);
}

#define BLOCK(small, kind)                                                                                            \
    static void v_cvt_scalef32_pk32_f32_##small(LaneOp *x) { widen_block(x, kind, W32); }                             \
    static void v_cvt_scalef32_pk32_f16_##small(LaneOp *x) { widen_block(x, kind, W16); }                             \
    static void v_cvt_scalef32_pk32_bf16_##small(LaneOp *x) { widen_block(x, kind, WB16); }                           \
    static void v_cvt_scalef32_2xpk16_##small##_f32(LaneOp *x) { narrow_block(x, kind, W32, true, false); }           \
    static void v_cvt_scalef32_pk32_##small##_f16(LaneOp *x) { narrow_block(x, kind, W16, false, false); }            \
    static void v_cvt_scalef32_pk32_##small##_bf16(LaneOp *x) { narrow_block(x, kind, WB16, false, false); }          \
    static void v_cvt_scalef32_sr_pk32_##small##_f32(LaneOp *x) { narrow_block(x, kind, W32, false, true); }          \
    static void v_cvt_scalef32_sr_pk32_##small##_f16(LaneOp *x) { narrow_block(x, kind, W16, false, true); }          \
    static void v_cvt_scalef32_sr_pk32_##small##_bf16(LaneOp *x) { narrow_block(x, kind, WB16, false, true); }
BLOCK(fp6, S_FP6)
BLOCK(bf6, S_BF6)

#define R(op, signature) LANE_OP(v_cvt_scalef32_##op, signature)
#define BLOCKS(small)                                                                                                 \
    R(pk32_f32_##small, "r=rb"), R(pk32_f16_##small, "r=rb"), R(pk32_bf16_##small, "r=rb"),                           \
        R(2xpk16_##small##_f32, "r=rrb"), R(pk32_##small##_f16, "r=rb"), R(pk32_##small##_bf16, "r=rb"),              \
        R(sr_pk32_##small##_f32, "r=rbb"), R(sr_pk32_##small##_f16, "r=rbb"), R(sr_pk32_##small##_bf16, "r=rbb")
const OpInfo ops_valu_scale[] = {
    R(f32_fp8, "f=bb"), R(f32_bf8, "f=bb"), R(f16_fp8, "w=bb"), R(f16_bf8, "w=bb"),
    R(pk_f32_fp8, "q=bb"), R(pk_f32_bf8, "q=bb"), R(pk_f32_fp4, "q=bb"),
    R(pk_f16_fp8, "b=bb"), R(pk_f16_bf8, "b=bb"), R(pk_f16_fp4, "b=bb"),
    R(pk_bf16_fp8, "b=bb"), R(pk_bf16_bf8, "b=bb"), R(pk_bf16_fp4, "b=bb"),
    R(pk_fp8_f32, "w=ffb"), R(pk_fp8_f16, "w=bb"), R(pk_fp8_bf16, "w=bb"),
    R(pk_bf8_f32, "w=ffb"), R(pk_bf8_f16, "w=bb"), R(pk_bf8_bf16, "w=bb"),
    R(pk_fp4_f32, "b=ffb"), R(pk_fp4_f16, "b=bb"), R(pk_fp4_bf16, "b=bb"),
    R(sr_fp8_f32, "b=fbb"), R(sr_fp8_f16, "b=bbb"), R(sr_fp8_bf16, "b=bbb"),
    R(sr_bf8_f32, "b=fbb"), R(sr_bf8_f16, "b=bbb"), R(sr_bf8_bf16, "b=bbb"),
    R(sr_pk_fp4_f32, "b=qbb"), R(sr_pk_fp4_f16, "b=bbb"), R(sr_pk_fp4_bf16, "b=bbb"),
    BLOCKS(fp6), BLOCKS(bf6),
    OPS_END,
};
