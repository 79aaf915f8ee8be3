// How long workgroups take on one compute unit, by a model: waves issue in order, pipes are busy, waits and barriers
// wait. The workgroups' instructions were recorded (record.c); nothing is executed here.
//
// Each step issues the one instruction that can issue first, of all waves. What it needs (its wave, a pipe, a place in a
// queue) is free from some time on; what it takes is then not free until later. Times are cycles.
#include "timing.h"

#include <math.h>
#include <stdlib.h>

enum { MOST_WAVES = 128, MOST_SIMDS = 4, MOST_QUEUE = 64, OUTSTANDING = 64, MOST_REQUESTS = 1024 };

// Instructions of one counter that are outstanding: when each is done, in order.
typedef struct Pending { double done[OUTSTANDING]; uint32_t count; double latest; } Pending;

// When the entries of a queue leave it: the last `length` of them.
typedef struct Entries { double leaves[MOST_QUEUE]; uint32_t count; } Entries;

typedef struct Worker {  // a wave
    const Event *events;
    const uint32_t *at, *end;        // indices into `events`
    double ready, started;
    uint32_t group, simd, priority;
    uint32_t age;                    // by start, the oldest 0
    Pending vector, lds, store;
    double scalar;
    double issued[4], transcendental[3];  // when the last vector instructions issued, the latest first
    double delayed;                  // the next instruction issues no earlier
    uint32_t delay, delay_after;     // a second s_delay_alu dependency, and after how many instructions
    uint32_t signals;                // barriers that it has come to
    bool waits;                      // at its barrier
} Worker;

// `opened` barriers of a workgroup's are passed by whoever has come to no more, the last of them from `opens` on.
typedef struct Barrier { uint32_t alive, arrived, opened; double latest, opens; } Barrier;

typedef struct Unit {
    Timing *t;
    Wait *wait;                      // by instruction
    Worker worker[MOST_WAVES];
    uint32_t workers;
    Barrier *barrier;                // by workgroup
    double vector_free[MOST_SIMDS], matrix_free[MOST_SIMDS];
    double lds_free, address_free, l2_free, store_free;
    Entries lds_queue[MOST_SIMDS / 2], memory_queue;
    struct { double done; double bytes; } request[MOST_REQUESTS];
    uint32_t oldest, newest;
    double in_flight;
    uint32_t next_group, left;
    double end;
} Unit;

static double max(double a, double b) { return a > b ? a : b; }

// Queues -------------------------------------------------------------------------------------------

static void add(Pending *p, double done) {
    p->latest = max(p->latest, done);  // results come back in order
    p->done[p->count++ % OUTSTANDING] = p->latest;
}
static double done_but(const Pending *p, uint32_t outstanding) {
    return p->count > outstanding && outstanding < OUTSTANDING ? p->done[(p->count - 1 - outstanding) % OUTSTANDING] : 0;
}
static double room(const Entries *q, uint32_t length) {
    return q->count >= length ? q->leaves[(q->count - length) % MOST_QUEUE] : 0;
}
static void enter(Entries *q, double leaves) { q->leaves[q->count++ % MOST_QUEUE] = leaves; }

// Requests of the first-level cache that have not come back: only so many bytes fit.
static double send(Unit *u, double at, double bytes, double latency) {
    const Timing *t = u->t;
    while (u->oldest != u->newest && (u->in_flight + bytes > t->in_flight_bytes || u->request[u->oldest % MOST_REQUESTS].done <= at ||
                                      u->newest - u->oldest == MOST_REQUESTS)) {
        at = u->request[u->oldest % MOST_REQUESTS].done > at && u->in_flight + bytes > t->in_flight_bytes
                 ? u->request[u->oldest % MOST_REQUESTS].done : at;
        u->in_flight -= u->request[u->oldest++ % MOST_REQUESTS].bytes;
    }
    u->l2_free = max(u->l2_free, at) + bytes / t->l2_bytes;
    const double done = u->l2_free + latency;
    u->request[u->newest % MOST_REQUESTS].done = done;
    u->request[u->newest++ % MOST_REQUESTS].bytes = bytes;
    u->in_flight += bytes;
    return done;
}

