// Counters of accesses to memory: what moves over the pipes of the hardware, and how many cycles LDS takes for it.
#include "record.h"

// The threads that run the workgroups share the counters.
static void add(uint64_t *counter, uint64_t n) { __atomic_fetch_add(counter, n, __ATOMIC_RELAXED); }

static MemCount *of(const Wave *w, const Inst *in) { return &w->launch->memory[in - w->program]; }

// Global memory ------------------------------------------------------------------------------------

// How many blocks of 2^shift bytes the lanes touch, counted from `origin`.
static uint64_t blocks(Recording *r, mask64 m, const uint64_t *at, uint64_t origin, uint32_t bytes, int shift, uint64_t *misses) {
    uint64_t table[256];
    uint8_t used[256] = {0};
    uint64_t count = 0;
    EACH_ACTIVE(m, i) {
        const uint64_t from = at[i] - origin;
        for (uint64_t block = from >> shift; block <= (from + bytes - 1) >> shift; block++) {
            uint32_t slot = (uint32_t)((block * 0x9e3779b97f4a7c15ull) >> 56);
            while (used[slot] && table[slot] != block) slot = (slot + 1) & 255;
            if (!used[slot]) count++, *misses += r && record_line(r, block);
            used[slot] = 1;
            table[slot] = block;
        }
    }
    return count;
}

// Where the tensor of an address starts within a line of 128 bytes. GPU allocators start tensors at lines, the CPU's do
// not: lines are counted as if they did.
static uint64_t line_origin(const Wave *w, uint64_t address) {
    for (uint32_t i = 0; i < w->launch->range_count; i++) {
        const Range *r = &w->launch->ranges[i];
        if (address - r->base < r->size) return r->base & 127;
    }
    return 0;
}

// Lines of 128 bytes are what L1 and L2 of gfx90a, gfx942, gfx950 and RDNA hold and loads fetch. Stores reach L2 in
// sectors of 64 bytes (rocprofiler-compute, L2-fabric write requests of 64 B): half a line costs half.
void count_global(Wave *w, const Inst *in, mask64 m, const uint64_t *at, uint32_t bytes) {
    const uint64_t lanes = (uint64_t)__builtin_popcountll(m), total = lanes * bytes;
    const uint64_t origin = m ? line_origin(w, at[__builtin_ctzll(m)]) : 0;
    Recording *r = w->event ? w->launch->recording : NULL;
    uint64_t misses = 0;
    const uint64_t lines = blocks(r, m, at, origin, bytes, 7, &misses), sectors = blocks(NULL, m, at, origin, bytes, 6, &misses);
    if (r) record_global(w->event, in, lines, sectors, misses);
    const uint64_t fewest_lines = (total + 127) / 128, fewest_sectors = (total + 63) / 64;
    MemCount *c = of(w, in);
    add(&c->lanes, lanes);
    add(&c->bytes, total);
    add(&c->cache_lines, lines);
    add(&c->fewest_cache_lines, fewest_lines < lines ? fewest_lines : lines);  // lanes may share their bytes
    add(&c->sectors, sectors);
    add(&c->fewest_sectors, fewest_sectors < sectors ? fewest_sectors : sectors);
}

void count_scratch(Wave *w, const Inst *in, mask64 m, uint32_t bytes) {
    const uint64_t lanes = (uint64_t)__builtin_popcountll(m);
    add(&of(w, in)->lanes, lanes);
    add(&of(w, in)->bytes, lanes * bytes);
}

// LDS ----------------------------------------------------------------------------------------------

// LDS serves a wave in phases. Lanes of one phase that want different words of one bank wait for each other; lanes of
// different phases never do. Which lanes share a phase is measured, and no document of AMD's says it:
//   [1] nod-ai/amd-shark-ai, docs/empirical-lds (MI300X, MI350X, W7900, RX 9070 XT; reads of b32, b64 and b128)
//   [2] HipKittens, analysis/paper_experiments/phases (MI350X and MI355X; read b64, b96, b128, write b64)
//   [3] rocm.blogs.amd.com, software-tools-optimization/lds-bank-conflict (MI300X; b128, and writes of it in order)
// Bytes a clock: 128 of a CU, 256 of gfx950's for reads of b64 and b128 (CDNA4 white paper;
// ROCm/gfx950-gluon-tutorials, docs/lds_throughput.md: b32 is limited by the return bus).
// Not measured, and taken from the nearest that is: gfx90a (gfx942), b96 but on gfx950 (b128 of the same direction),
// writes on gfx950 but b64 (32 banks, as b64 has), writes on RDNA (lanes in order), less than four bytes (b32).
enum { READS = 1 << LDS_READ, WRITES = 1 << LDS_WRITE | 1 << LDS_ATOMIC, BOTH = READS | WRITES };
enum { CDNA3 = 1 << GFX90A | 1 << GFX942, CDNA4 = 1 << GFX950, RDNA3 = 1 << GFX1100, RDNA4 = 1 << GFX1201 };
#define IN_64 {0}
#define IN_32 {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1}
#define IN_16 {0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3}
#define IN_8 {0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7}
#define CROSSED_16 {0, 1, 1, 0, 1, 0, 0, 1, 2, 3, 3, 2, 3, 2, 2, 3}
#define CROSSED_8 {0, 1, 2, 3, 1, 0, 3, 2, 4, 5, 6, 7, 5, 4, 7, 6}

