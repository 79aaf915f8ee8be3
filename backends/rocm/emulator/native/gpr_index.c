// Indexed vector registers of gfx9: from s_set_gpr_idx_on to s_set_gpr_idx_off, M0[7:0] is added to the numbers of the
// VGPRs that M0[15:12] selects (bit 12 src0, 13 src1, 14 src2, 15 the result) of vector ALU instructions (CDNA3 ISA guide:
// the four instructions; LLVM, feature vgpr-index-mode).
//
// The mode costs nothing where it is off: what lies between the two in the code has a step of its own from the start.
//
// Moves from and to indexed registers: v_movrel* of gfx11 and later, s_movrel* of all. M0 is added to the number of the
// source (movrels), of the result (movreld) or of both (movrelsd); with _2, and for v_swaprel, M0[9:0] to the source's and
// M0[25:16] to the result's (RDNA3 ISA guide).
#include "gpr_index.h"
#include "flight.h"

enum { SELECTED = 12, RESULT = 15 };

static int set_m0(Wave *w, const Inst *in, uint32_t value, uint32_t def, uint32_t bits) {
    return write_scalar(w, in, M0, 32, (w->s[M0] & ~bits) | value, (w->sdef[M0] & ~bits) | def);
}
static int set_index(Wave *w, const Inst *in, uint32_t value, uint32_t bits) {
    uint64_t def;
    const uint32_t index = (uint32_t)read_scalar(w, &in->src[0], 32, &def) & 255;
    return set_m0(w, in, index | value, ((uint32_t)def & 255) | (bits & ~255u), bits);
}

static int s_set_gpr_idx_on(Wave *w, const Inst *in) { return set_index(w, in, (in->imm & 15u) << SELECTED, 0xf0ff); }
static int s_set_gpr_idx_idx(Wave *w, const Inst *in) { return set_index(w, in, 0, 0xff); }
static int s_set_gpr_idx_mode(Wave *w, const Inst *in) { return set_m0(w, in, (in->imm & 15u) << SELECTED, 0xf000, 0xf000); }
static int s_set_gpr_idx_off(Wave *w, const Inst *in) {
    (void)w, (void)in;
    return GO;
}

static int s_set_gpr_idx_on_over_other(Wave *w, const Inst *in) {
    return fault(w, in, F_UNSUPPORTED, -1, ~0ull, "only vector and scalar arithmetic is emulated up to s_set_gpr_idx_off");
}

static bool shift(Operand *o, uint32_t index) {
    if (o->kind != VGPR || o->index >= AGPR) return true;
    o->index = (uint16_t)(o->index + index);
    return o->index < AGPR;
}

static int step_indexed(Wave *w, const Inst *in) {
    const uint32_t m0 = w->s[M0];
    if (~w->sdef[M0] & 0xf0ff) return undefined(w, in, -1, ~0ull, "the index of a vector register (M0)");
    Inst *moved = &w->indexed;
    *moved = *in;
    bool within = !(m0 >> RESULT & 1) || shift(&moved->dst[0], m0 & 255);
    for (int k = 0; k < in->sources && k < 3; k++)
        if (m0 >> (SELECTED + k) & 1) within &= shift(&moved->src[k], m0 & 255);
    if (!within) return fault(w, in, F_UNSUPPORTED, -1, ~0ull, "index %u leads beyond the vector registers", m0 & 255);
    plan_flight(moved, emulator_op(in->op), (enum Arch)w->launch->arch);
    if (names_flying(w, moved) && name_in_flight(w, moved)) return STOP;
    return step_lane(w, moved);
}

// Moves ---------------------------------------------------------------------------------------------

enum Moved { SOURCE, TO, BOTH, TWO };
static LaneFn move_lanes, swap_lanes;

// How far M0 moves the source and the result; STOP where it is not known.
static int distances(Wave *w, const Inst *in, enum Moved moved, uint32_t *source, uint32_t *result) {
    const uint32_t m0 = w->s[M0];
    if (~w->sdef[M0] & (moved == TWO ? 0x03ff03ffu : ~0u)) return undefined(w, in, -1, ~0ull, "the index of a register (M0)");
    *source = moved == TO ? 0 : moved == TWO ? m0 & 1023 : m0;
    *result = moved == SOURCE ? 0 : moved == TWO ? m0 >> 16 & 1023 : m0;
    return GO;
}

static int beyond(Wave *w, const Inst *in) {
    return fault(w, in, F_UNSUPPORTED, -1, ~0ull, "the index in M0, %u, leads beyond the registers", w->s[M0]);
}

static bool farther(Operand *o, uint32_t by, uint32_t end, int words) {
    if (by >= end || o->index + by + (uint32_t)words > end) return false;
    o->index = (uint16_t)(o->index + by);
    return true;
}

// The instruction with the registers that it means, which may be in flight.
static Inst *meant(Wave *w, const Inst *in) {
    w->indexed = *in;
    return &w->indexed;
}
static int check_meant(Wave *w, Inst *moved) {
    plan_flight(moved, emulator_op(moved->op), (enum Arch)w->launch->arch);
    return names_flying(w, moved) && name_in_flight(w, moved) ? STOP : GO;
}

