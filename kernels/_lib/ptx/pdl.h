// Programmatic dependent launch (PDL, NativeKernel.pdl): a kernel's prologue runs while the previous kernel on the
// stream ends. Needs sm_90. Both functions do nothing on older GPUs, on GPUs of other vendors, and in a launch
// without the attribute.
//
// 2026-11-22, H200, one call after the other: 0.7 to 1 us a launch; 1024^3 6.4 -> 5.4 us.
#pragma once

#include "prelude.h"

// Lets the next kernel on the stream start blocks where this one leaves room, once every block of this one has
// called it or exited. One thread per block is enough.
DEVICE void launch_dependents() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Waits until the previous kernel has ended and its writes are visible. Every thread that reads or writes global
// memory calls it first. A kernel none of whose threads calls it may end before the one ahead of it.
DEVICE void grid_dependency_wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The first statement of a kernel that has nothing to do before the wait.
//
// Blocks that call launch_dependents start at 0.8 a nanosecond at most, over a whole H200 and with or without the
// attribute; others at 1.0 to 1.4 (2026-11-27, four kernels of 32768 to 513024 blocks). So a grid of more blocks than
// a GPU holds leaves it to their ends, which count as the call.
DEVICE void enter_pdl() {
#if __CUDA_ARCH__ >= 900
    constexpr uint64_t MOST_BLOCKS = 2048;    // 132 multiprocessors, 16 blocks each
    if (static_cast<uint64_t>(gridDim.x) * gridDim.y * gridDim.z <= MOST_BLOCKS) launch_dependents();
    grid_dependency_wait();
#endif
}
