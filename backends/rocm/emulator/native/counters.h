// Counters of accesses to memory (counters.c); only called when launch->memory is not NULL.
#pragma once

#include "access.h"

// One access of the lanes of `m` to global memory.
void count_global(Wave *w, const Inst *in, mask64 m, const uint64_t *at, uint32_t bytes);
// One access of the lanes of `m` to byte addresses `at` of LDS.
void count_lds(Wave *w, const Inst *in, mask64 m, const uint64_t *at, uint32_t bytes, enum LdsAccess access);
// One exchange between lanes, which takes the LDS pipe but none of its banks.
void count_exchange(Wave *w, const Inst *in, mask64 m);
// One access to scratch.
void count_scratch(Wave *w, const Inst *in, mask64 m, uint32_t bytes);
