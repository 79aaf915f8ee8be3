// Faults and warnings of a launch, and where undefined values came from.
#include "global_race.h"
#include "lds_race.h"

#include <stdarg.h>
#include <stdio.h>

static int32_t index_of(const Wave *w, const Inst *in) {
    return in == &w->indexed ? (int32_t)w->pc - 1 : (int32_t)(in - w->program);
}

static void describe(Fault *f, const Wave *w, const Inst *in, int kind, int lane, uint64_t address, const char *format,
                     va_list arguments) {
    f->kind = kind;
    f->lane = lane;
    f->wave = (int32_t)w->number;
    memcpy(f->group, w->group->id, sizeof f->group);
    f->address = address;
    f->pc = in ? in->address : 0;
    f->inst = in ? index_of(w, in) : -1;
    vsnprintf(f->detail, sizeof f->detail, format, arguments);
}

// Whether this is the launch's first fault.
static bool take_fault(Wave *w) {
    w->state = ENDED;
    return !__atomic_exchange_n(&w->launch->fault_taken, 1, __ATOMIC_ACQ_REL);
}
static int stop(Launch *launch) {
    __atomic_store_n(&launch->stop, 1, __ATOMIC_RELEASE);
    return STOP;
}

int fault(Wave *w, const Inst *in, int kind, int lane, uint64_t address, const char *format, ...) {
    if (take_fault(w)) {
        va_list arguments;
        va_start(arguments, format);
        describe(&w->launch->fault, w, in, kind, lane, address, format, arguments);
        va_end(arguments);
    }
    return stop(w->launch);
}

int fault_again(Wave *w, const Fault *found) {
    if (take_fault(w)) w->launch->fault = *found;
    return stop(w->launch);
}

static int raced(Wave *w, const Inst *in, const char *what);

void warn(Wave *w, const Inst *in, int kind, int lane, uint64_t address, const char *format, ...) {
    Launch *launch = w->launch;
    if (__atomic_exchange_n(&launch->warning_taken, 1, __ATOMIC_ACQ_REL)) return;
    va_list arguments;
    va_start(arguments, format);
    describe(&launch->warning, w, in, kind, lane, address, format, arguments);
    va_end(arguments);
}

int undefined(Wave *w, const Inst *in, int lane, uint64_t address, const char *what) {
    const struct Origin *o = &w->origin;
    if (o->kind == F_RACE || o->kind == F_GLOBAL_RACE) return raced(w, in, what);
    if (o->kind == F_INACTIVE)
        return fault(w, in, F_INACTIVE, lane, address,
                     "%s depends on a lane that is not active: instruction #%d read lane %d", what, o->inst, o->lane);
    if (o->kind == F_UNINITIALISED && o->address != ~0ull)
        return fault(w, in, F_UNINITIALISED, lane, address,
                     "%s depends on memory of the workgroup that was never written: instruction #%d read it in lane %d "
                     "at %#llx",
                     what, o->inst, o->lane, (unsigned long long)o->address);
    return fault(w, in, F_UNINITIALISED, lane, address, "%s depends on a register that was never written", what);
}

void note_origin(Wave *w, const Inst *in, int kind, int lane, uint64_t address) {
    w->origin = (struct Origin){.kind = kind, .inst = index_of(w, in), .lane = lane, .address = address};
}

void note_race(Wave *w, const Inst *in, int kind, int lane, uint64_t address, uint32_t mark, int32_t other) {
    w->origin = (struct Origin){kind, index_of(w, in), lane, address, w->number, mark, other};
    if (w->group->unused.kind == F_NONE) w->group->unused = w->origin;
}

void compared(Wave *w) {
    struct Origin *unused = &w->group->unused;
    if (unused->inst == w->origin.inst) unused->kind = F_NONE;
}

static void describe_as(Fault *f, const Wave *w, const Inst *in, int kind, int lane, uint64_t address, const char *format, ...)
    __attribute__((format(printf, 7, 8)));
static void describe_as(Fault *f, const Wave *w, const Inst *in, int kind, int lane, uint64_t address, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    describe(f, w, in, kind, lane, address, format, arguments);
    va_end(arguments);
}

void warn_unused(Group *g) {
    const struct Origin *o = &g->unused;
    if (o->kind == F_NONE || g->launch->aside) return;
    Wave *w = &g->wave[o->wave];
    const Inst *in = &w->program[o->inst];
    char text[24];
    if (o->kind == F_GLOBAL_RACE)
        races_warn_of_load(w, in, o);
    else
        warn(w, in, F_BENIGN, o->lane, o->address,
             "wave %u reads byte %llu of LDS, which %s %s with no barrier between; nothing comes of what it reads", o->wave,
             (unsigned long long)o->address, marked_waves(o->mark, text), how_written(o->mark));
}

// Something comes of a read that races: the fault is the read's.
static int raced(Wave *w, const Inst *in, const char *what) {
    const struct Origin *o = &w->origin;
    const Inst *read = &w->program[o->inst];
    if (o->kind == F_GLOBAL_RACE) return races_fault_of_load(w, in, what);
    Fault *f = &w->launch->fault;
    char text[24];
    if (take_fault(w)) {
        describe_as(f, w, read, o->kind, o->lane, o->address,
                    "wave %u reads byte %llu of LDS, which %s %s with no barrier between; %s depends on it: instruction #%d",
                    o->wave, (unsigned long long)o->address, marked_waves(o->mark, text), how_written(o->mark),
                    what, index_of(w, in));
        f->wave = (int32_t)o->wave;
    }
    return stop(w->launch);
}
