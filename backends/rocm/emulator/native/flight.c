#include "flight.h"
#include "global_race.h"

// Which counter a wait names, and what counts in it (LLVM AMDGPU usage guide and SIInsertWaitcnts.cpp; ISA guides,
// "manually inserted wait states"):
//   gfx9    vmcnt: vector loads, stores, atomics, loads to LDS, in order. lgkmcnt: LDS in order, scalar loads in any.
//           A flat access counts in both, and out of order.
//   gfx11   as gfx9, but stores count in vscnt, which no result waits for; flat accesses are in order.
//   gfx12   loadcnt, storecnt, dscnt and kmcnt (scalar loads).
static const char *counter_of(enum Arch arch, enum Queue q) {
    const bool split = arch == GFX1201;
    switch (q) {
    case Q_VECTOR: case Q_FLAT_VECTOR: return split ? "loadcnt" : "vmcnt";
    case Q_SCALAR: return split ? "kmcnt" : "lgkmcnt";
    default: return split ? "dscnt" : "lgkmcnt";
    }
}

// The registers of an instruction ------------------------------------------------------------------

enum { SCALAR_AT = VECTORS };  // in `names`: scalar register r is SCALAR_AT + r

static bool has(const char *name, const char *part) { return strstr(name, part) != NULL; }
static bool starts(const char *name, const char *part) { return strncmp(name, part, strlen(part)) == 0; }

static void mark(uint64_t *names, int first, int count) {
    const int end = first + count < 64 * FLIGHT_WORDS ? first + count : 64 * FLIGHT_WORDS;
    for (int r = first; r < end; r = (r | 63) + 1) {  // a word at a time
        const int last = end - 1 < (r | 63) ? end - 1 : r | 63;
        names[r / 64] |= ~0ull << (r & 63) & ~0ull >> (63 - (last & 63));
    }
}
static uint8_t words_of(const uint64_t *names) {
    uint8_t found = 0;
    for (int k = 0; k < FLIGHT_WORDS; k++) found |= (uint8_t)(names[k] ? 1u << (k & 7) : 0);
    return found;
}
static int place_of(const Operand *o) {
    return o->kind == VGPR ? o->index : o->kind == SGPR && o->index < NULLREG ? SCALAR_AT + o->index : -1;
}
static void mark_operand(uint64_t *names, const Operand *o, int count) {
    const int at = place_of(o);
    if (at >= 0) mark(names, at, count);
}

// Dwords of one element that a memory instruction moves.
static int words_moved(const char *name) {
    if (has(name, "dwordx16")) return 16;
    if (has(name, "dwordx8")) return 8;
    if (has(name, "dwordx4") || has(name, "b128")) return 4;
    if (has(name, "dwordx3") || has(name, "b96")) return 3;
    return has(name, "dwordx2") || has(name, "_x2") || has(name, "b64") || has(name, "u64") ||
                   has(name, "i64") || has(name, "f64") || has(name, "memtime") || has(name, "memrealtime")
               ? 2
               : 1;
}

static int memory_words(const Inst *in, const OpInfo *op, int k) {
    const char *name = op->name;
    const int words = words_moved(name);
    if (k < 0) return has(name, "ds_read2") ? 2 * words : words;
    const bool twice = has(name, "cmpswap") || has(name, "mskor") || has(name, "wrap");
    switch (op->cls) {
    case C_LDS: return k == 0 && !has(name, "ds_write_addtid") ? 1 : words;
    case C_SCRATCH: return k < 2 ? 1 : words;
    case C_SMEM: return k ? 1 : has(name, "buffer") ? 4 : 2;
    default:
        if (starts(name, "buffer")) return k == 0 ? !!(in->flags & OFFEN) + !!(in->flags & IDXEN) : k == 1 ? 4 : k == 2 ? 1 : twice ? 2 * words : words;
        return k == 0 ? (in->src[1].kind == SGPR && !starts(name, "flat") ? 1 : 2) : k == 1 ? 2 : twice ? 2 * words : words;
    }
}