// Workgroups and barriers --------------------------------------------------------------------------

static void start_group(Unit *u, double at) {
    const Timing *t = u->t;
    const uint32_t number = u->next_group++;
    const Stream *s = t->groups[number];
    u->barrier[number] = (Barrier){.alive = s->waves};
    uint32_t slot = 0, first = 0;
    for (uint32_t i = 0; i < number; i++) first += t->groups[i]->waves;
    for (uint32_t wave = 0; wave < s->waves; wave++, slot++) {
        while (slot < u->workers && u->worker[slot].at != u->worker[slot].end) slot++;
        if (slot == u->workers) u->workers++;
        const double begins = at + t->group_start + wave * t->wave_start;
        u->worker[slot] = (Worker){.events = s->events, .at = s->order + s->first[wave], .end = s->order + s->first[wave + 1],
                                   .ready = begins, .started = begins, .age = first + wave, .group = number,
                                   .simd = (first + wave) % t->simds};
    }
}

static void pass(Unit *u, Worker *w) {
    const double opens = u->barrier[w->group].opens;
    u->t->stall[STALL_BARRIER] += max(0, opens - w->ready);
    w->ready = max(w->ready, opens);
    w->waits = false;
}

// Opens the barrier to which all waves have come.
static void release(Unit *u, uint32_t group) {
    Barrier *b = &u->barrier[group];
    if (b->arrived < b->alive || !b->arrived || !b->alive) return;
    b->opened++;
    b->opens = b->latest + u->t->barrier;
    b->arrived = 0;
    b->latest = 0;
    for (uint32_t i = 0; i < u->workers; i++) {
        Worker *w = &u->worker[i];
        if (w->group == group && w->at != w->end && w->waits) pass(u, w);
    }
}

static void come_to_barrier(Unit *u, Worker *w, double at) {
    Barrier *b = &u->barrier[w->group];
    b->latest = max(b->latest, at);
    b->arrived++;
    w->signals++;
}

// gfx12: a wave may come to the wait behind its signal when all have signalled and others have passed.
static void wait_at_barrier(Unit *u, Worker *w) {
    w->waits = true;
    if (u->barrier[w->group].opened >= w->signals) pass(u, w);
}

static void end_wave(Unit *u, Worker *w, double at) {
    u->t->wave_cycles += at - w->started;
    u->end = max(u->end, at);
    w->at = w->end;
    if (--u->barrier[w->group].alive) return release(u, w->group);
    u->left--;
    if (u->next_group < u->t->group_count) start_group(u, at);
}

// Dependencies of RDNA's vector instructions, as the compiler names them (RDNA3 ISA guide, S_DELAY_ALU) ------------

static double delay_of(const Unit *u, const Worker *w, uint32_t id) {
    if (id >= 1 && id <= 4) return w->issued[id - 1] + u->t->vector_latency;
    if (id >= 5 && id <= 7) return w->transcendental[id - 5] + u->t->transcendental_latency;
    if (id >= 9 && id <= 11) return w->ready + (id - 8);
    return 0;
}

static void note_issue(double *last, int count, double at) {
    memmove(last + 1, last, (size_t)(count - 1) * sizeof *last);
    last[0] = at;
}

// Issue --------------------------------------------------------------------------------------------

static const Cost *cost_of(const Unit *u, const Worker *w) { return &u->t->cost[w->events[*w->at].inst]; }

