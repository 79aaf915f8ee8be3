// Races of workgroups in global memory, by happens-before.
//
// Each word of memory that a kernel may write has two marks: who wrote it last, and who read it first since. A mark is a
// workgroup, its epoch and the instruction. An access after another workgroup's races unless that one is known to have
// happened before: an atomic behind a release passes on what its workgroup knows, and one before an acquire takes it.
//
//   release  gfx942, gfx950: buffer_wbl2 sc1. Elsewhere stores go through to the L2: a wait for all of them. Nothing where
//            nothing was stored.
//   acquire  buffer_inv sc1, buffer_wbinvl1, buffer_gl0_inv, global_inv, after the atomic.
//
// Epochs of a workgroup count its releases. All its waves are one: what one of them releases are the accesses of all
// before it, in the order of the emulation. A load that goes past the caches (sc1, glc, a scope) is an atomic one, and it
// takes what the workgroup knew that wrote the word. Atomic stores look like plain ones on gfx90a and gfx1100; there a
// plain store and an atomic never race.
//
// The marks are a word's latest: of writers of its other bytes, and of readers beyond the first, less is known, so that a
// race may go unseen. Two threads of the host that access a word at one time may do so too. No mark is made up: what is
// reported is unordered.
#include "global_race.h"
#include "lds_race.h"

#include <stdlib.h>

typedef struct Cell { uint64_t writer, reader; } Cell;
enum { CHUNK_WORDS = 256, MOST_EPOCH = 0xffff, UNKNOWN_INST = 0xffff };

typedef struct Clock {  // what is known: of each workgroup the latest epoch that happened before; immutable
    uint32_t count;
    struct { uint32_t group, epoch; } of[];
} Clock;

typedef struct Area { uint64_t base, end; Cell **chunks; } Area;
typedef struct Release { uint64_t address; const Clock *clock; } Release;
typedef struct Block { struct Block *next; size_t used, size; } Block;

typedef struct Races {
    Area *areas;
    uint32_t count;
    uint64_t groups;
    volatile char lock;
    const Clock **known;             // by workgroup
    Release *released;               // by address: what atomics on it passed on
    uint64_t slots, taken;
    Block *blocks;                   // where clocks lie
    uint64_t unused;                 // the latest workgroup and instruction of whose racing reads nothing comes
} Races;

// Marks: workgroup + 1 in 24 bits (modulo them), epoch in 16, instruction in 16, mask of bytes in 4; then of the writer
// whether it was an atomic, of the reader whose bytes others read too.
static uint64_t mark_of(uint32_t group, uint32_t epoch, uint32_t inst, uint32_t bytes) {
    const uint64_t number = (group & 0xffffffu) == 0xffffffu ? 0xfffffeu : group & 0xffffffu;
    const uint64_t known = inst < UNKNOWN_INST ? inst : UNKNOWN_INST;
    return (number + 1) << 40 | (uint64_t)(epoch & 0xffff) << 24 | known << 8 | bytes;
}
static uint32_t mark_group(uint64_t mark) { return (uint32_t)(mark >> 40) - 1; }
static uint32_t mark_epoch(uint64_t mark) { return mark >> 24 & 0xffff; }
static uint32_t mark_inst(uint64_t mark) { return mark >> 8 & 0xffff; }
static uint32_t mark_bytes(uint64_t mark) { return mark & 15; }
static uint32_t mark_more(uint64_t mark) { return mark >> 4 & 15; }
enum { ATOMIC_MARK = 1 << 4 };

static uint64_t load_mark(const uint64_t *p) { return __atomic_load_n(p, __ATOMIC_RELAXED); }
static void store_mark(uint64_t *p, uint64_t mark) { __atomic_store_n(p, mark, __ATOMIC_RELAXED); }

// Clocks -------------------------------------------------------------------------------------------

static void lock(Races *r) {
    while (__atomic_test_and_set(&r->lock, __ATOMIC_ACQUIRE)) {}
}
static void unlock(Races *r) { __atomic_clear(&r->lock, __ATOMIC_RELEASE); }

static void *place_for(Races *r, size_t bytes) {
    bytes = (bytes + 7) & ~(size_t)7;
    if (!r->blocks || r->blocks->size - r->blocks->used < bytes) {
        const size_t size = bytes > 1 << 20 ? bytes : 1 << 20;
        Block *b = malloc(sizeof *b + size);
        if (!b) abort();
        *b = (Block){r->blocks, 0, size};
        r->blocks = b;
    }
    void *p = (char *)(r->blocks + 1) + r->blocks->used;
    r->blocks->used += bytes;
    return p;
}

