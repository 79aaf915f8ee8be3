// The thread and block, asked again where they are needed: what follows from them takes no registers in
// between.
#pragma once

#include "prelude.h"

DEVICE int here() {
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
}
DEVICE int here_block() {
    int block;
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(block));
    return block;
}
