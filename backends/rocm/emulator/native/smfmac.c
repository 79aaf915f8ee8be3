// SMFMAC: products of an A with 2:4 structured sparsity, of 16 bits and of fp8 and bf8, on gfx942.
//
// Layouts from AMD's CDNA3 ISA guide and its matrix instruction calculator: lane l holds row l % M of A and column l % M
// of B, in 16 bits at the eight k from 8 * (l / M) on, in 8 bits at the sixteen from 16 * (l / M) on. Of A those are four or
// eight values in two registers, two of each four k; their places are 4 bits for each four k of the third source, those
// of the first four k lowest, the first place in the lower two of these bits and below the second. With CBSZ 0 ABID says
// which byte of the register has those of 16-bit types, or which half of it those of 8 bits; else it is the first. D is
// the accumulator, and lies as MFMA's.
//
// How the sums round is not published: the products that are left are taken to be added as an MFMA of half as many k
// adds its own. gfx950 has these instructions too; their layout there is not published, and they are refused.
#include "matrix.h"

static bool operands_fit(LaneOp *x, int out_regs) {
    const Operand *a = &x->in->src[0], *b = &x->in->src[1], *index = &x->in->src[2], *d = &x->in->dst[0];
    if (x->w->launch->arch != GFX942) {
        fault(x->w, x->in, F_UNSUPPORTED, -1, ~0ull, "the registers of a sparse product are known for gfx942 alone");
        return false;
    }
    if (a->kind != VGPR || b->kind != VGPR || index->kind != VGPR || d->kind != VGPR || a->index + 2 > VECTORS ||
        b->index + 4 > VECTORS || d->index + out_regs > VECTORS) {
        fault(x->w, x->in, F_UNSUPPORTED, -1, ~0ull, "a matrix operand is not in vector registers");
        return false;
    }
    return true;
}

static void smfmac(LaneOp *x, int m, enum Element left, enum Element right) {
    Wave *w = x->w;
    const int bits = element_bits(left), values = 64 / bits, per_lane = 2 * values, index_bits = 2 * values;
    const int out_regs = m * m / 64, groups = LANES / m, k = groups * values;
    if (!operands_fit(x, out_regs)) return;
    const int ra = x->in->src[0].index, rb = x->in->src[1].index, ri = x->in->src[2].index, rd = x->in->dst[0].index;
    const int cbsz = x->in->aux[0] & 7, abid = x->in->aux[0] >> 8 & 3, shift = cbsz ? 0 : index_bits * abid % 32;
    const mask64 a_known = defined_lanes(w, ra, 2) & defined_lanes(w, ri, 1), b_known = defined_lanes(w, rb, 4);
    static _Thread_local Product p;
    static _Thread_local float b[32 * 32];  // [k][column]
    uint32_t out[16][LANES];
    mask64 known[16];
    for (int group = 0; group < groups; group++)
        for (int e = 0; e < per_lane; e++)
            elements_to_floats(right, true, VREG(w, rb + e * bits / 32) + group * m, e * bits % 32, m,
                               &b[(group * per_lane + e) * m]);
    p.m = 1, p.n = m, p.k = k;
    p.sum = SUM_FUSED;
    p.left = left, p.right = right;
    p.fnuz = true;
    for (int r = 0; r < out_regs; r++) known[r] = w->lo[rd + r] & w->hi[rd + r];
    bool column_known[32];
    for (int column = 0; column < m; column++) {
        column_known[column] = true;
        for (int group = 0; group < groups; group++) column_known[column] &= b_known >> (group * m + column) & 1;
    }
    for (int row = 0; row < m; row++) {
        bool row_known = true;
        for (int group = 0; group < groups; group++) {
            const int lane = group * m + row;
            const bool here = a_known >> lane & 1;
            const uint32_t places = here ? VREG(w, ri)[lane] >> shift : 0x4444;
            row_known &= here;
            for (int four = 0; four < values / 2; four++) {
                const int first = places >> (4 * four) & 3, second = places >> (4 * four + 2) & 3;
                if (first >= second) {
                    fault(w, x->in, F_UNSUPPORTED, lane, ~0ull, "the places of a sparse operand's two values do not ascend");
                    return;
                }
                for (int e = 0; e < 2; e++) {
                    const int value = four * 2 + e, bit = value * bits, at = group * values + value;
                    const int from = group * per_lane + four * 4 + (e ? second : first);
                    p.a[at] = element_to_float(left, VREG(w, ra + bit / 32)[lane] >> bit % 32 & ((1u << bits) - 1), true);
                    for (int column = 0; column < m; column++) p.b[at * m + column] = b[from * m + column];
                }
            }
        }
        // Of D, four consecutive rows lie in consecutive registers of a lane.
        const int reg = m == 32 ? row / 8 * 4 + row % 4 : row % 4, lane0 = (m == 32 ? row / 4 % 2 : row / 4) * m;
        for (int column = 0; column < m; column++) p.c[column] = as_float(VREG(w, rd + reg)[lane0 + column]);
        multiply(&p);
        for (int column = 0; column < m; column++) {
            out[reg][lane0 + column] = as_bits(p.c[column]);
            if (!row_known || !column_known[column]) known[reg] &= ~(1ull << (lane0 + column));
        }
    }
    // Matrix instructions ignore EXEC: every lane takes part and is written.
    for (int r = 0; r < out_regs; r++) write_words(w, rd + r, out[r], ~0ull, known[r], known[r]);
}

// Name, M, K and the types of A and B.
#define SHAPES(S)                                             \
    S(v_smfmac_f32_16x16x32_f16, 16, 32, E_F16, E_F16)        \
    S(v_smfmac_f32_16x16x32_bf16, 16, 32, E_BF16, E_BF16)     \
    S(v_smfmac_f32_32x32x16_f16, 32, 16, E_F16, E_F16)        \
    S(v_smfmac_f32_32x32x16_bf16, 32, 16, E_BF16, E_BF16)     \
    S(v_smfmac_f32_16x16x64_fp8_fp8, 16, 64, E_FP8, E_FP8)    \
    S(v_smfmac_f32_16x16x64_fp8_bf8, 16, 64, E_FP8, E_BF8)    \
    S(v_smfmac_f32_16x16x64_bf8_fp8, 16, 64, E_BF8, E_FP8)    \
    S(v_smfmac_f32_16x16x64_bf8_bf8, 16, 64, E_BF8, E_BF8)    \
    S(v_smfmac_f32_32x32x32_fp8_fp8, 32, 32, E_FP8, E_FP8)    \
    S(v_smfmac_f32_32x32x32_fp8_bf8, 32, 32, E_FP8, E_BF8)    \
    S(v_smfmac_f32_32x32x32_bf8_fp8, 32, 32, E_BF8, E_FP8)    \
    S(v_smfmac_f32_32x32x32_bf8_bf8, 32, 32, E_BF8, E_BF8)

#define DEFINE(op, M, K, L, R) \
    static void op(LaneOp *x) { smfmac(x, M, L, R); }
SHAPES(DEFINE)

// Operations are counted as those of the dense product, as AMD counts them.
#define ROW(op, M, K, L, R) MATRIX_OP(op, "r=rrrr", 2u * (M) * (M) * (K)),
const OpInfo ops_smfmac[] = {
    SHAPES(ROW) OPS_END,
};
