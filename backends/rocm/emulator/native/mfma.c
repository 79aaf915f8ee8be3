// MFMA: which lane and register holds which element of A, B, C and D on CDNA.
//
// Layouts as in the register tables of AMD's CDNA3 ISA guide and of its matrix instruction calculator: with B blocks
// of M x N x K, lane l holds row l % M of A (column l % N of B), of block (l / M) % B, and the K indices that follow
// from l / M / B, contiguous within the lane. Of D, four consecutive rows lie in consecutive registers of a lane.
#include "matrix.h"

typedef struct Shape {
    int m, n, k, blocks;
    enum Element left, right;
    enum Sum sum;       // of gfx940 and later; see sum_of
    bool two;           // gfx90a: bfloat16 of the first generation, two products to a group
} Shape;

static enum Sum sum_of(const Shape *s, int arch) {
    if (s->sum == SUM_FMA || arch != GFX90A) return s->sum;
    return s->two ? SUM_PAIRS2 : SUM_PAIRS4;
}

static uint32_t bits_at(const Wave *w, int reg, int lane, int element, int width) {
    const int bit = element * width;
    const uint32_t word = VREG(w, reg + bit / 32)[lane];
    return width == 32 ? word : word >> (bit % 32) & ((1u << width) - 1);
}

// Where a constant stands for a whole operand (C = 0), its registers are none: every word is the constant.
static int registers_of(const Operand *o) { return o->kind == VGPR ? o->index : -1; }

static bool in_range(LaneOp *x, int count[4]) {
    const Operand *o[4] = {&x->in->src[0], &x->in->src[1], &x->in->src[2], &x->in->dst[0]};
    for (int k = 0; k < 4; k++)
        if (o[k]->kind == VGPR && o[k]->index + count[k] > VECTORS) {
            fault(x->w, x->in, F_UNSUPPORTED, -1, ~0ull, "a matrix operand lies beyond the last register");
            return false;
        }
    if (registers_of(o[0]) < 0 || registers_of(o[1]) < 0 || registers_of(o[3]) < 0) {
        fault(x->w, x->in, F_UNSUPPORTED, -1, ~0ull, "a matrix operand is not in vector registers");
        return false;
    }
    return true;
}

// blgp: which lane's B a lane uses (ISA guide, B-matrix lane-group pattern).
static int lane_group(int lane, int pattern) {
    switch (pattern) {
    case 1: return lane & 31;
    case 2: return (lane & 31) + 32;
    case 3: return (lane + 16) & 63;
    case 4: case 5: case 6: case 7: return (lane & 15) + 16 * (pattern - 4);
    default: return lane;
    }
}

// Rows and columns of D that depend on an undefined element, as lanes per accumulator register.
static int row_of(const Shape *s, int lane, int reg) {
    return s->m == 32 ? 8 * (reg / 4) + 4 * (lane / 32) + reg % 4 : s->m == 16 ? 4 * (lane / 16) + reg : reg;
}

