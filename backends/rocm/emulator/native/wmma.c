// WMMA: which lane and element holds what on RDNA3 (gfx11) and RDNA4 (gfx12), in waves of 32.
//
// From the RDNA3 and RDNA4 ISA guides, "Wave Matrix Multiply Accumulate". gfx11 keeps whole rows of A (columns of B)
// in lanes 0..15 and wants the same data again in lanes 16..31; gfx12 splits K between the two halves of the wave.
// How the sums are rounded inside is not published: here each is a chain of fused multiply-adds in order of k.
#include "matrix.h"

#include "half.h"

typedef struct Tile {
    enum Element left, right;
    enum { OUT_F32, OUT_F16, OUT_BF16 } out;
    int k;
} Tile;

static uint32_t element(const Wave *w, int reg, int lane, int e, int width) {
    const int bit = e * width;
    return VREG(w, reg + bit / 32)[lane] >> (bit % 32) & (width == 32 ? ~0u : (1u << width) - 1);
}

static bool usable(LaneOp *x, int a_regs, int b_regs, int c_regs) {
    const Operand *a = &x->in->src[0], *b = &x->in->src[1], *c = &x->in->src[2], *d = &x->in->dst[0];
    const char *why = NULL;
    if (x->w->lanes != 32) why = "WMMA in a wave of 64 lanes";
    else if (a->kind != VGPR || b->kind != VGPR || d->kind != VGPR) why = "a matrix operand is not in vector registers";
    else if (a->index + a_regs > AGPR || b->index + b_regs > AGPR || d->index + c_regs > AGPR || (c->kind == VGPR && c->index + c_regs > AGPR))
        why = "a matrix operand lies beyond the last register";
    if (why) fault(x->w, x->in, F_UNSUPPORTED, -1, ~0ull, "%s", why);
    return why == NULL;
}

// Where element (at, k) of A or B lies.
static void locate(int arch, int k_total, int at, int k, int *lane, int *e) {
    if (arch == GFX1100) {
        *lane = at;
        *e = k;
    } else {
        const int half = k_total / 2;
        *lane = at + 16 * (k / half);
        *e = k % half;
    }
}
static int row_of(int arch, int lane, int r) { return arch == GFX1100 ? 2 * r + lane / 16 : 8 * (lane / 16) + r; }

// gfx11 reads one copy of each row; that both copies agree is the kernel's promise.
static bool copies_agree(LaneOp *x, const Operand *o, int regs) {
    if (x->w->launch->arch != GFX1100) return true;
    for (int r = 0; r < regs; r++) {
        const uint32_t *v = VREG(x->w, o->index + r);
        uint32_t differ = 0;
        for (int i = 0; i < 16; i++) differ |= v[i] ^ v[i + 16];
        if (!differ) continue;
        int i = 0;
        while (v[i] == v[i + 16]) i++;
        fault(x->w, x->in, F_UNSUPPORTED, i + 16, ~0ull, "lanes %d and %d must hold the same row of a WMMA operand, and differ", i, i + 16);
        return false;
    }
    return true;
}

static uint32_t rounded(int out, float value) { return out == OUT_F16 ? float_to_half(value, TO_NEAREST) : float_to_bfloat(value, TO_NEAREST); }
static float widened(int out, uint32_t bits) { return out == OUT_F16 ? half_to_float(bits) : as_float(bits << 16); }

