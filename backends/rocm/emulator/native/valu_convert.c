// Conversions between number formats (those with a shared scale, of gfx950, are in valu_scale.c).
//
// Float to integer truncates, saturates, and takes a NaN to 0. The raw op_sel field, which chooses bytes and words in
// the fp8 conversions, is in aux[2].
#include "small_float.h"

#define A x->s[0]
#define B x->s[1]
#define C x->s[2]

// float32, float64 and integers -------------------------------------------------------------------

static inline double between(double v, double least, double most) {
    const double r = v < least ? least : v > most ? most : v;
    return v == v ? r : 0.0;
}
static inline uint32_t to_signed(double v) { return (uint32_t)(int32_t)between(v, -2147483648.0, 2147483647.0); }
static inline uint32_t to_unsigned(double v) { return (uint32_t)between(v, 0.0, 4294967295.0); }

static void v_cvt_f32_i32(LaneOp *x) { EACH x->d.f[i] = (float)A->i[i]; }
static void v_cvt_f32_u32(LaneOp *x) { EACH x->d.f[i] = (float)(double)A->u[i]; }
static void v_cvt_i32_f32(LaneOp *x) { EACH x->d.u[i] = to_signed(A->f[i]); }
static void v_cvt_u32_f32(LaneOp *x) { EACH x->d.u[i] = to_unsigned(A->f[i]); }
static void v_cvt_i32_f64(LaneOp *x) { EACH x->d.u[i] = to_signed(A->d[i]); }
static void v_cvt_u32_f64(LaneOp *x) { EACH x->d.u[i] = to_unsigned(A->d[i]); }
static void v_cvt_f64_i32(LaneOp *x) { EACH x->d.d[i] = A->i[i]; }
static void v_cvt_f64_u32(LaneOp *x) { EACH x->d.d[i] = A->u[i]; }
static void v_cvt_f32_f64(LaneOp *x) {
    EACH {
        const uint32_t nan = (uint32_t)(A->q[i] >> 32 & 0x80000000u) | NAN32 | (uint32_t)(A->q[i] >> 29 & 0x3fffff);
        x->d.f[i] = A->d[i] == A->d[i] ? (float)A->d[i] : as_float(nan);
    }
}
static void v_cvt_f64_f32(LaneOp *x) { EACH x->d.d[i] = (double)A->f[i]; }

// A byte of the source is a number; the half that it is not in need not be defined.
#define BYTE_TO_FLOAT(byte, half)                                                \
    static void v_cvt_f32_ubyte##byte(LaneOp *x) {                               \
        x->dlo = x->dhi = x->half[0];                                            \
        EACH x->d.f[i] = (float)(int32_t)(A->u[i] >> (8 * (byte)) & 255);        \
    }
BYTE_TO_FLOAT(0, lo)
BYTE_TO_FLOAT(1, lo)
BYTE_TO_FLOAT(2, hi)
BYTE_TO_FLOAT(3, hi)

// floor(x + 0.5) with the sum in float32, as the guides write it, and floor(x).
static void v_cvt_rpi_i32_f32(LaneOp *x) { EACH x->d.u[i] = to_signed(__builtin_floorf(A->f[i] + 0.5f)); }
static void v_cvt_flr_i32_f32(LaneOp *x) { EACH x->d.u[i] = to_signed(__builtin_floorf(A->f[i])); }

// A signed 4-bit integer in sixteenths.
static void v_cvt_off_f32_i4(LaneOp *x) { EACH x->d.f[i] = (float)((int32_t)(A->u[i] << 28) >> 28) * 0.0625f; }

static void v_cvt_i32_i16(LaneOp *x) { EACH x->d.i[i] = (int16_t)A->u[i]; }
static void v_cvt_u32_u16(LaneOp *x) { EACH x->d.u[i] = A->u[i] & 0xffff; }

// 16-bit floats -----------------------------------------------------------------------------------

static void v_cvt_f16_f32(LaneOp *x) { floats_to_halves(A->f, x->d.u, ROUND_F16_F64(x->w->mode)); }
static void v_cvt_f32_f16(LaneOp *x) { halves_to_floats(A->u, x->d.f); }
static void v_cvt_f32_bf16(LaneOp *x) { EACH x->d.u[i] = bfloat_to_float_bits(A->u[i]); }