// `m` is the shape's, a constant in each copy.
static inline __attribute__((always_inline)) void mfma_of(LaneOp *x, const Shape *s, const int m) {
    Wave *w = x->w;
    const Operand *oa = &x->in->src[0], *ob = &x->in->src[1], *oc = &x->in->src[2];
    const int width = element_bits(s->left), per_lane = m * s->k * s->blocks / 64;
    const int in_regs = (per_lane * width + 31) / 32, out_regs = m * s->n * s->blocks / 64;
    if (!in_range(x, (int[4]){in_regs, in_regs, out_regs, out_regs})) return;
    const int cbsz = x->in->aux[0] & 7, abid = x->in->aux[0] >> 8 & 15, blgp = x->in->aux[0] >> 16 & 7;
    const mask64 a_def = defined_lanes(w, oa->index, in_regs), b_def = defined_lanes(w, ob->index, in_regs);
    const uint32_t *c_words[32];
    mask64 c_def[32];
    uint32_t space[LANES];
    for (int r = 0; r < out_regs; r++) {
        mask64 lo, hi;
        c_words[r] = read_words(w, oc, r, space, &lo, &hi);
        c_def[r] = lo & hi;
    }
    static _Thread_local Product p;
    static _Thread_local uint32_t out[32 * LANES];
    // One block has read all of its operands when it writes. Matrix instructions ignore EXEC: every lane takes part.
    uint32_t *to = s->blocks == 1 ? VREG(w, x->in->dst[0].index) : out;
    mask64 out_def[32];
    p.m = s->m, p.n = s->n, p.k = s->k;
    p.sum = sum_of(s, (int)w->launch->arch);
    p.left = s->left, p.right = s->right;
    p.fnuz = w->launch->arch != GFX950;
    uint32_t chosen[8][LANES];
    const uint32_t *b_words[8];
    mask64 b_known = b_def;
    for (int r = 0; r < in_regs; r++) b_words[r] = VREG(w, ob->index + r);
    if (blgp) {
        b_known = 0;
        for (int lane = 0; lane < LANES; lane++) b_known |= (b_def >> lane_group(lane, blgp) & 1) << lane;
        for (int r = 0; r < in_regs; b_words[r] = chosen[r], r++)
            for (int lane = 0; lane < LANES; lane++) chosen[r][lane] = b_words[r][lane_group(lane, blgp)];
    }
    // A run of m lanes holds the same K of all rows of a block, so a row of p.a, p.b or p.c is a run of a register.
    const int regs_per_block = m == 4 ? out_regs : out_regs / s->blocks;  // 4x4: a block is four lanes of each
    const int runs = LANES / m;
    const uint32_t run = (uint32_t)((1ull << m) - 1);
    for (int r = 0; r < out_regs; r++) out_def[r] = c_def[r];
    for (int block = 0; block < s->blocks; block++) {
        const int a_block = cbsz ? (block & ~((1 << cbsz) - 1)) + (abid & ((1 << cbsz) - 1)) : block;
        uint32_t bad_rows = 0, bad_columns = 0;
        for (int group = 0; group < runs / s->blocks; group++) {
            const int a_lane = m * (a_block + s->blocks * group), b_lane = m * (block + s->blocks * group);
            bad_rows |= (uint32_t)(~a_def >> a_lane) & run;
            bad_columns |= (uint32_t)(~b_known >> b_lane) & run;
            for (int e = 0; e < per_lane; e++) {
                const int word = e * width / 32, shift = e * width % 32, at = (group * per_lane + e) * m;
                elements_to_floats(s->left, p.fnuz, VREG(w, oa->index + word) + a_lane, shift, m, &p.a[at]);
                elements_to_floats(s->right, p.fnuz, b_words[word] + b_lane, shift, m, &p.b[at]);
            }
        }
        for (int pass = 0; pass < 2; pass++) {
            if (pass) multiply(&p);
            for (int r = 0; r < regs_per_block; r++)
                for (int lane = 0; lane < LANES; lane += m) {
                    if (m == 4 && lane / 4 != block) continue;
                    const int reg = m == 4 ? r : block * regs_per_block + r, row = row_of(s, lane, r);
                    if (pass == 0) {
                        memcpy(&p.c[row * m], &c_words[reg][lane], (size_t)m * 4);
                        continue;
                    }
                    memcpy(&to[(size_t)reg * LANES + (size_t)lane], &p.c[row * m], (size_t)m * 4);
                    out_def[reg] &= ~((mask64)(bad_rows >> row & 1 ? run : bad_columns) << lane);
                }
        }
    }
    const int written = x->in->dst[0].index;
    if (to == out) memcpy(VREG(w, written), out, (size_t)out_regs * LANES * sizeof *out);
    memcpy(&w->lo[written], out_def, (size_t)out_regs * sizeof *out_def);
    memcpy(&w->hi[written], out_def, (size_t)out_regs * sizeof *out_def);
}

static void mfma(LaneOp *x, const Shape *s) {
    if (s->m == 32) mfma_of(x, s, 32);
    else if (s->m == 16) mfma_of(x, s, 16);
    else mfma_of(x, s, 4);
}