static void wmma(LaneOp *x, const Tile *t) {
    Wave *w = x->w;
    const int arch = (int)w->launch->arch, width = element_bits(t->left);
    const int per_lane = arch == GFX1100 ? t->k : t->k / 2, in_regs = per_lane * width / 32;
    const bool narrow = t->out != OUT_F32, packed = narrow && arch != GFX1100;
    const int c_regs = packed ? 4 : 8;
    const Operand *oa = &x->in->src[0], *ob = &x->in->src[1], *oc = &x->in->src[2];
    if (!usable(x, in_regs, in_regs, c_regs) || !copies_agree(x, oa, in_regs) || !copies_agree(x, ob, in_regs)) return;
    const mask64 a_def = defined_lanes(w, oa->index, in_regs), b_def = defined_lanes(w, ob->index, in_regs);
    // gfx11 keeps 16-bit results in one half of each register: op_sel of C picks it.
    const int upper = narrow && !packed && oc->mods & UPPER ? 16 : 0;
    static _Thread_local Product p;
    p.m = p.n = 16;
    p.k = t->k;
    p.sum = SUM_FMA;
    uint32_t bad_rows = 0, bad_columns = 0, space[LANES], out[8][LANES], c_words[8][LANES];
    mask64 out_lo[8], out_hi[8];
    for (int r = 0; r < c_regs; r++) memcpy(c_words[r], read_words(w, oc, r, space, &out_lo[r], &out_hi[r]), sizeof c_words[r]);
    // 16 lanes hold the same K of all rows, so a row of p.a, p.b or p.c is 16 lanes of a register.
    for (int k = 0; k < t->k; k++) {
        int lane, e;
        locate(arch, t->k, 0, k, &lane, &e);
        const int word = e * width / 32, shift = e * width % 32;
        elements_to_floats(t->left, false, VREG(w, oa->index + word) + lane, shift, 16, &p.a[k * 16]);
        elements_to_floats(t->right, false, VREG(w, ob->index + word) + lane, shift, 16, &p.b[k * 16]);
        bad_rows |= (uint32_t)(~a_def >> lane) & 0xffff;
        bad_columns |= (uint32_t)(~b_def >> lane) & 0xffff;
    }
    // neg (low) of C negates it, neg_hi takes its absolute value first.
    const bool negate = oc->mods & NEG, absolute = oc->mods & NEG_HI;
    for (int pass = 0; pass < 2; pass++) {
        if (pass) multiply(&p);
        for (int r = 0; r < 8; r++)
            for (int lane = 0; lane < 32; lane += 16) {
                const int reg = packed ? r / 2 : r, shift = packed ? r % 2 * 16 : upper, row = row_of(arch, lane, r);
                float *cell = &p.c[row * 16];
                uint32_t *from = &c_words[reg][lane], *to = &out[reg][lane];
                if (pass == 0) {
                    if (narrow) for (int i = 0; i < 16; i++) cell[i] = widened(t->out, from[i] >> shift & 0xffff);
                    else memcpy(cell, from, 16 * sizeof *cell);
                    if (absolute) for (int i = 0; i < 16; i++) cell[i] = __builtin_fabsf(cell[i]);
                    if (negate) for (int i = 0; i < 16; i++) cell[i] = -cell[i];
                    continue;
                }
                const mask64 bad = (mask64)(bad_rows >> row & 1 ? 0xffff : bad_columns) << lane;
                if (narrow) {
                    for (int i = 0; i < 16; i++) from[i] = to[i] = (from[i] & ~(0xffffu << shift)) | rounded(t->out, cell[i]) << shift;
                    *(shift ? &out_hi[reg] : &out_lo[reg]) &= ~bad;
                } else {
                    memcpy(to, cell, 16 * sizeof *cell);
                    out_lo[reg] &= ~bad, out_hi[reg] &= ~bad;
                }
            }
    }
    for (int r = 0; r < c_regs; r++) {
        const int reg = x->in->dst[0].index + r;
        if (narrow && !packed && !(oc->kind == VGPR && oc->index == x->in->dst[0].index)) {
            // The other half of the destination stays.
            const uint32_t *old = VREG(w, reg);
            for (int i = 0; i < 32; i++) out[r][i] = (out[r][i] & 0xffffu << upper) | (old[i] & ~(0xffffu << upper));
            if (upper) out_lo[r] = w->lo[reg];
            else out_hi[r] = w->hi[reg];
        }
        for (int i = 32; i < LANES; i++) out[r][i] = 0;
        write_words(w, reg, out[r], ~0ull, out_lo[r], out_hi[r]);
    }
}