static void v_cvt_f16_u16(LaneOp *x) {
    const int round = ROUND_F16_F64(x->w->mode);
    float wide[LANES];
    EACH wide[i] = (float)(int32_t)(A->u[i] & 0xffff);
    floats_to_halves(wide, x->d.u, round);
}
static void v_cvt_f16_i16(LaneOp *x) {
    const int round = ROUND_F16_F64(x->w->mode);
    float wide[LANES];
    EACH wide[i] = (float)(int16_t)A->u[i];
    floats_to_halves(wide, x->d.u, round);
}
static void v_cvt_u16_f16(LaneOp *x) { EACH x->d.u[i] = (uint32_t)(int32_t)between(half_to_float(A->u[i]), 0, 65535); }
static void v_cvt_i16_f16(LaneOp *x) {
    EACH x->d.u[i] = (uint32_t)(int32_t)between(half_to_float(A->u[i]), -32768, 32767) & 0xffff;
}

// Two results in one register: the definedness of each half is that of its own source.
static void halves_of(LaneOp *x) {
    x->dlo = x->lo[0] & x->hi[0];
    x->dhi = x->lo[1] & x->hi[1];
}

static inline uint32_t pack(uint32_t low, uint32_t high) { return (low & 0xffff) | high << 16; }

static void pack_halves(LaneOp *x, int round) {
    uint32_t low[LANES], high[LANES];
    floats_to_halves(A->f, low, round);
    floats_to_halves(B->f, high, round);
    EACH x->d.u[i] = pack(low[i], high[i]);
    halves_of(x);
}
static void v_cvt_pkrtz_f16_f32(LaneOp *x) { pack_halves(x, TO_ZERO); }
static void v_cvt_pk_f16_f32(LaneOp *x) { pack_halves(x, TO_NEAREST); }
static void v_cvt_pk_bf16_f32(LaneOp *x) {
    EACH x->d.u[i] = pack(float_bits_to_bfloat(A->u[i], TO_NEAREST), float_bits_to_bfloat(B->u[i], TO_NEAREST));
    halves_of(x);
}

// Stochastic rounding adds the upper bits of s1 below the last kept one; which bits the hardware takes is a guess.
static void v_cvt_sr_f16_f32(LaneOp *x) {
    EACH_ACTIVE(x->exec, i) x->d.u[i] = encode_small(A->f[i], &F16, true, B->u[i], false);
}
static void v_cvt_sr_bf16_f32(LaneOp *x) {
    EACH_ACTIVE(x->exec, i) x->d.u[i] = encode_small(A->f[i], &BF16, true, B->u[i], false);
}

// Integers and fixed point, two at a time ---------------------------------------------------------

static void v_cvt_pk_u16_u32(LaneOp *x) {
    EACH {
        const uint32_t a = A->u[i], b = B->u[i];
        x->d.u[i] = pack(a > 65535 ? 65535 : a, b > 65535 ? 65535 : b);
    }
    halves_of(x);
}
static inline uint32_t to_i16(int32_t v) { return (uint32_t)(v > 32767 ? 32767 : v < -32768 ? -32768 : v); }
static void v_cvt_pk_i16_i32(LaneOp *x) {
    EACH x->d.u[i] = pack(to_i16(A->i[i]), to_i16(B->i[i]));
    halves_of(x);
}
static inline uint32_t float_to_i16(float f) { return (uint32_t)(int32_t)between(f, -32768, 32767); }
static inline uint32_t float_to_u16(float f) { return (uint32_t)(int32_t)between(f, 0, 65535); }
static void v_cvt_pk_i16_f32(LaneOp *x) {
    EACH x->d.u[i] = pack(float_to_i16(A->f[i]), float_to_i16(B->f[i]));
    halves_of(x);
}
static void v_cvt_pk_u16_f32(LaneOp *x) {
    EACH x->d.u[i] = pack(float_to_u16(A->f[i]), float_to_u16(B->f[i]));
    halves_of(x);
}

// Normalised: [-1, 1] to [-32767, 32767], [0, 1] to [0, 65535], the product rounded to nearest even.
static inline uint32_t snorm(double v) {
    return (uint32_t)(int32_t)__builtin_roundeven(between(v, -1.0, 1.0) * 32767.0);
}
static inline uint32_t unorm(double v) {
    return (uint32_t)(int32_t)__builtin_roundeven(between(v, 0.0, 1.0) * 65535.0);
}
#define NORM(kind)                                                                                             \
    static void v_cvt_pk##kind##16_f32(LaneOp *x) {                                                            \
        EACH x->d.u[i] = pack(TO_##kind(A->f[i]), TO_##kind(B->f[i]));                                         \
        halves_of(x);                                                                                          \
    }                                                                                                          \
    static void v_cvt_pk##kind##16_f16(LaneOp *x) {                                                            \
        EACH x->d.u[i] = pack(TO_##kind(half_to_float(A->u[i])), TO_##kind(half_to_float(B->u[i])));           \
        halves_of(x);                                                                                          \
    }
