// A launch: each host thread runs one workgroup at a time, or `resident` ones in turn; the waves of a workgroup run in
// rounds, each up to the next barrier, its end or the end of its time slice.
#include "flight.h"
#include "global_race.h"
#include "gpr_index.h"
#include "lds_race.h"
#include "record.h"
#include "timing.h"

#include <stdlib.h>

static const OpInfo *const tables[] = {
    ops_salu,         ops_salu_float,    ops_control,     ops_valu_int,   ops_valu_float, ops_valu_math,
    ops_valu_half,    ops_valu_compare,  ops_valu_convert, ops_valu_scale, ops_valu_packed, ops_valu_lanes,
    ops_dot,          ops_mfma,          ops_mfma_scaled, ops_wmma,       ops_global,     ops_buffer,
    ops_lds,          ops_atomics,       ops_smem,        ops_scratch,    ops_gpr_index,
    ops_smfmac,
};
enum { TABLES = sizeof tables / sizeof tables[0], SLICE = 1 << 18, TURN = 1 << 12 };

// Exported to Python ------------------------------------------------------------------------------

#define EXPORT __attribute__((visibility("default")))

EXPORT uint32_t emulator_abi(void) { return ABI; }

EXPORT uint32_t emulator_size(int what) {
    switch (what) {
    case 0: return sizeof(Inst);
    case 1: return sizeof(Operand);
    case 2: return sizeof(Launch);
    case 3: return sizeof(Range);
    case 4: return sizeof(Fault);
    case 5: return sizeof(MemCount);
    case 6: return sizeof(Recording);
    case 7: return sizeof(Timing);
    default: return sizeof(Cost);
    }
}

EXPORT const OpInfo *emulator_op(uint32_t index) {
    for (int t = 0; t < TABLES; t++)
        for (const OpInfo *op = tables[t]; op->name; op++)
            if (index-- == 0) return op;
    return NULL;
}

// The step of the end marker: a branch outside the code, or running off its end, leads here.
static int step_off(Wave *w, const Inst *in) {
    return fault(w, NULL, F_UNSUPPORTED, -1, in->address, "execution left the kernel's code");
}

// The step of an unsupported instruction; Python adds its name.
static int step_unknown(Wave *w, const Inst *in) {
    return fault(w, in, F_UNSUPPORTED, -1, ~0ull, "the emulator does not support this instruction");
}

// Fill in the addresses of the handlers, which differ per process. Returns -1, or the index of the first instruction
// with an unknown op.
EXPORT int emulator_link(Inst *program, uint32_t count, uint32_t arch) {
    static const OpInfo *all[4096];
    static uint32_t total;
    if (total == 0) {
        uint32_t n = 0;
        for (const OpInfo *op; n < 4096 && (op = emulator_op(n)); n++) all[n] = op;
        __atomic_store_n(&total, n, __ATOMIC_RELEASE);
    }
    for (uint32_t i = count; i-- > 0;) {  // backwards: the first of a pair names the second's registers too
        Inst *in = &program[i];
        if (in->op >= 0xfffe) {
            in->step = in->op == 0xffff ? step_off : step_unknown;
            continue;
        }
        if (in->op >= total) return (int)i;
        in->step = all[in->op]->step;
        in->fn.any = all[in->op]->fn;
        plan_flight(in, all[in->op], (enum Arch)arch);
    }
    plan_gpr_index(program, count);
    for (uint32_t i = 0; i < count; i++) plan_plain(&program[i]);
    return -1;
}

// Waves -------------------------------------------------------------------------------------------

