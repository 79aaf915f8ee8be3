// Access to scratch (scratch.c) for flat and buffer instructions.
#pragma once

#include "access.h"

// Load or store the lanes of `m` at byte offsets `at` of each lane's own scratch. Checks bounds and definedness.
int scratch_read(Wave *w, const Inst *in, enum Kind k, mask64 m, const uint64_t *at, uint32_t *to, mask64 *lo, mask64 *hi);
int scratch_write(Wave *w, const Inst *in, enum Kind k, mask64 m, const uint64_t *at, const uint32_t *from,
                  const mask64 *lo, const mask64 *hi);
