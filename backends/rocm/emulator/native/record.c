#include "record.h"

#include <stdlib.h>

Event *record(Recording *r, const Wave *w, const Inst *in) {
    if (r->count == r->capacity) {
        const uint64_t capacity = r->capacity ? 2 * r->capacity : 1 << 16;
        Event *events = realloc(r->events, capacity * sizeof *events);
        if (!events) return r->full = 1, NULL;
        r->events = events, r->capacity = capacity;
    }
    Event *e = &r->events[r->count++];
    *e = (Event){.inst = (uint32_t)(in - w->program), .wave = (uint16_t)w->number};
    return e;
}

// The cache has one set: the line that was used longest ago makes room. The compute units' has four sets of 64 lines; a
// workgroup that has it alone sees little of that.
typedef struct Cache { uint64_t tag[MOST_LINES], used[MOST_LINES], clock; } Cache;

bool record_line(Recording *r, uint64_t line) {
    if (!r->cache && !(r->cache = calloc(1, sizeof(Cache)))) return r->full = 1, true;
    Cache *c = r->cache;
    const uint32_t lines = r->cache_lines < MOST_LINES ? r->cache_lines : MOST_LINES;
    uint32_t oldest = 0;
    c->clock++;
    for (uint32_t i = 0; i < lines; i++) {
        if (c->used[i] && c->tag[i] == line) return c->used[i] = c->clock, false;
        if (c->used[i] < c->used[oldest]) oldest = i;
    }
    c->tag[oldest] = line, c->used[oldest] = c->clock;
    return true;
}

static uint16_t at_most(uint64_t n) { return (uint16_t)(n < 0xffff ? n : 0xffff); }

void record_global(Event *e, const Inst *in, uint64_t lines, uint64_t sectors, uint64_t misses) {
    const bool loads = in->flight.count || in->flight.to_lds;
    e->lines = at_most(loads ? lines : sectors);
    e->misses = at_most(loads ? misses : 0);
}

__attribute__((visibility("default"))) void emulator_forget(Recording *r) {
    free(r->events);
    free(r->cache);
    *r = (Recording){0};
}
