// Counters of accesses to global memory (memory.c).
#pragma once

#include "access.h"

// Count one access of the lanes of `m`; only called when launch->memory is not NULL.
void count_cache_lines(Wave *w, const Inst *in, mask64 m, const uint64_t *at, uint32_t bytes);
