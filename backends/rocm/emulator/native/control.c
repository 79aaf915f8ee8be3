// Branches, barriers, the program counter and the wave's mode.
#include "flight.h"

static int go_to(Wave *w, const Inst *in) {
    w->pc = (uint32_t)in->imm;
    return GO;
}

static int s_branch(Wave *w, const Inst *in) { return go_to(w, in); }

static int on_scc(Wave *w, const Inst *in, bool wanted) {
    if (!w->sccdef) return undefined(w, in, -1, ~0ull, "a branch condition (SCC)");
    return w->scc == wanted ? go_to(w, in) : GO;
}
static int s_cbranch_scc0(Wave *w, const Inst *in) { return on_scc(w, in, false); }
static int s_cbranch_scc1(Wave *w, const Inst *in) { return on_scc(w, in, true); }

static int on_vcc(Wave *w, const Inst *in, bool zero) {
    const mask64 value = scalar64(w, VCC) & w->full;
    const mask64 unknown = ~(w->sdef[VCC] | (uint64_t)w->sdef[VCC + 1] << 32) & w->full;
    if (unknown && !(value & ~unknown)) return undefined(w, in, __builtin_ctzll(unknown), ~0ull, "a branch condition (VCC)");
    return (value == 0) == zero ? go_to(w, in) : GO;
}
static int s_cbranch_vccz(Wave *w, const Inst *in) { return on_vcc(w, in, true); }
static int s_cbranch_vccnz(Wave *w, const Inst *in) { return on_vcc(w, in, false); }
static int s_cbranch_execz(Wave *w, const Inst *in) { return exec_of(w) == 0 ? go_to(w, in) : GO; }
static int s_cbranch_execnz(Wave *w, const Inst *in) { return exec_of(w) != 0 ? go_to(w, in) : GO; }

static int s_endpgm(Wave *w, const Inst *in) {
    (void)in;
    w->state = ENDED;
    return STOP;
}

static int s_trap(Wave *w, const Inst *in) { return fault(w, in, F_TRAP, -1, ~0ull, "the kernel trapped (id %d)", in->imm & 255); }
// What code for a debugger does; a kernel of ours never gets there by itself.
static int s_sethalt(Wave *w, const Inst *in) { return fault(w, in, F_TRAP, -1, ~0ull, "the kernel halted itself"); }

// Barriers ----------------------------------------------------------------------------------------

// All lanes that were launched must be there: on this hardware a wave counts as one, so a barrier under a
// divergent branch passes unnoticed.
static int check_all_lanes(Wave *w, const Inst *in) {
    const mask64 missing = w->launched & ~exec_of(w);
    if (!missing) return GO;
    return fault(w, in, F_BARRIER, __builtin_ctzll(missing), ~0ull,
                 "%d of the wave's %d lanes are not at this barrier; the first is lane %d", __builtin_popcountll(missing),
                 __builtin_popcountll(w->launched), __builtin_ctzll(missing));
}

static int s_barrier(Wave *w, const Inst *in) {
    if (check_all_lanes(w, in)) return STOP;
    lds_arrive(w);
    w->state = WAITING;
    return YIELD;
}

// gfx12 splits a barrier. The signal is taken as the barrier itself having been reached; the wave waits at the wait.
static int s_barrier_signal(Wave *w, const Inst *in) {
    if (check_all_lanes(w, in)) return STOP;
    lds_arrive(w);
    w->barrier_pending = 1;
    return GO;
}
static int s_barrier_wait(Wave *w, const Inst *in) {
    if (!w->barrier_pending) return fault(w, in, F_BARRIER, -1, ~0ull, "a wave waits at a barrier that it has not signalled");
    w->barrier_pending = 0;
    w->state = WAITING;
    return YIELD;
}

// Waits -------------------------------------------------------------------------------------------

// A wave that sleeps waits for another: the others run meanwhile.
static int s_sleep(Wave *w, const Inst *in) {
    (void)w, (void)in;
    return YIELD;
}

static int s_sleep_var(Wave *w, const Inst *in) { return s_sleep(w, in); }