// 8-bit integers: exact, wrapping at 32 bits, or saturating with clamp.
static void mfma_i8(LaneOp *x, int m, int k, int blocks) {
    Wave *w = x->w;
    const Shape s = {m, m, k, blocks, E_FP8, E_FP8, SUM_FMA, false};
    const int per_lane = m * k * blocks / 64, in_regs = per_lane / 4, out_regs = m * m * blocks / 64;
    if (!in_range(x, (int[4]){in_regs, in_regs, out_regs, out_regs})) return;
    const int ra = x->in->src[0].index, rb = x->in->src[1].index, blgp = x->in->aux[0] >> 16 & 7;
    const int cbsz = x->in->aux[0] & 7, abid = x->in->aux[0] >> 8 & 15;
    const mask64 known = defined_lanes(w, ra, in_regs) & defined_lanes(w, rb, in_regs);
    uint32_t out[32][LANES], space[LANES];
    mask64 def[32];
    const int regs_per_block = m == 4 ? out_regs : out_regs / blocks;
    for (int r = 0; r < out_regs; r++) {
        mask64 lo, hi;
        const uint32_t *c = read_words(w, &x->in->src[2], r, space, &lo, &hi);
        def[r] = known == ~0ull ? lo & hi : 0;
        for (int lane = 0; lane < 64; lane++) {
            const int block = m == 4 ? lane / 4 : r / regs_per_block, row = row_of(&s, lane, m == 4 ? r : r % regs_per_block);
            const int a_block = cbsz ? (block & ~((1 << cbsz) - 1)) + (abid & ((1 << cbsz) - 1)) : block;
            int64_t sum = (int32_t)c[lane];
            for (int kk = 0; kk < k; kk++) {
                const int group = kk / per_lane, e = kk % per_lane;
                const int a_lane = row + m * (a_block + blocks * group);
                const int b_lane = lane_group(lane % m + m * (block + blocks * group), blgp);
                sum += (int64_t)(int8_t)bits_at(w, ra, a_lane, e, 8) * (int8_t)bits_at(w, rb, b_lane, e, 8);
            }
            if (x->in->flags & CLAMP) sum = sum > INT32_MAX ? INT32_MAX : sum < INT32_MIN ? INT32_MIN : sum;
            out[r][lane] = (uint32_t)sum;
        }
    }
    for (int r = 0; r < out_regs; r++) write_words(w, x->in->dst[0].index + r, out[r], ~0ull, def[r], def[r]);
}

// float64: a chain of fused multiply-adds. On gfx940 and later blgp negates A, B and C.
static void mfma_f64(LaneOp *x, int m, int blocks) {
    Wave *w = x->w;
    const int words = m == 16 ? 8 : 2;
    if (!in_range(x, (int[4]){2, 2, words, words})) return;
    const int ra = x->in->src[0].index, rb = x->in->src[1].index;
    const uint32_t signs = HAS_GFX940(w->launch->arch) ? x->in->aux[0] >> 16 : 0;
    const mask64 known = defined_lanes(w, ra, 2) & defined_lanes(w, rb, 2);
    uint32_t out[8][LANES], low_space[LANES], high_space[LANES];
    mask64 def[8];
    for (int r = 0; r < words / 2; r++) {
        mask64 lo, hi, lo1, hi1;
        const uint32_t *low = read_words(w, &x->in->src[2], 2 * r, low_space, &lo, &hi);
        const uint32_t *high = read_words(w, &x->in->src[2], 2 * r + 1, high_space, &lo1, &hi1);
        def[2 * r] = def[2 * r + 1] = known == ~0ull ? lo & hi & lo1 & hi1 : 0;
        for (int lane = 0; lane < 64; lane++) {
            const int block = m == 4 ? lane / 4 % 4 : 0, row = m == 16 ? lane / 16 + 4 * r : lane / 16, column = lane % m;
            double sum = as_double(low[lane] | (uint64_t)high[lane] << 32);
            if (signs & 4) sum = -sum;
            for (int k = 0; k < 4; k++) {
                const int a_lane = row + m * (block + blocks * k), b_lane = column + m * (block + blocks * k);
                const double a = as_double(VREG(w, ra)[a_lane] | (uint64_t)VREG(w, ra + 1)[a_lane] << 32);
                const double b = as_double(VREG(w, rb)[b_lane] | (uint64_t)VREG(w, rb + 1)[b_lane] << 32);
                sum = __builtin_fma(signs & 1 ? -a : a, signs & 2 ? -b : b, sum);
            }
            out[2 * r][lane] = (uint32_t)as_bits64(sum);
            out[2 * r + 1][lane] = (uint32_t)(as_bits64(sum) >> 32);
        }
    }
    for (int r = 0; r < words; r++) write_words(w, x->in->dst[0].index + r, out[r], ~0ull, def[r], def[r]);
}

// Moves between the two register files; on gfx90a and later both are ordinary operands.
static void v_accvgpr_read_b32(LaneOp *x) { memcpy(x->d.u, x->s[0]->u, sizeof x->d.u); x->dlo = x->lo[0]; x->dhi = x->hi[0]; }
static void v_accvgpr_write_b32(LaneOp *x) { v_accvgpr_read_b32(x); }
static void v_accvgpr_mov_b32(LaneOp *x) { v_accvgpr_read_b32(x); }