INLINE int move_vector(Wave *w, const Inst *in, enum Moved moved, LaneFn lanes, bool swaps) {
    uint32_t source, result;
    if (distances(w, in, moved, &source, &result)) return STOP;
    Inst *to = meant(w, in);
    bool within = farther(&to->dst[0], result, AGPR, 1);
    Operand *from = &to->src[swaps ? 1 : 0];
    if (source && from->kind != VGPR) return beyond(w, in);
    if (from->kind == VGPR) within &= farther(from, source, AGPR, 1);
    if (swaps) within &= farther(&to->dst[1], source, AGPR, 1) && farther(&to->src[0], result, AGPR, 1);
    if (!within) return beyond(w, in);
    if (check_meant(w, to)) return STOP;
    to->fn.lane = lanes;
    return step_lane(w, to);
}
static int v_movrels_b32(Wave *w, const Inst *in) { return move_vector(w, in, SOURCE, move_lanes, false); }
static int v_movreld_b32(Wave *w, const Inst *in) { return move_vector(w, in, TO, move_lanes, false); }
static int v_movrelsd_b32(Wave *w, const Inst *in) { return move_vector(w, in, BOTH, move_lanes, false); }
static int v_movrelsd_2_b32(Wave *w, const Inst *in) { return move_vector(w, in, TWO, move_lanes, false); }
static int v_swaprel_b32(Wave *w, const Inst *in) { return move_vector(w, in, TWO, swap_lanes, true); }

INLINE int move_scalar(Wave *w, const Inst *in, enum Moved moved, int bits) {
    uint32_t source, result;
    uint64_t def;
    if (distances(w, in, moved, &source, &result)) return STOP;
    Inst *to = meant(w, in);
    if (source && to->src[0].kind != SGPR) return beyond(w, in);
    if (to->src[0].kind == SGPR && !farther(&to->src[0], source, source ? VCC : SCALARS, bits / 32)) return beyond(w, in);
    if (!farther(&to->dst[0], result, result ? VCC : SCALARS, bits / 32)) return beyond(w, in);
    if (check_meant(w, to)) return STOP;
    const uint64_t value = read_scalar(w, &to->src[0], bits, &def);
    return write_scalar(w, in, to->dst[0].index, bits, value, def);
}
static int s_movrels_b32(Wave *w, const Inst *in) { return move_scalar(w, in, SOURCE, 32); }
static int s_movrels_b64(Wave *w, const Inst *in) { return move_scalar(w, in, SOURCE, 64); }
static int s_movreld_b32(Wave *w, const Inst *in) { return move_scalar(w, in, TO, 32); }
static int s_movreld_b64(Wave *w, const Inst *in) { return move_scalar(w, in, TO, 64); }
static int s_movrelsd_2_b32(Wave *w, const Inst *in) { return move_scalar(w, in, TWO, 32); }

static bool moves_by_index(const Inst *in) {
    static const Step steps[] = {
        v_movrels_b32, v_movreld_b32, v_movrelsd_b32, v_movrelsd_2_b32, v_swaprel_b32,    s_movrels_b32,
        s_movrels_b64, s_movreld_b32, s_movreld_b64,  s_movrelsd_2_b32,
    };
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++)
        if (in->step == steps[i]) return true;
    return false;
}

static LaneFn lanes_of(const char *name) {
    const OpInfo *op;
    for (uint32_t i = 0; (op = emulator_op(i)); i++)
        if (!strcmp(op->name, name)) return (LaneFn)op->fn;
    return NULL;
}

void plan_gpr_index(Inst *program, uint32_t count) {
    Inst *on = NULL;
    for (Inst *in = program; in < program + count; in++) {
        if (moves_by_index(in)) {
            if (!move_lanes) swap_lanes = lanes_of("v_swap_b32"), move_lanes = lanes_of("v_mov_b32");
            in->named = 0;  // as below
        }
        if (in->step == s_set_gpr_idx_on) on = in;
        else if (in->step == s_set_gpr_idx_off) on = NULL;
        else if (on && in->step == step_lane && emulator_op(in->op)->cls != C_MATRIX) {
            in->step = step_indexed;
            in->named = 0;  // the registers that it names are known when it runs
        } else if (on && in->step != step_scalar && in->step != step_nop && in->step != s_set_gpr_idx_idx && in->step != s_set_gpr_idx_mode)
            on->step = s_set_gpr_idx_on_over_other, on = NULL;
    }
}

const OpInfo ops_gpr_index[] = {
    STEP_OP(s_set_gpr_idx_on, "=b", C_SALU),
    STEP_OP(s_set_gpr_idx_idx, "=b", C_SALU),
    STEP_OP(s_set_gpr_idx_mode, "=", C_SALU),
    STEP_OP(s_set_gpr_idx_off, "=", C_SALU),
    STEP_OP(v_movrels_b32, "b=b", C_VALU),
    STEP_OP(v_movreld_b32, "b=b", C_VALU),
    STEP_OP(v_movrelsd_b32, "b=b", C_VALU),
    STEP_OP(v_movrelsd_2_b32, "b=b", C_VALU),
    STEP_OP(v_swaprel_b32, "rr=rr", C_VALU),
    STEP_OP(s_movrels_b32, "b=b", C_SALU),
    STEP_OP(s_movrels_b64, "q=q", C_SALU),
    STEP_OP(s_movreld_b32, "b=b", C_SALU),
    STEP_OP(s_movreld_b64, "q=q", C_SALU),
    STEP_OP(s_movrelsd_2_b32, "b=b", C_SALU),
    OPS_END,
};