// Integers: neg of A and B says that it is signed; clamp saturates the result.
static void wmma_integer(LaneOp *x, int width, int k_total) {
    Wave *w = x->w;
    const int arch = (int)w->launch->arch, per_lane = arch == GFX1100 ? k_total : k_total / 2;
    const int in_regs = per_lane * width / 32;
    const Operand *oa = &x->in->src[0], *ob = &x->in->src[1];
    if (!usable(x, in_regs, in_regs, 8) || !copies_agree(x, oa, in_regs) || !copies_agree(x, ob, in_regs)) return;
    const mask64 known = defined_lanes(w, oa->index, in_regs) & defined_lanes(w, ob->index, in_regs) & w->full;
    const bool a_signed = oa->mods & NEG, b_signed = ob->mods & NEG;
    const uint32_t sign = 1u << (width - 1);
    uint32_t out[8][LANES], space[LANES];
    mask64 def[8];
    for (int r = 0; r < 8; r++) {
        mask64 lo, hi;
        const uint32_t *c = read_words(w, &x->in->src[2], r, space, &lo, &hi);
        def[r] = known == w->full ? lo & hi : 0;
        for (int lane = 0; lane < LANES; lane++) {
            out[r][lane] = 0;
            if (lane >= 32) continue;
            int64_t sum = (int32_t)c[lane];
            for (int k = 0; k < k_total; k++) {
                int at_lane, e;
                locate(arch, k_total, row_of(arch, lane, r), k, &at_lane, &e);
                const uint32_t a = element(w, oa->index, at_lane, e, width);
                locate(arch, k_total, lane % 16, k, &at_lane, &e);
                const uint32_t b = element(w, ob->index, at_lane, e, width);
                sum += (int64_t)(a_signed ? (int32_t)((a ^ sign) - sign) : (int32_t)a) * (b_signed ? (int32_t)((b ^ sign) - sign) : (int32_t)b);
            }
            if (x->in->flags & CLAMP) sum = sum > INT32_MAX ? INT32_MAX : sum < INT32_MIN ? INT32_MIN : sum;
            out[r][lane] = (uint32_t)sum;
        }
    }
    for (int r = 0; r < 8; r++) write_words(w, x->in->dst[0].index + r, out[r], ~0ull, def[r], def[r]);
}

#define TILES(T)                                                  \
    T(v_wmma_f32_16x16x16_f16, E_F16, E_F16, OUT_F32)             \
    T(v_wmma_f32_16x16x16_bf16, E_BF16, E_BF16, OUT_F32)          \
    T(v_wmma_f16_16x16x16_f16, E_F16, E_F16, OUT_F16)             \
    T(v_wmma_bf16_16x16x16_bf16, E_BF16, E_BF16, OUT_BF16)        \
    T(v_wmma_f32_16x16x16_fp8_fp8, E_FP8, E_FP8, OUT_F32)         \
    T(v_wmma_f32_16x16x16_fp8_bf8, E_FP8, E_BF8, OUT_F32)         \
    T(v_wmma_f32_16x16x16_bf8_fp8, E_BF8, E_FP8, OUT_F32)         \
    T(v_wmma_f32_16x16x16_bf8_bf8, E_BF8, E_BF8, OUT_F32)
#define DEFINE(op, L, R, OUT)                        \
    static void op(LaneOp *x) {                      \
        static const Tile tile = {L, R, OUT, 16};    \
        wmma(x, &tile);                              \
    }
TILES(DEFINE)
static void v_wmma_i32_16x16x16_iu8(LaneOp *x) { wmma_integer(x, 8, 16); }
static void v_wmma_i32_16x16x16_iu4(LaneOp *x) { wmma_integer(x, 4, 16); }
static void v_wmma_i32_16x16x32_iu4(LaneOp *x) { wmma_integer(x, 4, 32); }

#define ROW(op, L, R, OUT) MATRIX_OP(op, "r=rrr", 2 * 16 * 16 * 16),
const OpInfo ops_wmma[] = {
    TILES(ROW)
    MATRIX_OP(v_wmma_i32_16x16x16_iu8, "r=rrr", 2 * 16 * 16 * 16),
    MATRIX_OP(v_wmma_i32_16x16x16_iu4, "r=rrr", 2 * 16 * 16 * 16),
    MATRIX_OP(v_wmma_i32_16x16x32_iu4, "r=rrr", 2 * 16 * 16 * 32),
    OPS_END,
};
