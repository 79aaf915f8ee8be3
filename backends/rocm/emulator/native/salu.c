// Scalar integer instructions and control flow.
#include "wave.h"

static uint64_t known(uint64_t def) { return ~def ? 0 : ~0ull; }  // one unknown bit spoils the whole result
static uint64_t known32(uint64_t def) { return (uint32_t)~def ? 0 : ~0ull; }

#define A (x->s[0])
#define B (x->s[1])
#define A32 ((uint32_t)x->s[0])
#define B32 ((uint32_t)x->s[1])
#define AI ((int32_t)x->s[0])
#define BI ((int32_t)x->s[1])
#define S(name, ...) static void name(ScalarOp *x) { __VA_ARGS__; }
#define SCC_FROM(value) (x->scc = (value))

// The step: `signature` "bc=bb" (c: writes SCC). A result without c keeps SCC; an op that reads SCC sees x->scc.
int step_scalar(Wave *w, const Inst *in) {
    ScalarOp x = {.in = in, .w = w, .scc = w->scc, .sccdef = w->sccdef};
    uint64_t all = ~0ull;
    for (int k = 0; k < in->sources; k++) {
        const int bits = in->src[k].type == 'q' ? 64 : 32;
        x.s[k] = read_scalar(w, &in->src[k], bits, &x.sdef[k]);
        all &= bits == 64 ? known(x.sdef[k]) : known32(x.sdef[k]);
    }
    x.ddef = all;
    x.sccdef = all != 0;
    in->fn.scalar(&x);
    for (int k = 0; k < in->results; k++) {
        const Operand *o = &in->dst[k];
        if (o->type == 'c') {
            w->scc = x.scc;
            w->sccdef = x.sccdef;
        } else if (o->kind == SGPR) {
            if (write_scalar(w, in, o->index, o->type == 'q' ? 64 : 32, x.d, x.ddef)) return STOP;
        }
    }
    return w->state == RUNNING ? GO : STOP;
}

// Moves and selects. An op that reads SCC makes its result as uncertain as SCC was.
#define NEEDS_SCC  do { if (!x->w->sccdef) x->ddef = 0, x->sccdef = false; } while (0)
S(s_mov_b32, x->d = A; x->ddef = x->sdef[0])
S(s_mov_b64, x->d = A; x->ddef = x->sdef[0])
S(s_cmov_b32, NEEDS_SCC; if (x->scc) x->d = A, x->ddef &= x->sdef[0]; else x->d = x->s[1], x->ddef &= x->sdef[1])
S(s_cmov_b64, NEEDS_SCC; if (x->scc) x->d = A, x->ddef &= x->sdef[0]; else x->d = x->s[1], x->ddef &= x->sdef[1])
S(s_cselect_b32, x->d = x->scc ? A : B; x->ddef = x->w->sccdef ? x->sdef[x->scc ? 0 : 1] : 0)
S(s_cselect_b64, x->d = x->scc ? A : B; x->ddef = x->w->sccdef ? x->sdef[x->scc ? 0 : 1] : 0)