static void start_wave(Wave *w, Group *g, uint32_t number) {
    const Launch *launch = g->launch;
    memset(w->lo, 0, sizeof w->lo);
    memset(w->hi, 0, sizeof w->hi);
    memset(w->s, 0xaa, sizeof w->s);  // never-written registers hold this pattern
    memset(w->sdef, 0, sizeof w->sdef);
    w->scc = w->sccdef = false;
    w->mode = launch->float_mode;
    w->pc = launch->entry;
    w->number = number;
    w->lanes = launch->wave_size;
    w->full = w->lanes == 64 ? ~0ull : 0xffffffffull;
    w->executed = 0;
    w->event = NULL;
    w->barrier_pending = 0;
    memset(w->issued, 0, sizeof w->issued);
    memset(w->done, 0, sizeof w->done);
    memset(w->arrived, 0, sizeof w->arrived);
    memset(w->flying, 0, sizeof w->flying);
    w->loads = w->lds_first = w->lds_accesses = 0;
    w->flying_words = 0;
    w->state = RUNNING;
    w->group = g;
    w->launch = g->launch;
    w->program = launch->program;
    w->last = launch->ranges;
    w->origin.kind = F_NONE;
    const uint32_t threads = launch->block[0] * launch->block[1] * launch->block[2];
    const uint32_t first = number * w->lanes, live = threads - first < w->lanes ? threads - first : w->lanes;
    w->launched = live == 64 ? ~0ull : (1ull << live) - 1;

    for (uint32_t i = 0; i < launch->user_count; i++) w->s[i] = launch->user[i], w->sdef[i] = launch->user_known >> i & 1 ? ~0u : 0;
    uint32_t at = launch->user_count;
    for (uint32_t i = 0; i < launch->system_count; i++, at++) {
        const uint32_t kind = launch->system[i];
        w->s[at] = kind < 3 ? g->id[kind] : kind == 3 ? (number == 0) | g->waves << 6 : 0;
        w->sdef[at] = ~0u;
    }
    if (launch->ids_in_ttmp) {
        w->s[TTMP + 9] = g->id[0];
        w->s[TTMP + 7] = (g->id[1] & 0xffff) | g->id[2] << 16;
        w->s[TTMP + 8] = number << 25;
        w->sdef[TTMP + 9] = w->sdef[TTMP + 7] = w->sdef[TTMP + 8] = ~0u;
    }
    w->s[EXEC] = (uint32_t)w->launched;
    w->s[EXEC + 1] = (uint32_t)(w->launched >> 32);
    w->sdef[EXEC] = w->sdef[EXEC + 1] = ~0u;

    uint32_t *v0 = VREG(w, 0);
    if (threads == launch->block[0]) EACH v0[i] = first + (uint32_t)i;
    else EACH {
        const uint32_t id = first + (uint32_t)i, bx = launch->block[0], by = launch->block[1];
        const uint32_t x = id % bx, y = id / bx % by, z = id / bx / by;
        v0[i] = x | (launch->ids > 1 ? y << 10 : 0) | (launch->ids > 2 ? z << 20 : 0);
    }
    w->lo[0] = w->hi[0] = w->launched;
    if (launch->scratch_bytes) memset(w->scratch_def, 0, (size_t)launch->scratch_bytes * LANES);
}

static void run_wave(Wave *w) {
    const Launch *launch = w->launch;
    const Inst *program = w->program;
    uint64_t *executed = launch->executed;
    const uint32_t slice = launch->resident > 1 ? TURN : SLICE;
    uint32_t left = slice;
    int result = GO;
    for (; left && result == GO; left--) {
        const Inst *in = &program[w->pc++];
        if (__builtin_expect(launch->recording != NULL, 0)) w->event = record(launch->recording, w, in);
        if (executed) __atomic_fetch_add(&executed[in - program], 1, __ATOMIC_RELAXED);
        if (__builtin_expect(names_flying(w, in), 0) && name_in_flight(w, in)) break;
        if (in->queued) take_off(w, in);
        result = in->step(w, in);
    }
    w->executed += slice - left;
    if (w->executed >= launch->budget && w->state != ENDED)
        fault(w, &program[w->pc], F_BUDGET, -1, ~0ull, "a wave ran more than %llu instructions: an endless loop?",
              (unsigned long long)launch->budget);
}

// Workgroups --------------------------------------------------------------------------------------

static void clear_race_marks(Group *g) {
    if (g->race_high > g->race_low) {
        memset(g->lds_writer + g->race_low, 0, g->race_high - g->race_low);
        memset(g->lds_reader + g->race_low, 0, g->race_high - g->race_low);
    }
    g->race_low = g->write_low = g->lds_size;
    g->race_high = g->write_high = 0;
    g->reads.used = 0;
}

static void barrier_missed(Group *g) {
    uint32_t waits = 0, ended = 0;
    for (uint32_t i = 0; i < g->waves; i++) {
        if (g->wave[i].state == WAITING) waits = i;
        else ended = i;
    }
    Wave *w = &g->wave[waits];
    fault(w, &w->program[w->pc - 1], F_BARRIER, -1, ~0ull, "wave %u waits at a barrier that wave %u never reaches: it has ended",
          waits, ended);
}

static void start_group(Group *g, uint32_t number) {
    const uint32_t *grid = g->launch->grid;
    g->number = number;
    g->judged = false;
    g->stored_origin.kind = g->unused.kind = F_NONE;
    g->area = NULL;
    races_start(g);
    g->id[0] = number % grid[0];
    g->id[1] = number / grid[0] % grid[1];
    g->id[2] = number / grid[0] / grid[1];
    for (uint32_t i = 0; i < g->waves; i++) start_wave(&g->wave[i], g, i);
    if (g->lds_size) memset(g->lds_def, 0, g->lds_size);
    if (g->lds_size) memset(g->lds, 0xaa, g->lds_size);
    g->whole_low = g->whole_high = 0;
    g->race_low = 0, g->race_high = g->lds_size;
    clear_race_marks(g);
    lds_release(g);
}

