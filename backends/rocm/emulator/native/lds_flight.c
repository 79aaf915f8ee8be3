// Accesses to LDS in flight, and the bytes that they keep from others.
//
// A wave's own LDS instructions are done in order, so that only two things need a wait. What a load straight to LDS
// writes is there, for its wave too, only once the wave has waited. And a barrier orders the accesses for which a wave
// has waited before it arrives: a write in flight then is not there for other waves after the barrier, and a read in
// flight then may see what another wave writes after it. `lds_late` names, for each byte, the access that keeps it:
// 0 none, 1 + an index into `late`, or MANY_LATE: reads of several waves.
#include "flight.h"
#include "lds.h"

static void late_range(Group *g, uint64_t low, uint64_t end) {
    const bool none = g->late_low >= g->late_high;
    if (none || low < g->late_low) g->late_low = (uint32_t)low;
    if (none || end > g->late_high) g->late_high = (uint32_t)end;
}

static void keep(Group *g, const Wave *w, const struct LdsAccessInFlight *a) {
    if (g->lates == MOST_LATE) return;
    g->late[g->lates++] = (struct Late){a->in, a->access, w->number};
    const uint16_t mark = (uint16_t)g->lates;
    EACH_ACTIVE(a->lanes, i) {
        uint16_t *p = g->lds_late + a->at[i];
        for (int b = 0; b < a->bytes; b++) {
            const uint16_t had = p[b];
            const bool reads = had == MANY_LATE || (had && g->late[had - 1].access == LDS_READ);
            if (had && a->access == LDS_READ) {
                if (reads && (had == MANY_LATE || g->late[had - 1].wave != w->number)) p[b] = MANY_LATE;
            } else {
                p[b] = mark;
            }
        }
        late_range(g, a->at[i], a->at[i] + (uint64_t)a->bytes);
    }
}

void lds_take_off(Wave *w, const Inst *in, mask64 m, const uint64_t *at, int bytes, enum LdsAccess access) {
    if (w->lds_accesses == MOST_LDS_ACCESSES) {  // the oldest is given up where all are in flight
        const int first = w->lds_first ? w->lds_first : 1;
        memmove(w->lds_access, w->lds_access + first, sizeof *w->lds_access * (size_t)(MOST_LDS_ACCESSES - first));
        w->lds_accesses -= first;
        w->lds_first = 0;
    }
    struct LdsAccessInFlight *a = &w->lds_access[w->lds_accesses++];
    a->in = in;
    a->queue = in->flight.to_lds ? in->flight.queue[0] : in->flight.queue[1] ? in->flight.queue[1] : in->flight.queue[0];
    a->number = w->issued[a->queue];
    a->access = access;
    a->bytes = (uint8_t)bytes;
    a->lanes = m;
    if (w->lanes == 32)
        for (int i = 0; i < 32; i++) a->at[i] = (uint32_t)at[i];
    else
        EACH a->at[i] = (uint32_t)at[i];
    if (in->flight.to_lds) keep(w->group, w, a);
}

// A load to LDS that has landed: nothing keeps its bytes, and its wave has written them just now.
static void land(Wave *w, const struct LdsAccessInFlight *a) {
    Group *g = w->group;
    EACH_ACTIVE(a->lanes, i)
        for (int b = 0; b < a->bytes; b++) {
            uint16_t *mark = &g->lds_late[a->at[i] + (uint32_t)b];
            if (*mark && *mark != MANY_LATE && g->late[*mark - 1].in == a->in && g->late[*mark - 1].wave == w->number) *mark = 0;
        }
    if (g->waves > 1) lds_mark_written(w, a->lanes, a->at, a->bytes);
}

void lds_land(Wave *w) {
    bool stayed = false;
    for (int i = w->lds_first; i < w->lds_accesses; i++) {
        struct LdsAccessInFlight *a = &w->lds_access[i];
        const bool done = a->number <= w->done[a->queue];
        if (done && a->in->flight.to_lds && a->lanes) {
            land(w, a);
            a->lanes = 0;
        }
        // Between the two halves of a split barrier an access stays for the release.
        stayed |= !done || (w->barrier_pending && a->number > w->arrived[a->queue]);
        if (!stayed) w->lds_first++;
        else if (!IS_GFX9(w->launch->arch)) break;  // without loads to LDS the list is in order
    }
    if (w->lds_first == w->lds_accesses) w->lds_first = w->lds_accesses = 0;
}

void lds_arrive(Wave *w) { memcpy(w->arrived, w->done, sizeof w->arrived); }

