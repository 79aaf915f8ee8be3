// The recording of one workgroup for timing.c: what each wave executed, and what its accesses to memory take.
#pragma once

#include "counters.h"

enum { MOST_LINES = 4096 };

// An event for an instruction that is about to be executed; NULL where memory ran out.
Event *record(Recording *r, const Wave *w, const Inst *in);
// Whether a line of 128 bytes is not in the workgroup's first-level cache; it is from then on.
bool record_line(Recording *r, uint64_t line);
// What an access to global memory touches.
void record_global(Event *e, const Inst *in, uint64_t lines, uint64_t sectors, uint64_t misses);