// When the wave's next instruction can issue, and what it waits for.
static double issues_at(const Unit *u, const Worker *w, enum Stall *why) {
    const Timing *t = u->t;
    const Cost *c = cost_of(u, w);
    double at = w->ready;
    *why = STALL_DEPENDENCY;
    if (w->delayed > at) at = w->delayed;
#define AFTER(time, reason) do { const double free_ = (time); if (free_ > at) at = free_, *why = reason; } while (0)
    switch (c->kind) {
    case T_VECTOR: AFTER(u->vector_free[w->simd], STALL_VECTOR); break;
    case T_MATRIX:
        AFTER(u->matrix_free[w->simd], STALL_MATRIX);
        if (t->matrix_blocks_vector) AFTER(u->vector_free[w->simd], STALL_VECTOR);
        break;
    case T_BOTH:
        AFTER(u->vector_free[w->simd], STALL_VECTOR);
        AFTER(u->matrix_free[w->simd], STALL_MATRIX);
        break;
    case T_LDS: AFTER(room(&u->lds_queue[w->simd / 2], t->lds_queue), STALL_LDS_QUEUE); break;
    case T_MEMORY: AFTER(room(&u->memory_queue, t->memory_queue), STALL_MEMORY_QUEUE); break;
    case T_WAIT: {
        const Wait *wait = &u->wait[w->events[*w->at].inst];
        AFTER(done_but(&w->vector, wait->vector), STALL_MEMORY);
        AFTER(done_but(&w->store, wait->store), STALL_MEMORY);
        AFTER(done_but(&w->lds, wait->lds), STALL_LDS);
        if (!wait->scalar) AFTER(w->scalar, STALL_SCALAR);
        break;
    }
    default: break;
    }
#undef AFTER
    return at;
}

static void issue_memory(Unit *u, Worker *w, const Event *e, const Inst *in, const Cost *c, double at) {
    const Timing *t = u->t;
    const double begins = max(at, u->address_free);
    u->address_free = begins + max(c->cycles, e->lines * t->line_cycles);
    enter(&u->memory_queue, begins);
    double done;
    if (c->stores) {
        u->store_free = max(u->store_free, begins) + e->lines * 64 / t->store_bytes;
        done = u->store_free + t->store_latency;
    } else if (e->misses) {
        u->t->loaded_bytes += e->misses * 128.0;
        done = send(u, begins, e->misses * 128.0, t->l2_latency);
    } else {
        done = u->address_free + t->l1_latency;
    }
    if (e->lds) u->lds_free = max(u->lds_free, at) + e->lds * t->lds_scale;  // direct-to-LDS
    const enum Queue q = in->flight.queue[0];
    if (q == Q_SCALAR) w->scalar = max(w->scalar, done);
    else add(q == Q_NONE ? &w->store : &w->vector, done);
    if (in->flight.queue[1]) add(&w->lds, done);
}

static void issue(Unit *u, Worker *w, double at, enum Stall why) {
    Timing *t = u->t;
    const Event *e = &w->events[*w->at];
    const Inst *in = &t->program[e->inst];
    const Cost *c = &t->cost[e->inst];
    t->stall[why] += at - w->ready;
    t->issue_cycles += c->issue;
    w->ready = at + c->issue;
    w->delayed = 0;
    w->at++;
    if (w->delay_after && !--w->delay_after) w->delayed = delay_of(u, w, w->delay);
    switch (c->kind) {
    case T_VECTOR: case T_BOTH:
        u->vector_free[w->simd] = at + c->cycles;
        t->vector_cycles += c->cycles;
        if (c->kind == T_BOTH) u->matrix_free[w->simd] = max(u->matrix_free[w->simd], at + c->cycles);
        note_issue(w->issued, 4, at);
        if (c->transcendental) note_issue(w->transcendental, 3, at);
        break;
    case T_MATRIX:
        u->matrix_free[w->simd] = at + c->cycles;
        if (t->matrix_blocks_vector) u->vector_free[w->simd] = at + c->cycles;
        t->matrix_cycles += c->cycles;
        note_issue(w->issued, 4, at + c->cycles - t->vector_latency);
        break;
    case T_LDS: {
        const double begins = max(at, u->lds_free);
        u->lds_free = begins + e->lds * t->lds_scale;
        enter(&u->lds_queue[w->simd / 2], begins);
        add(&w->lds, u->lds_free + t->lds_latency);
        break;
    }
    case T_MEMORY: issue_memory(u, w, e, in, c, at); break;
    case T_SCALAR_LOAD: w->scalar = max(w->scalar, at + t->scalar_latency); break;
    case T_NOP: w->ready = at + c->issue * ((in->imm & 15) + 1); break;
    case T_PRIORITY: w->priority = (uint32_t)in->imm & 3; break;
    case T_DELAY: {
        const uint32_t imm = (uint32_t)in->imm;
        w->delayed = delay_of(u, w, imm & 15);
        w->delay = imm >> 7 & 15;
        w->delay_after = w->delay ? (imm >> 4 & 7) : 0;
        if (w->delay && !w->delay_after) w->delayed = max(w->delayed, delay_of(u, w, w->delay));
        break;
    }
    case T_BARRIER:
        w->waits = true;  // falls through
    case T_SIGNAL:
        come_to_barrier(u, w, at);
        release(u, w->group);
        break;
    case T_BARRIER_WAIT: wait_at_barrier(u, w); break;
    default: break;
    }
    if (w->at == w->end) end_wave(u, w, w->ready);
}