static uint32_t epoch_in(const Clock *c, uint32_t group) {
    uint32_t low = 0, high = c ? c->count : 0;
    while (low < high) {
        const uint32_t middle = (low + high) / 2;
        if (c->of[middle].group < group) low = middle + 1;
        else high = middle;
    }
    return c && low < c->count && c->of[low].group == group ? c->of[low].epoch : 0;
}

static bool covers(const Clock *a, const Clock *b) {
    if (!b || a == b) return true;
    if (!a || a->count < b->count) return false;
    for (uint32_t i = 0, k = 0; k < b->count; k++) {
        while (i < a->count && a->of[i].group < b->of[k].group) i++;
        if (i == a->count || a->of[i].group != b->of[k].group || a->of[i].epoch < b->of[k].epoch) return false;
    }
    return true;
}

static const Clock *joined(Races *r, const Clock *a, const Clock *b) {
    if (covers(a, b)) return a;
    if (covers(b, a)) return b;
    Clock *c = place_for(r, sizeof *c + sizeof *c->of * (a->count + b->count));
    uint32_t n = 0, i = 0, k = 0;
    while (i < a->count || k < b->count) {
        const bool first = k == b->count || (i < a->count && a->of[i].group <= b->of[k].group);
        const bool both = first && k < b->count && a->of[i].group == b->of[k].group;
        c->of[n] = first ? a->of[i] : b->of[k];
        if (both && b->of[k].epoch > c->of[n].epoch) c->of[n].epoch = b->of[k].epoch;
        n++, i += first, k += !first || both;
    }
    c->count = n;
    return c;
}

static const Clock *with(Races *r, const Clock *a, uint32_t group, uint32_t epoch) {
    if (epoch == 0 || epoch_in(a, group) >= epoch) return a;
    Clock *one = place_for(r, sizeof *one + sizeof *one->of);
    one->count = 1;
    one->of[0].group = group, one->of[0].epoch = epoch;
    return joined(r, a, one);
}

static Release *slot_of(Races *r, uint64_t address) {
    uint64_t at = (address >> 2) * 0x9e3779b97f4a7c15ull >> 20;
    for (;; at++) {
        Release *s = &r->released[at & (r->slots - 1)];
        if (s->address == address || s->address == 0) return s;
    }
}

static Release *room_for(Races *r, uint64_t address) {
    if (2 * (r->taken + 1) > r->slots) {
        Release *old = r->released;
        const uint64_t slots = r->slots;
        r->slots = slots ? 2 * slots : 1024;
        r->released = calloc(r->slots, sizeof *r->released);
        if (!r->released) abort();
        for (uint64_t i = 0; i < slots; i++)
            if (old[i].address) *slot_of(r, old[i].address) = old[i];
        free(old);
    }
    Release *s = slot_of(r, address);
    if (!s->address) s->address = address, r->taken++;
    return s;
}

void races_start(Group *g) {
    g->known = g->pending = NULL;
    g->epoch = 1;
    g->released_epoch = 0;
    g->stored = false;
}

// An access after a release is of the next epoch.
static uint32_t epoch_now(Group *g) {
    if (g->released_epoch == g->epoch && g->epoch < MOST_EPOCH) g->epoch++;
    return g->epoch;
}

static void release(Group *g) {
    g->released_epoch = g->epoch;
    g->stored = false;
}
void races_written_back(Wave *w) { release(w->group); }

void races_invalidated(Wave *w) {
    Group *g = w->group;
    Races *r = w->launch->races;
    if (!g->pending) return;
    lock(r);
    r->known[g->number] = g->known = joined(r, g->known, g->pending);
    unlock(r);
    g->pending = NULL;
}

static void take(Races *r, Group *g, const Clock *clock) {
    if (clock) g->pending = joined(r, g->pending, clock);
}

// Whether what a mark says happened before.
static bool ordered(const Group *g, uint64_t mark) {
    const uint32_t group = mark_group(mark);
    return group == (g->number & 0xffffffu) || epoch_in(g->known, group) >= mark_epoch(mark);
}

// Marks --------------------------------------------------------------------------------------------