#define TO_norm_i(v) snorm(v)
#define TO_norm_u(v) unorm(v)
NORM(norm_i)
NORM(norm_u)
static void v_cvt_norm_i16_f16(LaneOp *x) { EACH x->d.u[i] = snorm(half_to_float(A->u[i])) & 0xffff; }
static void v_cvt_norm_u16_f16(LaneOp *x) { EACH x->d.u[i] = unorm(half_to_float(A->u[i])); }

// One byte of s2, the s1-th, becomes s0 as an unsigned byte.
static void v_cvt_pk_u8_f32(LaneOp *x) {
    EACH {
        const uint32_t shift = (B->u[i] & 3) * 8, byte = (uint32_t)(int32_t)between(A->f[i], 0, 255);
        x->d.u[i] = (C->u[i] & ~(255u << shift)) | byte << shift;
    }
}

// fp8 and bf8 -------------------------------------------------------------------------------------

#define OP_SEL(x) ((x)->in->aux[2])
#define SATURATE(x) ((x)->w->mode >> 23 & 1)  // MODE.FP16_OVFL

// Byte `byte` of the destination is written, the others kept. Definedness is known by halves: the half counts as
// defined with the byte, as a register filled byte by byte begins with three that are not.
static void put_byte(LaneOp *x, int byte, const uint32_t *value) {
    const int reg = x->in->dst[0].index, shift = byte * 8;
    const uint32_t *old = VREG(x->w, reg);
    EACH x->d.u[i] = (old[i] & ~(255u << shift)) | (value[i] & 255) << shift;
    if (byte < 2) x->dhi = x->w->hi[reg];
    else x->dlo = x->w->lo[reg];
}

static void v_cvt_pkaccum_u8_f32(LaneOp *x) {  // the byte is chosen by s1, lane by lane
    const int reg = x->in->dst[0].index;
    const uint32_t *old = VREG(x->w, reg);
    EACH {
        const uint32_t shift = (B->u[i] & 3) * 8, byte = (uint32_t)(int32_t)between(A->f[i], 0, 255);
        x->d.u[i] = (old[i] & ~(255u << shift)) | byte << shift;
    }
}

// The source byte: SDWA's selection has been made by the shared step; gfx12's op_sel has its two bits reversed
// (RDNA4 ISA guide, V_CVT_F32_FP8).
static void widen(LaneOp *x, const Format *f) {
    const uint32_t select = OP_SEL(x), byte = (select & 1) << 1 | (select >> 1 & 1);
    if (byte) x->dlo = x->dhi = byte < 2 ? x->lo[0] : x->hi[0];
    else x->dlo = x->dhi = x->lo[0];
    EACH x->d.f[i] = decode_small(A->u[i] >> byte * 8 & 255, f);
}
static void v_cvt_f32_fp8(LaneOp *x) { widen(x, fp8_of(x->w)); }
static void v_cvt_f32_bf8(LaneOp *x) { widen(x, bf8_of(x->w)); }

static void widen_two(LaneOp *x, const Format *f) {
    const int shift = OP_SEL(x) & 1 ? 16 : 0;
    x->dlo = x->dhi = shift ? x->hi[0] : x->lo[0];
    EACH {
        const uint32_t word = A->u[i] >> shift;
        x->d.q[i] = as_bits(decode_small(word & 255, f)) | (uint64_t)as_bits(decode_small(word >> 8 & 255, f)) << 32;
    }
}
static void v_cvt_pk_f32_fp8(LaneOp *x) { widen_two(x, fp8_of(x->w)); }
static void v_cvt_pk_f32_bf8(LaneOp *x) { widen_two(x, bf8_of(x->w)); }

static void narrow_two(LaneOp *x, const Format *f) {  // the half is the shared step's matter
    const bool saturate = SATURATE(x);
    const Format local = *f;
    const uint32_t *a = A->u, *b = B->u;
    uint32_t out[LANES];
    EACH out[i] = encode_nearest(a[i], &local, saturate) | encode_nearest(b[i], &local, saturate) << 8;
    memcpy(x->d.u, out, sizeof out);
}
static void v_cvt_pk_fp8_f32(LaneOp *x) { narrow_two(x, fp8_of(x->w)); }
static void v_cvt_pk_bf8_f32(LaneOp *x) { narrow_two(x, bf8_of(x->w)); }