// From the shape and the types in the name, as in v_mfma_f32_16x16x4_4b_f32.
static int matrix_words(const Inst *in, const OpInfo *op, enum Arch arch, int k) {
    int size[3] = {0};
    const char *p = strchr(op->name, 'x');
    while (p[-1] >= '0' && p[-1] <= '9') p--;
    const int result = has(p - 4, "f64") ? 64 : starts(p - 4, "f16") ? 16 : 32;
    for (int i = 0; i < 3; i++, p += i < 3)
        for (; *p >= '0' && *p <= '9'; p++) size[i] = size[i] * 10 + *p - '0';
    if (starts(op->name, "v_wmma")) {  // waves of 32 lanes; gfx11 holds A and B twice, and wastes half of 16-bit results
        const int bits = has(p, "f16") ? 16 : has(p, "iu4") ? 4 : 8;
        if (k < 0 || k == 2) return result == 16 && arch != GFX1100 ? 4 : 8;
        return 16 * size[2] * bits / 1024 * (arch == GFX1100 ? 2 : 1);
    }
    const bool sparse = starts(op->name, "v_smfmac");  // A is half, then its places and the accumulator follow
    if (sparse && k == 2) return 1;
    const int blocks = (int)op->work / (2 * size[0] * size[1] * size[2]);
    if (k < 0 || k == (sparse ? 3 : 2)) return size[0] * size[1] * blocks * result / 2048;
    if (k > 2) return 1;  // a scale
    if (has(p, "f8f6f4")) {
        const uint32_t format = in->aux[0] >> (k ? 16 : 0) & 7;
        return format < 2 ? 8 : format < 4 ? 6 : 4;
    }
    const int bits = has(p, "f64") ? 64 : has(p, "f32") ? 32 : has(p, "f16") ? 16 : 8;
    return size[0] * size[2] * blocks * bits / 2048 / (sparse && k == 0 ? 2 : 1);
}

static int block_words(const char *name, int k) {
    if (has(name, "scalef32")) {  // 32 elements of 6 bits, or of 16 or 32
        const bool narrows = has(name, "pk32_fp6") || has(name, "pk32_bf6") || has(name, "2xpk16");
        const int large = !has(name, "2xpk16") && (has(name, "pk32_f32") || has(name, "6_f32")) ? 32 : 16;
        return narrows == (k < 0) ? 6 : large;
    }
    if (starts(name, "v_mqsad_u32")) return 4;
    return has(name, "pk_mov") || has(name, "mov_b64") || has(name, "mad_u64") || has(name, "mad_i64") ? 2 : 1;
}

// Registers of operand k, or of a result with k = -1.
static int operand_words(const Inst *in, const OpInfo *op, enum Arch arch, const Operand *o, int k) {
    switch (o->type) {
    case 'q': case 'd': case 'F': return 2;
    case 'm': return IS_GFX9(arch) ? 2 : 1;
    case 'r': break;
    default: return 1;
    }
    switch (op->cls) {
    case C_GLOBAL: case C_LDS: case C_SCRATCH: case C_SMEM: return memory_words(in, op, k);
    case C_MATRIX: return matrix_words(in, op, arch, k);
    default: return block_words(op->name, k);
    }
}

static enum Queue queue_of(const Inst *in, const OpInfo *op, enum Arch arch, enum Queue *second) {
    const char *name = op->name;
    const bool loads = has(name, "_load_") || (has(name, "atomic") && in->flags & RETURNS);
    *second = Q_NONE;
    switch (op->cls) {
    case C_SMEM: return in->results ? Q_SCALAR : Q_NONE;
    case C_LDS: return has(name, "nop") ? Q_NONE : Q_LDS;
    case C_SCRATCH: return loads || IS_GFX9(arch) ? Q_VECTOR : Q_NONE;
    case C_GLOBAL:
        if (has(name, "inv") || has(name, "wb")) return has(name, "buffer_wbl2") || has(name, "global_inv") ? Q_VECTOR : Q_NONE;
        if (starts(name, "flat")) {
            *second = IS_GFX9(arch) ? Q_FLAT_LDS : Q_LDS;
            return IS_GFX9(arch) ? Q_FLAT_VECTOR : loads ? Q_VECTOR : Q_NONE;
        }
        return loads || IS_GFX9(arch) ? Q_VECTOR : Q_NONE;
    default: return Q_NONE;
    }
}

