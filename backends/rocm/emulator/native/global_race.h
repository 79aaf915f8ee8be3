// Accesses of several workgroups to a word of global memory with no release and acquire between (global_race.c). Looked
// for where launch->races is not NULL.
#pragma once

#include "access.h"

// A plain load, a plain store of the lanes of `m` at host addresses `at`, before memory is written. Which loads race: what
// they get is undefined from then on.
mask64 races_load(Wave *w, const Inst *in, mask64 m, const uint64_t *at, uint32_t bytes);
int races_store(Wave *w, const Inst *in, enum Kind k, mask64 m, const uint64_t *at, const uint32_t *from);
// Before and after an atomic that changes memory.
int races_release(Wave *w, const Inst *in, mask64 m, const uint64_t *at, uint32_t bytes);
void races_acquire(Wave *w, mask64 m, const uint64_t *at);
// The caches were written back, the stores before waited for; the caches were invalidated.
void races_written_back(Wave *w);
void races_invalidated(Wave *w);
// A workgroup begins.
void races_start(Group *g);
// Something comes of a load that raced, the origin of an undefined value; nothing came of it.
int races_fault_of_load(Wave *w, const Inst *in, const char *what);

void races_warn_of_load(Wave *w, const Inst *in, const struct Origin *o);

// A store where launch->watched.
int watched_store(Wave *w, const Inst *in, enum Kind k, mask64 m, const uint64_t *at, const uint32_t *from);
