// The thread's and the block's index, read again from their special registers where they are needed: what is computed
// from them then occupies no registers in between.
#pragma once

#include "prelude.h"

DEVICE int reload_thread_idx() {
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
}
DEVICE int reload_block_idx() {
    int block;
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(block));
    return block;
}