// The register that a load writes or a store reads, -1 for none.
static int data_of(const Inst *in) {
    return in->results ? place_of(&in->dst[0]) : in->sources ? place_of(&in->src[in->sources - 1]) : -1;
}

// A 16-bit load writes one half, a store of 8 or 16 bits reads one. On gfx9 such a load may lose the other half.
static enum Half half_of(const Inst *in, const OpInfo *op, enum Arch arch) {
    const char *name = op->name;
    const bool loads = has(name, "_d16") && (has(name, "_load_") || has(name, "ds_read")) && !has(name, "format");
    const bool stores = has(name, "store_short") || has(name, "store_byte") || has(name, "ds_write_b8") ||
                        has(name, "ds_write_b16");
    if (IS_GFX9(arch) || !(loads || stores)) return WHOLE;
    for (int k = 0; k < in->sources - stores; k++) {  // nor does it if its address is there too
        const int at = place_of(&in->src[k]);
        if (at >= 0 && data_of(in) >= at && data_of(in) < at + operand_words(in, op, arch, &in->src[k], k)) return WHOLE;
    }
    return has(name, "_hi") ? UPPER_HALF : LOWER_HALF;
}

void plan_flight(Inst *in, const OpInfo *op, enum Arch arch) {
    Flight *f = &in->flight;
    memset(f, 0, sizeof *f);
    if (in->flags & DUAL) memcpy(f->names, in[1].flight.names, sizeof f->names);  // one step executes both
    for (int k = 0; k < in->results; k++) mark_operand(f->names, &in->dst[k], operand_words(in, op, arch, &in->dst[k], -1));
    for (int k = 0; k < in->sources; k++) mark_operand(f->names, &in->src[k], operand_words(in, op, arch, &in->src[k], k));
    if (has(op->name, "vccz") || has(op->name, "vccnz") || has(op->name, "div_fmas")) mark(f->names, SCALAR_AT + VCC, 2);
    in->named = words_of(f->names);
    enum Queue second;
    f->queue[0] = (uint8_t)queue_of(in, op, arch, &second);
    f->queue[1] = (uint8_t)second;
    in->queued = f->queue[0] | f->queue[1];
    f->half = (uint8_t)half_of(in, op, arch);
    f->to_lds = op->cls == C_GLOBAL && (in->flags & TO_LDS || has(op->name, "load_lds"));
    if ((f->queue[0] || f->queue[1]) && in->results && place_of(&in->dst[0]) >= 0) {
        f->first = (uint16_t)place_of(&in->dst[0]);
        f->count = (uint16_t)operand_words(in, op, arch, &in->dst[0], -1);
    }
}

// Registers in flight ------------------------------------------------------------------------------

static bool finished(const Wave *w, const Inst *in, const uint32_t *number) {
    for (int k = 0; k < 2; k++)
        if (in->flight.queue[k] && number[k] > w->done[in->flight.queue[k]]) return false;
    return true;
}

// The registers that a load writes, at most 32, are in flight.
static void mark_load(Wave *w, const Flight *f) {
    const int word = f->first / 64, bit = f->first & 63;
    const uint64_t ones = (1ull << f->count) - 1;
    w->flying[word] |= ones << bit;
    w->flying_words |= (uint8_t)(1u << (word & 7));
    if (bit + f->count <= 64 || word + 1 == FLIGHT_WORDS) return;
    w->flying[word + 1] |= ones >> (64 - bit);
    w->flying_words |= (uint8_t)(1u << ((word + 1) & 7));
}

static void drop_finished(Wave *w) {
    int kept = 0;
    while (kept < w->loads && !finished(w, w->load[kept].in, w->load[kept].number)) kept++;
    if (kept == w->loads) return;
    memset(w->flying, 0, sizeof w->flying);
    w->flying_words = 0;
    for (int i = 0; i < kept; i++) mark_load(w, &w->load[i].in->flight);
    for (int i = kept + 1; i < w->loads; i++) {
        const struct Load *l = &w->load[i];
        if (finished(w, l->in, l->number)) continue;
        mark_load(w, &l->in->flight);
        w->load[kept++] = *l;
    }
    w->loads = kept;
}