// One round of a workgroup's waves. STOP at its end and after a fault.
static int run_round(Group *g) {
    uint32_t running = 0, waiting = 0;
    for (uint32_t i = 0; i < g->waves; i++) {
        Wave *w = &g->wave[g->launch->aside ? g->waves - 1 - i : i];
        if (w->state == RUNNING) run_wave(w);
        if (__atomic_load_n(&g->launch->stop, __ATOMIC_ACQUIRE)) return STOP;
        running += w->state == RUNNING;
        waiting += w->state == WAITING;
    }
    if (running) return GO;
    if (waiting == 0) {
        warn_unused(g);
        return STOP;
    }
    if (waiting < g->waves) {
        barrier_missed(g);
        return STOP;
    }
    clear_race_marks(g);
    lds_release(g);
    for (uint32_t i = 0; i < g->waves; i++) g->wave[i].state = RUNNING;
    return GO;
}

static void *padded(size_t size) { return aligned_alloc(64, (size + 127) / 64 * 64); }

static void close_group(Group *g) {
    if (g->wave) free(g->wave[0].scratch);
    free(g->lds_late);
    free(g->lds);
    free(g->waves_memory);
    free(g);
}

// A workgroup's memory; NULL where there is not enough.
static Group *open_group(Launch *launch) {
    Group *g = calloc(1, sizeof *g);
    if (!g) return NULL;
    const uint32_t threads = launch->block[0] * launch->block[1] * launch->block[2];
    const size_t lds = launch->lds_bytes, scratch = (size_t)launch->scratch_bytes * LANES;
    g->launch = launch;
    g->lds_size = launch->lds_bytes;
    g->waves = (threads + launch->wave_size - 1) / launch->wave_size;
    g->waves_memory = calloc(1, sizeof(Wave) * g->waves + 64);  // of many waves only the registers that are used become real
    g->wave = g->waves_memory ? (Wave *)(((uintptr_t)g->waves_memory + 63) / 64 * 64) : NULL;
    g->lds = padded(lds * 4);
    g->lds_late = padded(lds * sizeof *g->lds_late);
    uint8_t *private = g->wave ? padded(scratch * 2 * g->waves) : NULL;
    if (!private || !g->lds || !g->lds_late) {
        free(private);
        close_group(g);
        return NULL;
    }
    memset(private, 0xaa, scratch * 2 * g->waves);
    g->lds_def = g->lds + lds;
    memset(g->lds_late, 0, lds * sizeof *g->lds_late);
    g->lds_writer = g->lds_def + lds;
    g->lds_reader = g->lds_writer + lds;
    for (uint32_t i = 0; i < g->waves; i++) {
        g->wave[i].scratch = private + 2 * scratch * i;
        g->wave[i].scratch_def = g->wave[i].scratch + scratch;
    }
    return g;
}

// Gives `g` the next workgroup; false where none is left.
static bool take_group(Group *g) {
    Launch *launch = g->launch;
    const uint64_t total = (uint64_t)launch->grid[0] * launch->grid[1] * launch->grid[2];
    if (__atomic_load_n(&launch->stop, __ATOMIC_ACQUIRE)) return false;
    const uint32_t next = __atomic_fetch_add(&launch->next_group, 1, __ATOMIC_RELAXED);
    if (next >= total || next >= launch->end_group) return false;
    start_group(g, next);
    return true;
}

Fault run_aside(const Launch *launch, uint32_t group, uint64_t budget, uint64_t suspect, int32_t suspect_inst) {
    Launch own = *launch;
    own.executed = NULL, own.memory = NULL, own.recording = NULL;
    own.stop = own.fault_taken = own.warning_taken = 0;
    own.races = NULL, own.aside = own.watched = 1, own.suspect = suspect, own.suspect_inst = suspect_inst, own.budget = budget;
    own.fault = (Fault){.kind = F_BUDGET, .address = ~0ull};
    Group *g = open_group(&own);
    if (!g) return own.fault;
    start_group(g, group);
    while (run_round(g) == GO) {}
    if (!own.fault_taken) own.fault.kind = F_NONE;
    close_group(g);
    return own.fault;
}

// One host thread's part of a launch: holds up to `resident` workgroups and runs them in turn, a round each, until none
// are left. Returns 0; 1 if out of memory; 2 for a wrong ABI.
EXPORT int emulator_run(Launch *launch) {
    if (launch->abi != ABI) return 2;
    const uint32_t most = launch->resident ? launch->resident : 1;
    Group **groups = calloc(most, sizeof *groups);
    uint32_t open = 0, held = 0;
    while (groups && open < most && (groups[open] = open_group(launch))) open++;
    const bool enough = open == most;
    if (!enough) __atomic_store_n(&launch->stop, 1, __ATOMIC_RELEASE);  // others may wait for what would run here
    while (enough) {
        while (held < most && take_group(groups[held])) held++;
        if (!held) break;
        for (uint32_t i = 0; i < held;) {
            const int result = run_round(groups[i]);
            if (launch->hostcall) answer_calls(launch);
            if (result == GO) {
                i++;
                continue;
            }
            Group *ended = groups[i];
            groups[i] = groups[--held];
            groups[held] = ended;
        }
    }
    while (open--) close_group(groups[open]);
    free(groups);
    return enough ? 0 : 1;
}
