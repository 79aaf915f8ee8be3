// Access to LDS (lds.c) for flat, buffer and atomic instructions.
#pragma once

#include "access.h"

// Load or store the lanes of `m` at byte addresses `at` of the workgroup's LDS. Checks bounds, races and definedness.
int lds_load(Wave *w, const Inst *in, enum Kind k, mask64 m, const uint64_t *at, uint32_t *to, mask64 *lo, mask64 *hi);
int lds_store(Wave *w, const Inst *in, enum Kind k, mask64 m, const uint64_t *at, const uint32_t *from, const mask64 *lo,
              const mask64 *hi);
int lds_bounds(Wave *w, const Inst *in, mask64 m, const uint64_t *at, int bytes, const char *verb);
// Mark bytes as written by this wave since the barrier.
void lds_mark_written(Wave *w, mask64 m, const uint32_t *at, int bytes);
// The same checks for an atomic of one lane; `bytes` is 4 or 8.
int lds_atomic_check(Wave *w, const Inst *in, int lane, uint64_t at, int bytes);
// LDS addresses of a load straight to LDS: lane i's element goes to M0 + imm + i * step (step: 4, 12 or 16).
int lds_dma_addresses(Wave *w, const Inst *in, mask64 m, int step, int imm, uint64_t *at);