// Arithmetic.
S(s_add_u32, uint64_t r = (uint64_t)A32 + B32; x->d = (uint32_t)r; SCC_FROM(r >> 32))
S(s_sub_u32, x->d = (uint32_t)(A32 - B32); SCC_FROM(A32 < B32))
S(s_addc_u32, NEEDS_SCC; uint64_t r = (uint64_t)A32 + B32 + x->scc; x->d = (uint32_t)r; SCC_FROM(r >> 32))
S(s_subb_u32, NEEDS_SCC; uint64_t b = (uint64_t)B32 + x->scc; x->d = (uint32_t)(A32 - b); SCC_FROM(b > A32))
S(s_add_i32, int64_t r = (int64_t)AI + BI; x->d = (uint32_t)r; SCC_FROM(r != (int32_t)r))
S(s_sub_i32, int64_t r = (int64_t)AI - BI; x->d = (uint32_t)r; SCC_FROM(r != (int32_t)r))
S(s_addk_i32, int64_t r = (int64_t)AI + (int16_t)x->in->imm; x->d = (uint32_t)r; SCC_FROM(r != (int32_t)r))
S(s_mulk_i32, x->d = A32 * (uint32_t)(int32_t)(int16_t)x->in->imm)
S(s_movk_i32, x->d = (uint32_t)(int32_t)(int16_t)x->in->imm)
S(s_cmovk_i32, NEEDS_SCC; x->d = x->scc ? (uint32_t)(int32_t)(int16_t)x->in->imm : A32)
S(s_mul_i32, x->d = A32 * B32)
S(s_mul_hi_u32, x->d = (uint64_t)A32 * B32 >> 32)
S(s_mul_hi_i32, x->d = (uint32_t)((int64_t)AI * BI >> 32))
S(s_mul_u64, x->d = A * B)
S(s_add_u64, x->d = A + B)
S(s_sub_u64, x->d = A - B)
S(s_min_i32, SCC_FROM(AI < BI); x->d = x->scc ? A32 : B32)
S(s_max_i32, SCC_FROM(AI >= BI); x->d = x->scc ? A32 : B32)
S(s_min_u32, SCC_FROM(A32 < B32); x->d = x->scc ? A32 : B32)
S(s_max_u32, SCC_FROM(A32 >= B32); x->d = x->scc ? A32 : B32)
S(s_abs_i32, x->d = AI < 0 ? 0u - A32 : A32; SCC_FROM(x->d != 0))
S(s_absdiff_i32, uint32_t r = A32 - B32; x->d = r >> 31 ? 0u - r : r; SCC_FROM(x->d != 0))  // the difference wraps
#define LSHL_ADD(n) S(s_lshl##n##_add_u32, uint64_t r = ((uint64_t)A32 << n) + B32; x->d = (uint32_t)r; SCC_FROM(r >> 32))
LSHL_ADD(1) LSHL_ADD(2) LSHL_ADD(3) LSHL_ADD(4)