static void narrow_stochastic(LaneOp *x, const Format *f) {
    uint32_t byte[LANES] = {0};
    EACH_ACTIVE(x->exec, i) byte[i] = encode_small(A->f[i], f, true, B->u[i], SATURATE(x));
    put_byte(x, OP_SEL(x) >> 2 & 3, byte);
}
static void v_cvt_sr_fp8_f32(LaneOp *x) { narrow_stochastic(x, fp8_of(x->w)); }
static void v_cvt_sr_bf8_f32(LaneOp *x) { narrow_stochastic(x, bf8_of(x->w)); }

#define R(op, signature) LANE_OP(op, signature)
#define NAMED(name, op, signature) {#name, signature, step_lane, (void *)op, C_VALU, 0}
const OpInfo ops_valu_convert[] = {
    R(v_cvt_f32_i32, "f=b"), R(v_cvt_f32_u32, "f=b"), R(v_cvt_i32_f32, "b=f"), R(v_cvt_u32_f32, "b=f"),
    R(v_cvt_i32_f64, "b=d"), R(v_cvt_u32_f64, "b=d"), R(v_cvt_f64_i32, "d=b"), R(v_cvt_f64_u32, "d=b"),
    R(v_cvt_f32_f64, "f=d"), R(v_cvt_f64_f32, "d=f"), R(v_cvt_f32_ubyte0, "f=b"), R(v_cvt_f32_ubyte1, "f=b"),
    R(v_cvt_f32_ubyte2, "f=b"), R(v_cvt_f32_ubyte3, "f=b"), R(v_cvt_rpi_i32_f32, "b=f"),
    R(v_cvt_flr_i32_f32, "b=f"), R(v_cvt_off_f32_i4, "f=b"), R(v_cvt_i32_i16, "b=w"), R(v_cvt_u32_u16, "b=w"),
    R(v_cvt_f16_f32, "h=f"), R(v_cvt_f32_f16, "f=h"), R(v_cvt_f32_bf16, "f=w"), R(v_cvt_f16_u16, "h=w"),
    R(v_cvt_f16_i16, "h=w"), R(v_cvt_u16_f16, "w=h"), R(v_cvt_i16_f16, "w=h"), R(v_cvt_pkrtz_f16_f32, "P=ff"),
    R(v_cvt_pk_f16_f32, "P=ff"), R(v_cvt_pk_bf16_f32, "b=ff"), R(v_cvt_sr_f16_f32, "w=fb"),
    R(v_cvt_sr_bf16_f32, "w=fb"), R(v_cvt_pk_u16_u32, "b=bb"), R(v_cvt_pk_i16_i32, "b=bb"),
    R(v_cvt_pk_i16_f32, "b=ff"), R(v_cvt_pk_u16_f32, "b=ff"), R(v_cvt_pknorm_i16_f32, "b=ff"),
    R(v_cvt_pknorm_u16_f32, "b=ff"), R(v_cvt_pknorm_i16_f16, "b=hh"), R(v_cvt_pknorm_u16_f16, "b=hh"),
    // gfx11's names of the four
    NAMED(v_cvt_pk_norm_i16_f32, v_cvt_pknorm_i16_f32, "b=ff"), NAMED(v_cvt_pk_norm_u16_f32, v_cvt_pknorm_u16_f32, "b=ff"),
    NAMED(v_cvt_pk_norm_i16_f16, v_cvt_pknorm_i16_f16, "b=hh"), NAMED(v_cvt_pk_norm_u16_f16, v_cvt_pknorm_u16_f16, "b=hh"),
    R(v_cvt_norm_i16_f16, "w=h"), R(v_cvt_norm_u16_f16, "w=h"), R(v_cvt_pk_u8_f32, "b=fbb"),
    R(v_cvt_pkaccum_u8_f32, "b=fb"), R(v_cvt_f32_fp8, "f=b"), R(v_cvt_f32_bf8, "f=b"), R(v_cvt_pk_f32_fp8, "q=b"),
    R(v_cvt_pk_f32_bf8, "q=b"), R(v_cvt_pk_fp8_f32, "w=ff"), R(v_cvt_pk_bf8_f32, "w=ff"),
    R(v_cvt_sr_fp8_f32, "b=fb"), R(v_cvt_sr_bf8_f32, "b=fb"),
    OPS_END,
};