// What a wait lets be outstanding (LLVM AMDGPU usage guide; llvm/lib/Target/AMDGPU/Utils/AMDGPUBaseInfo.cpp). gfx9: vmcnt
// in bits 15:14 and 3:0, lgkmcnt 11:8. gfx11: vmcnt 15:10, lgkmcnt 9:4.
static Wait waitcnt(uint32_t imm, enum Arch arch) {
    const bool gfx9 = IS_GFX9(arch);
    if (arch == GFX1201) return (Wait){ANY, ANY, ANY, ANY};
    const uint32_t vector = gfx9 ? (imm & 15) | (imm >> 14 & 3) << 4 : imm >> 10 & 63;
    const uint32_t lds = gfx9 ? imm >> 8 & 15 : imm >> 4 & 63;
    const uint32_t most = gfx9 ? 15 : 63;
    return (Wait){vector == 63 ? ANY : vector, lds == most ? ANY : lds, lds == most ? ANY : lds, ANY};
}
static Wait waitcnt_vmcnt(uint32_t imm, enum Arch arch) { return (void)arch, (Wait){imm & 63, ANY, ANY, ANY}; }
static Wait waitcnt_vscnt(uint32_t imm, enum Arch arch) { return (void)arch, (Wait){ANY, ANY, ANY, imm & 63}; }
static Wait waitcnt_lgkmcnt(uint32_t imm, enum Arch arch) { return (void)arch, (Wait){ANY, imm & 63, imm & 63, ANY}; }
static Wait wait_loadcnt(uint32_t imm, enum Arch arch) { return (void)arch, (Wait){imm & 63, ANY, ANY, ANY}; }
static Wait wait_dscnt(uint32_t imm, enum Arch arch) { return (void)arch, (Wait){ANY, imm & 63, ANY, ANY}; }
static Wait wait_kmcnt(uint32_t imm, enum Arch arch) { return (void)arch, (Wait){ANY, ANY, imm & 31, ANY}; }
static Wait wait_storecnt(uint32_t imm, enum Arch arch) { return (void)arch, (Wait){ANY, ANY, ANY, imm & 63}; }
static Wait wait_loadcnt_dscnt(uint32_t imm, enum Arch arch) { return (void)arch, (Wait){imm >> 8 & 63, imm & 63, ANY, ANY}; }
static Wait wait_storecnt_dscnt(uint32_t imm, enum Arch arch) { return (void)arch, (Wait){ANY, imm & 63, ANY, imm >> 8 & 63}; }
static Wait wait_idle(uint32_t imm, enum Arch arch) { return (void)imm, (void)arch, (Wait){0, 0, 0, 0}; }

#define WAITS(X)                                                                                                      \
    X(waitcnt) X(waitcnt_vmcnt) X(waitcnt_vscnt) X(waitcnt_lgkmcnt) X(wait_loadcnt) X(wait_dscnt) X(wait_kmcnt)       \
    X(wait_storecnt) X(wait_loadcnt_dscnt) X(wait_storecnt_dscnt) X(wait_idle)
#define DEFINE_WAIT(name) \
    static int s_##name(Wave *w, const Inst *in) { return wait_for(w, name((uint32_t)in->imm, w->launch->arch)), GO; }
WAITS(DEFINE_WAIT)

bool wait_of(const Inst *in, enum Arch arch, Wait *wait) {
#define WAIT_OF(name) if (in->step == s_##name) return *wait = name((uint32_t)in->imm, arch), true;
    WAITS(WAIT_OF)
    return false;
}

// The program counter -----------------------------------------------------------------------------

static int jump(Wave *w, const Inst *in, uint64_t host) {
    const Launch *launch = w->launch;
    const uint64_t address = host - launch->code_base;
    if (address < launch->text_start || address >= launch->text_end || address % 4)
        return fault(w, in, F_UNSUPPORTED, -1, host, "a jump out of the kernel's code");
    const uint32_t index = launch->index_of[(address - launch->text_start) / 4];
    if (index == ~0u) return fault(w, in, F_UNSUPPORTED, -1, host, "a jump into the middle of an instruction");
    w->pc = index;
    return GO;
}
static uint64_t after(const Wave *w, const Inst *in) { return w->launch->code_base + in->address + in->length; }

