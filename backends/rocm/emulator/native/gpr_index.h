// Indexed registers: see gpr_index.c.
#pragma once

#include "wave.h"

// Called once the program has its steps: what the index mode reaches gets a step that applies it.
void plan_gpr_index(Inst *program, uint32_t count);
