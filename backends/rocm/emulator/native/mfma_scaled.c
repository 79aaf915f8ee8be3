// gfx950's MFMA of 8, 6 and 4-bit floats, plain and with a scale per row and 32 values of K.
//
// Formats and scales from the CDNA4 ISA guide (OCP microscaling): cbsz names A's format, blgp B's; a scale byte s means
// 2^(s - 127). A lane holds 32 K of one row: of 4-bit floats consecutive ones, of 8 and 6-bit ones two runs of 16 that
// lie half of all K apart. A scale is that of 32 consecutive K whatever the format, and lies in the lanes that would hold
// them in 4 bits: so Triton lays out operands and scales. How the sums are rounded inside is not published: each is
// taken to be a chain of fused multiply-adds in order of k.
#include "matrix.h"

#include <math.h>

static const int widths[] = {8, 8, 6, 6, 4};

// Signed, `exponent_bits` and `mantissa_bits`, no infinities and no NaN.
static float tiny(uint32_t bits, int exponent_bits, int mantissa_bits, int bias) {
    const uint32_t fraction = bits & ((1u << mantissa_bits) - 1), exponent = bits >> mantissa_bits & ((1u << exponent_bits) - 1);
    const float size = exponent ? ldexpf((float)(fraction | 1u << mantissa_bits), (int)exponent - bias - mantissa_bits)
                                : ldexpf((float)fraction, 1 - bias - mantissa_bits);
    return bits >> (exponent_bits + mantissa_bits) & 1 ? -size : size;
}

static float value_of(int format, uint32_t bits) {
    switch (format) {
    case 0: return element_to_float(E_FP8, bits, false);
    case 1: return element_to_float(E_BF8, bits, false);
    case 2: return tiny(bits, 2, 3, 1);
    case 3: return tiny(bits, 3, 2, 3);
    default: return tiny(bits, 2, 1, 1);
    }
}

static uint32_t field(const Wave *w, int reg, int lane, int e, int width) {
    const int bit = e * width, within = bit % 32;
    uint64_t words = VREG(w, reg + bit / 32)[lane];
    if (within + width > 32) words |= (uint64_t)VREG(w, reg + bit / 32 + 1)[lane] << 32;
    return (uint32_t)(words >> within) & ((1u << width) - 1);
}

// Which K the element e of a lane's is; `group` counts the runs of m lanes.
static int k_of(int format, int group, int e, int k) {
    return widths[format] == 4 ? 32 * group + e : 16 * group + e % 16 + e / 16 * (k / 2);
}

static float scale_of(const uint32_t *words, int lane, const Operand *matrix) {
    const int byte = (matrix->mods & UPPER ? 1 : 0) | (matrix->mods & UPPER_HI ? 2 : 0);
    const uint32_t s = words[lane] >> (8 * byte) & 0xff;
    return s == 255 ? NAN : ldexpf(1.0f, (int)s - 127);
}

static void multiply_scaled(LaneOp *x, int m, int k, bool scaled) {
    Wave *w = x->w;
    const Operand *oa = &x->in->src[0], *ob = &x->in->src[1], *oc = &x->in->src[2], *od = &x->in->dst[0];
    const int fa = x->in->aux[0] & 7, fb = x->in->aux[0] >> 16 & 7, out_regs = m * m / 64, per_lane = m * k / 64;
    if (fa > 4 || fb > 4 || oa->kind != VGPR || ob->kind != VGPR || od->kind != VGPR || oa->index + 8 > VECTORS ||
        ob->index + 8 > VECTORS || od->index + out_regs > VECTORS || (oc->kind == VGPR && oc->index + out_regs > VECTORS)) {
        fault(w, x->in, F_UNSUPPORTED, -1, ~0ull, "a matrix operand or format that this instruction does not have");
        return;
    }
    uint32_t a_scales[LANES], b_scales[LANES], space[LANES], out[16][LANES];
    mask64 a_def = defined_lanes(w, oa->index, widths[fa]), b_def = defined_lanes(w, ob->index, widths[fb]), def[16], lo, hi;
    const uint32_t *sa = a_scales, *sb = b_scales;
    if (scaled) {
        sa = read_words(w, &x->in->src[3], 0, a_scales, &lo, &hi);
        a_def &= lo & hi;
        sb = read_words(w, &x->in->src[4], 0, b_scales, &lo, &hi);
        b_def &= lo & hi;
    }
    static _Thread_local Product p;
    p.m = p.n = m;
    p.k = k;
    p.sum = SUM_FMA;
    for (int lane = 0; lane < 64; lane++) {
        const int at = lane % m;
        for (int e = 0; e < per_lane; e++) {
            const int ka = k_of(fa, lane / m, e, k), kb = k_of(fb, lane / m, e, k);
            const float left = scaled ? scale_of(sa, ka / 32 * m + at, oa) : 1.0f;
            const float right = scaled ? scale_of(sb, kb / 32 * m + at, ob) : 1.0f;
            p.a[ka * m + at] = value_of(fa, field(w, oa->index, lane, e, widths[fa])) * left;
            p.b[kb * m + at] = value_of(fb, field(w, ob->index, lane, e, widths[fb])) * right;
        }
    }
    for (int pass = 0; pass < 2; pass++) {
        if (pass) multiply(&p);
        for (int r = 0; r < out_regs; r++) {
            const uint32_t *c = pass ? space : read_words(w, oc, r, space, &lo, &hi);
            if (!pass) def[r] = ~a_def || ~b_def ? 0 : lo & hi;
            for (int lane = 0; lane < 64; lane++) {
                const int row = m == 32 ? 8 * (r / 4) + 4 * (lane / 32) + r % 4 : 4 * (lane / 16) + r;
                float *cell = &p.c[row * m + lane % m];
                if (pass) out[r][lane] = as_bits(*cell);
                else *cell = as_float(c[lane]);
            }
        }
    }
    for (int r = 0; r < out_regs; r++) write_words(w, od->index + r, out[r], ~0ull, def[r], def[r]);
}

static void v_mfma_f32_16x16x128_f8f6f4(LaneOp *x) { multiply_scaled(x, 16, 128, false); }
static void v_mfma_f32_32x32x64_f8f6f4(LaneOp *x) { multiply_scaled(x, 32, 64, false); }
static void v_mfma_scale_f32_16x16x128_f8f6f4(LaneOp *x) { multiply_scaled(x, 16, 128, true); }
static void v_mfma_scale_f32_32x32x64_f8f6f4(LaneOp *x) { multiply_scaled(x, 32, 64, true); }

const OpInfo ops_mfma_scaled[] = {
    MATRIX_OP(v_mfma_f32_16x16x128_f8f6f4, "r=rrr", 2 * 16 * 16 * 128),
    MATRIX_OP(v_mfma_f32_32x32x64_f8f6f4, "r=rrr", 2 * 32 * 32 * 64),
    MATRIX_OP(v_mfma_scale_f32_16x16x128_f8f6f4, "r=rrrrr", 2 * 16 * 16 * 128),
    MATRIX_OP(v_mfma_scale_f32_32x32x64_f8f6f4, "r=rrrrr", 2 * 32 * 32 * 64),
    OPS_END,
};
