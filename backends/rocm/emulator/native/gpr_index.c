// Indexed vector registers of gfx9: from s_set_gpr_idx_on to s_set_gpr_idx_off, M0[7:0] is added to the numbers of the
// VGPRs that M0[15:12] selects (bit 12 src0, 13 src1, 14 src2, 15 the result) of vector ALU instructions (CDNA3 ISA guide:
// the four instructions; LLVM, feature vgpr-index-mode).
//
// The mode costs nothing where it is off: what lies between the two in the code has a step of its own from the start.
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

void plan_gpr_index(Inst *program, uint32_t count) {
    Inst *on = NULL;
    for (Inst *in = program; in < program + count; in++) {
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
    OPS_END,
};