void take_off(Wave *w, const Inst *in) {
    const Flight *f = &in->flight;
    uint32_t number[2];
    for (int k = 0; k < 2; k++) number[k] = f->queue[k] ? ++w->issued[f->queue[k]] : 0;
    if (!f->count) return;
    if (w->loads == MOST_LOADS) {  // more than any counter counts: the hardware has waited for the oldest by itself
        memmove(w->load, w->load + 1, sizeof *w->load * (MOST_LOADS - 1));
        w->loads--;
    }
    w->load[w->loads++] = (struct Load){in, {number[0], number[1]}};
    mark_load(w, f);
}

static void finish(Wave *w, enum Queue q, uint32_t outstanding) {
    if (w->issued[q] > outstanding && w->issued[q] - outstanding > w->done[q]) w->done[q] = w->issued[q] - outstanding;
}

void wait_for(Wave *w, Wait wait) {
    if (__builtin_expect(w->launch->races != NULL, 0) && !HAS_GFX940(w->launch->arch) &&
        (w->launch->arch == GFX90A ? wait.vector : wait.store) == 0)
        races_written_back(w);
    finish(w, Q_VECTOR, wait.vector);
    finish(w, Q_LDS, wait.lds);
    if (!wait.vector) finish(w, Q_FLAT_VECTOR, 0);
    if (!wait.lds) finish(w, Q_FLAT_LDS, 0);
    if (!wait.scalar) finish(w, Q_SCALAR, 0);
    if (w->loads) drop_finished(w);
    if (w->lds_accesses) lds_land(w);
}

static int first_shared(const uint64_t *names, const Flight *f) {
    for (int r = f->first; r < f->first + f->count; r++)
        if (names[r / 64] >> (r & 63) & 1) return r;
    return -1;
}

// A load may write what a load before it in the same queue writes: they land in order. Not so on gfx12 (LLVM, feature
// vmem-write-vgpr-in-order).
static bool behind(const Wave *w, const Inst *in, const Inst *load) {
    const enum Queue q = in->flight.queue[0];
    if (q != load->flight.queue[0] || in->flight.queue[1] || load->flight.queue[1] || !in->flight.count) return false;
    return q == Q_LDS || (q == Q_VECTOR && w->launch->arch != GFX1201);
}

// A 16-bit load writes all 32 bits when it lands, on gfx11 and gfx12: the vector ALU must not touch the other half before.
// Stores may read that half, and loads of the same queue write it (LLVM: feature d16-write-vgpr32, and
// determineVGPR16Dependency of SIInsertWaitcnts.cpp; pull requests 157795, 165587 and 194477).
static bool other_half(const Inst *in, const Inst *load) {
    const Flight *a = &in->flight, *b = &load->flight;
    if (!a->half || !b->half || a->half == b->half || data_of(in) != b->first) return false;
    return !a->count || (a->queue[0] == b->queue[0] && a->queue[1] == b->queue[1]);
}

int name_in_flight(Wave *w, const Inst *in) {
    for (int i = w->loads; i-- > 0;) {
        const struct Load *l = &w->load[i];
        uint64_t names[FLIGHT_WORDS];
        memcpy(names, in->flight.names, sizeof names);
        if (other_half(in, l->in)) names[l->in->flight.first / 64] &= ~(1ull << (l->in->flight.first & 63));
        if (behind(w, in, l->in))
            for (int r = in->flight.first; r < in->flight.first + in->flight.count; r++) names[r / 64] &= ~(1ull << (r & 63));
        const int r = first_shared(names, &l->in->flight);
        if (r < 0) continue;
        const bool twice = finished(w, l->in, (uint32_t[2]){l->number[0], 0}) && l->in->flight.queue[1];
        const char *counter = counter_of(w->launch->arch, l->in->flight.queue[twice]);
        return fault(w, in, F_UNWAITED, -1, ~0ull, "it names %s%d, the result of instruction #%d, before a wait for its %s",
                     r >= SCALAR_AT ? "s" : r >= AGPR ? "a" : "v", r >= SCALAR_AT ? r - SCALAR_AT : r >= AGPR ? r - AGPR : r,
                     (int)(l->in - w->program), counter);
    }
    return GO;
}
