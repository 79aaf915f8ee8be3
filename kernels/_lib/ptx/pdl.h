// A kernel that starts before the one before it on the stream has ended (NativeKernel.early; programmatic dependent
// launch): its start runs while that one ends. Needs sm_90: on older cards both do nothing, as without the launch's
// attribute and on cards of other vendors.
//
// 2026-11-22, H200, one call after the other: 0.7 to 1 us a launch; 1024^3 6.4 -> 5.4 us.
#pragma once

#include "prelude.h"

// Lets the next kernel on the stream start blocks where this one leaves room, once all blocks of this one have
// called it or ended. By any thread of a block.
DEVICE void let_next_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Waits until the kernel before has ended and what it wrote is seen. By every thread that reads or writes global
// memory, before it does.
DEVICE void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