static const struct Phases {
    uint8_t arches, accesses;  // a bit for each
    uint8_t bytes;             // of a lane, at most; the first row that fits holds
    uint8_t banks;
    uint16_t rate;             // bytes a clock
    uint8_t of_four[16];       // the phase of lanes 0..3, 4..7, ...
} phases[] = {
    {CDNA3 | RDNA3 | RDNA4, BOTH, 4, 32, 128, IN_32},   // [1]
    {CDNA3 | RDNA3 | RDNA4, BOTH, 8, 32, 128, IN_16},   // [1]
    {CDNA3 | RDNA3, READS, 16, 32, 128, CROSSED_8},     // [1] [3]
    {RDNA4, READS, 16, 32, 128, IN_8},                  // [1]
    {CDNA3 | RDNA3 | RDNA4, WRITES, 16, 32, 128, IN_8}, // [3]
    {CDNA4, READS, 4, 64, 128, IN_64},                  // [1]
    {CDNA4, READS, 8, 64, 256, IN_32},                  // [1] [2]
    {CDNA4, READS, 12, 32, 128, CROSSED_8},             // [2]
    {CDNA4, READS, 16, 64, 256, CROSSED_16},            // [1] [2]
    {CDNA4, WRITES, 4, 32, 128, IN_32},
    {CDNA4, WRITES, 8, 32, 128, IN_16},                 // [2]
    {CDNA4, WRITES, 16, 32, 128, IN_8},
};

static const struct Phases *phases_of(enum Arch arch, enum LdsAccess access, uint32_t bytes) {
    const struct Phases *p = phases;
    while (!(p->arches >> arch & 1) || !(p->accesses >> access & 1) || p->bytes < bytes) p++;
    return p;
}

static void count_busy(Wave *w, const Inst *in, mask64 m, uint32_t bytes, enum LdsAccess access, uint64_t conflicts,
                       uint64_t cycles) {
    const uint64_t lanes = (uint64_t)__builtin_popcountll(m);
    if (w->event) w->event->lds = (uint16_t)(w->event->lds + cycles);
    LdsCount *c = &of(w, in)->lds[access];
    add(&c->lanes, lanes);
    add(&c->bytes, lanes * bytes);
    add(&c->conflicts, conflicts);
    add(&c->cycles, cycles);
}

// Lanes that want the same word share it; atomics on it take turns (rocprofiler-compute's address conflicts). A phase
// without an active lane is taken to cost nothing, so that the cycles are at least these.
void count_lds(Wave *w, const Inst *in, mask64 m, const uint64_t *at, uint32_t bytes, enum LdsAccess access) {
    const struct Phases *p = phases_of(w->launch->arch, access, bytes);
    uint64_t conflicts = 0, cycles = 0;
    for (int phase = 0; phase < 8; phase++) {
        uint64_t seen[LANES * 5];
        uint32_t count = 0, load[64] = {0}, most = 0;
        EACH_ACTIVE(m, i) {
            if (p->of_four[i / 4] != phase) continue;
            for (uint64_t word = at[i] >> 2; word <= (at[i] + bytes - 1) >> 2; word++) {
                bool known = false;
                for (uint32_t j = 0; j < count && access != LDS_ATOMIC; j++) known |= seen[j] == word;
                if (known) continue;
                seen[count++] = word;
                const uint32_t n = ++load[word & (p->banks - 1u)];
                if (n > most) most = n;
            }
        }
        cycles += most;
        if (most) conflicts += most - 1;
    }
    const uint64_t words = (bytes + 3) / 4, bus = ((uint64_t)__builtin_popcountll(m) * words * 4 + p->rate - 1) / p->rate;
    count_busy(w, in, m, bytes, access, conflicts, cycles > bus ? cycles : bus);
}

// As many cycles as to read four bytes of every lane.
void count_exchange(Wave *w, const Inst *in, mask64 m) {
    count_busy(w, in, m, 4, LDS_EXCHANGE, 0, ((uint64_t)__builtin_popcountll(m) * 4 + 127) / 128);
}