// The mark of a word; NULL where no kernel of the launch may write.
static Cell *cell_at(Group *g, Races *r, uint64_t address) {
    Area *area = g->area;
    if (!area || address < area->base || address >= area->end) {
        area = NULL;
        for (uint32_t i = 0; i < r->count; i++)
            if (address >= r->areas[i].base && address < r->areas[i].end) area = g->area = &r->areas[i];
        if (!area) return NULL;
    }
    const uint64_t word = (address - area->base) / 4;
    Cell **chunk = &area->chunks[word / CHUNK_WORDS];
    Cell *cells = __atomic_load_n(chunk, __ATOMIC_ACQUIRE);
    if (!cells) {
        Cell *own = calloc(CHUNK_WORDS, sizeof *own);
        if (!own) abort();
        if (__atomic_compare_exchange_n(chunk, &cells, own, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) cells = own;
        else free(own);
    }
    return &cells[word % CHUNK_WORDS];
}

// The bytes of the word at `word` that [at, at + bytes) has.
static uint32_t bytes_in(uint64_t word, uint64_t at, uint32_t bytes) {
    const uint64_t from = at > word ? at - word : 0, to = at + bytes < word + 4 ? at + bytes - word : 4;
    return (15u >> (4 - (to - from))) << from;
}

static const char *group_text(const Launch *launch, uint32_t number, char text[40]) {
    const uint32_t *grid = launch->grid;
    const uint32_t id[3] = {number % grid[0], number / grid[0] % grid[1], number / grid[0] / grid[1]};
    char *to = text;
    *to++ = '(';
    for (int k = 0; k < 3; k++) {
        char digits[12];
        int n = 0;
        uint32_t value = id[k];
        do digits[n++] = (char)('0' + value % 10), value /= 10;
        while (value);
        while (n) *to++ = digits[--n];
        *to++ = k < 2 ? ',' : ')';
        if (k < 2) *to++ = ' ';
    }
    *to = 0;
    return text;
}

static const Range *range_of(const Launch *launch, uint64_t address) {
    for (uint32_t i = 0; i < launch->range_count; i++)
        if (address - launch->ranges[i].base < launch->ranges[i].size) return &launch->ranges[i];
    return &launch->ranges[0];
}

#define NO_ORDER "with no release and acquire between"

static int race(Wave *w, const Inst *in, int lane, uint64_t at, const char *verb, uint64_t mark, const char *theirs) {
    const Launch *launch = w->launch;
    const Range *range = range_of(launch, at);
    char text[40];
    if (mark_inst(mark) == UNKNOWN_INST)
        return fault(w, in, F_GLOBAL_RACE, lane, at, "it %s offset %llu of @%u, which workgroup %s %s, " NO_ORDER, verb,
                     (unsigned long long)(at - range->base), range->name, group_text(launch, mark_group(mark), text), theirs);
    return fault(w, in, F_GLOBAL_RACE, lane, at, "it %s offset %llu of @%u, which workgroup %s %s, " NO_ORDER ": instruction #%u",
                 verb, (unsigned long long)(at - range->base), range->name, group_text(launch, mark_group(mark), text), theirs,
                 mark_inst(mark));
}

int races_fault_of_load(Wave *w, const Inst *in, const char *what) {
    const struct Origin *o = &w->origin;
    const Launch *launch = w->launch;
    const Range *range = range_of(launch, o->address);
    char text[40];
    if (o->other < 0 || o->other == UNKNOWN_INST)
        return fault(w, &w->program[o->inst], F_GLOBAL_RACE, o->lane, o->address,
                     "it reads offset %llu of @%u, which another workgroup writes, " NO_ORDER
                     "; %s depends on it: instruction #%d",
                     (unsigned long long)(o->address - range->base), range->name, what, (int)(in - w->program));
    return fault(w, &w->program[o->inst], F_GLOBAL_RACE, o->lane, o->address,
                 "it reads offset %llu of @%u, which workgroup %s wrote, " NO_ORDER
                 ": instruction #%d; %s depends on what it reads: instruction #%d",
                 (unsigned long long)(o->address - range->base), range->name, group_text(launch, o->mark, text), o->other, what,
                 (int)(in - w->program));
}

void races_warn_of_load(Wave *w, const Inst *in, const struct Origin *o) {
    const Range *range = range_of(w->launch, o->address);
    char text[40];
    warn(w, in, F_BENIGN, o->lane, o->address,
         "it reads offset %llu of @%u, which workgroup %s wrote, " NO_ORDER "; nothing comes of what it reads",
         (unsigned long long)(o->address - range->base), range->name, group_text(w->launch, o->mark, text));
}

// Loads --------------------------------------------------------------------------------------------

static mask64 loads_of_suspect(Wave *w, const Inst *in, mask64 m, const uint64_t *at, uint32_t bytes) {
    const uint64_t suspect = w->launch->suspect;
    const bool by_this = in - w->program == w->launch->suspect_inst;
    mask64 racing = 0;
    EACH_ACTIVE(m, i)
        if (by_this || (at[i] < suspect + 4 && at[i] + bytes > suspect)) {
            racing |= 1ull << i;
            note_race(w, in, F_GLOBAL_RACE, i, at[i], 0, -1);
        }
    return racing;
}

// Another's plain store to a word that this one reads by an atomic: it was one too, and passed on what was released before.
static void store_was_atomic(Races *r, const Group *g, Cell *c, uint64_t word) {
    const uint64_t writer = load_mark(&c->writer);
    const uint32_t group = mark_group(writer);
    if (!writer || writer & ATOMIC_MARK || group == g->number || group >= r->groups) return;
    Release *s = room_for(r, word);
    s->clock = joined(r, s->clock, with(r, r->known[group], group, mark_epoch(writer) - 1));
    store_mark(&c->writer, writer | ATOMIC_MARK);
}

static void acquire_load(Races *r, Group *g, Cell *c, uint64_t word) {
    store_was_atomic(r, g, c, word);
    if (r->taken) take(r, g, slot_of(r, word)->clock);
}

// What the workgroup has released goes with an atomic on each address.
static void pass_on(Races *r, Group *g, mask64 m, const uint64_t *at) {
    if (!g->stored) release(g);  // loads alone: a compiler leaves out the wait for stores where there are none
    if (!g->known && !g->released_epoch) return;
    lock(r);
    const Clock *own = with(r, g->known, g->number, g->released_epoch), *last = NULL, *made = NULL;
    EACH_ACTIVE(m, i) {
        Release *s = room_for(r, at[i] & ~3ull);
        if (!made || s->clock != last) last = s->clock, made = joined(r, last, own);
        s->clock = made;
    }
    unlock(r);
}

mask64 races_load(Wave *w, const Inst *in, mask64 m, const uint64_t *at, uint32_t bytes) {
    Races *r = w->launch->races;
    Group *g = w->group;
    if (!r) return loads_of_suspect(w, in, m, at, bytes);
    mask64 racing = 0;
    const bool atomic = in->flags & SHARED;
    const uint32_t inst = (uint32_t)(in - w->program), epoch = epoch_now(g);
    if (atomic) lock(r);
    EACH_ACTIVE(m, i)
        for (uint64_t word = at[i] & ~3ull; word < at[i] + bytes; word += 4) {
            Cell *c = cell_at(g, r, word);
            if (!c) break;
            if (atomic) {
                acquire_load(r, g, c, word);
                continue;
            }
            const uint32_t touched = bytes_in(word, at[i], bytes);
            const uint64_t writer = load_mark(&c->writer), reader = load_mark(&c->reader);
            const uint64_t mine = mark_of(g->number, epoch, inst, touched);
            if (writer && mark_bytes(writer) & touched && !ordered(g, writer)) {
                const uint64_t first = word > at[i] ? word : at[i];
                if (!(racing >> i & 1)) note_race(w, in, F_GLOBAL_RACE, i, first, mark_group(writer), (int32_t)mark_inst(writer));
                racing |= 1ull << i;
                continue;
            }
            if (reader == mine) continue;
            if (!reader || ordered(g, reader)) store_mark(&c->reader, mine | (reader & 0xf0));
            else if (mark_bytes(reader) & touched) store_mark(&c->reader, reader | (uint64_t)(mark_bytes(reader) & touched) << 4);
        }
    if (atomic) unlock(r);
    return racing;
}

// Stores -------------------------------------------------------------------------------------------

// A write over what another workgroup read: that one is run once more, aside, to see whether something comes of it. First
// of all that its instruction reads: mostly nothing does, and then all words of it are done with.
static int write_after_read(Wave *w, const Inst *in, int lane, uint64_t at, uint64_t word, const char *verb, uint64_t reader) {
    const Launch *launch = w->launch;
    const uint32_t group = mark_group(reader);
    const uint64_t bound = launch->resident > 1 && launch->budget > 1 << 24 ? 1 << 24 : launch->budget;
    Races *r = launch->races;
    const int32_t inst = (int32_t)mark_inst(reader);
    const uint64_t read = ((uint64_t)group << 16 | (uint32_t)inst) + 1;
    if (load_mark(&r->unused) == read) return GO;
    const bool known = r->groups <= 0xfffffe, whole = inst != UNKNOWN_INST;
    const bool none = known && whole && run_aside(launch, group, bound, 0, inst).kind == F_NONE;
    if (none) store_mark(&r->unused, read);
    if (none || (known && run_aside(launch, group, bound, word, -1).kind == F_NONE)) {
        const Range *range = range_of(launch, at);
        char text[40];
        warn(w, in, F_BENIGN, lane, at,
             "it %s offset %llu of @%u, which workgroup %s read, " NO_ORDER "; nothing comes of what was read", verb,
             (unsigned long long)(at - range->base), range->name, group_text(launch, group, text));
        return GO;
    }
    return race(w, in, lane, at, verb, reader, "read, or wrote as it is");
}

static int check_readers(Wave *w, const Inst *in, int lane, uint64_t at, uint64_t word, const char *verb, uint64_t reader,
                         uint32_t touched) {
    const Group *g = w->group;
    if (!reader) return GO;
    if (mark_bytes(reader) & touched && !ordered(g, reader)) return write_after_read(w, in, lane, at, word, verb, reader);
    // Who the others were is not known. Whoever has acquired nothing is behind none of them.
    if (mark_more(reader) & touched && !g->known)
        return fault(w, in, F_GLOBAL_RACE, lane, at, "it %s offset %llu of @%u, which another workgroup read, " NO_ORDER, verb,
                     (unsigned long long)(at - range_of(w->launch, at)->base), range_of(w->launch, at)->name);
    return GO;
}

static int stores_to_suspect(Wave *w, const Inst *in, mask64 m, const uint64_t *at, uint32_t bytes) {
    const uint64_t suspect = w->launch->suspect;
    const bool by_this = in - w->program == w->launch->suspect_inst;
    EACH_ACTIVE(m, i)
        if (by_this || (at[i] < suspect + 4 && at[i] + bytes > suspect))
            return fault(w, in, F_GLOBAL_RACE, i, at[i], "it writes the word too");
    return GO;
}

int races_store(Wave *w, const Inst *in, enum Kind k, mask64 m, const uint64_t *at, const uint32_t *from) {
    Races *r = w->launch->races;
    Group *g = w->group;
    const uint32_t bytes = (uint32_t)kind_bytes(k);
    if (!r) return stores_to_suspect(w, in, m, at, bytes);
    const uint32_t inst = (uint32_t)(in - w->program), epoch = epoch_now(g);
    const bool atomic = in->flags & SHARED, atomics_too = w->launch->arch == GFX90A || w->launch->arch == GFX1100 || atomic;
    if (atomic) pass_on(r, g, m, at);
    g->stored = true;
    EACH_ACTIVE(m, i) {
        uint8_t own[16];
        store_element(k, from + i, own);
        for (uint64_t word = at[i] & ~3ull; word < at[i] + bytes; word += 4) {
            Cell *c = cell_at(g, r, word);
            if (!c) break;
            const uint64_t first = word > at[i] ? word : at[i], end = word + 4 < at[i] + bytes ? word + 4 : at[i] + bytes;
            const bool same = memcmp(own + (first - at[i]), host_pointer(first), end - first) == 0;
            const uint32_t touched = bytes_in(word, at[i], bytes);
            const uint64_t writer = load_mark(&c->writer), reader = load_mark(&c->reader);
            const uint64_t mine = mark_of(g->number, epoch, inst, touched) | (atomic ? ATOMIC_MARK : 0);
            if (writer == mine && !reader) continue;
            const bool before = !writer || !(mark_bytes(writer) & touched) || ordered(g, writer);
            if (!before && !(writer & ATOMIC_MARK && atomics_too)) {
                if (same) continue;  // two workgroups that write one value settle on it in any order
                if (race(w, in, i, first, "writes", writer, writer & ATOMIC_MARK ? "changed by an atomic" : "wrote")) return STOP;
            }
            if (same && !atomic) {  // what is there already: as if it were read, since another's other value would race
                const bool own_value = writer && mark_group(writer) == g->number;
                if (!own_value && (!reader || ordered(g, reader))) store_mark(&c->reader, mine | (reader & 0xf0));
                continue;
            }
            if (check_readers(w, in, i, first, word, "writes", reader, touched)) return STOP;
            store_mark(&c->writer, mine);
            store_mark(&c->reader, 0);
        }
    }
    return GO;
}

int watched_store(Wave *w, const Inst *in, enum Kind k, mask64 m, const uint64_t *at, const uint32_t *from) {
    if (races_store(w, in, k, m, at, from)) return STOP;
    if (!w->launch->aside) scatter(k, from, at, m);
    return GO;
}

// Atomics ------------------------------------------------------------------------------------------

int races_release(Wave *w, const Inst *in, mask64 m, const uint64_t *at, uint32_t bytes) {
    Races *r = w->launch->races;
    Group *g = w->group;
    if (!r) return GO;
    const bool stores_too = w->launch->arch == GFX90A || w->launch->arch == GFX1100;
    const uint64_t mine = mark_of(g->number, epoch_now(g), (uint32_t)(in - w->program), 15) | ATOMIC_MARK;
    EACH_ACTIVE(m, i)
        for (uint64_t word = at[i]; word < at[i] + bytes; word += 4) {
            Cell *c = cell_at(g, r, word);
            if (!c) break;
            const uint64_t writer = load_mark(&c->writer), reader = load_mark(&c->reader);
            if (writer && !(writer & ATOMIC_MARK) && !stores_too && !ordered(g, writer))
                return race(w, in, i, word, "changes (by an atomic)", writer, "wrote");
            if (stores_too && writer && !(writer & ATOMIC_MARK)) {
                lock(r);
                store_was_atomic(r, g, c, word);
                unlock(r);
            }
            if (check_readers(w, in, i, word, word, "changes (by an atomic)", reader, 15)) return STOP;
            store_mark(&c->writer, mine);
            store_mark(&c->reader, 0);
        }
    pass_on(r, g, m, at);
    return GO;
}

void races_acquire(Wave *w, mask64 m, const uint64_t *at) {
    Races *r = w->launch->races;
    Group *g = w->group;
    if (!r) return;
    lock(r);
    const Clock *last = NULL;
    EACH_ACTIVE(m, i) {
        const Clock *clock = r->taken ? slot_of(r, at[i])->clock : NULL;
        if (clock != last) take(r, g, clock);
        last = clock;
    }
    unlock(r);
}

// Exported to Python -------------------------------------------------------------------------------

static int by_base(const void *a, const void *b) {
    const uint64_t one = ((const Area *)a)->base, other = ((const Area *)b)->base;
    return one < other ? -1 : one > other;
}

#define EXPORT __attribute__((visibility("default")))

EXPORT void emulator_races_free(Races *r) {
    if (!r) return;
    for (uint32_t i = 0; i < r->count; i++) {
        const uint64_t chunks = ((r->areas[i].end - r->areas[i].base) / 4 + CHUNK_WORDS) / CHUNK_WORDS;
        for (uint64_t k = 0; r->areas[i].chunks && k < chunks; k++) free(r->areas[i].chunks[k]);
        free(r->areas[i].chunks);
    }
    while (r->blocks) {
        Block *next = r->blocks->next;
        free(r->blocks);
        r->blocks = next;
    }
    free(r->released);
    free(r->known);
    free(r->areas);
    free(r);
}

// What a launch needs for the check, from its ranges that may be written; NULL where there is not enough memory.
EXPORT Races *emulator_races(Launch *launch) {
    Races *r = calloc(1, sizeof *r);
    if (!r) return NULL;
    launch->watched = 1;
    r->groups = (uint64_t)launch->grid[0] * launch->grid[1] * launch->grid[2];
    r->known = calloc(r->groups, sizeof *r->known);
    r->areas = calloc(launch->range_count, sizeof *r->areas);
    if (!r->known || !r->areas) return emulator_races_free(r), NULL;
    for (uint32_t i = 0; i < launch->range_count; i++) {
        const Range *range = &launch->ranges[i];
        if (range->writable) r->areas[r->count++] = (Area){range->base & ~3ull, (range->base + range->size + 3) & ~3ull, NULL};
    }
    qsort(r->areas, r->count, sizeof *r->areas, by_base);
    uint32_t kept = 0;
    for (uint32_t i = 0; i < r->count; i++) {
        if (kept && r->areas[i].base <= r->areas[kept - 1].end) {
            if (r->areas[i].end > r->areas[kept - 1].end) r->areas[kept - 1].end = r->areas[i].end;
        } else {
            r->areas[kept++] = r->areas[i];
        }
    }
    r->count = kept;
    for (uint32_t i = 0; i < kept; i++) {
        r->areas[i].chunks = calloc(((r->areas[i].end - r->areas[i].base) / 4 + CHUNK_WORDS) / CHUNK_WORDS, sizeof(Cell *));
        if (!r->areas[i].chunks) return emulator_races_free(r), NULL;
    }
    return r;
}