// Of two that can, the one of higher priority, then the older one (S_SETPRIO in the ISA guides; LLVM review D124246).
static Worker *first_to_issue(Unit *u, double *at, enum Stall *why) {
    Worker *best = NULL;
    *at = INFINITY;
    for (uint32_t i = 0; i < u->workers; i++) {
        Worker *w = &u->worker[i];
        enum Stall reason;
        if (w->at == w->end || w->waits) continue;
        const double time = issues_at(u, w, &reason);
        if (time > *at) continue;
        const bool ahead = time < *at || w->priority > best->priority || (w->priority == best->priority && w->age < best->age);
        if (ahead) *at = time, *why = reason, best = w;
    }
    return best;
}

// Exported to Python ------------------------------------------------------------------------------

#define EXPORT __attribute__((visibility("default")))

// A recorded workgroup's events by wave. NULL if memory ran out.
EXPORT Stream *emulator_stream(const Recording *r, uint32_t waves) {
    Stream *s = malloc(sizeof *s);
    uint32_t *first = calloc(waves + 1, sizeof *first), *order = malloc((r->count + 1) * sizeof *order);
    uint32_t *next = calloc(waves, sizeof *next);
    if (!s || !first || !order || !next) return free(s), free(first), free(order), free(next), NULL;
    for (uint64_t i = 0; i < r->count; i++) first[r->events[i].wave + 1]++;
    for (uint32_t w = 0; w < waves; w++) next[w] = first[w], first[w + 1] += first[w];
    for (uint64_t i = 0; i < r->count; i++) order[next[r->events[i].wave]++] = (uint32_t)i;
    free(next);
    *s = (Stream){r->events, first, order, waves};
    return s;
}

EXPORT void emulator_free_stream(Stream *s) {
    free(s->first);
    free(s->order);
    free(s);
}

// Runs the workgroups of `t`, `resident` of them at a time. 0; 1 if out of memory; 2 if they do not fit.
EXPORT int emulator_time(Timing *t) {
    if (t->simds > MOST_SIMDS || t->memory_queue > MOST_QUEUE || t->lds_queue > MOST_QUEUE) return 2;
    for (uint32_t i = 0; i < t->group_count; i++)
        if (t->groups[i]->waves * t->resident > MOST_WAVES) return 2;
    Unit *u = calloc(1, sizeof *u);
    Wait *wait = calloc(t->instructions, sizeof *wait);
    Barrier *barrier = calloc(t->group_count, sizeof *barrier);
    if (u && wait && barrier) {
        u->t = t, u->wait = wait, u->barrier = barrier, u->left = t->group_count;
        for (uint32_t i = 0; i < t->instructions; i++)
            if (t->cost[i].kind == T_WAIT && !wait_of(&t->program[i], (enum Arch)t->arch, &wait[i])) wait[i] = (Wait){ANY, ANY, ANY, ANY};
        while (u->next_group < t->group_count && u->next_group < t->resident) start_group(u, 0);
        double at;
        enum Stall why;
        for (Worker *w; u->left && (w = first_to_issue(u, &at, &why));) issue(u, w, at, why);
        t->cycles = u->end;
    }
    const int status = u && wait && barrier ? u->left ? 3 : 0 : 1;
    free(u);
    free(wait);
    free(barrier);
    return status;
}