// Name on gfx90a, name on gfx940 and later, M = N, K, blocks, left, right, sum, first-generation bfloat16.
#define SHAPES(S)                                                                            \
    S(v_mfma_f32_32x32x1f32, v_mfma_f32_32x32x1_2b_f32, 32, 1, 2, E_F32, E_F32, SUM_FMA, 0)     \
    S(v_mfma_f32_16x16x1f32, v_mfma_f32_16x16x1_4b_f32, 16, 1, 4, E_F32, E_F32, SUM_FMA, 0)     \
    S(v_mfma_f32_4x4x1f32, v_mfma_f32_4x4x1_16b_f32, 4, 1, 16, E_F32, E_F32, SUM_FMA, 0)        \
    S(v_mfma_f32_32x32x2f32, v_mfma_f32_32x32x2_f32, 32, 2, 1, E_F32, E_F32, SUM_FMA, 0)        \
    S(v_mfma_f32_16x16x4f32, v_mfma_f32_16x16x4_f32, 16, 4, 1, E_F32, E_F32, SUM_FMA, 0)        \
    S(v_mfma_f32_32x32x4f16, v_mfma_f32_32x32x4_2b_f16, 32, 4, 2, E_F16, E_F16, SUM_FUSED, 0)   \
    S(v_mfma_f32_16x16x4f16, v_mfma_f32_16x16x4_4b_f16, 16, 4, 4, E_F16, E_F16, SUM_FUSED, 0)   \
    S(v_mfma_f32_4x4x4f16, v_mfma_f32_4x4x4_16b_f16, 4, 4, 16, E_F16, E_F16, SUM_FUSED, 0)      \
    S(v_mfma_f32_32x32x8f16, v_mfma_f32_32x32x8_f16, 32, 8, 1, E_F16, E_F16, SUM_FUSED, 0)      \
    S(v_mfma_f32_16x16x16f16, v_mfma_f32_16x16x16_f16, 16, 16, 1, E_F16, E_F16, SUM_FUSED, 0)   \
    S(v_mfma_f32_32x32x4bf16_1k, v_mfma_f32_32x32x4_2b_bf16, 32, 4, 2, E_BF16, E_BF16, SUM_FUSED, 0) \
    S(v_mfma_f32_16x16x4bf16_1k, v_mfma_f32_16x16x4_4b_bf16, 16, 4, 4, E_BF16, E_BF16, SUM_FUSED, 0) \
    S(v_mfma_f32_4x4x4bf16_1k, v_mfma_f32_4x4x4_16b_bf16, 4, 4, 16, E_BF16, E_BF16, SUM_FUSED, 0) \
    S(v_mfma_f32_32x32x8bf16_1k, v_mfma_f32_32x32x8_bf16, 32, 8, 1, E_BF16, E_BF16, SUM_FUSED, 0) \
    S(v_mfma_f32_16x16x16bf16_1k, v_mfma_f32_16x16x16_bf16, 16, 16, 1, E_BF16, E_BF16, SUM_FUSED, 0)

#define SINGLES(S)                                                                     \
    S(v_mfma_f32_32x32x2bf16, 32, 2, 2, E_BF16, E_BF16, SUM_FUSED, 1)                  \
    S(v_mfma_f32_16x16x2bf16, 16, 2, 4, E_BF16, E_BF16, SUM_FUSED, 1)                  \
    S(v_mfma_f32_4x4x2bf16, 4, 2, 16, E_BF16, E_BF16, SUM_FUSED, 1)                    \
    S(v_mfma_f32_32x32x4bf16, 32, 4, 1, E_BF16, E_BF16, SUM_FUSED, 1)                  \
    S(v_mfma_f32_16x16x8bf16, 16, 8, 1, E_BF16, E_BF16, SUM_FUSED, 1)                  \
    S(v_mfma_f32_16x16x8_xf32, 16, 8, 1, E_XF32, E_XF32, SUM_FUSED, 0)                 \
    S(v_mfma_f32_32x32x4_xf32, 32, 4, 1, E_XF32, E_XF32, SUM_FUSED, 0)                 \
    S(v_mfma_f32_16x16x32_fp8_fp8, 16, 32, 1, E_FP8, E_FP8, SUM_FUSED, 0)              \
    S(v_mfma_f32_16x16x32_fp8_bf8, 16, 32, 1, E_FP8, E_BF8, SUM_FUSED, 0)              \
    S(v_mfma_f32_16x16x32_bf8_fp8, 16, 32, 1, E_BF8, E_FP8, SUM_FUSED, 0)              \
    S(v_mfma_f32_16x16x32_bf8_bf8, 16, 32, 1, E_BF8, E_BF8, SUM_FUSED, 0)              \
    S(v_mfma_f32_32x32x16_fp8_fp8, 32, 16, 1, E_FP8, E_FP8, SUM_FUSED, 0)              \
    S(v_mfma_f32_32x32x16_fp8_bf8, 32, 16, 1, E_FP8, E_BF8, SUM_FUSED, 0)              \
    S(v_mfma_f32_32x32x16_bf8_fp8, 32, 16, 1, E_BF8, E_FP8, SUM_FUSED, 0)              \
    S(v_mfma_f32_32x32x16_bf8_bf8, 32, 16, 1, E_BF8, E_BF8, SUM_FUSED, 0)              \
    S(v_mfma_f32_16x16x32_f16, 16, 32, 1, E_F16, E_F16, SUM_FUSED, 0)                  \
    S(v_mfma_f32_16x16x32_bf16, 16, 32, 1, E_BF16, E_BF16, SUM_FUSED, 0)               \
    S(v_mfma_f32_32x32x16_f16, 32, 16, 1, E_F16, E_F16, SUM_FUSED, 0)                  \
    S(v_mfma_f32_32x32x16_bf16, 32, 16, 1, E_BF16, E_BF16, SUM_FUSED, 0)