// Bits. Definedness is exact: a 0 that is known makes the result of AND known.
static void bits_and(ScalarOp *x, uint64_t a, uint64_t b, uint64_t ad, uint64_t bd, uint64_t mask) {
    x->d = a & b & mask;
    x->ddef = (ad & bd) | (ad & ~a) | (bd & ~b);
    x->scc = x->d != 0;
    x->sccdef = (~x->ddef & mask) == 0 || (x->d & x->ddef) != 0;
}
static void bits_or(ScalarOp *x, uint64_t a, uint64_t b, uint64_t ad, uint64_t bd, uint64_t mask) {
    x->d = (a | b) & mask;
    x->ddef = (ad & bd) | (ad & a) | (bd & b);
    x->scc = x->d != 0;
    x->sccdef = (~x->ddef & mask) == 0 || (x->d & x->ddef) != 0;
}
static void bits_xor(ScalarOp *x, uint64_t a, uint64_t b, uint64_t ad, uint64_t bd, uint64_t mask) {
    x->d = (a ^ b) & mask;
    x->ddef = ad & bd;
    x->scc = x->d != 0;
    x->sccdef = (~x->ddef & mask) == 0 || (x->d & x->ddef) != 0;
}
static void invert(ScalarOp *x, uint64_t mask) {
    x->d = ~x->d & mask;
    x->scc = x->d != 0;
    x->sccdef = (~x->ddef & mask) == 0 || (x->d & x->ddef) != 0;
}
#define M32 0xffffffffull
#define M64 (~0ull)
#define LOGIC(width, mask)                                                                             \
    S(s_and_b##width, bits_and(x, A, B, x->sdef[0], x->sdef[1], mask))                                 \
    S(s_or_b##width, bits_or(x, A, B, x->sdef[0], x->sdef[1], mask))                                   \
    S(s_xor_b##width, bits_xor(x, A, B, x->sdef[0], x->sdef[1], mask))                                 \
    S(s_andn2_b##width, bits_and(x, A, ~B & mask, x->sdef[0], x->sdef[1], mask))                       \
    S(s_orn2_b##width, bits_or(x, A, ~B & mask, x->sdef[0], x->sdef[1], mask))                         \
    S(s_nand_b##width, bits_and(x, A, B, x->sdef[0], x->sdef[1], mask); invert(x, mask))               \
    S(s_nor_b##width, bits_or(x, A, B, x->sdef[0], x->sdef[1], mask); invert(x, mask))                 \
    S(s_xnor_b##width, bits_xor(x, A, B, x->sdef[0], x->sdef[1], mask); invert(x, mask))               \
    S(s_not_b##width, x->d = A; x->ddef = x->sdef[0]; invert(x, mask))
LOGIC(32, M32)
LOGIC(64, M64)

static void shifted(ScalarOp *x, uint64_t mask) {
    x->d &= mask;
    x->scc = x->d != 0;
    x->sccdef = (~x->ddef & mask) == 0;
}
// The amount must be known; known bits move with their data.
#define SHIFT_DEF(expr) x->ddef = known32(x->sdef[1]) ? (expr) : 0
S(s_lshl_b32, int n = B32 & 31; x->d = A32 << n; SHIFT_DEF((x->sdef[0] << n) | ((1ull << n) - 1)); shifted(x, M32))
S(s_lshr_b32, int n = B32 & 31; x->d = A32 >> n; SHIFT_DEF(((uint32_t)x->sdef[0] >> n) | ~(M32 >> n)); shifted(x, M32))
S(s_ashr_i32, int n = B32 & 31; x->d = (uint32_t)(AI >> n); SHIFT_DEF((uint64_t)((int32_t)x->sdef[0] >> n)); shifted(x, M32))
S(s_lshl_b64, int n = B32 & 63; x->d = A << n; SHIFT_DEF((x->sdef[0] << n) | ((1ull << n) - 1)); shifted(x, M64))
S(s_lshr_b64, int n = B32 & 63; x->d = A >> n; SHIFT_DEF((x->sdef[0] >> n) | ~(M64 >> n)); shifted(x, M64))
S(s_ashr_i64, int n = B32 & 63; x->d = (uint64_t)((int64_t)A >> n); SHIFT_DEF((uint64_t)((int64_t)x->sdef[0] >> n)); shifted(x, M64))
S(s_bfm_b32, x->d = (uint32_t)(((1u << (A32 & 31)) - 1) << (B32 & 31)))
S(s_bfm_b64, x->d = ((1ull << (A & 63)) - 1) << (B & 63))

static uint64_t field(uint64_t value, uint32_t control, int width, bool is_signed) {
    const int offset = control & (width - 1);
    int size = control >> 16 & 127;
    if (size == 0) return 0;
    if (size > width) size = width;
    uint64_t r = width == 32 ? (uint32_t)value >> offset : value >> offset;
    if (is_signed && offset + size >= width) {
        r = width == 32 ? (uint64_t)((int32_t)value >> offset) : (uint64_t)((int64_t)value >> offset);
        return r;
    }
    if (size < 64) r &= (1ull << size) - 1;
    if (is_signed && size < 64 && r >> (size - 1) & 1) r |= ~0ull << size;
    return r;
}
static void take_field(ScalarOp *x, int width, bool is_signed) {
    const uint64_t mask = width == 32 ? M32 : M64;
    x->d = field(A, B32, width, is_signed) & mask;
    if (known32(x->sdef[1])) {  // only the bits of the field must be known
        const uint64_t unknown = field(~x->sdef[0] & mask, B32, width, false) & mask;
        x->ddef = unknown ? 0 : ~0ull;
    }
    x->scc = x->d != 0;
    x->sccdef = x->ddef != 0;
}
S(s_bfe_u32, take_field(x, 32, false))
S(s_bfe_i32, take_field(x, 32, true))
S(s_bfe_u64, take_field(x, 64, false))
S(s_bfe_i64, take_field(x, 64, true))

S(s_brev_b32, x->d = __builtin_bitreverse32(A32))
S(s_brev_b64, x->d = __builtin_bitreverse64(A))
S(s_bcnt0_i32_b32, x->d = (uint64_t)__builtin_popcount(~A32); SCC_FROM(x->d != 0))
S(s_bcnt1_i32_b32, x->d = (uint64_t)__builtin_popcount(A32); SCC_FROM(x->d != 0))
S(s_bcnt0_i32_b64, x->d = (uint64_t)__builtin_popcountll(~A); SCC_FROM(x->d != 0))
S(s_bcnt1_i32_b64, x->d = (uint64_t)__builtin_popcountll(A); SCC_FROM(x->d != 0))
S(s_ff0_i32_b32, x->d = (uint32_t)(~A32 ? __builtin_ctz(~A32) : -1))
S(s_ff1_i32_b32, x->d = (uint32_t)(A32 ? __builtin_ctz(A32) : -1))
S(s_ff0_i32_b64, x->d = (uint32_t)(~A ? __builtin_ctzll(~A) : -1))
S(s_ff1_i32_b64, x->d = (uint32_t)(A ? __builtin_ctzll(A) : -1))
S(s_flbit_i32_b32, x->d = (uint32_t)(A32 ? __builtin_clz(A32) : -1))
S(s_flbit_i32_b64, x->d = (uint32_t)(A ? __builtin_clzll(A) : -1))
S(s_flbit_i32, uint32_t t = AI < 0 ? ~A32 : A32; x->d = (uint32_t)(t ? __builtin_clz(t) : -1))
S(s_flbit_i32_i64, uint64_t t = (int64_t)A < 0 ? ~A : A; x->d = (uint32_t)(t ? __builtin_clzll(t) : -1))
S(s_sext_i32_i8, x->d = (uint32_t)(int32_t)(int8_t)A)
S(s_sext_i32_i16, x->d = (uint32_t)(int32_t)(int16_t)A)
S(s_bitset0_b32, x->d = x->s[1] & ~(1ull << (A & 31)))
S(s_bitset1_b32, x->d = x->s[1] | 1ull << (A & 31))
S(s_bitset0_b64, x->d = x->s[1] & ~(1ull << (A & 63)))
S(s_bitset1_b64, x->d = x->s[1] | 1ull << (A & 63))
S(s_pack_ll_b32_b16, x->d = (A & 0xffff) | (B & 0xffff) << 16)
S(s_pack_lh_b32_b16, x->d = (A & 0xffff) | (B & 0xffff0000u))
S(s_pack_hl_b32_b16, x->d = (A >> 16 & 0xffff) | (B & 0xffff) << 16)
S(s_pack_hh_b32_b16, x->d = (A >> 16 & 0xffff) | (B & 0xffff0000u))
static uint64_t quads(uint64_t a, int width, bool expand) {
    uint64_t r = 0;
    for (int i = 0; i < width / 4; i++)
        if (a >> (i * 4) & 15) r |= expand ? 15ull << (i * 4) : 1ull << i;
    return r;
}
S(s_quadmask_b32, x->d = quads(A32, 32, false); SCC_FROM(x->d != 0))
S(s_quadmask_b64, x->d = quads(A, 64, false); SCC_FROM(x->d != 0))
S(s_wqm_b32, x->d = quads(A32, 32, true); SCC_FROM(x->d != 0))
S(s_wqm_b64, x->d = quads(A, 64, true); SCC_FROM(x->d != 0))
S(s_bitreplicate_b64_b32, uint64_t r = 0; for (int i = 0; i < 32; i++) r |= (uint64_t)(A32 >> i & 1) * 3 << (2 * i); x->d = r)

// Compares. One known difference settles equality only when all bits are known: keep it simple.
#define CMP(name, cond) S(name, SCC_FROM(cond))
CMP(s_cmp_eq_u32, A32 == B32) CMP(s_cmp_lg_u32, A32 != B32) CMP(s_cmp_gt_u32, A32 > B32) CMP(s_cmp_ge_u32, A32 >= B32)
CMP(s_cmp_lt_u32, A32 < B32) CMP(s_cmp_le_u32, A32 <= B32) CMP(s_cmp_eq_i32, AI == BI) CMP(s_cmp_lg_i32, AI != BI)
CMP(s_cmp_gt_i32, AI > BI) CMP(s_cmp_ge_i32, AI >= BI) CMP(s_cmp_lt_i32, AI < BI) CMP(s_cmp_le_i32, AI <= BI)
CMP(s_cmp_eq_u64, A == B) CMP(s_cmp_lg_u64, A != B)
#define BITCMP(name, expr, bits)                                                              \
    S(name, SCC_FROM(expr); x->sccdef = known32(x->sdef[1]) && x->sdef[0] >> (B & (bits - 1)) & 1)
BITCMP(s_bitcmp0_b32, !(A >> (B & 31) & 1), 32) BITCMP(s_bitcmp1_b32, A >> (B & 31) & 1, 32)
BITCMP(s_bitcmp0_b64, !(A >> (B & 63) & 1), 64) BITCMP(s_bitcmp1_b64, A >> (B & 63) & 1, 64)
#define KI ((int32_t)(int16_t)x->in->imm)
#define KU ((uint32_t)(uint16_t)x->in->imm)
CMP(s_cmpk_eq_i32, AI == KI) CMP(s_cmpk_lg_i32, AI != KI) CMP(s_cmpk_gt_i32, AI > KI) CMP(s_cmpk_ge_i32, AI >= KI)
CMP(s_cmpk_lt_i32, AI < KI) CMP(s_cmpk_le_i32, AI <= KI) CMP(s_cmpk_eq_u32, A32 == KU) CMP(s_cmpk_lg_u32, A32 != KU)
CMP(s_cmpk_gt_u32, A32 > KU) CMP(s_cmpk_ge_u32, A32 >= KU) CMP(s_cmpk_lt_u32, A32 < KU) CMP(s_cmpk_le_u32, A32 <= KU)

// D = EXEC, then EXEC = f(source, EXEC).
static void saveexec(ScalarOp *x, void (*combine)(ScalarOp *, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t), bool not_source,
                     bool not_exec, bool not_result, bool wide, bool keep_new) {
    Wave *w = x->w;
    const uint64_t mask = wide ? M64 : M32, old = scalar64(w, EXEC) & mask;
    combine(x, not_source ? ~A & mask : A, not_exec ? ~old & mask : old, x->sdef[0], M64, mask);
    if (not_result) invert(x, mask);
    const uint64_t fresh = x->d, def = x->ddef;
    // The destination may be the source; what follows EXEC's change in order is only the result.
    if (write_scalar(w, x->in, EXEC, wide ? 64 : 32, fresh, def)) return;
    x->d = keep_new ? fresh : old;
    x->ddef = M64;
}
#define SAVE(name, combine, ns, ne, nr, wide, keep) S(name, saveexec(x, combine, ns, ne, nr, wide, keep))
#define SAVES(width, wide)                                                        \
    SAVE(s_and_saveexec_b##width, bits_and, false, false, false, wide, false)     \
    SAVE(s_or_saveexec_b##width, bits_or, false, false, false, wide, false)       \
    SAVE(s_xor_saveexec_b##width, bits_xor, false, false, false, wide, false)     \
    SAVE(s_andn2_saveexec_b##width, bits_and, false, true, false, wide, false)    \
    SAVE(s_orn2_saveexec_b##width, bits_or, false, true, false, wide, false)      \
    SAVE(s_nand_saveexec_b##width, bits_and, false, false, true, wide, false)     \
    SAVE(s_nor_saveexec_b##width, bits_or, false, false, true, wide, false)       \
    SAVE(s_xnor_saveexec_b##width, bits_xor, false, false, true, wide, false)     \
    SAVE(s_andn1_saveexec_b##width, bits_and, true, false, false, wide, false)    \
    SAVE(s_orn1_saveexec_b##width, bits_or, true, false, false, wide, false)      \
    SAVE(s_andn1_wrexec_b##width, bits_and, true, false, false, wide, true)       \
    SAVE(s_andn2_wrexec_b##width, bits_and, false, true, false, wide, true)
SAVES(32, false)
SAVES(64, true)

#define R(op, signature) SCALAR_OP(op, signature)
#define LOGIC_ROWS(w, t)                                                                                         \
    R(s_and_b##w, #t "c=" #t #t), R(s_or_b##w, #t "c=" #t #t), R(s_xor_b##w, #t "c=" #t #t),                     \
        R(s_andn2_b##w, #t "c=" #t #t), R(s_orn2_b##w, #t "c=" #t #t), R(s_nand_b##w, #t "c=" #t #t),            \
        R(s_nor_b##w, #t "c=" #t #t), R(s_xnor_b##w, #t "c=" #t #t), R(s_not_b##w, #t "c=" #t)
#define SAVE_ROWS(w, t)                                                                                          \
    R(s_and_saveexec_b##w, #t "c=" #t), R(s_or_saveexec_b##w, #t "c=" #t), R(s_xor_saveexec_b##w, #t "c=" #t),   \
        R(s_andn2_saveexec_b##w, #t "c=" #t), R(s_orn2_saveexec_b##w, #t "c=" #t),                               \
        R(s_nand_saveexec_b##w, #t "c=" #t), R(s_nor_saveexec_b##w, #t "c=" #t),                                 \
        R(s_xnor_saveexec_b##w, #t "c=" #t), R(s_andn1_saveexec_b##w, #t "c=" #t),                               \
        R(s_orn1_saveexec_b##w, #t "c=" #t), R(s_andn1_wrexec_b##w, #t "c=" #t), R(s_andn2_wrexec_b##w, #t "c=" #t)

const OpInfo ops_salu[] = {
    R(s_mov_b32, "b=b"), R(s_mov_b64, "q=q"), R(s_cmov_b32, "b=bb"), R(s_cmov_b64, "q=qq"), R(s_cselect_b32, "b=bb"), R(s_cselect_b64, "q=qq"),
    R(s_add_u32, "bc=bb"), R(s_sub_u32, "bc=bb"), R(s_addc_u32, "bc=bb"), R(s_subb_u32, "bc=bb"), R(s_add_i32, "bc=bb"),
    R(s_sub_i32, "bc=bb"), R(s_addk_i32, "bc=b"), R(s_mulk_i32, "b=b"), R(s_movk_i32, "b="), R(s_cmovk_i32, "b=b"),
    R(s_mul_i32, "b=bb"), R(s_mul_hi_u32, "b=bb"), R(s_mul_hi_i32, "b=bb"), R(s_mul_u64, "q=qq"), R(s_add_u64, "q=qq"),
    R(s_sub_u64, "q=qq"), R(s_min_i32, "bc=bb"), R(s_max_i32, "bc=bb"), R(s_min_u32, "bc=bb"), R(s_max_u32, "bc=bb"),
    R(s_abs_i32, "bc=b"), R(s_absdiff_i32, "bc=bb"), R(s_lshl1_add_u32, "bc=bb"), R(s_lshl2_add_u32, "bc=bb"),
    R(s_lshl3_add_u32, "bc=bb"), R(s_lshl4_add_u32, "bc=bb"),
    LOGIC_ROWS(32, b), LOGIC_ROWS(64, q),
    R(s_lshl_b32, "bc=bb"), R(s_lshr_b32, "bc=bb"), R(s_ashr_i32, "bc=bb"), R(s_lshl_b64, "qc=qb"), R(s_lshr_b64, "qc=qb"),
    R(s_ashr_i64, "qc=qb"), R(s_bfm_b32, "b=bb"), R(s_bfm_b64, "q=bb"), R(s_bfe_u32, "bc=bb"), R(s_bfe_i32, "bc=bb"),
    R(s_bfe_u64, "qc=qb"), R(s_bfe_i64, "qc=qb"), R(s_brev_b32, "b=b"), R(s_brev_b64, "q=q"),
    R(s_bcnt0_i32_b32, "bc=b"), R(s_bcnt1_i32_b32, "bc=b"), R(s_bcnt0_i32_b64, "bc=q"), R(s_bcnt1_i32_b64, "bc=q"),
    R(s_ff0_i32_b32, "b=b"), R(s_ff1_i32_b32, "b=b"), R(s_ff0_i32_b64, "b=q"), R(s_ff1_i32_b64, "b=q"),
    R(s_flbit_i32_b32, "b=b"), R(s_flbit_i32_b64, "b=q"), R(s_flbit_i32, "b=b"), R(s_flbit_i32_i64, "b=q"),
    R(s_sext_i32_i8, "b=b"), R(s_sext_i32_i16, "b=b"), R(s_bitset0_b32, "b=bb"), R(s_bitset1_b32, "b=bb"),
    R(s_bitset0_b64, "q=bq"), R(s_bitset1_b64, "q=bq"), R(s_pack_ll_b32_b16, "b=bb"), R(s_pack_lh_b32_b16, "b=bb"),
    R(s_pack_hl_b32_b16, "b=bb"), R(s_pack_hh_b32_b16, "b=bb"), R(s_quadmask_b32, "bc=b"), R(s_quadmask_b64, "qc=q"),
    R(s_wqm_b32, "bc=b"), R(s_wqm_b64, "qc=q"), R(s_bitreplicate_b64_b32, "q=b"),
    R(s_cmp_eq_u32, "c=bb"), R(s_cmp_lg_u32, "c=bb"), R(s_cmp_gt_u32, "c=bb"), R(s_cmp_ge_u32, "c=bb"),
    R(s_cmp_lt_u32, "c=bb"), R(s_cmp_le_u32, "c=bb"), R(s_cmp_eq_i32, "c=bb"), R(s_cmp_lg_i32, "c=bb"),
    R(s_cmp_gt_i32, "c=bb"), R(s_cmp_ge_i32, "c=bb"), R(s_cmp_lt_i32, "c=bb"), R(s_cmp_le_i32, "c=bb"),
    R(s_cmp_eq_u64, "c=qq"), R(s_cmp_lg_u64, "c=qq"), R(s_bitcmp0_b32, "c=bb"), R(s_bitcmp1_b32, "c=bb"),
    R(s_bitcmp0_b64, "c=qb"), R(s_bitcmp1_b64, "c=qb"),
    R(s_cmpk_eq_i32, "c=b"), R(s_cmpk_lg_i32, "c=b"), R(s_cmpk_gt_i32, "c=b"), R(s_cmpk_ge_i32, "c=b"),
    R(s_cmpk_lt_i32, "c=b"), R(s_cmpk_le_i32, "c=b"), R(s_cmpk_eq_u32, "c=b"), R(s_cmpk_lg_u32, "c=b"),
    R(s_cmpk_gt_u32, "c=b"), R(s_cmpk_ge_u32, "c=b"), R(s_cmpk_lt_u32, "c=b"), R(s_cmpk_le_u32, "c=b"),
    SAVE_ROWS(32, b), SAVE_ROWS(64, q),
    OPS_END,
};