static int s_getpc_b64(Wave *w, const Inst *in) { return write_scalar(w, in, in->dst[0].index, 64, after(w, in), ~0ull); }
static int to_register(Wave *w, const Inst *in, int k) {
    uint64_t def;
    const uint64_t target = read_scalar(w, &in->src[k], 64, &def);
    if (~def) return undefined(w, in, -1, ~0ull, "a jump's target");
    return jump(w, in, target);
}
static int s_setpc_b64(Wave *w, const Inst *in) { return to_register(w, in, 0); }
static int s_swappc_b64(Wave *w, const Inst *in) {
    if (to_register(w, in, 0)) return STOP;
    return write_scalar(w, in, in->dst[0].index, 64, after(w, in), ~0ull);
}
static int s_call_b64(Wave *w, const Inst *in) {
    if (write_scalar(w, in, in->dst[0].index, 64, after(w, in), ~0ull)) return STOP;
    return go_to(w, in);
}

// Hardware registers ------------------------------------------------------------------------------

enum { HW_MODE = 1 };

static void field_of(const Inst *in, int *id, int *offset, uint32_t *mask) {
    *id = in->imm & 63;
    *offset = in->imm >> 6 & 31;
    const int size = (in->imm >> 11 & 31) + 1;
    *mask = size == 32 ? ~0u : (1u << size) - 1;
}
static int s_getreg_b32(Wave *w, const Inst *in) {
    int id, offset;
    uint32_t mask, value;
    field_of(in, &id, &offset, &mask);
    switch (id) {
    case HW_MODE: value = w->mode; break;
    case 4: value = w->number & 15; break;          // HW_ID: the wave's slot
    case 20: case 23: case 24: value = 0; break;    // XCC_ID; HW_ID1/2
    case 29: value = (uint32_t)w->executed; break;  // SHADER_CYCLES: no clock, as s_memtime
    case 30: value = (uint32_t)(w->executed >> 32); break;
    default: return fault(w, in, F_UNSUPPORTED, -1, ~0ull, "s_getreg_b32 of hardware register %d", id);
    }
    return write_scalar(w, in, in->dst[0].index, 32, value >> offset & mask, ~0ull);
}
static int set_mode(Wave *w, const Inst *in, uint32_t value) {
    int id, offset;
    uint32_t mask;
    field_of(in, &id, &offset, &mask);
    if (id != HW_MODE) return fault(w, in, F_UNSUPPORTED, -1, ~0ull, "s_setreg_b32 of hardware register %d", id);
    w->mode = (w->mode & ~(mask << offset)) | (value & mask) << offset;
    return GO;
}
static int s_setreg_b32(Wave *w, const Inst *in) {
    uint64_t def;
    const uint32_t value = (uint32_t)read_scalar(w, &in->src[0], 32, &def);
    if ((uint32_t)~def) return undefined(w, in, -1, ~0ull, "the wave's mode");
    return set_mode(w, in, value);
}
static int s_setreg_imm32_b32(Wave *w, const Inst *in) { return set_mode(w, in, (uint32_t)in->src[0].value); }
static int s_round_mode(Wave *w, const Inst *in) {
    w->mode = (w->mode & ~15u) | (in->imm & 15);
    return GO;
}
static int s_denorm_mode(Wave *w, const Inst *in) {
    w->mode = (w->mode & ~0xf0u) | (in->imm & 15) << 4;
    return GO;
}

#define BRANCH(op) STEP_OP(op, "=", C_BRANCH)
#define NOTHING_TO_DO(op, signature, cls) {#op, signature, step_nop, NULL, cls, 0}