#define INTEGERS(S)                                                                                                         \
    S(v_mfma_i32_32x32x4i8, 32, 4, 2) S(v_mfma_i32_16x16x4i8, 16, 4, 4) S(v_mfma_i32_4x4x4i8, 4, 4, 16)                     \
    S(v_mfma_i32_32x32x8i8, 32, 8, 1) S(v_mfma_i32_16x16x16i8, 16, 16, 1) S(v_mfma_i32_32x32x4_2b_i8, 32, 4, 2)             \
    S(v_mfma_i32_16x16x4_4b_i8, 16, 4, 4) S(v_mfma_i32_4x4x4_16b_i8, 4, 4, 16) S(v_mfma_i32_32x32x16_i8, 32, 16, 1)         \
    S(v_mfma_i32_16x16x32_i8, 16, 32, 1) S(v_mfma_i32_32x32x32_i8, 32, 32, 1) S(v_mfma_i32_16x16x64_i8, 16, 64, 1)

#define DOUBLES(S)                                                                                       \
    S(v_mfma_f64_16x16x4f64, 16, 1) S(v_mfma_f64_16x16x4_f64, 16, 1) S(v_mfma_f64_4x4x4f64, 4, 4)        \
    S(v_mfma_f64_4x4x4_4b_f64, 4, 4)

#define DEFINE(op, M, K, B, L, R, SUM, TWO)                                        \
    static void op(LaneOp *x) {                                                    \
        static const Shape shape = {M, M, K, B, L, R, SUM, TWO};                   \
        mfma(x, &shape);                                                           \
    }
#define DEFINE_BOTH(old, new, M, K, B, L, R, SUM, TWO) DEFINE(old, M, K, B, L, R, SUM, TWO)
#define DEFINE_I8(op, M, K, B) \
    static void op(LaneOp *x) { mfma_i8(x, M, K, B); }
#define DEFINE_F64(op, M, B) \
    static void op(LaneOp *x) { mfma_f64(x, M, B); }
SHAPES(DEFINE_BOTH)
SINGLES(DEFINE)
INTEGERS(DEFINE_I8)
DOUBLES(DEFINE_F64)

#define FLOPS(M, K, B) (2u * (M) * (M) * (K) * (B))
#define ROWS(old, new, M, K, B, L, R, SUM, TWO) \
    {#old, "r=rrr", step_lane, (void *)old, C_MATRIX, FLOPS(M, K, B)}, {#new, "r=rrr", step_lane, (void *)old, C_MATRIX, FLOPS(M, K, B)},
#define ROW(op, M, K, B, L, R, SUM, TWO) MATRIX_OP(op, "r=rrr", FLOPS(M, K, B)),
#define ROW_I8(op, M, K, B) MATRIX_OP(op, "r=rrr", FLOPS(M, K, B)),
#define ROW_F64(op, M, B) MATRIX_OP(op, "r=rrr", FLOPS(M, 4, B)),

const OpInfo ops_mfma[] = {
    SHAPES(ROWS) SINGLES(ROW) INTEGERS(ROW_I8) DOUBLES(ROW_F64)
    LANE_OP(v_accvgpr_read_b32, "b=b"), LANE_OP(v_accvgpr_write_b32, "b=b"), LANE_OP(v_accvgpr_mov_b32, "b=b"),
    OPS_END,
};