void lds_release(Group *g) {
    if (g->late_high > g->late_low) memset(g->lds_late + g->late_low, 0, sizeof *g->lds_late * (g->late_high - g->late_low));
    g->late_low = g->lds_size;
    g->late_high = 0;
    g->lates = 0;
    for (uint32_t n = 0; n < g->waves; n++) {
        Wave *w = &g->wave[n];
        if (!w->lds_accesses) continue;
        for (int i = w->lds_first; i < w->lds_accesses; i++)
            if (w->lds_access[i].number > w->arrived[w->lds_access[i].queue]) keep(g, w, &w->lds_access[i]);
        lds_land(w);
    }
}

// Of a kernel that is known to lack a wait, and is run all the same.
static bool excused(Wave *w, const struct Late *l, uint16_t mark) {
    if (!w->launch->drops_waits || (mark != MANY_LATE && l->in->flight.to_lds)) return false;
    __atomic_fetch_add(&w->launch->unordered, 1, __ATOMIC_RELAXED);
    return true;
}

static int late_fault(Wave *w, const Inst *in, int lane, uint64_t at, const char *verb, uint16_t mark) {
    const struct Late *l = &w->group->late[mark - 1];
    const int number = (int)(l->in - w->program);
    const bool split = w->launch->arch == GFX1201;
    if (mark == MANY_LATE)
        return fault(w, in, F_UNWAITED, lane, at, "wave %u %s byte %llu of LDS, which reads of several waves were in flight for "
                     "(no wait for %s) when these came to the barrier", w->number, verb, (unsigned long long)at, split ? "dscnt" : "lgkmcnt");
    if (l->in->flight.to_lds)
        return fault(w, in, F_UNWAITED, lane, at, "wave %u %s byte %llu of LDS, which instruction #%d of wave %u loads: no wait "
                     "for its vmcnt came before", w->number, verb, (unsigned long long)at, number, l->wave);
    return fault(w, in, F_UNWAITED, lane, at, "wave %u %s byte %llu of LDS, which instruction #%d of wave %u %s: no wait for its "
                 "%s came before the barrier", w->number, verb, (unsigned long long)at, number, l->wave,
                 l->access == LDS_READ ? "reads" : "writes", split ? "dscnt" : "lgkmcnt");
}

// Own reads in flight and a load to LDS, which takes another way there.
static int over_own_reads(Wave *w, const Inst *in, mask64 m, const uint64_t *at, int bytes) {
    uint64_t low, high;
    address_range(at, m, &low, &high);
    for (int n = w->lds_first; n < w->lds_accesses; n++) {
        const struct LdsAccessInFlight *a = &w->lds_access[n];
        if (a->access != LDS_READ || a->number <= w->done[a->queue]) continue;
        EACH_ACTIVE(a->lanes, i)
            if (a->at[i] + (uint64_t)a->bytes > low && a->at[i] < high + (uint64_t)bytes)
                return fault(w, in, F_UNWAITED, i, a->at[i], "it writes byte %u of LDS, which instruction #%d of this wave reads: no "
                             "wait for its lgkmcnt came before", a->at[i], (int)(a->in - w->program));
    }
    return GO;
}

int lds_check_late(Wave *w, const Inst *in, mask64 m, const uint64_t *at, enum Kind k, enum LdsAccess access,
                   const uint32_t *from) {
    const Group *g = w->group;
    const int bytes = kind_bytes(k);
    if (in->flight.to_lds && w->lds_accesses && over_own_reads(w, in, m, at, bytes)) return STOP;
    if (!g->lates) return GO;
    const char *verb = access == LDS_READ ? "reads" : "writes";
    EACH_ACTIVE(m, i)
        for (int b = 0; b < bytes; b++) {
            const uint16_t mark = g->lds_late[at[i] + (uint64_t)b];
            if (!mark) continue;
            const struct Late *l = &g->late[mark - 1];
            if (mark != MANY_LATE) {
                const bool own = l->wave == w->number;
                if (l->in->flight.to_lds ? own && in->flight.to_lds : own && !in->flight.to_lds) continue;
                if (l->access == LDS_READ && access == LDS_READ) continue;
                if (l->access == LDS_ATOMIC && access == LDS_ATOMIC) continue;
                if (l->access == LDS_WRITE && access == LDS_WRITE && from) {
                    uint8_t mine[16];
                    store_element(k, from + i, mine);
                    // Equal values settle in any order; several waves load a small tile to one place.
                    if (mine[b] == g->lds[at[i] + (uint64_t)b]) continue;
                }
            } else if (access == LDS_READ) {
                continue;
            }
            if (excused(w, l, mark)) return GO;
            return late_fault(w, in, i, at[i] + (uint64_t)b, verb, mark);
        }
    return GO;
}
