// Accesses of several waves to a byte of LDS with no barrier between (lds_race.c).
//
// lds_writer and lds_reader hold, for each byte since the last barrier, who touched it: 0 nobody; w + 1 wave w; 255
// (readers) several waves; ATOMIC + w + 1 only atomics of wave w; SEVERAL atomics of several waves.
//
// A wave that reads what another wrote may get either value. What it gets counts as undefined, with this origin, and is
// a fault where it reaches memory, an address, a branch or EXEC. Of a read before the write it is not known any more what
// became of it: the workgroup is run once more aside, its waves in the opposite order, so that the read comes second.
#pragma once

#include "access.h"

enum { ATOMIC = 128, SEVERAL = 254, MANY_READERS = 255 };
enum { NEVER_WRITTEN, DEFINED, WRITTEN_UNDEFINED };  // of a byte in lds_def and scratch_def

static inline uint8_t defined_as(uint64_t known) { return known & 1 ? DEFINED : WRITTEN_UNDEFINED; }

static inline uint32_t wave_mark(const Wave *w) { return (w->number & 63) + 1; }

// The part of the two arrays that is not 0 reaches from `low` to `end` too.
static inline void mark_range(Group *g, uint64_t low, uint64_t end) {
    const bool none = g->race_low >= g->race_high;
    if (none || low < g->race_low) g->race_low = (uint32_t)low;
    if (none || end > g->race_high) g->race_high = (uint32_t)end;
}
// The same of lds_writer.
static inline void mark_written_range(Group *g, uint64_t low, uint64_t end) {
    mark_range(g, low, end);
    const bool none = g->write_low >= g->write_high;
    if (none || low < g->write_low) g->write_low = (uint32_t)low;
    if (none || end > g->write_high) g->write_high = (uint32_t)end;
}

const char *how_written(uint32_t mark);
const char *hex_of(const uint8_t *value, int bytes, char text[40]);
// Whether byte b of `mine` may lie where `theirs` does: equal, or both part of a NaN.
bool equal_or_both_nan(const uint8_t *mine, const uint8_t *theirs, int b, int bytes);
#define UNEQUAL_SUMS \
    "; sums that a compiler fused with one of their products differ so (enable_fp_fusion=False, -ffp-contract=off)"

// A read or a write of bytes that another wave touched. Whether a read races.
bool read_bytes(Wave *w, const Inst *in, int lane, uint64_t at, int bytes);
int write_bytes(Wave *w, const Inst *in, int lane, uint64_t at, int bytes, const uint8_t *value);
// What a racing read got is undefined.
static inline void taint(enum Kind k, mask64 *lo, mask64 *hi, mask64 m) {
    for (int n = 0; n < kind_words(k); n++) {
        if (!kind_upper(k)) lo[n] &= ~m;
        if (!kind_lower(k)) hi[n] &= ~m;
    }
}

// Runs `group` of a launch once more, aside: without stores to global memory, its waves in the opposite order. The fault
// it ends with, kind F_NONE where none (run.c).
Fault run_aside(const Launch *launch, uint32_t group, uint64_t budget, uint64_t suspect, int32_t suspect_inst);
