// Steps of the DS instructions that exchange lanes (exchange.c); their rows are in ops_lds.
#pragma once

#include "access.h"

int ds_bpermute_b32(Wave *w, const Inst *in);
int ds_bpermute_fi_b32(Wave *w, const Inst *in);
int ds_permute_b32(Wave *w, const Inst *in);
int ds_swizzle_b32(Wave *w, const Inst *in);