const OpInfo ops_control[] = {
    BRANCH(s_branch), BRANCH(s_cbranch_scc0), BRANCH(s_cbranch_scc1), BRANCH(s_cbranch_vccz), BRANCH(s_cbranch_vccnz),
    BRANCH(s_cbranch_execz), BRANCH(s_cbranch_execnz), STEP_OP(s_endpgm, "=", C_BRANCH), {"s_endpgm_saved", "=", s_endpgm, NULL, C_BRANCH, 0},
    STEP_OP(s_trap, "=", C_OTHER), STEP_OP(s_sethalt, "=", C_OTHER),
    STEP_OP(s_barrier, "=", C_BARRIER), STEP_OP(s_barrier_signal, "=", C_BARRIER), STEP_OP(s_barrier_wait, "=", C_BARRIER),
    STEP_OP(s_getpc_b64, "q=", C_SALU), STEP_OP(s_setpc_b64, "=q", C_BRANCH), STEP_OP(s_swappc_b64, "q=q", C_BRANCH),
    STEP_OP(s_call_b64, "q=", C_BRANCH),
    STEP_OP(s_getreg_b32, "b=", C_SALU), STEP_OP(s_setreg_b32, "=b", C_SALU), STEP_OP(s_setreg_imm32_b32, "=b", C_SALU),
    STEP_OP(s_round_mode, "=", C_SALU), STEP_OP(s_denorm_mode, "=", C_SALU),
    NOTHING_TO_DO(s_nop, "=", C_WAIT), STEP_OP(s_sleep, "=", C_WAIT), STEP_OP(s_sleep_var, "=b", C_WAIT), STEP_OP(s_waitcnt, "=", C_WAIT),
    NOTHING_TO_DO(s_waitcnt_depctr, "=", C_WAIT), STEP_OP(s_waitcnt_vscnt, "=", C_WAIT),
    STEP_OP(s_waitcnt_vmcnt, "=", C_WAIT), NOTHING_TO_DO(s_waitcnt_expcnt, "=", C_WAIT),
    STEP_OP(s_waitcnt_lgkmcnt, "=", C_WAIT), STEP_OP(s_wait_idle, "=", C_WAIT), NOTHING_TO_DO(s_wait_event, "=", C_WAIT),
    STEP_OP(s_wait_loadcnt, "=", C_WAIT), STEP_OP(s_wait_storecnt, "=", C_WAIT), NOTHING_TO_DO(s_wait_samplecnt, "=", C_WAIT),
    NOTHING_TO_DO(s_wait_bvhcnt, "=", C_WAIT), NOTHING_TO_DO(s_wait_expcnt, "=", C_WAIT), STEP_OP(s_wait_dscnt, "=", C_WAIT),
    STEP_OP(s_wait_kmcnt, "=", C_WAIT), STEP_OP(s_wait_loadcnt_dscnt, "=", C_WAIT),
    STEP_OP(s_wait_storecnt_dscnt, "=", C_WAIT), NOTHING_TO_DO(s_wait_alu, "=", C_WAIT), NOTHING_TO_DO(s_delay_alu, "=", C_WAIT),
    NOTHING_TO_DO(s_clause, "=", C_WAIT), NOTHING_TO_DO(s_setprio, "=", C_OTHER), NOTHING_TO_DO(s_sendmsg, "=", C_OTHER),
    NOTHING_TO_DO(s_set_inst_prefetch_distance, "=", C_OTHER), NOTHING_TO_DO(s_inst_prefetch, "=", C_OTHER),
    NOTHING_TO_DO(s_icache_inv, "=", C_OTHER), NOTHING_TO_DO(s_wakeup, "=", C_OTHER), NOTHING_TO_DO(s_incperflevel, "=", C_OTHER),
    NOTHING_TO_DO(s_decperflevel, "=", C_OTHER), NOTHING_TO_DO(s_ttracedata, "=", C_OTHER), NOTHING_TO_DO(s_ttracedata_imm, "=", C_OTHER),
    NOTHING_TO_DO(s_setkill, "=", C_OTHER), NOTHING_TO_DO(s_version, "=", C_OTHER), NOTHING_TO_DO(s_prefetch_inst, "=", C_OTHER),
    NOTHING_TO_DO(s_prefetch_inst_pc_rel, "=", C_OTHER), NOTHING_TO_DO(s_prefetch_data, "=", C_OTHER),
    NOTHING_TO_DO(s_prefetch_data_pc_rel, "=", C_OTHER), NOTHING_TO_DO(s_singleuse_vdst, "=", C_OTHER),
    OPS_END,
};
